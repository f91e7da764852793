#!/usr/bin/env bash
# Builds e2e.test, ginkgo and agnhost from the Kubernetes version that the embedded cluster runs, once, and prints the folder
# they are in.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=v1.37.2
key=$(cd "$here" && cat build.sh tools/go.mod tools/go.sum | sha256sum | cut -c1-16)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/dunnage/conformance-$key/bin
export CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS="-buildvcs=false -trimpath -mod=mod"

ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=37 -X $package.gitTreeState=clean"
  ldflags+=" -X $package.gitCommit=0000000000000000000000000000000000000000 -X $package.buildDate=2026-01-01T00:00:00Z"
done

# build NAME COMMAND...: the command writes to $bin/.NAME.
build() {
  local name=$1
  shift
  [[ -x $bin/$name ]] && return
  echo "conformance: building $name" >&2
  mkdir -p "$bin"
  (cd "$here/tools" && nice "$@" >&2)
  mv "$bin/.$name" "$bin/$name"
}

build ginkgo go build -ldflags "-s -w" -o "$bin/.ginkgo" github.com/onsi/ginkgo/v2/ginkgo
build agnhost go build -ldflags "$ldflags" -o "$bin/.agnhost" k8s.io/kubernetes/test/images/agnhost
build e2e.test go test -c -vet=off -ldflags "$ldflags" -o "$bin/.e2e.test" k8s.io/kubernetes/test/e2e
echo "$bin"
