//! Copies between this pool and others: volumes whose data this node takes, and data that it gives.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dunnage_csi::agent::CopyHint;
use dunnage_csi::metadata::{COPY, UNWANTED};
use dunnage_csi::tls::{Material, Peer, ROUTER};
use dunnage_telemetry::metrics::Metrics;
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};
use tracing::{Instrument as _, info, info_span, warn};

use super::Driver;
use super::controller::wanted::Wanted;
use crate::copies::{CopySettings, Pace};
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::locks::Guard;
use crate::record::{Record, Source};
use crate::status::chain;
use crate::store::Store;

mod give;
mod metrics;
mod pull;

pub use give::CopiesService;
use metrics::CopyMetrics;

/// Copies at a time, in each direction; the others wait.
const AT_A_TIME: usize = 4;
/// How long a call waits for a copy: a small one is there at once.
const WAIT: Duration = Duration::from_secs(2);
/// How long a copy may take to notice that it is to stop.
const STOP: Duration = Duration::from_secs(10);

/// All copies of a node.
#[derive(Debug)]
pub(super) struct Copies {
    settings: CopySettings,
    /// To reach other agents and to know the router's tickets; none before the driver is served.
    material: OnceLock<Arc<Material>>,
    coming: Mutex<HashMap<VolumeId, Arc<Coming>>>,
    /// When each arriving volume was last asked for.
    asked: Mutex<HashMap<VolumeId, Instant>>,
    taking: Semaphore,
    giving: Arc<Semaphore>,
    take_pace: Pace,
    give_pace: Pace,
    /// The tickets that were taken and are not too old yet.
    spent: Mutex<HashMap<Vec<u8>, i64>>,
    metrics: CopyMetrics,
}

/// A volume that comes, while this process lives.
#[derive(Debug)]
struct Coming {
    source: Source,
    stop: CancellationToken,
    received: AtomicU64,
    announced: AtomicU64,
    ended: watch::Sender<Option<std::result::Result<(), Status>>>,
}

/// What the router tells beside a `CreateVolume`.
#[derive(Debug, Default)]
pub(super) struct Offer {
    hint: Option<CopyHint>,
    /// Nobody waits for the volume any more.
    unwanted: bool,
}

impl Offer {
    /// Nobody else's word counts.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        if request.extensions().get::<Peer>().is_none_or(|Peer(name)| name != ROUTER) {
            return Self::default();
        }
        let hint = request.metadata().get_bin(COPY).and_then(|value| value.to_bytes().ok());
        Self {
            hint: hint.and_then(|bytes| CopyHint::decode(bytes).ok()),
            unwanted: request.metadata().contains_key(UNWANTED),
        }
    }
}

impl Copies {
    pub(super) fn new(settings: CopySettings) -> Self {
        Self {
            settings,
            material: OnceLock::new(),
            coming: Mutex::default(),
            asked: Mutex::default(),
            taking: Semaphore::new(AT_A_TIME),
            giving: Arc::new(Semaphore::new(AT_A_TIME)),
            take_pace: Pace::new(settings.rate),
            give_pace: Pace::new(settings.rate),
            spent: Mutex::default(),
            metrics: CopyMetrics::default(),
        }
    }

    fn coming(&self) -> MutexGuard<'_, HashMap<VolumeId, Arc<Coming>>> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<VolumeId, Instant>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, id: &VolumeId) {
        self.coming().remove(id);
        self.asked().remove(id);
    }
}

impl Coming {
    fn new(source: Source) -> Self {
        Self {
            source,
            stop: CancellationToken::new(),
            received: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            ended: watch::Sender::new(None),
        }
    }

    /// How it ended, if it does within the time. Blocks.
    fn wait(&self, time: Duration) -> Option<std::result::Result<(), Status>> {
        let mut ended = self.ended.subscribe();
        Handle::current().block_on(async {
            let ended = tokio::time::timeout(time, ended.wait_for(Option::is_some)).await;
            ended.ok()?.ok()?.clone()
        })
    }

    /// How far it is, for people.
    fn progress(&self) -> String {
        let mebibytes = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed) >> 20;
        format!("{} of about {} MiB", mebibytes(&self.received), mebibytes(&self.announced))
    }
}

impl Driver {
    fn copies(&self) -> &Copies {
        &self.0.copies
    }

    /// Lets the driver copy from and to other nodes.
    pub(super) fn join(&self, material: Arc<Material>, metrics: &Metrics) {
        let _ = self.copies().material.set(material);
        self.copies().metrics.register(metrics);
    }

    /// The volumes that are arriving, in the order of their ids.
    pub(super) fn arriving(&self, store: &Store) -> Vec<VolumeId> {
        let mut ids = store.arriving();
        let ended = |coming: &Coming| coming.ended.borrow().is_some();
        ids.extend(self.copies().coming().iter().filter(|(_, it)| !ended(it)).map(|(id, _)| id.clone()));
        ids.sort();
        ids.dedup();
        ids
    }

