//! The volumes and snapshots of an open pool: on the disk, and in an index that is rebuilt from it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunnage_host::dir::{Dir, Mounts};
use dunnage_host::space::{self, Space};
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::id::{PoolId, VolumeId};
use crate::pool::Changed;
use crate::record::{self, Record};
use crate::reserve::Reserve;
use crate::snapshot::Taken;
use crate::status::chain;
use crate::steps::Steps;
use crate::store::snapshots::Snapshots;
use crate::store::sweep::{HALF_MADE, sweep};
use crate::store::transit::Transit;
use crate::store::trash::Trash;

mod expand;
mod groups;
mod modify;
mod origin;
mod snapshots;
mod sweep;
mod transit;
mod trash;

pub(crate) use origin::Origin;
pub(crate) use snapshots::SNAPSHOTS;
pub(crate) use transit::{Arrival, Lent, TRANSIT};

/// The directory of all volumes, each in a directory named by its id.
pub(crate) const VOLUMES: &str = "volumes";
/// Where deleted volumes and snapshots wait until they are gone.
pub(crate) const TRASH: &str = "trash";

/// Makes the directories that a store lies in.
pub(crate) fn make_dirs(root: &Dir) -> Result<()> {
    root.make_dir(VOLUMES, 0o700)?;
    root.make_dir(SNAPSHOTS, 0o700)?;
    root.make_dir(TRANSIT, 0o700)?;
    root.make_dir(TRASH, 0o700)?;
    Ok(())
}

/// Removes them again; a directory that holds anything stays.
pub(crate) fn remove_dirs(root: &Dir) -> Result<()> {
    for name in [VOLUMES, SNAPSHOTS, TRANSIT, TRASH] {
        if root.has(name)? && root.dir(name, Mounts::Refuse)?.entries()?.is_empty() {
            root.remove_tree(name)?;
        }
    }
    Ok(())
}

/// Removes what was deleted from a pool. What has that name where there is no pool may be anybody's.
pub(crate) fn empty_trash(root: &Dir) -> Result<()> {
    if root.has(TRASH)? {
        root.remove_tree(TRASH)?;
    }
    Ok(())
}

/// An open pool. Its methods block.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) id: PoolId,
    root: Dir,
    /// Holds the lock that keeps other processes out.
    _own: Dir,
    volumes: Dir,
    snapshots: Snapshots,
    transit: Transit,
    trash: Trash,
    engine: Arc<dyn Engine>,
    reserve: Reserve,
    index: Mutex<Index>,
    changed: Changed,
    steps: Steps,
}

#[derive(Debug, Default)]
struct Index {
    records: BTreeMap<VolumeId, Record>,
    /// Bytes of volumes and snapshots that are being made just now, by their ids.
    making: HashMap<String, u64>,
    /// The pool is being given up.
    closed: bool,
}

/// An existing volume and its open directory.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) record: Record,
    pub(crate) dir: Dir,
    store: Arc<Store>,
}

impl Store {
    /// Opens a pool, clears away what was cut short, and reads all records.
    pub(crate) fn open(
        id: PoolId,
        root: Dir,
        own: Dir,
        engine: Arc<dyn Engine>,
        reserve: Reserve,
        changed: Changed,
        steps: Steps,
    ) -> Result<Self> {
        let volumes = root.dir(VOLUMES, Mounts::Refuse)?;
        let trash = Trash::open(root.dir(TRASH, Mounts::Refuse)?, changed.clone())?;
        let snapshots = Snapshots::open(&id, &root, &trash)?;
        let transit = Transit::open(&id, &root)?;
        let found = sweep::<VolumeId>(&volumes.entries()?);
        for name in &found.remove {
            info!(pool = %id, name, "removing a half-made volume");
            // Half a copy can be large, and the pool's other volumes do not wait for its removal.
            trash.take(&volumes, name)?;
        }
        for name in &found.strange {
            warn!(pool = %id, name, "leaving alone what is no volume");
        }
        let mut records = BTreeMap::new();
        for volume in found.load {
            match load(&volumes, &volume) {
                Ok(record) => {
                    records.insert(volume, record);
                }
                Err(error) => warn!(pool = %id, %volume, error = chain(&error), "volume cannot be used"),
            }
        }
        info!(pool = %id, volumes = records.len(), "pool opened");
        let making = transit.owed(engine.as_ref());
        let index = Mutex::new(Index { records, making, ..Index::default() });
        Ok(Self {
            id,
            root,
            _own: own,
            volumes,
            snapshots,
            transit,
            trash,
            engine,
            reserve,
            index,
            changed,
            steps,
        })
    }

