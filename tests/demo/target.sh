# The cluster of the demo: an embedded one, or the one that CONTEXT names. Sourced by demo.sh.
#
# Both give: check_target, start_target, load_image FILE, kubectl, helm, stop_target, how_to_talk.

if [[ -z ${CONTEXT:-} ]]; then
  target="an embedded cluster of two nodes"
  target_started=false

  cluster() { "$root/tests/cluster/cluster" --name demo "$@"; }

  check_target() { cluster check; }

  start_target() {
    with_progress "building the cluster's programs (once; 10 to 20 minutes)" "$root/tests/tools/build"
    target_started=true
    with_progress "starting etcd, the control plane and two nodes" cluster up --nodes 2
  }

  # What containerd thinks of this machine is said on stderr, and is no news here.
  load_image() { cluster load "$1" 2>"$scratch/load.log" | indent || die "$(<"$scratch/load.log")"; }
  kubectl() { cluster kubectl "$@"; }
  helm() { cluster exec helm "$@"; }

  stop_target() {
    if $target_started; then cluster down; fi
  }

  how_to_talk() {
    say "kubectl:    tests/cluster/cluster --name demo kubectl get pods -A"
    say "helm:       tests/cluster/cluster --name demo exec helm list -A"
    say "on node n1: tests/cluster/cluster --name demo node n1 exec findmnt"
    say "stop it:    tests/cluster/cluster --name demo down"
  }
else
  target="the cluster of context $CONTEXT"

  check_target() {
    local program
    for program in kubectl helm; do
      command -v "$program" >/dev/null || die "CONTEXT=$CONTEXT needs $program in the PATH"
    done
    command kubectl config get-contexts "$CONTEXT" >/dev/null 2>&1 ||
      die "there is no context $CONTEXT; 'kubectl config get-contexts' lists them"
    case ${LOAD:-} in
      kind | k3s | microk8s | ctr | none) ;;
      *) die "say how the image gets to the nodes of $CONTEXT: LOAD=kind, k3s, microk8s, ctr, or none when it is there already (IMAGE names it)" ;;
    esac
  }

  start_target() {
    kubectl version >/dev/null || die "the API server of context $CONTEXT does not answer"
    if [[ -n $(kubectl get crd storagebackends.dunnage.dev --ignore-not-found -o name) ]]; then
      die "context $CONTEXT already has Dunnage's CRD; the demo removes what it made at the end, so it wants a cluster without"
    fi
    show kubectl get nodes
  }

  load_image() {
    case $LOAD in
      kind) kind load image-archive "$1" --name "${CONTEXT#kind-}" ;;
      k3s) k3s ctr images import "$1" ;;
      microk8s) microk8s ctr image import "$1" ;;
      ctr) ctr --namespace k8s.io images import "$1" ;;
      none) echo "LOAD=none: the nodes have $image, or can pull it" ;;
    esac 2>&1 | indent
    case $LOAD in
      k3s | microk8s | ctr) say "that was this machine; other nodes of the cluster need the image too" ;;
    esac
  }

  kubectl() { command kubectl --context "$CONTEXT" "$@"; }
  helm() { command helm --kube-context "$CONTEXT" "$@"; }

  # Takes back what the demo made, however far it came. Errors are told and do not stop the rest.
  stop_target() {
    kubectl delete namespace dunnage-demo --ignore-not-found --timeout=2m || true
    if [[ -n $(kubectl get crd storagebackends.dunnage.dev --ignore-not-found -o name) ]]; then
      kubectl delete storagebackends local disks --ignore-not-found --timeout=2m || true
    fi
    helm uninstall dunnage --namespace dunnage-system --ignore-not-found --wait --timeout 2m || true
    kubectl delete crd storagebackends.dunnage.dev --ignore-not-found --timeout=1m || true
    kubectl delete namespace dunnage-system --ignore-not-found --timeout=2m || true
  }

  how_to_talk() {
    say "kubectl --context $CONTEXT get storagebackends"
    say "remove:  kubectl --context $CONTEXT delete namespace dunnage-demo"
    say "         kubectl --context $CONTEXT delete storagebackends local disks"
    say "         helm --kube-context $CONTEXT uninstall dunnage -n dunnage-system"
  }
fi
