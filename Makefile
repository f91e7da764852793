# The front door. `make` shows what there is.

.DEFAULT_GOAL := help
.PHONY: help demo demo-keep test lint test-unit test-driver test-control-plane test-lab test-system test-cgroup-v2 test-conformance bench fuzz image clean clean-cache

# Cargo profile of the image: `release` to publish it, `fast` (built in half the time) for tests and the demo.
PROFILE ?= release

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show the main job on an embedded cluster, or on yours: CONTEXT=name LOAD=kind|k3s|microk8s|ctr|none
	@PROFILE=fast tests/demo/demo.sh

demo-keep: ## The same, leaving the cluster up
	@PROFILE=fast KEEP=1 tests/demo/demo.sh

test: ## Run all of the following up to test-system (as root; an hour the first time, then minutes)
	@tests/all

lint: ## Check format, lints, dependency rules and scripts
	@tests/report lint tests/lint

test-unit: ## Unit, table and golden tests, and the chart's
	@tests/report test-unit tests/unit

test-driver: ## The driver as root on loop devices, with csi-sanity
	@tests/report test-driver tests/driver/run

test-control-plane: ## Operator and sidecars against a real API server, etcd and controller manager
	@tests/report test-control-plane cargo test --locked --no-fail-fast -p dunnage-harness -p dunnage-tests-control-plane

test-system: ## The whole on an embedded cluster of two nodes, with power cuts
	@tests/report test-system sh -c 'tests/cluster/test && tests/system/run'

test-lab: ## The driver's tests that need Debian's stock kernel (project quota), in a virtual machine
	@tests/report test-lab tests/lab/test

test-cgroup-v2: ## The embedded cluster under cgroup v2, in a virtual machine (not part of `make test`; 4 minutes)
	@SECONDS_AT_MOST=1800 MEMORY=6144 tests/report test-cgroup-v2 tests/lab/run tests/lab/cluster

test-conformance: ## The Kubernetes storage suite against each engine (not part of `make test`)
	@PROFILE=fast tests/report test-conformance tests/conformance/run.sh

bench: ## Measure speed and memory, side by side with the upstream sidecars
	@tests/bench/run

fuzz: ## Fuzz what reads bytes that others wrote, a minute each (needs a nightly compiler and cargo-fuzz)
	@for target in ids parameters mountinfo records; do cargo +nightly fuzz run --fuzz-dir tests/fuzz $$target -- -max_total_time=60 || exit 1; done

image: ## Make dist/dunnage-image.tar, an OCI image, without a container engine
	@cargo xtask image --profile $(PROFILE)

clean: ## Remove what was built here
	cargo clean
	rm -rf dist

clean-cache: ## Remove the tests' programs and packages, which take minutes to make again
	cd $${XDG_CACHE_HOME:-$$HOME/.cache}/dunnage && rm -rf tools-* conformance-* bench-* upstream-* cargo-deny-* cluster-images packages lab bin
