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
  in_cluster helm install dunnage "$root/helm/dunnage" --namespace dunnage-system --create-namespace --wait --timeout 3m >&2
}

cluster_down() { cluster down >&2; }

backend_name() {
  case $1 in
    directory) echo local ;;
    loopfile) echo disks ;;
    *) echo "conformance: there is no engine $1" >&2; return 1 ;;
  esac
}

make_backend() {
  local backend
  backend=$(backend_name "$1")
  cluster kubectl apply -f "$root/tests/demo/manifests/$backend.yaml" >&2
  cluster kubectl wait "storagebackend/$backend" --for=condition=Ready --timeout=3m >&2
}

remove_backend() {
  cluster kubectl delete storagebackend "$(backend_name "$1")" --timeout=3m >&2 || true
}
