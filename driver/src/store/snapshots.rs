//! The snapshots of an open pool, made and deleted by the same rules as its volumes. Those of a group lie in its directory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunnage_host::copy::can_reflink;
use dunnage_host::dir::{Dir, Mounts};
use tracing::{info, warn};

use super::sweep::{HALF_MADE, sweep};
use super::trash::Trash;
use super::{Store, Volume, groups, load_json};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::id::{GroupId, PoolId, SnapshotId};
use crate::snapshot::{FILE, Snapshot};
use crate::status::chain;

/// The directory of all snapshots, each in a directory named by its id, and of all groups of them, likewise.
pub(crate) const SNAPSHOTS: &str = "snapshots";

/// The directory, and an index that is rebuilt from it.
#[derive(Debug)]
pub(super) struct Snapshots {
    pub(super) dir: Dir,
    /// Those of groups, too.
    records: Mutex<BTreeMap<SnapshotId, Snapshot>>,
    groups: Mutex<BTreeMap<GroupId, Group>>,
}

/// What an entry of the directory can be.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    Snapshot(SnapshotId),
    Group(GroupId),
}

impl FromStr for Kept {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(Self::Group).or_else(|_| text.parse().map(Self::Snapshot))
    }
}

impl Snapshots {
    /// Opens the directory, which pools of earlier versions do not have yet, and clears away what was cut short.
    pub(super) fn open(pool: &PoolId, root: &Dir, trash: &Trash) -> Result<Self> {
        let dir = root.make_dir(SNAPSHOTS, 0o700)?;
        root.sync()?;
        let found = sweep::<Kept>(&dir.entries()?);
        for name in &found.remove {
            info!(%pool, name, "removing a half-made snapshot");
            trash.take(&dir, name)?;
        }
        for name in &found.strange {
            warn!(%pool, name, "leaving alone what is no snapshot");
        }
        let (mut records, mut groups) = (BTreeMap::new(), BTreeMap::new());
        for kept in found.load {
            match kept {
                Kept::Snapshot(id) => match load_in(&dir, &id) {
                    Ok(snapshot) => drop(records.insert(id, snapshot)),
                    Err(error) => {
                        warn!(%pool, snapshot = %id, error = chain(&error), "snapshot cannot be used");
                    }
                },
                Kept::Group(id) => match groups::load(&dir, &id) {
                    Ok((group, members)) => {
                        records.extend(members);
                        groups.insert(id, group);
                    }
                    Err(error) => {
                        warn!(%pool, group = %id, error = chain(&error), "group snapshot cannot be used");
                    }
                },
            }
        }
        Ok(Self { dir, records: Mutex::new(records), groups: Mutex::new(groups) })
    }

    /// Whether the directory is empty; else the name of an entry.
    pub(super) fn any(&self) -> Result<Option<String>> {
        let entries = self.dir.entries()?;
        Ok(entries.first().map(|entry| entry.name.to_string_lossy().into_owned()))
    }

    pub(super) fn records(&self) -> MutexGuard<'_, BTreeMap<SnapshotId, Snapshot>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, BTreeMap<GroupId, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    pub(crate) fn snapshot(&self, id: &SnapshotId) -> Option<Snapshot> {
        self.snapshots.records().get(id).cloned()
    }

    /// All snapshots in the order of their ids.
    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        self.snapshots.records().values().cloned().collect()
    }

    /// The open directory of a snapshot.
    pub(crate) fn snapshot_dir(&self, id: &SnapshotId) -> Result<Dir> {
        let snapshot = self.snapshot(id).ok_or_else(|| Error::NoSuchSnapshot { id: id.to_string() })?;
        let parts = snapshot.group.as_ref().map(GroupId::as_str).into_iter().chain([id.as_str()]);
        Ok(self.snapshots.dir.dir(parts.collect::<PathBuf>(), Mounts::Refuse)?)
    }

    /// Makes a snapshot of a volume: under a temporary name first, so that it is there whole or not at all.
    pub(crate) fn take_snapshot(
        self: &Arc<Self>,
        id: SnapshotId,
        name: &str,
        of: &Volume,
    ) -> Result<Snapshot> {
        let made = self.make_snapshot(id.clone(), name, of);
        if let Ok(snapshot) = &made {
            self.snapshots.records().insert(id.clone(), snapshot.clone());
        }
        self.index().making.remove(id.as_str());
        self.changed.notify();
        made
    }

    fn make_snapshot(&self, id: SnapshotId, name: &str, of: &Volume) -> Result<Snapshot> {
        let all = &self.snapshots.dir;
        let temporary = format!("{HALF_MADE}{id}");
        all.remove_tree(&temporary)?;
        let made = self.fill_snapshot(&temporary, id, name, of);
        if made.is_err()
            && let Err(error) = all.remove_tree(&temporary)
        {
            warn!(name = temporary, error = chain(&error), "cannot clear away a half-made snapshot yet");
        }
        made
    }

    fn fill_snapshot(&self, temporary: &str, id: SnapshotId, name: &str, of: &Volume) -> Result<Snapshot> {
        let all = &self.snapshots.dir;
        let dir = all.make_dir(temporary, 0o700)?;
        self.steps.reach("snapshot directory made");
        // Shared blocks take no space now; what they take later is seen as it is taken.
        let wanted = if can_reflink(&dir)? { 0 } else { self.engine.data_bytes(&of.dir)? };
        self.reserve(id.as_str(), wanted)?;
        let created = Snapshot::now();
        let taken = self.engine.copy_volume(of, &dir).map_err(|error| self.explain(error, wanted))?;
        self.steps.reach("snapshot data made");
        let snapshot = Snapshot {
            id,
            name: name.to_owned(),
            source_volume_id: of.id().clone(),
            size_bytes: of.record.capacity_bytes,
            created,
            content: of.record.content.copied(),
            group: None,
            taken,
        };
        dir.write(FILE, &encode(&snapshot)?)?;
        self.steps.reach("snapshot record written");
        all.rename(temporary, all, snapshot.id.as_str())?;
        self.steps.reach("snapshot renamed");
        Ok(snapshot)
    }

    /// Deletes a snapshot that is of no group; it is no error when there is none.
    pub(crate) fn delete_snapshot(&self, id: &SnapshotId) -> Result<()> {
        let Some(snapshot) = self.snapshot(id) else { return Ok(()) };
        if let Some(group) = snapshot.group {
            return Err(Error::InGroup { id: id.to_string(), group: group.to_string() });
        }
        self.trash.take(&self.snapshots.dir, id.as_str())?;
        self.steps.reach("snapshot in the trash");
        self.snapshots.records().remove(id);
        self.changed.notify();
        Ok(())
    }
}

/// Reads a snapshot in the directory of all or of its group.
pub(super) fn load_in(dir: &Dir, id: &SnapshotId) -> Result<Snapshot> {
    let snapshot: Snapshot = load_json(dir, id.as_str(), FILE, id.as_str())?;
    if snapshot.id == *id {
        Ok(snapshot)
    } else {
        Err(Error::Precondition(format!("its record is that of {}", snapshot.id)))
    }
}

pub(super) fn encode(snapshot: &Snapshot) -> Result<Vec<u8>> {
    serde_json::to_vec(snapshot).map_err(|source| Error::Damaged { id: snapshot.id.to_string(), source })
}
