#!/usr/bin/env bash
# Builds the load generator, the null driver and upstream's csi-provisioner and csi-attacher from pinned Go modules, once,
# and prints the folder they are in.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
key=$(cd "$here" && cat build.sh load/go.sum load/*/*.go upstream/go.mod upstream/go.sum | sha256sum | cut -c1-16)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/dunnage/bench-$key/bin
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-buildvcs=false -trimpath"

# build FOLDER NAME PACKAGE
build() {
  [[ -x $bin/$2 ]] && return
  echo "bench: building $2" >&2
  mkdir -p "$bin"
  (cd "$here/$1" && go build -ldflags "-s -w" -o "$bin/.$2" "$3" >&2)
  mv "$bin/.$2" "$bin/$2"
}

build load generator ./generator
build load nullcsi ./nullcsi
build upstream csi-provisioner github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner
build upstream csi-attacher github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher
echo "$bin"
