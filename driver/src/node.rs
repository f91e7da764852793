//! A node's driver: the whole CSI service for the node's own pool, and the agent service beside it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use dunnage_csi::agent::pool::State;
use dunnage_csi::v1::Topology;
use dunnage_host::dir::Dir;
use dunnage_host::mount::Place;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};
use tracing::{Span, debug, error, warn};

use crate::copies::CopySettings;
use crate::engine::{Engine, EngineKind};
use crate::error::{Error, Result};
use crate::id::{GroupId, PoolId, SnapshotId, VolumeId};
use crate::locks::{Guard, Locks};
use crate::overcommit::Overcommit;
use crate::pool::{Changed, Pool, Settings};
use crate::reserve::Reserve;
use crate::status::chain;
use crate::steps::Steps;
use crate::store::Store;

mod agent;
mod controller;
mod copies;
mod groups;
mod identity;
mod metrics;
mod mounts;
mod serve;

pub use agent::AgentService;
pub use controller::ControllerService;
pub(crate) use controller::read_parameters;
pub use copies::CopiesService;
pub use groups::GroupControllerService;
pub use identity::IdentityService;
pub use mounts::NodeService;
pub use serve::{ServeConfig, ServeError, serve};

/// What a node's driver must be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the CSI driver.
    pub driver_name: String,
    /// Name of the Kubernetes node, which is the CSI node id.
    pub node_id: String,
    /// Version of the program.
    pub version: String,
    pub engine: EngineKind,
    pub pool_path: PathBuf,
    /// Uid of the StorageBackend that the pool must belong to.
    pub backend_uid: String,
    pub require_mount_point: bool,
    /// Whether `ControllerPublishVolume` is part of a volume's way to a pod.
    pub attach: bool,
    /// Volumes are mounted nowhere but below this directory.
    pub kubelet_dir: PathBuf,
    pub steps: Steps,
    /// How much more than there is sparse volumes may promise.
    pub overcommit: Overcommit,
    /// What volumes leave free of the pool's file system.
    pub reserve: Reserve,
    /// How copies from and to other pools go.
    pub copies: CopySettings,
}

/// The driver. Clones are the same driver.
#[derive(Clone, Debug)]
pub struct Driver(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    engine: Arc<dyn Engine>,
    pool: Pool,
    locks: Locks,
    copies: copies::Copies,
    /// The reason of the fence, while there is one.
    fence: Mutex<Option<String>>,
    changed: Changed,
}

impl Driver {
    /// Looks for the pool. That there is none is no error: the driver waits for it.
    pub fn open(config: Config) -> Self {
        let engine = config.engine.engine(config.overcommit);
        let changed = Changed::default();
        let settings = Settings {
            path: config.pool_path.clone(),
            backend_uid: config.backend_uid.clone(),
            require_mount_point: config.require_mount_point,
            reserve: config.reserve,
        };
        let pool = Pool::new(settings, Arc::clone(&engine), changed.clone(), config.steps.clone());
        pool.refresh();
        let copies = copies::Copies::new(config.copies);
        Self(Arc::new(Inner {
            config,
            engine,
            pool,
            locks: Locks::default(),
            copies,
            fence: Mutex::default(),
            changed,
        }))
    }

    pub fn identity(&self) -> IdentityService {
        IdentityService::new(self.clone())
    }

    pub fn controller(&self) -> ControllerService {
        ControllerService::new(self.clone())
    }

    pub fn group_controller(&self) -> GroupControllerService {
        GroupControllerService::new(self.clone())
    }

    pub fn node(&self) -> NodeService {
        NodeService::new(self.clone())
    }

    pub fn agent(&self, stop: CancellationToken) -> AgentService {
        AgentService::new(self.clone(), stop)
    }

    /// The service for agents of other nodes, until the stop.
    pub fn copies_service(&self, stop: CancellationToken) -> CopiesService {
        CopiesService::new(self.clone(), stop)
    }

    /// Makes the empty path this pool; does nothing when it is. Blocks.
    pub fn init_pool(&self, id: &PoolId, backend_uid: &str) -> Result<()> {
        self.0.pool.init(id, backend_uid)
    }

    /// Gives up this pool, if it has no volumes. Blocks.
    pub fn remove_pool(&self, id: &PoolId) -> Result<()> {
        self.0.pool.remove(id)
    }

