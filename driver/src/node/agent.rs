//! The agent service: what the driver tells of itself, and what the operator asks of it.

use std::pin::Pin;
use std::time::Duration;

use dunnage_csi::agent::agent_server::Agent;
use dunnage_csi::agent::{
    DescribeRequest, DescribeResponse, FenceRequest, FenceResponse, InitPoolRequest, InitPoolResponse, Pool,
    RemovePoolRequest, RemovePoolResponse, Snapshot, Volume,
};
use dunnage_csi::tls::{OPERATOR, require_peer};
use futures::Stream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::{info, instrument, warn};

use super::{Driver, blocking};
use crate::record::Record;
use crate::snapshot;
use crate::status::chain;

/// At most ten messages a second.
const PAUSE: Duration = Duration::from_millis(100);
/// Free space changes without anybody telling.
const LOOK: Duration = Duration::from_secs(10);

/// Dunnage's own service beside CSI.
#[derive(Clone, Debug)]
pub struct AgentService {
    driver: Driver,
    /// Ends the streams, which would otherwise keep the server from stopping.
    stop: CancellationToken,
}

impl AgentService {
    pub(super) fn new(driver: Driver, stop: CancellationToken) -> Self {
        Self { driver, stop }
    }
}

impl Driver {
    fn described(&self) -> DescribeResponse {
        let config = self.config();
        let (verdict, store) = self.0.pool.refresh();
        let mut pool = Pool {
            state: verdict.state.into(),
            message: verdict.message,
            path: config.pool_path.to_string_lossy().into_owned(),
            fenced: self.is_fenced(),
            ..Pool::default()
        };
        if let Some(marker) = verdict.marker {
            pool.id = marker.pool_id.to_string();
            pool.backend_uid = marker.backend_uid;
        }
        let (mut volumes, mut snapshots, mut inline_pods) = (Vec::new(), Vec::new(), Vec::new());
        let mut arriving = Vec::new();
        let mut filesystem = String::new();
        if let Some(store) = store {
            match store.space().and_then(|space| Ok((space, store.available()?, store.filesystem()?))) {
                Ok((space, available, kind)) => {
                    (pool.total_bytes, pool.available_bytes) = (space.total, available);
                    filesystem = kind;
                }
                Err(error) => warn!(error = chain(&error), "cannot tell the pool's space"),
            }
            match self.engine().unlimited(&store) {
                Ok(unlimited) => {
                    pool.limits_enforced = unlimited.is_none();
                    pool.limits_message = unlimited.unwrap_or_default();
                }
                Err(error) => pool.limits_message = chain(&error),
            }
            let (inline, persistent): (Vec<_>, Vec<_>) =
                store.records().into_iter().partition(|record| record.inline.is_some());
            volumes = persistent.into_iter().map(volume).collect();
            inline_pods = inline.into_iter().filter_map(|record| Some(record.inline?.pod)).collect();
            inline_pods.sort();
            inline_pods.dedup();
            snapshots = store.snapshots().into_iter().map(snapshot).collect();
            arriving = self.arriving(&store).iter().map(ToString::to_string).collect();
        }
        DescribeResponse {
            node: config.node_id.clone(),
            driver: config.driver_name.clone(),
            version: config.version.clone(),
            pool: Some(pool),
            volumes,
            kernel: dunnage_host::kernel_release(),
            filesystem,
            snapshots,
            inline_pods,
            arriving_volume_ids: arriving,
        }
    }

    /// Sends the state now and after each change, until the receiver is gone or this is stopped.
    async fn tell(self, sender: mpsc::Sender<Result<DescribeResponse, Status>>, stop: CancellationToken) {
        let mut changes = self.0.changed.subscribe();
        let mut last = None;
        loop {
            // Marked before the look, so that a change during it is not missed.
            changes.mark_unchanged();
            let driver = self.clone();
            let described = blocking(move || Ok(driver.described())).await.map(Response::into_inner);
            let failed = described.is_err();
            if last.as_ref() != described.as_ref().ok() {
                last = described.as_ref().ok().cloned();
                if sender.send(described).await.is_err() || failed {
                    return;
                }
            }
            tokio::select! {
                _ = timeout(LOOK, changes.changed()) => {}
                () = sender.closed() => return,
                () = stop.cancelled() => return,
            }
            sleep(PAUSE).await;
        }
    }
}

fn volume(record: Record) -> Volume {
    Volume {
        id: record.id.to_string(),
        name: record.name,
        capacity_bytes: record.capacity_bytes,
        published_node: record.published_node.unwrap_or_default(),
        source: record.source.map(|source| source.to_agent()),
    }
}

fn snapshot(record: snapshot::Snapshot) -> Snapshot {
    Snapshot {
        creation_time: Some(record.created()),
        id: record.id.to_string(),
        name: record.name,
        source_volume_id: record.source_volume_id.to_string(),
        size_bytes: record.size_bytes,
        group_snapshot_id: record.group.map(String::from).unwrap_or_default(),
    }
}

type Descriptions = Pin<Box<dyn Stream<Item = Result<DescribeResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for AgentService {
    type DescribeStream = Descriptions;

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<Descriptions>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(self.driver.clone().tell(sender, self.stop.clone()));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    #[instrument(skip_all, fields(pool = request.get_ref().pool_id))]
    async fn init_pool(
        &self,
        request: Request<InitPoolRequest>,
    ) -> Result<Response<InitPoolResponse>, Status> {
        require_peer(&request, &[OPERATOR])?;
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || {
            driver.init_pool(&request.pool_id.parse()?, &request.backend_uid)?;
            Ok(InitPoolResponse {})
        })
        .await
    }

    #[instrument(skip_all, fields(pool = request.get_ref().pool_id))]
    async fn remove_pool(
        &self,
        request: Request<RemovePoolRequest>,
    ) -> Result<Response<RemovePoolResponse>, Status> {
        require_peer(&request, &[OPERATOR])?;
        let (driver, request) = (self.driver.clone(), request.into_inner());
        blocking(move || {
            driver.remove_pool(&request.pool_id.parse()?)?;
            Ok(RemovePoolResponse {})
        })
        .await
    }

    async fn fence(&self, request: Request<FenceRequest>) -> Result<Response<FenceResponse>, Status> {
        let FenceRequest { fenced, reason } = request.into_inner();
        if fenced != self.driver.is_fenced() {
            info!(fenced, reason, "fence");
        }
        self.driver.set_fence(fenced.then_some(reason));
        Ok(Response::new(FenceResponse {}))
    }
}
