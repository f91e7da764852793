//! Data that another node reads: a snapshot's own, or a copy of a volume's, made for it and kept until it is not read any
//! more.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dunnage_host::copy::can_reflink;
use dunnage_host::dir::Dir;
use tracing::{info, warn};

use super::super::{Store, Volume};
use super::OUT;
use crate::error::{Error, Result};
use crate::id::{SnapshotId, VolumeId};
use crate::record::Content;
use crate::status::chain;

/// How long a copy is kept after it was read to its end, for a reader that missed the end.
const READ: Duration = Duration::from_secs(60);

/// Data to be read, and what they are.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) dir: Dir,
    /// The same as long as the data are the same.
    pub(crate) identity: String,
    pub(crate) content: Content,
    /// The least size of a volume made of them.
    pub(crate) volume_bytes: u64,
    pub(crate) data_bytes: u64,
}

/// A copy of a volume that was made to be read.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    of: VolumeId,
    identity: String,
    content: Content,
    volume_bytes: u64,
    data_bytes: u64,
    readers: usize,
    /// Since when nobody reads it, and whether it was read to its end.
    since: Instant,
    read: bool,
}

impl Kept {
    pub(super) fn is_read(&self) -> bool {
        self.readers > 0
    }
}

impl Store {
    /// A snapshot's data; the caller keeps it from being deleted.
    pub(crate) fn lend_snapshot(&self, id: &SnapshotId) -> Result<Lent> {
        let dir = self.snapshot_dir(id)?;
        let snapshot = self.snapshot(id).ok_or_else(|| Error::NoSuchSnapshot { id: id.to_string() })?;
        Ok(Lent {
            data_bytes: self.engine.sent_bytes(&dir)?,
            dir,
            identity: format!("{id}@{}", snapshot.created),
            content: snapshot.content,
            volume_bytes: snapshot.size_bytes,
        })
    }

    /// The copy of a volume that is there for another one, if it is; to be given back.
    pub(crate) fn lent(&self, of: &VolumeId, target: &VolumeId) -> Result<Option<Lent>> {
        let mut all = self.transit.lent();
        let Some(kept) = all.get_mut(target).filter(|kept| kept.of == *of) else { return Ok(None) };
        let dir = self.transit.entry(OUT, target)?;
        let lent = Lent {
            dir,
            data_bytes: kept.data_bytes,
            identity: kept.identity.clone(),
            content: kept.content,
            volume_bytes: kept.volume_bytes,
        };
        kept.readers += 1;
        Ok(Some(lent))
    }

    /// Makes a copy of a volume as it is at one moment, for another one to be made of it; the caller holds its data.
    pub(crate) fn lend_volume(&self, of: &Volume, target: &VolumeId) -> Result<()> {
        let name = format!("{OUT}{target}");
        self.transit.dir.remove_tree(&name)?;
        let made = self.copy_to_lend(of, &name);
        self.index().making.remove(&name);
        self.changed.notify();
        if made.is_err()
            && let Err(error) = self.transit.dir.remove_tree(&name)
        {
            warn!(name, error = chain(&error), "cannot clear away a half-made copy yet");
        }
        let data_bytes = made?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let kept = Kept {
            of: of.id().clone(),
            identity: format!("{}@{}", of.id(), now.as_nanos()),
            content: of.record.content.copied(),
            volume_bytes: of.record.capacity_bytes,
            data_bytes,
            readers: 0,
            since: Instant::now(),
            read: false,
        };
        self.transit.lent().insert(target.clone(), kept);
        Ok(())
    }

    fn copy_to_lend(&self, of: &Volume, name: &str) -> Result<u64> {
        let dir = self.transit.dir.make_dir(name, 0o700)?;
        self.steps.reach("lent directory made");
        // Shared blocks take no space now; what they take later is seen as it is taken.
        let wanted = if can_reflink(&dir)? { 0 } else { self.engine.data_bytes(&of.dir)? };
        self.reserve(name, wanted)?;
        let taken = self.engine.copy_volume(of, &dir).map_err(|error| self.explain(error, wanted))?;
        self.steps.reach("lent data made");
        info!(volume = %of.id(), made = ?taken.made, state = taken.source.words(), "copy of a volume made for another node");
        self.engine.sent_bytes(&dir)
    }

    /// Notes that a reader has ended, and whether it came to the end of the data.
    pub(crate) fn give_back(&self, target: &VolumeId, read: bool) {
        if let Some(kept) = self.transit.lent().get_mut(target) {
            kept.readers = kept.readers.saturating_sub(1);
            kept.since = Instant::now();
            kept.read |= read;
        }
    }

    /// Removes what has not been read for long enough.
    pub(crate) fn sweep_lent(self: &Arc<Self>, patience: Duration) {
        let mut all = self.transit.lent();
        let old: Vec<_> =
            all.iter().filter(|(_, kept)| is_over(kept, patience)).map(|(id, _)| id.clone()).collect();
        for target in old {
            let name = format!("{OUT}{target}");
            match self.trash.take(&self.transit.dir, &name) {
                Ok(()) => drop(all.remove(&target)),
                Err(error) => {
                    warn!(name, error = chain(&error), "cannot remove a copy that nobody reads yet");
                }
            }
        }
    }
}

fn is_over(kept: &Kept, patience: Duration) -> bool {
    let keep = if kept.read { patience.min(READ) } else { patience };
    kept.readers == 0 && kept.since.elapsed() >= keep
}
