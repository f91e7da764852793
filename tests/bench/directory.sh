#!/usr/bin/env bash
# directory.sh GENERATOR COUNT RESULTS: claims of a Directory backend on the embedded cluster, as the operator installs it.
set -euo pipefail

generator=$1
count=$2
results=$3
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cluster() { "$root/tests/cluster/cluster" --name bench "$@"; }

# role_pid ROLE [MODE]: a process of this machine that runs the role. No other cluster may run at the same time.
role_pid() {
  local file line
  for file in /proc/[0-9]*/cmdline; do
    line=$(tr '\0' ' ' <"$file" 2>/dev/null) || continue
    if [[ $line =~ ^[^\ ]*dunnage\ $1\  && $line == *"${2:-}"* ]]; then
      basename "$(dirname "$file")"
      return
    fi
  done
  echo "bench: no process runs $1 ${2:-}" >&2
  return 1
}

measure() {
  cluster exec "$generator" -kubeconfig "$(cluster kubeconfig)" -class bench -provisioner bench.csi.dunnage.dev \
    -label Directory "${processes[@]}" "$@" >>"$results"
}

trap 'cluster down' EXIT
cluster up --nodes 2 >&2
cluster load "$root/dist/dunnage-image.tar" >&2
cluster exec helm install dunnage "$root/helm/dunnage" --namespace dunnage-system --create-namespace --wait --timeout 3m >&2
cluster kubectl apply -f "$root/tests/bench/backend.yaml" >&2
cluster kubectl wait storagebackend/bench --for=condition=Ready --timeout=3m >&2
sleep 20

processes=(
  -proc "operator=$(role_pid operator)"
  -proc "provisioner=$(role_pid provisioner)"
  -proc "agent-discovery=$(role_pid agent-discovery)"
  -proc "router=$(role_pid driver --mode=router)"
  -proc "node-driver=$(role_pid driver --mode=node)"
  -proc "registrar=$(role_pid registrar)"
)
: >"$results"
measure -mode idle -for 10s
measure -mode latency -n 20
measure -mode burst -n "$count"