    pub(crate) fn record(&self, id: &VolumeId) -> Option<Record> {
        self.index().records.get(id).cloned()
    }

    /// All volumes in the order of their ids.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.index().records.values().cloned().collect()
    }

    /// Opens an existing volume.
    pub(crate) fn volume(self: &Arc<Self>, id: &VolumeId) -> Result<Volume> {
        let record = self.record(id).ok_or_else(|| Error::NoSuchVolume { id: id.to_string() })?;
        let dir = self.volumes.dir(id.as_str(), Mounts::Refuse)?;
        Ok(Volume { record, dir, store: Arc::clone(self) })
    }

    /// The pool's directory.
    pub(crate) fn root(&self) -> &Dir {
        &self.root
    }

    pub(crate) fn space(&self) -> Result<Space> {
        Ok(space::of(&self.root, self.root.path())?)
    }

    /// Bytes of the pool's file system that no volume is to take.
    pub(crate) fn kept_back(&self, space: Space) -> u64 {
        self.reserve.of(space)
    }

    /// The file system that the pool lies on.
    pub(crate) fn filesystem(&self) -> Result<String> {
        Ok(dunnage_host::mount::mount_of(&self.root)?.0.filesystem)
    }

    /// Bytes that new volumes may take; none where no volume can be made.
    pub(crate) fn available(&self) -> Result<u64> {
        if self.engine.unfit(&self.root)?.is_some() {
            return Ok(0);
        }
        let space = self.space()?;
        Ok(self.available_of(space, &self.index()))
    }

    fn available_of(&self, space: Space, index: &Index) -> u64 {
        let promised = self.engine.promised(&self.volumes, &index.records);
        available(space, self.reserve, promised + index.making.values().sum::<u64>())
    }

    /// Makes a volume: under a temporary name first, so that it is there whole or not at all.
    pub(crate) fn create(&self, record: &Record, origin: &Origin) -> Result<Option<Taken>> {
        self.reserve(record.id.as_str(), origin.bytes(self.engine.as_ref(), record)?)?;
        let made = self.make(record, origin);
        let mut index = self.index();
        index.making.remove(record.id.as_str());
        if made.is_ok() {
            index.records.insert(record.id.clone(), record.clone());
        }
        drop(index);
        self.changed.notify();
        made
    }

    /// Takes the space in the books before it is taken on the disk, so that two volumes never share it.
    fn reserve(&self, id: &str, bytes: u64) -> Result<()> {
        let space = self.space()?;
        let mut index = self.index();
        if index.closed {
            return Err(Error::Unavailable(format!("pool {} is being removed", self.id)));
        }
        let free = self.available_of(space, &index);
        if bytes > free {
            return Err(Error::Full { wanted: bytes, free });
        }
        index.making.insert(id.to_owned(), bytes);
        Ok(())
    }

    fn make(&self, record: &Record, origin: &Origin) -> Result<Option<Taken>> {
        let name = format!("{HALF_MADE}{}", record.id);
        self.volumes.remove_tree(&name)?;
        let made = self.fill(&name, record, origin);
        if made.is_err()
            && let Err(error) = self.volumes.remove_tree(&name)
        {
            warn!(volume = %record.id, error = chain(&error), "cannot clear away a half-made volume yet");
        }
        made
    }

    fn fill(&self, name: &str, record: &Record, origin: &Origin) -> Result<Option<Taken>> {
        let dir = self.volumes.make_dir(name, 0o700)?;
        self.steps.reach("volume directory made");
        let taken = origin
            .fill(self.engine.as_ref(), &dir, record)
            .map_err(|error| self.explain(error, record.capacity_bytes))?;
        self.steps.reach("volume data made");
        dir.write(record::FILE, &encode(record)?)?;
        self.steps.reach("volume record written");
        self.volumes.rename(name, &self.volumes, record.id.as_str())?;
        self.steps.reach("volume renamed");
        Ok(taken)
    }

    /// A disk that turned out to be full is told as such, with the numbers.
    fn explain(&self, error: Error, wanted: u64) -> Error {
        match error {
            Error::Host(host) if host.is_full() => {
                Error::Full { wanted, free: self.space().map_or(0, |space| space.available) }
            }
            error => error,
        }
    }

    /// Deletes a volume that nothing uses; it is no error when there is none.
    pub(crate) fn delete(self: &Arc<Self>, id: &VolumeId) -> Result<()> {
        if self.record(id).is_none() {
            return Ok(());
        }
        let volume = self.volume(id)?;
        if let Some(user) = self.engine.mounts(&volume)?.first() {
            return Err(Error::Precondition(format!(
                "volume {id} is still mounted at {}",
                user.mount_point.display()
            )));
        }
        if !self.engine.release(&volume)? {
            return Err(Error::Precondition(format!("volume {id} is still in use on this node")));
        }
        self.steps.reach("volume released");
        self.engine.forget(&volume)?;
        self.steps.reach("volume forgotten");
        self.trash.take(&self.volumes, id.as_str())?;
        self.steps.reach("volume in the trash");
        self.index().records.remove(id);
        self.changed.notify();
        Ok(())
    }

    /// Takes no more volumes, if there are none.
    pub(crate) fn close(&self) -> Result<()> {
        let mut index = self.index();
        let volumes = index.records.len() + index.making.len();
        if volumes > 0 {
            return Err(Error::Precondition(format!("pool {} still has {volumes} volumes", self.id)));
        }
        if let Some(name) = self.snapshots.any()? {
            return Err(Error::Precondition(format!("pool {} still has snapshots, such as {name}", self.id)));
        }
        if let Some(entry) = self.volumes.entries()?.first() {
            return Err(Error::Precondition(format!(
                "pool {} still holds {} in its directory of volumes",
                self.id,
                entry.name.display()
            )));
        }
        self.transit.close()?;
        index.closed = true;
        Ok(())
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume {
    pub(crate) fn id(&self) -> &VolumeId {
        &self.record.id
    }

    /// Changes the record, on the disk first.
    pub(crate) fn note(&mut self, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut record = self.record.clone();
        change(&mut record);
        if record == self.record {
            return Ok(());
        }
        self.dir.write(record::FILE, &encode(&record)?)?;
        self.store.index().records.insert(record.id.clone(), record.clone());
        self.store.changed.notify();
        self.record = record;
        Ok(())
    }

    pub(crate) fn reach(&self, step: &'static str) {
        self.store.steps.reach(step);
    }

    /// The space of the file system that the pool lies on.
    pub(crate) fn space(&self) -> Result<Space> {
        self.store.space()
    }

    /// A file of the volume's own.
    pub(crate) fn file(&self, name: &str) -> Result<File> {
        Ok(self.dir.file(name)?)
    }
}

/// Reads a record in an entry of a directory; `id` is for the error.
fn load_json<T: DeserializeOwned>(dir: &Dir, entry: &str, file: &str, id: &str) -> Result<T> {
    let content = dir.dir(entry, Mounts::Refuse)?.read(file)?;
    serde_json::from_slice(&content).map_err(|source| Error::Damaged { id: id.to_owned(), source })
}

fn load(volumes: &Dir, id: &VolumeId) -> Result<Record> {
    let record: Record = load_json(volumes, id.as_str(), record::FILE, id.as_str())?;
    if record.id != *id {
        return Err(Error::Precondition(format!("its record is that of {}", record.id)));
    }
    transit::arrived(&volumes.dir(id.as_str(), Mounts::Refuse)?)?;
    Ok(record)
}

fn encode(record: &Record) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|source| Error::Damaged { id: record.id.to_string(), source })
}

/// What is left for new volumes.
fn available(space: Space, reserve: Reserve, promised: u64) -> u64 {
    space.available.saturating_sub(reserve.of(space)).saturating_sub(promised)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_and_what_is_promised_are_not_for_new_volumes() {
        const G: u64 = 1 << 30;
        let (modest, half, none) = (Reserve::default(), Reserve::Percent(50), Reserve::Bytes(0));
        for (reserve, total, free, promised, expected) in [
            (modest, 100 * G, 50 * G, 0, 48 * G),
            (modest, 100 * G, 50 * G, 40 * G, 8 * G),
            (modest, 100 * G, 50 * G, 49 * G, 0),
            (modest, 100 * G, G, 0, 0),
            (modest, 1000 * G, 500 * G, 0, 496 * G),
            (modest, 0, 0, 0, 0),
            (half, 100 * G, 60 * G, 4 * G, 6 * G),
            (half, 100 * G, 40 * G, 0, 0),
            (none, 100 * G, 50 * G, 40 * G, 10 * G),
        ] {
            let space = Space { total, available: free, ..Space::default() };
            assert_eq!(available(space, reserve, promised), expected, "{reserve}");
        }
    }
}