    /// Makes a volume whose data lie on another pool. The call is repeated until they are here.
    pub(super) fn copy_here(
        &self,
        store: &Arc<Store>,
        wanted: Wanted,
        id: &VolumeId,
        offer: Offer,
        guard: Guard,
    ) -> Result<Record> {
        if offer.unwanted {
            self.cancel_copy(store, id)?;
            return Err(Error::Precondition(format!(
                "nobody waits for volume {id} any more, and its copy is given up"
            )));
        }
        if let Some(arrival) = store.arrival(id) {
            wanted.matches(arrival.record)?;
        }
        self.copies().asked().insert(id.clone(), Instant::now());
        let running = self.copies().coming().get(id).map(Arc::clone);
        let coming = match running {
            Some(coming) => coming,
            None => self.begin(store, wanted, id, offer.hint)?,
        };
        // A deletion may come meanwhile.
        drop(guard);
        let Some(ended) = coming.wait(WAIT) else {
            return Err(Error::Aborted(format!(
                "volume {id} is being copied from {}: {}",
                coming.source,
                coming.progress()
            )));
        };
        self.copies().coming().remove(id);
        ended?;
        self.copies().asked().remove(id);
        store.record(id).ok_or_else(|| Error::NoSuchVolume { id: id.to_string() })
    }

    fn begin(
        &self,
        store: &Arc<Store>,
        wanted: Wanted,
        id: &VolumeId,
        hint: Option<CopyHint>,
    ) -> Result<Arc<Coming>> {
        let (Some(hint), Some(source)) = (hint, wanted.source.clone()) else {
            let pool = wanted.source.map(|source| source.pool().to_string()).unwrap_or_default();
            return Err(Error::SourceElsewhere { pool, asked: format!("pool {}", store.id) });
        };
        let coming = Arc::new(Coming::new(source));
        self.copies().coming().insert(id.clone(), Arc::clone(&coming));
        let (driver, store, id) = (self.clone(), Arc::clone(store), id.clone());
        let (span, running) = (info_span!("copy", volume = %id), Arc::clone(&coming));
        let copying = async move {
            let ended = driver.pull(&store, wanted, &id, hint, &running).await;
            running.ended.send_replace(Some(ended));
            driver.0.changed.notify();
        };
        Handle::current().spawn(copying.instrument(span));
        self.0.changed.notify();
        Ok(coming)
    }

    /// Ends the copy to a volume and removes what came; it is no error when there is none. Blocks.
    pub(super) fn cancel_copy(&self, store: &Arc<Store>, id: &VolumeId) -> Result<()> {
        let running = self.copies().coming().get(id).map(Arc::clone);
        if let Some(coming) = running {
            coming.stop.cancel();
            if coming.wait(STOP).is_none() {
                return Err(Error::Busy { id: id.to_string() });
            }
            info!(volume = %id, progress = coming.progress(), "copy given up");
        }
        store.abandon(id)?;
        self.copies().forget(id);
        Ok(())
    }

    /// Gives up the copies that nobody has asked for in a long time, in either direction. Blocks.
    pub(super) fn sweep_copies(&self, store: &Arc<Store>) {
        let patience = self.copies().settings.patience;
        let mut known = store.arriving();
        known.extend(self.copies().coming().keys().cloned());
        let forgotten = forgotten(&mut self.copies().asked(), &known, Instant::now(), patience);
        for id in forgotten {
            warn!(volume = %id, "nobody has asked for this copy for long: it is given up");
            if let Err(error) = self.cancel_copy(store, &id) {
                warn!(volume = %id, error = chain(&error), "cannot give up a copy yet");
            }
        }
        store.sweep_lent(patience);
    }
}

/// Those that were last asked for too long ago. One that is not known yet, as after a start, counts from now on.
fn forgotten(
    asked: &mut HashMap<VolumeId, Instant>,
    known: &[VolumeId],
    now: Instant,
    patience: Duration,
) -> Vec<VolumeId> {
    asked.retain(|id, _| known.contains(id));
    let is_over = |id: &&VolumeId| {
        let last = *asked.entry((*id).clone()).or_insert(now);
        now.saturating_duration_since(last) >= patience
    };
    let mut over: Vec<VolumeId> = known.iter().filter(is_over).cloned().collect();
    over.sort();
    over.dedup();
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_kept_as_long_as_it_is_asked_for_and_for_a_while_after_a_start() {
        let id = |name| VolumeId::make(&"0123456789abcdef".parse().unwrap(), name);
        let (start, patience) = (Instant::now(), Duration::from_secs(60));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut asked = HashMap::from([(id("old"), at(0)), (id("new"), at(50)), (id("gone"), at(0))]);
        let known = [id("old"), id("new"), id("found")];
        assert_eq!(forgotten(&mut asked, &known, at(59), patience), []);
        assert!(!asked.contains_key(&id("gone")));
        assert_eq!(forgotten(&mut asked, &known, at(60), patience), [id("old")]);
        asked.insert(id("old"), at(61));
        let mut both = [id("new"), id("found")];
        both.sort();
        assert_eq!(forgotten(&mut asked, &known, at(119), patience), both);
    }
}
