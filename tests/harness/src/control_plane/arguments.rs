//! The command lines of the control plane's programs.

use std::path::Path;

use super::{Ports, credentials};

pub(super) fn etcd(ports: Ports) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    vec![
        "--name=tests".into(),
        "--data-dir=etcd".into(),
        "--log-level=warn".into(),
        // A test's data need not survive the machine.
        "--unsafe-no-fsync".into(),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=tests={peer}"),
    ]
}

pub(super) fn api_server(ports: Ports, directory: &Path) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    vec![
        format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
        "--bind-address=127.0.0.1".into(),
        // Nothing reaches the server by its service, and a loopback address may not stand in endpoints.
        "--endpoint-reconciler-type=none".into(),
        format!("--secure-port={}", ports.api_server),
        format!("--tls-cert-file={}", file(credentials::SERVER_CERTIFICATE)),
        format!("--tls-private-key-file={}", file(credentials::SERVER_KEY)),
        format!("--token-auth-file={}", file(credentials::TOKENS)),
        format!("--service-account-issuer={}", credentials::ISSUER),
        format!("--service-account-key-file={}", file(credentials::SERVICE_ACCOUNT_PUBLIC_KEY)),
        format!("--service-account-signing-key-file={}", file(credentials::SERVICE_ACCOUNT_KEY)),
        "--service-cluster-ip-range=10.77.0.0/24".into(),
        "--authorization-mode=RBAC".into(),
        "--allow-privileged=true".into(),
        // Pods are never run here, and their service accounts need not be there first.
        "--disable-admission-plugins=ServiceAccount".into(),
        "--profiling=false".into(),
    ]
}

pub(super) fn controller_manager(kubeconfig: &Path, directory: &Path) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
        "--kube-api-qps=200".into(),
        "--kube-api-burst=400".into(),
        // Tests make their nodes by hand and nobody renews their leases.
        "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller".into(),
        format!("--root-ca-file={}", file(credentials::CA_CERTIFICATE)),
        format!("--service-account-private-key-file={}", file(credentials::SERVICE_ACCOUNT_KEY)),
    ]
}
