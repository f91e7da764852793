# etcd, the API server, the controller manager and the scheduler, in the cluster's network namespace.

# NAME ARGUMENTS...
start_program() {
  local program=$1
  shift
  setsid nsenter --net="/run/netns/$network" -- "$bin/$program" "$@" >"$logs/$program.log" 2>&1 </dev/null &
  echo $! >"$pids/$program.pid"
  disown
}

start_control_plane() {
  start_program etcd --name=dunnage --data-dir="$state/etcd" --log-level=warn --unsafe-no-fsync \
    --listen-client-urls=https://127.0.0.1:2379 --advertise-client-urls=https://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 \
    --initial-cluster=dunnage=http://127.0.0.1:2380 \
    --client-cert-auth --trusted-ca-file="$pki/etcd-ca.crt" --cert-file="$pki/etcd.crt" --key-file="$pki/etcd.key"
  start_api_server

  # A silent node is seen as such after 12 s instead of 50 s.
  start_program kube-controller-manager --kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --authentication-kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --authorization-kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --bind-address=127.0.0.1 --leader-elect=false --profiling=false --kube-api-qps=100 --kube-api-burst=200 \
    --node-monitor-period=1s --node-monitor-grace-period=12s --use-service-account-credentials=true \
    --root-ca-file="$pki/ca.crt" --service-account-private-key-file="$pki/service-accounts.key" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --client-ca-file="$pki/ca.crt" --requestheader-client-ca-file="$pki/front-proxy-ca.crt"
  start_program kube-scheduler --kubeconfig="$pki/kube-scheduler.kubeconfig" \
    --authentication-kubeconfig="$pki/kube-scheduler.kubeconfig" \
    --authorization-kubeconfig="$pki/kube-scheduler.kubeconfig" \
    --bind-address=127.0.0.1 --leader-elect=false --profiling=false
}

start_api_server() {
  # Pods leave a dead node after 15 s instead of 5 minutes. No kube-proxy runs beside the API server, so it reaches webhooks
  # by the pods' addresses (aggregator routing).
  start_program kube-apiserver --advertise-address="$machines.1" --secure-port=6443 --allow-privileged=true --profiling=false \
    --etcd-servers=https://127.0.0.1:2379 --etcd-cafile="$pki/etcd-ca.crt" \
    --etcd-certfile="$pki/etcd-client.crt" --etcd-keyfile="$pki/etcd-client.key" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$pki/service-accounts.pub" --service-account-signing-key-file="$pki/service-accounts.key" \
    --service-cluster-ip-range="$services.0/16" \
    --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$pki/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key" \
    --enable-aggregator-routing=true \
    --default-not-ready-toleration-seconds=15 --default-unreachable-toleration-seconds=15
  wait_until "$patience" kubectl get --raw /readyz || die "the API server did not become ready"
}

stop_control_plane() {
  local program
  for program in kube-scheduler kube-controller-manager kube-apiserver etcd; do stop_program "$program"; done
}

# All are stateless or will be removed with their state: no grace.
stop_program() {
  local pid
  [[ -e $pids/$1.pid ]] || return 0
  pid=$(cat "$pids/$1.pid")
  kill -9 "$pid" 2>/dev/null || true
  wait_until 10 gone "$pid" || true
  rm -f "$pids/$1.pid"
}
