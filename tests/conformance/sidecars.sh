# Upstream's csi-resizer, csi-snapshotter and snapshot-controller, for claims to grow and for snapshots. Sourced by cluster.sh.
# Custom resources and rights are those of the same Go modules.

sidecar_programs=(csi-resizer csi-snapshotter snapshot-controller)
upstream=$root/tests/bench/upstream/build
modules=github.com/kubernetes-csi

# sidecar_images FOLDER: an image of each.
sidecar_images() {
  local programs name
  programs=$("$upstream" "${sidecar_programs[@]}")
  mkdir -p "$1"
  for name in "${sidecar_programs[@]}"; do
    (cd "$root" && cargo xtask oci --name "localhost/upstream/$name:1" --output "$1/$name.tar" --user 65532:65532 \
      --file "$programs/$name:/$name:755" -- "/$name")
  done
}

# What the cluster as a whole needs.
install_snapshots() {
  local crds snapshotter resizer
  crds=$("$upstream" --source $modules/external-snapshotter/client/v8)/config/crd
  snapshotter=$("$upstream" --source $modules/external-snapshotter/v8)/deploy/kubernetes
  resizer=$("$upstream" --source $modules/external-resizer/v2)/deploy/kubernetes
  cluster kubectl apply --server-side -k "$crds"
  cluster kubectl apply -f "$snapshotter/snapshot-controller/rbac-snapshot-controller.yaml" \
    -f "$snapshotter/csi-snapshotter/rbac-csi-snapshotter.yaml" -f "$resizer/rbac.yaml"
  cluster kubectl apply -f "$here/sidecars/snapshot-controller.yaml"
  cluster kubectl rollout status deployment/snapshot-controller --namespace kube-system --timeout 3m
}

# add_sidecars BACKEND: containers in the pods of its controller, and rights for their account. The operator applies only what is
# its own, so they stay.
add_sidecars() {
  local controller=dunnage-$1-controller sidecar
  for sidecar in resizer snapshotter; do
    cluster kubectl create clusterrolebinding "conformance-$1-$sidecar" --clusterrole "external-$sidecar-runner" \
      --serviceaccount "dunnage-system:$controller"
  done
  cluster kubectl patch statefulset "$controller" --namespace dunnage-system --field-manager conformance --type strategic \
    --patch-file "$here/sidecars/containers.yaml"
  cluster kubectl rollout status "statefulset/$controller" --namespace dunnage-system --timeout 3m
}

remove_sidecars() {
  cluster kubectl delete clusterrolebinding "conformance-$1-resizer" "conformance-$1-snapshotter" --ignore-not-found
}
