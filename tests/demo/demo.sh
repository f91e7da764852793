#!/usr/bin/env bash
# Shows the main job on a real Kubernetes cluster: from `helm install` to a pod with its data, and back to nothing.
#
#   tests/demo/demo.sh           on an embedded cluster of two nodes, which it builds, starts and removes
#
#   KEEP=1                       stops before the removal and leaves everything up
#   CONTEXT=name                 uses that kubectl context instead. What is merely the current context is never used.
#   LOAD=kind|k3s|microk8s|ctr|none    with CONTEXT: how the image gets to the nodes
#   IMAGE=name:tag               with LOAD=none: the image as the nodes know it
#   ARCHIVE=file                 an image archive that is there already, instead of making one
#   POD_IMAGE=name:tag           the image of the demo's own pods; it needs a shell and coreutils
#
# Ends with a summary, and with a status other than 0 when any step failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(mktemp -d)
keep=false
[[ -z ${KEEP:-} ]] || keep=true
begun=$(date +%s%N)

# shellcheck source=tests/demo/lib.sh
source "$here/lib.sh"
# shellcheck source=tests/demo/target.sh
source "$here/target.sh"

image=${IMAGE:-localhost/dunnage:0.1.0}
pod_image=${POD_IMAGE:-$([[ -n ${CONTEXT:-} ]] && echo busybox:1.37 || echo localhost/busybox:1)}
backend=''
node=''

