# The embedded cluster with Dunnage on it, for the storage suite. Sourced by run.sh.

name=conformance
# shellcheck source=tests/stand-ins/stand-ins.sh
source "$root/tests/stand-ins/stand-ins.sh"

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
  in_cluster helm install dunnage "$root/helm/dunnage" --namespace dunnage-system --create-namespace --wait --timeout 3m >&2
  install_stand_ins >&2
}

cluster_down() { cluster down >&2; }

# A disk with btrfs and quotas for each node, in the node's own part of the cluster's state: it goes with the node.
make_btrfs_disks() {
  local node
  for node in n1 n2; do
    cluster node "$node" exec sh -ec '
      disk=/var/lib/dunnage/btrfs.disk
      mkdir -p /var/lib/dunnage/btrfs
      truncate -s 24G "$disk"
      mkfs.btrfs -q "$disk"
      mount -o loop "$disk" /var/lib/dunnage/btrfs
      btrfs quota enable /var/lib/dunnage/btrfs
      btrfs quota rescan -w /var/lib/dunnage/btrfs'
  done
}

remove_btrfs_disks() {
  local node
  for node in n1 n2; do
    cluster node "$node" exec sh -ec 'umount /var/lib/dunnage/btrfs && rm /var/lib/dunnage/btrfs.disk'
  done
}

# make_backend ENGINE: a backend of that name.
make_backend() {
  [[ $1 != btrfs ]] || make_btrfs_disks >&2
  cluster kubectl apply -f "$here/backends/$1.yaml" >&2
  cluster kubectl wait "storagebackend/$1" --for=condition=Ready --timeout=3m >&2
  add_stand_ins "$1" >&2
  cluster kubectl wait "storagebackend/$1" --for=condition=Ready --timeout=3m >&2
}

remove_backend() {
  cluster kubectl delete storagebackend "$1" --timeout=3m >&2 || true
  remove_stand_ins "$1" >&2
  [[ $1 != btrfs ]] || remove_btrfs_disks >&2 || true
}
