#!/usr/bin/env bash
# Builds the load generator and the null driver, once, and prints the folder they are in.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
key=$(cd "$here" && cat build.sh load/go.sum load/*/*.go | sha256sum | cut -c1-16)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/dunnage/bench-$key/bin
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-buildvcs=false -trimpath"

for name in generator nullcsi; do
  [[ ! -x $bin/$name ]] || continue
  echo "bench: building $name" >&2
  mkdir -p "$bin"
  (cd "$here/load" && go build -ldflags "-s -w" -o "$bin/.$name" "./$name" >&2)
  mv "$bin/.$name" "$bin/$name"
done
echo "$bin"
