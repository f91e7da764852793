# Certificates and kubeconfigs of the cluster, made by openssl.

make_certificates() {
  local number user
  mkdir -p "$pki"
  (
    cd "$pki" || exit
    umask 077
    authority ca kubernetes
    authority etcd-ca etcd
    authority front-proxy-ca front-proxy
    certificate etcd etcd-ca /CN=etcd IP:127.0.0.1
    certificate etcd-client etcd-ca /CN=kube-apiserver
    certificate front-proxy-client front-proxy-ca /CN=front-proxy-client
    certificate apiserver ca /CN=kube-apiserver \
      "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$machines.1,IP:$services.1"
    certificate apiserver-kubelet ca /O=system:masters/CN=kube-apiserver-kubelet-client
    certificate admin ca /O=system:masters/CN=admin
    for user in kube-controller-manager kube-scheduler kube-proxy; do certificate "$user" ca "/CN=system:$user"; done
    for number in 1 2 3; do
      certificate "kubelet-n$number" ca "/O=system:nodes/CN=system:node:n$number" "DNS:n$number,IP:$machines.$((10 + number)),IP:127.0.0.1"
    done
    openssl ecparam -genkey -name prime256v1 -noout -out service-accounts.key
    openssl ec -in service-accounts.key -pubout -out service-accounts.pub 2>/dev/null
    for user in admin kube-controller-manager kube-scheduler kube-proxy kubelet-n1 kubelet-n2 kubelet-n3; do write_kubeconfig "$user"; done
  )
}

# NAME COMMON-NAME
authority() {
  openssl ecparam -genkey -name prime256v1 -noout -out "$1.key"
  openssl req -x509 -new -key "$1.key" -subj "/CN=$2" -days 3650 -out "$1.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
}

# NAME AUTHORITY SUBJECT [SUBJECT-ALTERNATIVE-NAMES]
certificate() {
  openssl ecparam -genkey -name prime256v1 -noout -out "$1.key"
  {
    echo "basicConstraints=critical,CA:FALSE"
    echo "keyUsage=critical,digitalSignature,keyEncipherment"
    echo "extendedKeyUsage=serverAuth,clientAuth"
    [[ -z ${4:-} ]] || echo "subjectAltName=$4"
  } >"$1.extensions"
  openssl req -new -key "$1.key" -subj "$3" |
    openssl x509 -req -CA "$2.crt" -CAkey "$2.key" -set_serial "0x$(openssl rand -hex 8)" -days 3650 \
      -extfile "$1.extensions" -out "$1.crt" 2>/dev/null
  rm "$1.extensions"
}

write_kubeconfig() {
  cat >"$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
current-context: dunnage
contexts: [{name: dunnage, context: {cluster: dunnage, user: $1}}]
clusters: [{name: dunnage, cluster: {server: "https://$machines.1:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
YAML
}
