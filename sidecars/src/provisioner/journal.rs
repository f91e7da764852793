//! The write-ahead journal: which volumes may exist without a PersistentVolume, kept where a restart finds it.
//!
//! An entry is written before the driver is called and taken out when a PersistentVolume has been saved or the driver
//! has said that nothing was made. It lives in the annotations of a Lease beside the leader's, for that is what every
//! provisioner may write; all claims that wait share one write.

mod lease;
pub mod state;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunnage_cluster::error::{Category, chain};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use lease::Lease;
use state::{Entry, Full, State};

/// A claim's UID and what is owed for it.
pub type Owed = (String, Entry);

/// How long a claim waits for its entry to be written before it is tried again later.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long entries that are done may stay when nothing else is written.
const LAZY: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(500);

/// An entry that is not known to be written.
#[derive(Debug, thiserror::Error)]
pub enum Unrecorded {
    #[error(transparent)]
    Full(#[from] Full),
    #[error("the provisioner's journal cannot be written")]
    Unwritten,
}

/// The journal. Clones are the same one.
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    changed: Notify,
    written: watch::Sender<u64>,
    /// Off where the role may not write Leases.
    enabled: bool,
}

#[derive(Default)]
struct Inner {
    state: State,
    /// Counts changes.
    version: u64,
    /// The last change that somebody waits for.
    needed: u64,
}

/// The journal as found, and the task that keeps it.
pub struct Opened {
    pub journal: Journal,
    pub owed: BTreeMap<String, Entry>,
    /// What another process noted while this one was leading already.
    pub adopted: mpsc::UnboundedReceiver<Owed>,
    pub writer: Writer,
}

/// Writes the journal, until its token is cancelled and then once more.
pub struct Writer {
    journal: Journal,
    lease: Option<Lease>,
    adopt: mpsc::UnboundedSender<Owed>,
}

/// Reads the journal, and writes it once so that a former leader's write in flight is refused.
pub async fn open(
    client: kube::Client,
    namespace: &str,
    name: &str,
    identity: &str,
) -> Result<Opened, dunnage_cluster::Error> {
    let (adopt, adopted) = mpsc::unbounded_channel();
    let (lease, read) = match Lease::open(client, namespace, name, identity).await {
        Ok((lease, read)) => (Some(lease), read),
        Err(error) if error.category() == Category::Forbidden => {
            warn!(
                lease = format!("{namespace}/{name}"),
                error = chain(&error),
                "no journal is kept: a claim deleted while this process restarts may leave a volume behind"
            );
            (None, state::Read::default())
        }
        Err(error) => return Err(error),
    };
    for key in read.unread.keys() {
        error!(
            key,
            "an entry of the journal cannot be read: a newer version may have written it; it is kept"
        );
    }
    let inner = Inner { state: State::from(&read), ..Inner::default() };
    let shared = Shared {
        inner: Mutex::new(inner),
        changed: Notify::new(),
        written: watch::Sender::new(0),
        enabled: lease.is_some(),
    };
    let journal = Journal(Arc::new(shared));
    let writer = Writer { journal: journal.clone(), lease, adopt };
    Ok(Opened { journal, owed: read.entries, adopted, writer })
}

impl Journal {
    /// Returns when the entry is stored.
    pub async fn record(&self, uid: &str, entry: &Entry) -> Result<(), Unrecorded> {
        if !self.0.enabled {
            return Ok(());
        }
        let mut written = self.0.written.subscribe();
        let needed = {
            let mut inner = self.inner();
            if inner.state.insert(uid, entry)? {
                inner.version += 1;
                inner.needed = inner.version;
            }
            inner.needed
        };
        self.0.changed.notify_one();
        let stored = written.wait_for(|version| *version >= needed);
        match tokio::time::timeout(PATIENCE, stored).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Unrecorded::Unwritten),
        }
    }

    /// Takes an entry out, with the next write or soon.
    pub fn remove(&self, uid: &str) {
        let mut inner = self.inner();
        if inner.state.remove(uid) {
            inner.version += 1;
            drop(inner);
            self.0.changed.notify_one();
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.inner().state.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let changed = self.journal.0.changed.notified();
            let (version, needed) = {
                let inner = self.journal.inner();
                (inner.version, inner.needed)
            };
            let done = *self.journal.0.written.borrow();
            let due = async {
                match (needed > done, version > done) {
                    (true, _) => {}
                    (false, true) => tokio::time::sleep(LAZY).await,
                    (false, false) => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = due => self.write().await,
                () = changed => {}
            }
        }
        if self.journal.inner().version > *self.journal.0.written.borrow() {
            self.write().await;
        }
    }

    /// One write for all that is noted by now.
    async fn write(&mut self) {
        let Some(lease) = &mut self.lease else { return };
        let (state, version) = {
            let inner = self.journal.inner();
            (inner.state.clone(), inner.version)
        };
        match lease.write(&state).await {
            Ok(()) => drop(self.journal.0.written.send_replace(version)),
            Err(error) if error.is_not_found() => match lease.create(&state).await {
                Ok(()) => drop(self.journal.0.written.send_replace(version)),
                Err(error) => {
                    warn!(error = chain(&error), "cannot make the journal anew, trying again");
                    tokio::time::sleep(RETRY).await;
                }
            },
            Err(error) if error.is_conflict() => match lease.reread().await {
                Ok(theirs) => self.adopt(theirs),
                Err(error) => warn!(error = chain(&error), "cannot read the journal, trying again"),
            },
            Err(error) => {
                warn!(error = chain(&error), "cannot write the journal, trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Somebody else wrote: a former leader's last entry, perhaps. It is owed all the same.
    fn adopt(&self, theirs: BTreeMap<String, Entry>) {
        for (uid, entry) in theirs {
            let mut inner = self.journal.inner();
            if inner.state.contains(&uid) {
                continue;
            }
            warn!(uid, "another process has written to the journal; its entry is taken over");
            inner.state.keep(&uid, &entry);
            inner.version += 1;
            drop(inner);
            if self.adopt.send((uid, entry)).is_err() {
                return;
            }
        }
    }
}
