//! Who gets data of an agent, and what an agent believes of another.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dunnage_csi::agent::agent_client::AgentClient;
use dunnage_csi::agent::copies_client::CopiesClient;
use dunnage_csi::agent::copies_server::{Copies, CopiesServer};
use dunnage_csi::agent::export_response::Part;
use dunnage_csi::agent::{
    CopyHint, DescribeRequest, Entry, ExportRequest, ExportResponse, FileData, Head, Item, Nothing, Piece,
    PieceBody, Tail, Ticket, TicketClaims, entry, item,
};
use dunnage_csi::metadata::COPY;
use dunnage_csi::tls::{self, AGENT, Material, OPERATOR, ROUTER};
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::{CreateVolumeRequest, ListVolumesRequest};
use dunnage_driver::EngineKind;
use dunnage_driver::id::VolumeId;
use dunnage_tests_driver::{Expected, block, from_volume};
use futures::Stream;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};

use super::nodes::{Cluster, request};
use super::{A, B, MIB};

/// Certificates of a part of the cluster.
fn material(cluster: &Cluster, name: &str) -> Arc<Material> {
    let directory = cluster.directory.path().join("test");
    Material::open(cluster.authority.write(&directory, name)).unwrap()
}

/// A connection to a node's agent as somebody.
fn channel(cluster: &Cluster, node: usize, name: &str) -> Channel {
    let address: SocketAddr = cluster.nodes[node].address.parse().unwrap();
    tls::connect(address, material(cluster, name), AGENT)
}

/// The first thing that an agent answers to a ticket.
async fn export(channel: Channel, ticket: Option<Ticket>) -> Result<Option<ExportResponse>, Status> {
    let asked = ExportRequest { ticket, after: None };
    CopiesClient::new(channel).export(asked).await?.into_inner().message().await
}

#[tokio::test(flavor = "multi_thread")]
async fn data_are_given_only_to_an_agent_with_the_routers_ticket_for_them_and_once() {
    let cluster = Cluster::start(EngineKind::Directory, Expected::NoAttach, &[A, B]).await;
    let volume = cluster.create("pvc-1", &cluster.nodes[0].pool).await.unwrap();
    let elsewhere = cluster.create("pvc-2", &cluster.nodes[1].pool).await.unwrap();
    let target = VolumeId::make(&cluster.nodes[1].pool, "pvc-3").to_string();
    let router = material(&cluster, ROUTER);
    let now = SystemTime::now();
    let ticket = |source: &str| router.issue_ticket(source, &target, now).unwrap();
    let agent = || channel(&cluster, 0, AGENT);
    let good = ticket(&volume);
    let expired = router.issue_ticket(&volume, &target, now - Duration::from_secs(3600)).unwrap();
    let own = material(&cluster, AGENT).issue_ticket(&volume, &target, now).unwrap();
    let mut claims = TicketClaims::decode(good.claims.as_slice()).unwrap();
    claims.source = elsewhere.clone();
    let forged = Ticket { claims: claims.encode_to_vec(), ..good.clone() };
    for (what, bad) in [
        ("none", None),
        ("expired", Some(expired)),
        ("signed by an agent", Some(own)),
        ("forged", Some(forged)),
        ("for another pool", Some(ticket(&elsewhere))),
    ] {
        let refused = export(agent(), bad).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{what}: {refused}");
    }
    let missing = VolumeId::make(&cluster.nodes[0].pool, "nothing").to_string();
    let missing = export(agent(), Some(ticket(&missing))).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound, "{missing}");
    for name in [ROUTER, OPERATOR] {
        let refused = export(channel(&cluster, 0, name), Some(good.clone())).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}: {refused}");
    }
    let head = export(agent(), Some(good.clone())).await.unwrap().unwrap();
    assert!(matches!(head.part, Some(Part::Head(_))), "{head:?}");
    let again = export(agent(), Some(good)).await.unwrap_err();
    assert_eq!(again.code(), Code::PermissionDenied, "{again}");
    // Nothing else of an agent is for other agents.
    let told = AgentClient::new(agent()).describe(DescribeRequest {}).await.map(drop).unwrap_err();
    assert_eq!(told.code(), Code::PermissionDenied);
    let listed =
        ControllerClient::new(agent()).list_volumes(ListVolumesRequest::default()).await.unwrap_err();
    assert_eq!(listed.code(), Code::PermissionDenied);
}

/// An agent that sends what it was told to.
struct Evil(Vec<Part>);

#[tonic::async_trait]
impl Copies for Evil {
    type ExportStream = Pin<Box<dyn Stream<Item = Result<ExportResponse, Status>> + Send>>;

    async fn export(&self, _: Request<ExportRequest>) -> Result<Response<Self::ExportStream>, Status> {
        let parts = self.0.clone().into_iter().map(|part| Ok(ExportResponse { part: Some(part) }));
        Ok(Response::new(Box::pin(futures::stream::iter(parts))))
    }
}