# apply FILE [NAME=VALUE...]: applies a manifest with its @NAME@ filled in.
apply() {
  local file=$here/manifests/$1 pair text
  shift
  text=$(<"$file")
  for pair in "$@" "IMAGE=$pod_image"; do
    text=${text//@${pair%%=*}@/${pair#*=}}
  done
  kubectl apply -f - <<<"$text" | indent
}

app() { kubectl -n dunnage-demo "$@"; }
pod_of() { app get pods -l "app=$1" --field-selector status.phase=Running -o 'jsonpath={.items[0].metadata.name}'; }
log_of() { app exec "deploy/$1" -- cat /data/log; }
handle_of() {
  local volume
  volume=$(app get pvc "$1" -o 'jsonpath={.spec.volumeName}')
  kubectl get pv "$volume" -o 'jsonpath={.spec.csi.volumeHandle}'
}

# on_disk BACKEND PATTERN: what lies in the backend's pools under that name, with the node it lies on.
on_disk() {
  local pod
  for pod in $(app get pods -l app=look -o name); do
    app exec "$pod" -- find "/pools/$1" -name "$2" 2>/dev/null |
      sed "s|^/pools|$(app get "$pod" -o 'jsonpath={.spec.nodeName}'): /var/lib/dunnage|" || true
  done
}
nothing_on_disk() { [[ -z $(on_disk "$1" "$2") ]]; }

make_image() {
  if [[ ${LOAD:-} == none ]]; then
    say "LOAD=none: taking $image as it is on the nodes"
    return
  fi
  archive=${ARCHIVE:-}
  if [[ -z $archive ]]; then
    with_progress "building the image (the first time takes some minutes)" make --no-print-directory -C "$root" image
    archive=$root/dist/dunnage-image.tar
  fi
  say "${archive##*/}: $(du -h "$archive" | cut -f1)"
}

start_cluster() {
  start_target
  if [[ -n ${archive:-} ]]; then load_image "$archive"; fi
  show kubectl get nodes
}

install() {
  show helm install dunnage "$root/helm/dunnage" --namespace dunnage-system --create-namespace \
    --set-string "image.repository=${image%:*},image.tag=${image##*:}" --hide-notes --wait --timeout 3m
}

make_backend() {
  backend=$1
  indent <"$here/manifests/$backend.yaml"
  apply "$backend.yaml"
  wait_until "StorageBackend $backend to be ready on every node" 180 \
    kubectl wait "storagebackend/$backend" --for=condition=Ready --timeout=1s
  show kubectl get storagebackend "$backend" -o wide
  show kubectl get storageclass "$backend"
}

run_app() {
  local class=$1
  apply app.yaml.in "CLASS=$class"
  wait_until "the pod of claim $class-data" 120 app rollout status "deploy/$class-app" --timeout=1s
  show kubectl -n dunnage-demo get pvc,pods -o wide
  log_of "$class-app" | indent
  say "on the disk: $(on_disk "$class" "*$(handle_of "$class-data" | sed 's/^[0-9a-f]*-//')*" | head -n 1)"
}

lose_pod() {
  local class=$1 old lines
  old=$(pod_of "$class-app")
  show kubectl -n dunnage-demo delete pod "$old"
  wait_until "the new pod of $class-app" 120 app rollout status "deploy/$class-app" --timeout=1s
  log_of "$class-app" | indent
  lines=$(log_of "$class-app")
  grep -qF "$old" <<<"$lines" || die "what pod $old wrote is gone"
  [[ $(wc -l <<<"$lines") == 2 ]] || die "two lines were expected, one of each pod"
  say "the new pod has what the old one wrote"
}

check_limit() {
  show kubectl -n dunnage-demo exec deploy/disks-app -- df -h /data
  say "$ dd if=/dev/zero of=/data/too-much bs=1M count=100"
  if app exec deploy/disks-app -- dd if=/dev/zero of=/data/too-much bs=1M count=100 >"$scratch/dd.log" 2>&1; then
    die "100 MiB fit into a volume of 64 MiB"
  fi
  grep -i 'no space' "$scratch/dd.log" | indent || die "it failed, but not for want of space: $(<"$scratch/dd.log")"
  app exec deploy/disks-app -- rm /data/too-much
}

follow_the_data() {
  node=$(app get pod "$(pod_of local-app)" -o 'jsonpath={.spec.nodeName}')
  apply second.yaml.in NAME=second SELECTOR=
  wait_until "the second pod of the claim" 60 app wait pod/second --for=condition=Ready --timeout=1s
  [[ $(app get pod second -o 'jsonpath={.spec.nodeName}') == "$node" ]] || die "it runs on another node than its data"
  say "scheduled to $node, where the data is; it reads:"
  app logs second | indent
}

wrong_node() {
  local other
  other=$(kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}' | grep -vxF "$node" | head -n 1)
  apply second.yaml.in NAME=elsewhere "SELECTOR=kubernetes.io/hostname: $other"
  wait_until "the scheduler's answer" 60 scheduler_said_no
  [[ $(app get pod elsewhere -o 'jsonpath={.status.phase}') == Pending ]] || die "a pod on $other runs without its data"
  say "a pod that insists on $other waits, and says why:"
  app get pod elsewhere -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}{"\n"}' | indent
}
scheduler_said_no() {
  [[ $(app get pod elsewhere -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}') == Unschedulable ]]
}

refuse_deletion() {
  say "$ kubectl delete storagebackend local"
  kubectl delete storagebackend local --wait=false 2>&1 | indent || say "refused at once"
  wait_until "the operator's answer" 60 deletion_blocked
  kubectl get storagebackend local -o 'jsonpath={.status.conditions[?(@.type=="Removable")].message}{"\n"}' | indent
  log_of local-app >/dev/null || die "the pod lost its volume"
  say "the pod still reads and writes its volume"

  say "$ helm uninstall dunnage"
  if helm uninstall dunnage --namespace dunnage-system --timeout 2m >"$scratch/helm.log" 2>&1; then
    die "the chart went away under a backend"
  fi
  tail -n 4 "$scratch/helm.log" | indent
  say "refused too"
}
deletion_blocked() {
  [[ $(kubectl get storagebackend local -o 'jsonpath={.status.conditions[?(@.type=="Removable")].status}') == False ]]
}

delete_claims() {
  local class handle
  declare -A handles
  for class in local disks; do handles[$class]=$(handle_of "$class-data" | sed 's/^[0-9a-f]*-//'); done
  show kubectl -n dunnage-demo delete deployment/local-app deployment/disks-app pod/second pod/elsewhere --ignore-not-found
  show kubectl -n dunnage-demo delete pvc --all --timeout=2m
  wait_until "the volumes to go" 120 no_volumes
  for class in local disks; do
    handle=${handles[$class]}
    wait_until "the disk to be free of $handle" 60 nothing_on_disk "$class" "*$handle*"
  done
  say "no PersistentVolume is left, and nothing of the volumes lies on a disk"
}
no_volumes() { [[ -z $(kubectl get pv -o 'jsonpath={.items[?(@.spec.csi.driver)].spec.csi.driver}' | grep csi.dunnage.dev) ]]; }

uninstall() {
  local pod
  show kubectl delete storagebackend local disks --ignore-not-found --timeout=2m
  leftovers >"$scratch/left"
  for pod in $(app get pods -l app=look -o name); do app exec "$pod" -- find /pools -type f; done >>"$scratch/left"
  [[ ! -s $scratch/left ]] || { indent <"$scratch/left"; die "the backends left this behind"; }
  say "nothing of theirs is left in the cluster or on a disk"
  show helm uninstall dunnage --namespace dunnage-system --wait --timeout 2m
  show kubectl delete crd storagebackends.dunnage.dev
  show kubectl delete namespace dunnage-system dunnage-demo --timeout=2m
  leftovers >"$scratch/left"
  kubectl get clusterroles,clusterrolebindings,crd -o name | grep -i dunnage >>"$scratch/left" || true
  [[ ! -s $scratch/left ]] || { indent <"$scratch/left"; die "this was left behind"; }
  say "nothing is left"
}

# leftovers: every object that a backend brought into the cluster, wherever it may have been forgotten.
leftovers() {
  local kinds
  kinds=$(kubectl api-resources --verbs=list -o name | grep -vxE 'events(\.events\.k8s\.io)?|componentstatuses' | paste -sd,)
  kubectl get "$kinds" --all-namespaces -l app.kubernetes.io/managed-by=dunnage -o name 2>/dev/null || true
  kubectl get csidrivers,storageclasses,persistentvolumes -o name | grep -E 'csi\.dunnage\.dev|/(local|disks)$' || true
  kubectl get csinodes -o 'jsonpath={range .items[*].spec.drivers[*]}csinode driver {.name}{"\n"}{end}' | grep csi.dunnage.dev || true
  kubectl get nodes -o json | grep -oE '"topology\.[a-z0-9.-]*csi\.dunnage\.dev/pool"' | sort -u | sed 's/^/node label /' || true
}

diagnose() {
  echo "What the cluster says:"
  kubectl get storagebackends -o wide
  kubectl get pods --all-namespaces -o wide
  kubectl describe storagebackends | tail -n 40
  kubectl get events --all-namespaces --sort-by=.lastTimestamp | tail -n 25
  kubectl -n dunnage-system logs deploy/dunnage-operator --tail=25
  kubectl -n dunnage-system logs -l app.kubernetes.io/managed-by=dunnage --all-containers --prefix --tail=8
}

finish() {
  local status=$?
  trap - EXIT INT TERM
  set +e
  if [[ $status != 0 ]]; then
    [[ -z $current_step || $current_number -le 2 ]] || diagnose 2>&1 | indent
    echo
    echo "${red}FAILED${plain} in step $current_number: ${current_step:-between two steps}"
  fi
  if $keep; then
    echo
    echo "Left up, as asked for:"
    how_to_talk
  else
    echo
    echo "Cleaning up"
    stop_target 2>&1 | indent
  fi
  rm -rf "$scratch"
  echo
  echo "Summary (${target})"
  printf '    %s\n' "${summary[@]}"
  if [[ $status == 0 ]]; then
    echo "${green}demo: every step passed${plain}, $(seconds "$begun") in all"
  else
    echo "${red}demo: failed${plain} after $(seconds "$begun")"
  fi
  exit "$status"
}

echo "${bold}Dunnage on ${target}${plain}"
check_target
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step "Make the image: one static binary, and the mkfs tools" make_image
step "Start the cluster and give it the image" start_cluster
step "helm install" install
step "A StorageBackend of a few lines: directories on each node's disk" make_backend local
apply namespace.yaml >/dev/null
apply look.yaml.in >/dev/null
app rollout status daemonset/look --timeout=2m >/dev/null
step "A claim, and a pod that writes" run_app local
step "The pod is deleted and comes back to its data" lose_pod local
step "A second backend: image files with a hard limit" make_backend disks
step "A claim of it, and a pod that writes" run_app disks
step "The volume is as large as was asked for, no larger" check_limit
step "The pod is deleted and comes back to its data" lose_pod disks
step "A second pod of the first claim is scheduled to where the data is" follow_the_data
if [[ $(kubectl get nodes -o name | wc -l) -gt 1 ]]; then
  step "A pod that insists on the other node waits and says why" wrong_node
else
  left_out "A pod that insists on the other node waits and says why" "this cluster has one node"
fi
if ! $keep; then
  step "Deleting what is in use is refused" refuse_deletion
  step "The claims are deleted: the volumes go from the disk" delete_claims
  step "Uninstall leaves nothing" uninstall
fi
