#!/usr/bin/env bash
# Measures Dunnage's provisioner and attacher beside upstream's, and a Directory backend on the embedded cluster, and writes
# docs/benchmarks.md.
#
#   tests/bench/bench.sh              everything; about 15 minutes when built
#   tests/bench/bench.sh sidecars     only the comparison on a control plane without nodes
#   tests/bench/bench.sh cluster      only the Directory backend
#
# N=500 volumes in a burst. AGNICE=-15 raises the measured processes above others of the machine (root).
# Results stay in dist/bench/*.jsonl; the page is made from what is there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
results=$root/dist/bench
count=${N:-500}
what=${1:-all}
run=$(mktemp -d)

# shellcheck source=tests/bench/processes.sh
source "$here/processes.sh"
trap 'sidecars_down; control_plane_down; rm -rf "$run"' EXIT

mkdir -p "$results"
tools=$("$root/tests/tools/build" etcd kube-apiserver kube-controller-manager)
bench=$("$here/build.sh")
dunnage=${DUNNAGE:-$root/dist/dunnage}
[[ -x $dunnage ]] || { echo "bench: no program at $dunnage: run make image, or set DUNNAGE" >&2; exit 1; }

# generate FILE LABEL OPTION...: one run of the load generator with all processes sampled.
generate() {
  local file=$1 label=$2 name procs=()
  shift 2
  for name in driver provisioner attacher kcm apiserver; do
    procs+=(-proc "$name=$(<"$run/$name.pid")")
  done
  echo "bench: $label" >&2
  "$bench/generator" -kubeconfig "$run/bench.kubeconfig" -provisioner null.bench.dunnage.dev -label "$label" \
    -audit "$run/audit.log" "${procs[@]}" "$@" >>"$results/$file"
}

# Each combination starts on an empty API server, for the server's own memory and watch cache grow with what it has seen.
measure() {
  local implementation=$1 flavour=$2 label="$1 $2"
  control_plane_up
  sidecars_up "$implementation" "$flavour"
  generate sidecars.jsonl "$label" -mode idle -for 10s
  generate sidecars.jsonl "$label" -mode latency -n 20
  generate sidecars.jsonl "$label" -mode burst -n "$count" -attach
  if [[ $flavour == tuned ]]; then
    generate sidecars.jsonl "$label, alone" -mode burst -n "$count" -attach -isolate-kcm "$(<"$run/kcm.pid")" \
      -isolate-provisioner "$(<"$run/provisioner.pid")" -isolate-attacher "$(<"$run/attacher.pid")"
  fi
  sidecars_down
  control_plane_down
  rm -rf "$run/etcd" "$run/audit.log"
}

if [[ $what == all || $what == sidecars ]]; then
  : >"$results/sidecars.jsonl"
  for flavour in defaults tuned; do
    measure upstream "$flavour"
    measure dunnage "$flavour"
  done
  {
    stat -c '%s %n' "$dunnage" "$bench/csi-provisioner" "$bench/csi-attacher" | sed 's|/.*/||'
    find "$root/dist" -maxdepth 1 -name '*.tar' -printf '%s %f\n'
  } >"$results/sizes.txt"
fi
if [[ $what == all || $what == cluster ]]; then
  "$here/directory.sh" "$bench/generator" "$count" "$results/directory.jsonl"
fi
"$here/report.sh" "$results" >"$root/docs/benchmarks.md"
echo "bench: wrote docs/benchmarks.md" >&2