/// Lets the agent of the second node copy from a bad one, and gives the end of that.
async fn copy_from(cluster: &Cluster, parts: Vec<Part>, asked: CreateVolumeRequest) -> Status {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = Server::builder()
        .add_service(CopiesServer::new(Evil(parts)))
        .serve_with_incoming(tls::incoming(listener, material(cluster, AGENT)));
    let serving = tokio::spawn(served);
    let mut agent = ControllerClient::new(channel(cluster, 1, ROUTER));
    loop {
        let mut asked = Request::new(asked.clone());
        let hint = CopyHint { address: address.clone(), ticket: None };
        asked.metadata_mut().insert_bin(COPY, MetadataValue::from_bytes(&hint.encode_to_vec()));
        let refused = agent.create_volume(asked).await.unwrap_err();
        if refused.code() != Code::Aborted || refused.message().contains("interrupted") {
            serving.abort();
            return refused;
        }
    }
}

fn head(content: &str) -> Part {
    let content = content.to_owned();
    let (volume_bytes, data_bytes) = (MIB, MIB);
    Part::Head(Head { identity: "evil".to_owned(), resumed: false, content, volume_bytes, data_bytes })
}

fn piece(items: Vec<item::Item>) -> Part {
    let items = items.into_iter().map(|item| Item { item: Some(item) }).collect();
    let body = PieceBody { items }.encode_to_vec();
    Part::Piece(Piece { checksum: Sha256::digest(&body).to_vec(), body })
}

fn begin(name: &[u8], kind: entry::Kind) -> item::Item {
    item::Item::Begin(Entry { name: name.to_vec(), kind: Some(kind), link: None })
}

fn data(offset: u64, bytes: usize) -> item::Item {
    item::Item::Data(FileData { offset, bytes: vec![7; bytes] })
}

const DIRECTORY: &str = r#"{"type":"directory"}"#;
const BLOCK: &str = r#"{"type":"block"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_another_agent_sends_leads_out_of_a_volume_or_beyond_its_room() {
    let file = || entry::Kind::File(Nothing {});
    let link = || entry::Kind::Symlink(b"../../..".to_vec());
    let Part::Piece(mut lie) = piece(vec![data(0, 10)]) else { panic!("no piece") };
    lie.checksum[0] ^= 1;
    let flood = |item: &dyn Fn() -> Vec<item::Item>| (0..200).map(|_| piece(item())).collect::<Vec<_>>();
    let trees = [
        vec![head(DIRECTORY), piece(vec![begin(b"../escaped", file())])],
        vec![head(DIRECTORY), piece(vec![begin(b"..", entry::Kind::Directory(Nothing {}))])],
        vec![head(DIRECTORY), piece(vec![begin(b"/escaped", file())])],
        vec![head(DIRECTORY), piece(vec![begin(b"out", link()), data(0, 10)])],
        vec![head(DIRECTORY), Part::Piece(lie)],
        vec![head(DIRECTORY), Part::Tail(Tail { chain: Vec::new() })],
        vec![head(DIRECTORY), head(DIRECTORY)],
        [vec![head(DIRECTORY), piece(vec![begin(b"f", file())])], flood(&|| vec![data(0, 1 << 20)])].concat(),
        vec![piece(Vec::new())],
        vec![head(r#"{"type":"unheard of"}"#)],
        vec![head(BLOCK)],
    ];
    let images = [
        vec![head(BLOCK), piece(vec![data(64 * MIB - 1, 2)])],
        vec![head(BLOCK), piece(vec![data(u64::MAX, 1)])],
        vec![head(BLOCK), piece(vec![begin(b"image", file())])],
        [vec![head(BLOCK)], flood(&|| vec![data(0, 1 << 20)])].concat(),
    ];
    for (engine, streams) in
        [(EngineKind::Directory, trees.to_vec()), (EngineKind::LoopFile, images.to_vec())]
    {
        let cluster = Cluster::start(engine, Expected::NoAttach, &[A, B]).await;
        let mut asked = request("pvc-1", &cluster.nodes[1].pool);
        let source = VolumeId::make(&cluster.nodes[0].pool, "source");
        asked.volume_content_source = Some(from_volume(source.as_str()));
        if engine == EngineKind::LoopFile {
            asked.volume_capabilities = vec![block()];
        }
        for parts in streams {
            let what = format!("{:?}", parts.iter().take(2).collect::<Vec<_>>());
            let what = &what[..what.len().min(300)];
            let refused = copy_from(&cluster, parts, asked.clone()).await;
            let final_code =
                matches!(refused.code(), Code::DataLoss | Code::Internal | Code::FailedPrecondition);
            assert!(final_code, "{what}: {refused}");
            let pool = &cluster.nodes[1].lab.config.pool_path;
            let names = |below: &str| std::fs::read_dir(pool.join(below)).unwrap().count();
            assert_eq!((names("volumes"), names("transit")), (0, 0), "{what}");
            let mut top: Vec<_> =
                std::fs::read_dir(pool).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            top.sort();
            assert_eq!(top, [".dunnage", "lost+found", "snapshots", "transit", "trash", "volumes"], "{what}");
        }
    }
}
