# Upstream's csi-snapshotter and snapshot-controller on an embedded cluster, for snapshots, until the operator deploys its own.
# Custom resources and rights are those of the same Go modules. Sourced; needs `root` and a function `cluster` (tests/cluster/cluster).

stand_ins=$root/tests/stand-ins
upstream=$root/tests/bench/upstream/build
modules=github.com/kubernetes-csi
images=$root/dist/stand-ins

# stand_in_images: makes them, before any cluster is there.
stand_in_images() {
  local programs program
  programs=$("$upstream" csi-snapshotter snapshot-controller)
  mkdir -p "$images"
  for program in csi-snapshotter snapshot-controller; do
    (cd "$root" && cargo xtask oci --name "localhost/upstream/$program:1" --output "$images/$program.tar" --user 65532:65532 \
      --file "$programs/$program:/$program:755" -- "/$program")
  done
}

# install_stand_ins: what the cluster as a whole needs. The images go to its nodes.
install_stand_ins() {
  local program crds snapshotter
  for program in csi-snapshotter snapshot-controller; do cluster load "$images/$program.tar"; done
  crds=$("$upstream" --source $modules/external-snapshotter/client/v8)/config/crd
  snapshotter=$("$upstream" --source $modules/external-snapshotter/v8)/deploy/kubernetes
  cluster kubectl apply --server-side -k "$crds"
  cluster kubectl apply -f "$snapshotter/snapshot-controller/rbac-snapshot-controller.yaml" \
    -f "$snapshotter/csi-snapshotter/rbac-csi-snapshotter.yaml"
  cluster kubectl apply -f "$stand_ins/snapshot-controller.yaml"
  cluster kubectl rollout status deployment/snapshot-controller --namespace kube-system --timeout 3m
}

# add_stand_ins BACKEND: a container in the pods of its controller, and rights for their account. The operator applies only what is
# its own, so it stays.
add_stand_ins() {
  local controller=dunnage-$1-controller
  cluster kubectl create clusterrolebinding "stand-in-$1" --clusterrole external-snapshotter-runner \
    --serviceaccount "dunnage-system:$controller"
  cluster kubectl patch statefulset "$controller" --namespace dunnage-system --field-manager stand-ins --type strategic \
    --patch-file "$stand_ins/containers.yaml"
  cluster kubectl rollout status "statefulset/$controller" --namespace dunnage-system --timeout 3m
}

# remove_stand_ins BACKEND: what is left of them when the backend is gone.
remove_stand_ins() {
  cluster kubectl delete clusterrolebinding "stand-in-$1" --ignore-not-found
}
