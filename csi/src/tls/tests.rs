use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use super::{AGENT, Material, OPERATOR, Peer, ROUTER, connect, incoming, require_peer};
use crate::v1::identity_client::IdentityClient;
use crate::v1::identity_server::{Identity, IdentityServer};
use crate::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};

pub(super) type Ca = CertifiedIssuer<'static, KeyPair>;

pub(super) fn ca() -> Ca {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes a set whose certificate is signed by the first of the CAs and which trusts all of them.
fn write(directory: &Path, name: &str, cas: &[&Ca]) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, cas[0]).unwrap();
    let bundle: String = cas.iter().map(|ca| ca.pem()).collect();
    std::fs::write(directory.join("ca.crt"), bundle).unwrap();
    std::fs::write(directory.join("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
}

pub(super) fn set(name: &str, cas: &[&Ca]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), name, cas);
    directory
}

fn material(name: &str, ca: &Ca) -> Arc<Material> {
    Material::open(set(name, &[ca]).path()).unwrap()
}

/// Tells each caller the name it came under; `Probe` is for the router alone.
struct Echo;

#[tonic::async_trait]
impl Identity for Echo {
    async fn get_plugin_info(
        &self,
        request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let Peer(name) = request.extensions().get::<Peer>().cloned().unwrap();
        Ok(Response::new(GetPluginInfoResponse { name, ..GetPluginInfoResponse::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        require_peer(&request, &[ROUTER])?;
        Ok(Response::new(ProbeResponse::default()))
    }
}

async fn serve(material: Arc<Material>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().add_service(IdentityServer::new(Echo));
    tokio::spawn(server.serve_with_incoming(incoming(listener, material)));
    address
}

async fn call(address: SocketAddr, material: Arc<Material>, expected: &str) -> Result<String, Status> {
    let mut client = IdentityClient::new(connect(address, material, expected));
    client.get_plugin_info(GetPluginInfoRequest {}).await.map(|response| response.into_inner().name)
}

#[tokio::test]
async fn a_service_learns_the_name_in_its_clients_certificate() {
    let ca = ca();
    let address = serve(material(AGENT, &ca)).await;
    for name in [ROUTER, OPERATOR] {
        assert_eq!(call(address, material(name, &ca), AGENT).await.unwrap(), name);
    }
}

#[tokio::test]
async fn a_call_for_the_router_alone_refuses_the_operator() {
    let ca = ca();
    let address = serve(material(AGENT, &ca)).await;
    for (name, expected) in [(ROUTER, None), (OPERATOR, Some(Code::PermissionDenied))] {
        let mut client = IdentityClient::new(connect(address, material(name, &ca), AGENT));
        assert_eq!(client.probe(ProbeRequest {}).await.err().map(|status| status.code()), expected, "{name}");
    }
}

#[test]
fn a_request_without_a_peer_is_refused() {
    let refused = require_peer(&Request::new(()), &[ROUTER]).unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_server_of_another_name_is_refused() {
    let ca = ca();
    let address = serve(material(OPERATOR, &ca)).await;
    assert!(call(address, material(ROUTER, &ca), OPERATOR).await.is_ok());
    assert_eq!(call(address, material(ROUTER, &ca), AGENT).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_client_of_an_unknown_name_is_refused() {
    let ca = ca();
    let address = serve(material(AGENT, &ca)).await;
    assert!(call(address, material("somebody.dunnage", &ca), AGENT).await.is_err());
}

#[tokio::test]
async fn a_client_of_another_ca_is_refused() {
    let (ours, theirs) = (ca(), ca());
    let address = serve(material(AGENT, &ours)).await;
    // It trusts the server, so that only the server can be the one to refuse.
    let client = Material::open(set(ROUTER, &[&theirs, &ours]).path()).unwrap();
    assert!(call(address, client, AGENT).await.is_err());
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let ca = ca();
    let address = serve(material(AGENT, &ca)).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = AGENT.try_into().unwrap();
    // In TLS 1.3 the client learns of the refusal with its first read.
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let read = tokio::io::AsyncReadExt::read_u8(&mut stream).await;
    assert!(read.unwrap_err().to_string().contains("CertificateRequired"));
}

#[tokio::test]
async fn clients_that_say_nothing_keep_nobody_out() {
    let ca = ca();
    let address = serve(material(AGENT, &ca)).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let answer =
        tokio::time::timeout(Duration::from_secs(3), call(address, material(ROUTER, &ca), AGENT)).await;
    assert_eq!(answer.expect("the silent ones held it up").unwrap(), ROUTER);
}

/// The operator's order: first everyone trusts both CAs, then certificates of the new one come, then the old one goes.
#[tokio::test]
async fn a_ca_is_replaced_without_a_restart_or_a_refused_call() {
    let (old, new) = (ca(), ca());
    let (server, client) = (set(AGENT, &[&old]), set(ROUTER, &[&old]));
    let (server_material, client_material) =
        (Material::open(server.path()).unwrap(), Material::open(client.path()).unwrap());
    let address = serve(server_material).await;
    let orders: [(&TempDir, &str, Vec<&Ca>); 6] = [
        (&server, AGENT, vec![&old, &new]),
        (&client, ROUTER, vec![&old, &new]),
        (&server, AGENT, vec![&new, &old]),
        (&client, ROUTER, vec![&new, &old]),
        (&server, AGENT, vec![&new]),
        (&client, ROUTER, vec![&new]),
    ];
    for (step, (directory, name, cas)) in orders.into_iter().enumerate() {
        write(directory.path(), name, &cas);
        let answer = call(address, Arc::clone(&client_material), AGENT).await;
        assert_eq!(answer.expect("refused in the middle of the change"), ROUTER, "step {step}");
    }
    let left_behind = call(address, material(ROUTER, &old), AGENT).await;
    assert!(left_behind.is_err(), "the old CA is still trusted");
}

/// Kubelet's way: the files are links through `..data`, which is swapped by a rename.
#[tokio::test]
async fn a_swapped_directory_behind_links_is_noticed() {
    let (old, new) = (ca(), ca());
    let volume = tempfile::tempdir().unwrap();
    let swap = |version: &str, ca: &Ca| {
        std::fs::create_dir(volume.path().join(version)).unwrap();
        write(&volume.path().join(version), AGENT, &[ca]);
        std::os::unix::fs::symlink(version, volume.path().join("..tmp")).unwrap();
        std::fs::rename(volume.path().join("..tmp"), volume.path().join("..data")).unwrap();
    };
    swap("..1", &old);
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(Path::new("..data").join(name), volume.path().join(name)).unwrap();
    }
    let address = serve(Material::open(volume.path()).unwrap()).await;
    assert!(call(address, material(ROUTER, &old), AGENT).await.is_ok());
    swap("..2", &new);
    assert!(call(address, material(ROUTER, &new), AGENT).await.is_ok());
    assert!(call(address, material(ROUTER, &old), AGENT).await.is_err());
}

#[tokio::test]
async fn a_broken_new_set_leaves_the_old_one_in_use() {
    let ca = ca();
    let server = set(AGENT, &[&ca]);
    let address = serve(Material::open(server.path()).unwrap()).await;
    let other_key = KeyPair::generate().unwrap().serialize_pem();
    for (file, content) in [("tls.key", other_key.as_str()), ("tls.crt", "nonsense"), ("ca.crt", "")] {
        std::fs::write(server.path().join(file), content).unwrap();
        assert!(call(address, material(ROUTER, &ca), AGENT).await.is_ok(), "{file}");
    }
    assert!(Material::open(server.path()).is_err());
}
