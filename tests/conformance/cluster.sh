# The embedded cluster with Dunnage on it, for the storage suite. Sourced by run.sh.

name=conformance

cluster() { "$root/tests/cluster/cluster" --name "$name" "$@"; }
in_cluster() { cluster exec "$@"; }

cluster_up() {
  local archive image=${ARCHIVE:-$root/dist/dunnage-image.tar}
  [[ -n ${ARCHIVE:-} ]] || make -C "$root" image PROFILE="${PROFILE:-fast}" >&2
  "$here/images.sh" "$bin" "$root/dist/conformance/images" >&2
  cluster up --nodes 2 >&2
  for archive in "$image" "$root"/dist/conformance/images/*.tar; do
    cluster load "$archive" >&2
  done
  kubeconfig=$(cluster kubeconfig)
  kubectl=$("$root/tests/tools/build" kubectl)/kubectl
  in_cluster helm install dunnage "$root/helm/dunnage" --namespace dunnage-system --create-namespace \
    --set snapshotController.enabled=true --wait --timeout 3m >&2
}

cluster_down() { cluster down >&2; }

# make_disks ENGINE COMMAND...: a disk for each node, which the command makes a file system on, mounted as the backend's pool. It
# lies in the node's own part of the cluster's state and goes with the node.
make_disks() {
  local node pool=/var/lib/dunnage/$1
  shift
  for node in n1 n2; do
    cluster node "$node" exec sh -ec '
      pool=$1
      shift
      mkdir -p "$pool"
      truncate -s 24G "$pool.disk"
      "$@" "$pool.disk"
      mount -o loop "$pool.disk" "$pool"' sh "$pool" "$@"
  done
}

remove_disks() {
  local node
  for node in n1 n2; do
    cluster node "$node" exec sh -ec 'umount "$1" && rm "$1.disk"' sh "/var/lib/dunnage/$1"
  done
}

prepare_nodes() {
  local node
  case $1 in
    # A file system that shares blocks: without it the copy of a device in use would not be of one moment, and is refused.
    loopfile) make_disks loopfile mkfs.xfs -q ;;
    btrfs)
      make_disks btrfs mkfs.btrfs -q
      for node in n1 n2; do
        cluster node "$node" exec sh -ec 'btrfs quota enable /var/lib/dunnage/btrfs && btrfs quota rescan -w /var/lib/dunnage/btrfs'
      done
      ;;
  esac
}

# make_backend ENGINE: a backend of that name.
make_backend() {
  prepare_nodes "$1" >&2
  cluster kubectl apply -f "$here/backends/$1.yaml" >&2
  cluster kubectl wait "storagebackend/$1" --for=condition=Ready --timeout=3m >&2
}

remove_backend() {
  cluster kubectl delete storagebackend "$1" --timeout=3m >&2 || true
  [[ $1 == directory ]] || remove_disks "$1" >&2 || true
}
