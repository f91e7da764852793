//! A node's agent without a node: it keeps its pool in memory and speaks real mutual TLS.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use dunnage_csi::agent::agent_server::{Agent, AgentServer};
use dunnage_csi::agent::pool::State;
use dunnage_csi::agent::{
    DescribeRequest, DescribeResponse, FenceRequest, FenceResponse, InitPoolRequest, InitPoolResponse, Pool,
    RemovePoolRequest, RemovePoolResponse, Volume,
};
use dunnage_csi::tls::{self, Material};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Secret;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// A disk, which outlives the agents that serve it.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Inner>);

struct Inner {
    node: String,
    pool: watch::Sender<Pool>,
    volumes: Mutex<Vec<String>>,
    calls: Mutex<Vec<String>>,
}

impl Disk {
    /// An empty path on `node`.
    pub(crate) fn empty(node: &str) -> Self {
        let pool = Pool {
            state: State::Empty.into(),
            path: "/var/lib/dunnage".into(),
            total_bytes: 100 << 30,
            available_bytes: 80 << 30,
            limits_enforced: true,
            ..Pool::default()
        };
        let pool = watch::Sender::new(pool);
        let (volumes, calls) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { node: node.to_owned(), pool, volumes, calls }))
    }

    pub(crate) fn pool(&self) -> Pool {
        self.0.pool.borrow().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Pool)) {
        self.0.pool.send_modify(change);
    }

    /// What the operator asked for so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        lock(&self.0.calls).clone()
    }

    /// Serves this disk at `address` until the token that is returned is dropped.
    pub(crate) async fn serve(
        &self,
        address: Ipv4Addr,
        secret: &Secret,
    ) -> Result<tokio_util::sync::DropGuard> {
        let data = secret.data.as_ref().context("the Secret has no data")?;
        let part =
            |key: &str| data.get(key).map(|bytes| bytes.0.clone()).with_context(|| format!("no {key}"));
        let material = Material::from_pem(&part("ca.crt")?, &part("tls.crt")?, &part("tls.key")?)?;
        let listener = TcpListener::bind((address, dunnage_operator::views::AGENT_PORT)).await?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let service = AgentServer::new(self.clone());
        tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            // The streams never end by themselves: a killed agent's do not either.
            tokio::select! {
                _ = server.serve_with_incoming(tls::incoming(listener, material)) => {}
                () = stopped.cancelled() => {}
            }
        });
        Ok(stop.drop_guard())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[tonic::async_trait]
impl Agent for Disk {
    type DescribeStream = BoxStream<'static, Result<DescribeResponse, Status>>;

    async fn describe(
        &self,
        request: Request<DescribeRequest>,
    ) -> Result<Response<Self::DescribeStream>, Status> {
        tls::require_peer(&request, &[tls::OPERATOR])?;
        let disk = self.clone();
        let stream = WatchStream::new(self.0.pool.subscribe()).map(move |pool| {
            Ok(DescribeResponse {
                node: disk.0.node.clone(),
                version: "0.1.0".into(),
                pool: Some(pool),
                volumes: lock(&disk.0.volumes)
                    .iter()
                    .map(|id| Volume { id: id.clone(), ..Volume::default() })
                    .collect(),
                ..DescribeResponse::default()
            })
        });
        Ok(Response::new(stream.boxed()))
    }

    async fn init_pool(
        &self,
        request: Request<InitPoolRequest>,
    ) -> Result<Response<InitPoolResponse>, Status> {
        let InitPoolRequest { pool_id, backend_uid } = request.into_inner();
        lock(&self.0.calls).push(format!("init {pool_id}"));
        let pool = self.pool();
        if pool.state() == State::Ready && pool.id == pool_id {
            return Ok(Response::new(InitPoolResponse {}));
        }
        if pool.state() != State::Empty {
            return Err(Status::failed_precondition("the path is not empty"));
        }
        self.change(|pool| {
            pool.set_state(State::Ready);
            pool.id = pool_id;
            pool.backend_uid = backend_uid;
        });
        Ok(Response::new(InitPoolResponse {}))
    }

    async fn remove_pool(
        &self,
        _: Request<RemovePoolRequest>,
    ) -> Result<Response<RemovePoolResponse>, Status> {
        lock(&self.0.calls).push("remove".into());
        self.change(|pool| {
            pool.set_state(State::Empty);
            pool.id.clear();
        });
        Ok(Response::new(RemovePoolResponse {}))
    }

    async fn fence(&self, request: Request<FenceRequest>) -> Result<Response<FenceResponse>, Status> {
        let fenced = request.into_inner().fenced;
        lock(&self.0.calls).push(format!("fence {fenced}"));
        self.change(|pool| pool.fenced = fenced);
        Ok(Response::new(FenceResponse {}))
    }
}
