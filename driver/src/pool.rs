//! The pool of a node: a path with a marker, opened while the right disk is there.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use dunnage_csi::agent::pool::State;
use dunnage_host::dir::{Dir, Mounts};
use dunnage_host::mount::is_root_of_filesystem;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::id::PoolId;
use crate::pool::state::{FORMAT, Look, Marker, MarkerSeen, Verdict, Wanted, judge};
use crate::reserve::Reserve;
use crate::status::chain;
use crate::steps::Steps;
use crate::store::{self, Store};

pub(crate) mod state;

/// The directory of our own files in a pool.
const OWN: &str = ".dunnage";
const MARKER: &str = "pool.json";

/// Where the pool is and whose it must be.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) path: PathBuf,
    pub(crate) backend_uid: String,
    pub(crate) require_mount_point: bool,
    pub(crate) reserve: Reserve,
}

/// Tells the watchers that something about the pool changed.
#[derive(Clone, Debug)]
pub(crate) struct Changed(watch::Sender<u64>);

impl Default for Changed {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Changed {
    pub(crate) fn notify(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The pool. All of its methods block.
#[derive(Debug)]
pub(crate) struct Pool {
    settings: Settings,
    engine: Arc<dyn Engine>,
    changed: Changed,
    steps: Steps,
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    verdict: Verdict,
    opened: Option<Opened>,
}

#[derive(Debug)]
struct Opened {
    store: Arc<Store>,
    /// Device and inode of the path when it was opened.
    identity: (u64, u64),
}

impl Pool {
    pub(crate) fn new(settings: Settings, engine: Arc<dyn Engine>, changed: Changed, steps: Steps) -> Self {
        Self { settings, engine, changed, steps, current: Mutex::default() }
    }

    /// Looks at the path again, and opens or lets go of the pool accordingly.
    pub(crate) fn refresh(&self) -> (Verdict, Option<Arc<Store>>) {
        let mut current = self.lock();
        self.look_again(&mut current);
        let store = current.opened.as_ref().map(|opened| Arc::clone(&opened.store));
        (current.verdict.clone(), store)
    }

    /// What the last look saw; does not block, so while one goes on the state is unspecified.
    pub(crate) fn known(&self) -> Verdict {
        match self.current.try_lock() {
            Ok(current) => current.verdict.clone(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().verdict.clone(),
            Err(TryLockError::WouldBlock) => Verdict::default(),
        }
    }

    /// The volumes, while the pool is ready.
    pub(crate) fn store(&self) -> Result<Arc<Store>> {
        match self.refresh() {
            (_, Some(store)) => Ok(store),
            (Verdict { state: State::Empty, .. }, None) => Err(Error::Unavailable(format!(
                "{} is no pool yet: the operator makes it one",
                self.settings.path.display()
            ))),
            (verdict, None) => Err(Error::Unavailable(verdict.message)),
        }
    }

    /// Makes an empty path a pool; does nothing when it is that pool already.
    pub(crate) fn init(&self, id: &PoolId, backend_uid: &str) -> Result<()> {
        if backend_uid != self.settings.backend_uid {
            return Err(Error::Precondition(format!(
                "this driver serves the StorageBackend with uid {}, not {backend_uid}",
                self.settings.backend_uid
            )));
        }
        let mut current = self.lock();
        self.look_again(&mut current);
        match (&current.verdict.state, &current.verdict.marker) {
            (State::Ready, Some(marker)) if marker.pool_id == *id => Ok(()),
            (State::Ready, Some(marker)) => Err(Error::Precondition(format!(
                "{} is pool {} already",
                self.settings.path.display(),
                marker.pool_id
            ))),
            (State::Empty, _) => {
                self.make(id)?;
                info!(pool = %id, path = %self.settings.path.display(), "pool made");
                self.look_again(&mut current);
                Ok(())
            }
            _ => Err(Error::Precondition(current.verdict.message.clone())),
        }
    }

    fn make(&self, id: &PoolId) -> Result<()> {
        let root = Dir::open(&self.settings.path)?;
        let own = root.make_dir(OWN, 0o700)?;
        store::make_dirs(&root)?;
        root.sync()?;
        self.steps.reach("pool directories made");
        let marker =
            Marker { format: FORMAT, pool_id: id.clone(), backend_uid: self.settings.backend_uid.clone() };
        let content =
            serde_json::to_vec(&marker).map_err(|source| Error::Damaged { id: id.to_string(), source })?;
        // Last: from here on it is a pool.
        Ok(own.write(MARKER, &content)?)
    }

    /// Gives up a pool without volumes, so that the path is as it was; does nothing where there is no pool.
    pub(crate) fn remove(&self, id: &PoolId) -> Result<()> {
        let mut current = self.lock();
        self.look_again(&mut current);
        match &current.verdict.marker {
            Some(marker) if marker.pool_id != *id => {
                return Err(Error::Precondition(format!(
                    "{} is pool {}, not {id}",
                    self.settings.path.display(),
                    marker.pool_id
                )));
            }
            Some(_) => match &current.opened {
                Some(opened) => opened.store.close()?,
                None => return Err(Error::Precondition(current.verdict.message.clone())),
            },
            None if matches!(current.verdict.state, State::NewerFormat | State::Damaged) => {
                return Err(Error::Precondition(current.verdict.message.clone()));
            }
            None => {}
        }
        current.opened = None;
        let root = match Dir::open(&self.settings.path) {
            Ok(root) => root,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // The marker goes first: what is left then is what an unfinished making leaves.
        match root.dir(OWN, Mounts::Refuse) {
            Ok(own) => {
                own.remove_file(MARKER)?;
                own.sync()?;
                self.steps.reach("pool marker removed");
                store::empty_trash(&root)?;
                root.remove_tree(OWN)?;
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        store::remove_dirs(&root)?;
        info!(pool = %id, path = %self.settings.path.display(), "pool removed");
        self.look_again(&mut current);
        Ok(())
    }

    fn look_again(&self, current: &mut Current) {
        let dir = Dir::open(&self.settings.path);
        let look = dir
            .as_ref()
            .map_err(|error| chain(error))
            .and_then(|dir| look(dir).map_err(|error| chain(&error)));
        let path = self.settings.path.to_string_lossy();
        let wanted = Wanted {
            path: &path,
            backend_uid: &self.settings.backend_uid,
            require_mount_point: self.settings.require_mount_point,
        };
        let mut verdict = judge(wanted, look);
        if let (State::Empty, Ok(dir)) = (&verdict.state, &dir)
            && let Some(obstacle) = self.engine.unfit(dir).unwrap_or_else(|error| Some(chain(&error)))
        {
            // A pool that is there stays open, for its volumes can be used.
            verdict.state = State::Unavailable;
            verdict.message = obstacle;
        }
        let id = match (&verdict.state, &verdict.marker) {
            (State::Ready, Some(marker)) => Some(marker.pool_id.clone()),
            _ => None,
        };
        let identity = dir.as_ref().ok().and_then(|dir| dir.identity().ok());
        let same =
            |opened: &Opened| Some(&opened.store.id) == id.as_ref() && Some(opened.identity) == identity;
        if !current.opened.as_ref().is_some_and(same) {
            // First: it holds the lock that the new one needs.
            current.opened = None;
            if let (Some(id), Some(identity), Ok(dir)) = (id, identity, dir) {
                match self.open(dir, id) {
                    Ok(store) => current.opened = Some(Opened { store, identity }),
                    Err(error) => {
                        verdict.state = State::Unavailable;
                        verdict.message = chain(&error);
                    }
                }
            }
        }
        if verdict != current.verdict {
            let state = verdict.state.as_str_name();
            if matches!(verdict.state, State::Ready | State::Empty) {
                info!(state, path = %path, "pool looked at");
            } else {
                warn!(state, path = %path, message = verdict.message, "pool cannot be used");
            }
            current.verdict = verdict;
            self.changed.notify();
        }
    }

    fn open(&self, root: Dir, id: PoolId) -> Result<Arc<Store>> {
        let own = root.dir(OWN, Mounts::Refuse)?;
        if !own.lock()? {
            return Err(Error::Unavailable(format!(
                "another process still serves the pool at {}: it has to end first",
                self.settings.path.display()
            )));
        }
        let (engine, changed) = (Arc::clone(&self.engine), self.changed.clone());
        let store = Store::open(id, root, own, engine, self.settings.reserve, changed, self.steps.clone())?;
        let store = Arc::new(store);
        self.engine.recover(&store);
        Ok(store)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at a pool's path.
fn look(root: &Dir) -> Result<Look> {
    let is_mount_point = is_root_of_filesystem(root)?;
    let marker = match root.dir(OWN, Mounts::Refuse).and_then(|own| own.read(MARKER)) {
        Ok(content) => MarkerSeen::parse(&content),
        Err(error) if error.is_not_found() => MarkerSeen::None,
        Err(error) => MarkerSeen::Damaged { why: chain(&error) },
    };
    let foreign = if marker == MarkerSeen::None { foreign(root)? } else { Vec::new() };
    Ok(Look { is_mount_point, foreign, marker })
}

/// What lies in a directory that is no pool yet, apart from a making of one that was cut short.
fn foreign(root: &Dir) -> Result<Vec<String>> {
    let mut foreign = Vec::new();
    for entry in root.entries()? {
        let name = entry.name.to_string_lossy().into_owned();
        let half_made = match name.as_str() {
            "lost+found" => entry.is_dir,
            OWN | store::VOLUMES | store::SNAPSHOTS | store::TRANSIT | store::TRASH if entry.is_dir => root
                .dir(&name, Mounts::Refuse)?
                .entries()?
                .iter()
                .all(|inner| name == OWN && inner.name.to_string_lossy().starts_with(MARKER)),
            _ => false,
        };
        if !half_made {
            foreign.push(name);
        }
    }
    Ok(foreign)
}
