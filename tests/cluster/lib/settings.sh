# Where a cluster's things are, and how to reach them. Sourced by cluster, node-enter and node-init, with $here and $name set.

[[ $name =~ ^[a-z][a-z0-9]{0,14}$ ]] || { echo "cluster: a name is 1 to 15 lower-case letters and digits, not '$name'" >&2; exit 2; }

root=$(cd "$here/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dunnage
state=${DUNNAGE_CLUSTER_STATE:-$cache}/cluster-$name
pki=$state/pki
logs=$state/logs
pids=$state/pids
images=$cache/cluster-images
bin=$("$root/tests/tools/build" --dir)

# Network namespaces: $network holds the control plane and the switch, $network-nI a node each. They are connected to nothing
# else, so every cluster may have the same addresses.
network=dunnage-$name
machines=10.99.0  # control plane .1, node I .(10 + I)
pods=10.244       # node I has $pods.I.0/24
services=10.96.0  # /16; the API server is .1

# What running clusters have changed of the machine as a whole, for the last one to put back.
machine_notes=/run/dunnage-clusters

# Seconds that a part may take to become ready; a machine that is emulated needs many more.
patience=${DUNNAGE_CLUSTER_PATIENCE:-120}

export KUBECONFIG=$pki/admin.kubeconfig
# What kubectl and helm keep for later goes with the cluster.
export KUBECACHEDIR=$state/kubectl-cache HELM_CACHE_HOME=$state/helm/cache HELM_CONFIG_HOME=$state/helm/config HELM_DATA_HOME=$state/helm/data
export PATH=$bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH

say() { echo "cluster $name: $*"; }
die() { echo "cluster $name: $*" >&2; exit 1; }

require_root() { [[ $(id -u) == 0 ]] || die "a cluster makes namespaces and mounts: run this as root"; }
require_up() { [[ -e $state/up ]] || die "not running; to start it: $here/cluster --name $name up"; }

in_network() { nsenter --net="/run/netns/$network" -- "$@"; }
kubectl() { in_network "$bin/kubectl" "$@"; }

# A zombie whose parent has not looked yet is not alive.
alive() { [[ -r /proc/$1/stat && $(cut -d' ' -f3 "/proc/$1/stat" 2>/dev/null) != Z ]]; }

# wait_until SECONDS COMMAND...
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [[ $SECONDS -lt $deadline ]] || return 1
    sleep 0.1
  done
}

gone() { ! alive "$1"; }
