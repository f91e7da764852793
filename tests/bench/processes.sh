# Processes of the bench: each has a pid file in $run, and none is ended but by it. Sourced by bench.sh.

# start NAME COMMAND...: with AGNICE=-15 its scheduling group is raised, for plain nice values count only inside a group.
start() {
  local name=$1
  shift
  setsid "$@" >"$run/$name.log" 2>&1 </dev/null &
  echo $! >"$run/$name.pid"
  if [[ -n ${AGNICE:-} ]]; then echo "$AGNICE" >"/proc/$!/autogroup" || true; fi
}

stop() {
  local name pid
  for name in "$@"; do
    [[ -f $run/$name.pid ]] || continue
    pid=$(<"$run/$name.pid")
    kill "$pid" 2>/dev/null || true
    for _ in {1..100}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
    rm -f "$run/$name.pid"
  done
}

wait_for() {
  local what=$1
  shift
  for _ in {1..600}; do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  echo "bench: $what did not come up; see $run" >&2
  return 1
}

user_kubeconfig() {
  cat <<END
apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: "https://127.0.0.1:16443", insecure-skip-tls-verify: true}}]
users: [{name: $1, user: {token: token-$1}}]
contexts: [{name: bench, context: {cluster: bench, user: $1}}]
current-context: bench
END
}

# A control plane without nodes on loopback. etcd does not wait for the disk, and kube-controller-manager has only the
# volume controllers and no limit of its own on requests, so that neither is what is measured. Users are cluster admins, so
# that API priority and fairness does not favour one of them.
control_plane_up() {
  local user
  mkdir -p "$run/etcd" "$run/apiserver" "$run/kcm-certificates"
  for user in bench provisioner attacher kcm; do
    echo "token-$user,$user,$user,\"system:masters\""
    user_kubeconfig "$user" >"$run/$user.kubeconfig"
  done >"$run/tokens"
  openssl genrsa -out "$run/sa.key" 2048 2>/dev/null
  cat >"$run/audit-policy.yaml" <<'END'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
END
  start etcd "$tools/etcd" --unsafe-no-fsync --data-dir="$run/etcd" --log-level=warn \
    --listen-client-urls=http://127.0.0.1:12379 --advertise-client-urls=http://127.0.0.1:12379 \
    --listen-peer-urls=http://127.0.0.1:12380 --initial-advertise-peer-urls=http://127.0.0.1:12380 \
    --initial-cluster=default=http://127.0.0.1:12380
  start apiserver "$tools/kube-apiserver" --etcd-servers=http://127.0.0.1:12379 --bind-address=127.0.0.1 \
    --advertise-address=127.0.0.1 --secure-port=16443 --cert-dir="$run/apiserver" --token-auth-file="$run/tokens" \
    --authorization-mode=RBAC --service-cluster-ip-range=10.0.0.0/24 --disable-admission-plugins=ServiceAccount \
    --endpoint-reconciler-type=none --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$run/sa.key" --service-account-signing-key-file="$run/sa.key" \
    --audit-policy-file="$run/audit-policy.yaml" --audit-log-path="$run/audit.log" --audit-log-mode=batch
  wait_for kube-apiserver curl -ksf -H 'Authorization: Bearer token-bench' https://127.0.0.1:16443/readyz
  start kcm "$tools/kube-controller-manager" --kubeconfig="$run/kcm.kubeconfig" --leader-elect=false \
    --bind-address=127.0.0.1 --secure-port=12257 --cert-dir="$run/kcm-certificates" \
    --controllers=persistentvolume-binder-controller,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller \
    --kube-api-qps=5000 --kube-api-burst=10000
  wait_for kube-controller-manager curl -ksf https://127.0.0.1:12257/healthz
}

control_plane_down() { stop kcm apiserver etcd; }

# sidecars_up IMPLEMENTATION FLAVOUR: null driver, provisioner and attacher.
sidecars_up() {
  local flags=() provisioner attacher
  case $1 in
    upstream) provisioner=("$upstream/csi-provisioner") attacher=("$upstream/csi-attacher") ;;
    dunnage) provisioner=("$dunnage" provisioner) attacher=("$dunnage" attacher) ;;
  esac
  [[ $2 == tuned ]] && flags=(--worker-threads=100 --kube-api-qps=1000 --kube-api-burst=2000)
  start driver "$bench/nullcsi" -endpoint "unix://$run/csi.sock" -drivername null.bench.dunnage.dev
  wait_for "the null driver" test -S "$run/csi.sock"
  start provisioner "${provisioner[@]}" --csi-address="unix://$run/csi.sock" --kubeconfig="$run/provisioner.kubeconfig" "${flags[@]}"
  start attacher "${attacher[@]}" --csi-address="unix://$run/csi.sock" --kubeconfig="$run/attacher.kubeconfig" "${flags[@]}"
  sleep 3
}

sidecars_down() {
  stop provisioner attacher driver
  rm -f "$run/csi.sock"
}
