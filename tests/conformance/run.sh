#!/usr/bin/env bash
# Runs the upstream Kubernetes storage suite (External.Storage) on the embedded cluster against each engine, and prints a
# summary line for each.
#
#   tests/conformance/run.sh [directory] [loopfile] [btrfs]     all by default
#
# FOCUS, SKIP   regular expressions of test names (SKIP is added to skip.txt)
# PROCS=4       tests at a time
# ARCHIVE       an image archive that is there already, instead of making one
# Results: dist/conformance/ENGINE/{results.tsv,e2e.log,report.json}. Ends with a status other than 0 when a test failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
engines=("$@")
[[ ${#engines[@]} -gt 0 ]] || engines=(directory loopfile btrfs)
skip=$(grep -vE '^(#|$)' "$here/skip.txt" | paste -sd'|')${SKIP:+|$SKIP}

bin=$("$here/build.sh")

# shellcheck source=tests/conformance/cluster.sh
source "$here/cluster.sh"
trap cluster_down EXIT
cluster_up

failed=0
for engine in "${engines[@]}"; do
  results=$root/dist/conformance/$engine
  rm -rf "$results"
  mkdir -p "$results/tmp"
  make_backend "$engine"
  started=$SECONDS
  # TMPDIR: e2e.test leaves files in its temporary folder.
  TMPDIR=$results/tmp in_cluster "$bin/ginkgo" --procs="${PROCS:-4}" --timeout=50m --no-color \
    --focus="${FOCUS:-External.Storage}" --skip="$skip" --json-report=report.json --output-dir="$results" \
    "$bin/e2e.test" -- --kubeconfig="$kubeconfig" --kubectl-path="$kubectl" --provider=skeleton \
    --storage.testdriver="$here/drivers/$engine.yaml" --report-dir="$results" --num-nodes=-1 \
    --allowed-not-ready-nodes=0 >"$results/e2e.log" 2>&1 || true
  rm -rf "$results/tmp"
  "$here/summary.sh" "$engine" "$results" "$((SECONDS - started))" || failed=1
  remove_backend "$engine"
done
exit "$failed"