    /// What the path of the pool holds, and what is wrong with it. Blocks.
    pub fn pool_state(&self) -> (State, String) {
        let (verdict, _) = self.0.pool.refresh();
        (verdict.state, verdict.message)
    }

    /// The same as of the last look, without looking.
    fn known_pool_state(&self) -> (State, String) {
        let verdict = self.0.pool.known();
        (verdict.state, verdict.message)
    }

    /// Looks at the pool, and does what is to be done now and then. Blocks.
    pub fn tick(&self) {
        if let (_, Some(store)) = self.0.pool.refresh() {
            self.engine().tick(&store);
            self.sweep_inline(&store);
            self.sweep_copies(&store);
        }
    }

    fn config(&self) -> &Config {
        &self.0.config
    }

    fn engine(&self) -> &dyn Engine {
        self.0.engine.as_ref()
    }

    fn store(&self) -> Result<Arc<Store>> {
        self.0.pool.store()
    }

    /// Takes a volume for one call.
    fn lock(&self, id: &VolumeId) -> Result<Guard> {
        self.0.locks.take(id.as_str())
    }

    /// Takes a volume's data: no copy of them is made meanwhile, and nothing that changes them while one is. Pods go
    /// on using the volume, and can be given it.
    fn lock_data(&self, id: &VolumeId) -> Result<Guard> {
        self.0.locks.take(&format!("{id}/data")).map_err(|_| Error::Busy { id: id.to_string() })
    }

    /// The same where staging and unstaging change the data.
    fn lock_staged_data(&self, id: &VolumeId) -> Result<Option<Guard>> {
        self.engine().stages_data().then(|| self.lock_data(id)).transpose()
    }

    /// Takes a snapshot for one call.
    fn lock_snapshot(&self, id: &SnapshotId) -> Result<Guard> {
        self.0.locks.take(id.as_str())
    }

    /// Takes a group snapshot for one call.
    fn lock_group(&self, id: &GroupId) -> Result<Guard> {
        self.0.locks.take(id.as_str())
    }

    /// Keeps a snapshot from being deleted; several volumes can be made from it at once.
    fn share_snapshot(&self, id: &SnapshotId) -> Result<Guard> {
        self.0.locks.share(id.as_str())
    }

    fn check_fence(&self) -> Result<()> {
        match &*self.0.fence.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(reason) => Err(Error::Precondition(format!("the pool is fenced: {reason}"))),
        }
    }

    fn is_fenced(&self) -> bool {
        self.check_fence().is_err()
    }

    fn set_fence(&self, reason: Option<String>) {
        *self.0.fence.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        self.0.changed.notify();
    }

    /// The key of the topology segment that names the pool.
    fn topology_key(&self) -> String {
        format!("topology.{}/pool", self.config().driver_name)
    }

    fn topology(&self, pool: &PoolId) -> Topology {
        Topology { segments: [(self.topology_key(), pool.to_string())].into() }
    }

    /// The place for a mount that a request names, if its parent directory is there.
    fn place(&self, field: &'static str, path: &str) -> Result<Option<Place>> {
        if path.is_empty() {
            return Err(Error::Missing { field });
        }
        let base = Dir::open(&self.config().kubelet_dir)?;
        Place::find(&base, path.as_ref()).map_err(|error| match error {
            dunnage_host::Error::Unexpected { .. } => Error::Invalid(format!("{field} {error}")),
            error => Error::Host(error),
        })
    }

    /// The same, when it must be there.
    fn need_place(&self, field: &'static str, path: &str) -> Result<Place> {
        self.place(field, path)?
            .ok_or_else(|| Error::Precondition(format!("the directory above {field} {path} is not there")))
    }
}

/// Runs a call's work off the async threads. It goes on when the caller hangs up: mounts must not stop half-way.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> std::result::Result<Response<T>, Status> {
    let span = Span::current();
    let result = tokio::task::spawn_blocking(move || {
        let _entered = span.entered();
        work().inspect_err(report)
    })
    .await;
    match result {
        Ok(result) => Ok(Response::new(result?)),
        Err(_) => Err(Error::Panicked.into()),
    }
}

/// One line for a failed call: loud only where this side is at fault.
fn report(failure: &Error) {
    let text = chain(failure);
    match failure {
        Error::Host(_) | Error::Damaged { .. } | Error::Panicked => error!(error = text, "call failed"),
        Error::Full { .. } | Error::Precondition(_) => warn!(error = text, "call refused"),
        _ => debug!(error = text, "call refused"),
    }
}
