//! A subvolume a volume: its limit is a quota group's, and a snapshot or a clone takes a moment and no space.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dunnage_host::btrfs::quota::{self, Quotas};
use dunnage_host::btrfs::{create, make_writable, set_compression, snapshot, within};
use dunnage_host::dir::{Dir, Mounts, TreeReceiver};
use dunnage_host::mount::Place;
use dunnage_host::mountinfo::Mount;
use dunnage_host::space::Space;
use dunnage_host::stream::{Position, Receive, Sink};
use dunnage_host::usage::measure;
use tracing::{debug, warn};

use crate::capability::Capability;
use crate::copies::Stop;
use crate::engine::Engine;
use crate::engine::folder::{self, DATA, Published, data, data_in};
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::record::{Allocation, Content, Record};
use crate::size::Sizes;
use crate::snapshot::{Made, State, Taken};
use crate::status::chain;
use crate::store::{Store, Volume};

mod group;
mod limits;

use limits::Which;

/// How often limits are compared with the records, and groups that nobody needs are looked for.
const LOOK: Duration = Duration::from_secs(60);

/// Less is soon taken up by what the file system keeps about the files themselves.
const MINIMUM: u64 = 16 << 20;

/// The engine, with what it has seen of its volumes.
#[derive(Debug, Default)]
pub(crate) struct Btrfs {
    /// Ids of the volumes' subvolumes, which never change.
    subvolumes: Mutex<HashMap<VolumeId, u64>>,
    /// Volumes that are to have no limit any more, for they go.
    leaving: Mutex<HashSet<VolumeId>>,
    published: Published,
    looked: Mutex<Option<Instant>>,
    /// How many volumes the last look found to be no subvolumes.
    plain: AtomicUsize,
    /// How many it found with subvolumes that their limit does not cover.
    with_subvolumes: AtomicUsize,
}

impl Btrfs {
    fn subvolumes(&self) -> MutexGuard<'_, HashMap<VolumeId, u64>> {
        self.subvolumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The subvolume of a volume in the directory of all of them.
    fn subvolume(&self, volumes: &Dir, id: &VolumeId) -> Result<u64> {
        if let Some(known) = self.subvolumes().get(id) {
            return Ok(*known);
        }
        let subvolume = limits::subvolume(&volumes.dir(id.as_str(), Mounts::Refuse)?)?;
        self.subvolumes().insert(id.clone(), subvolume);
        Ok(subvolume)
    }

    /// Bytes that each volume has for itself alone.
    fn exclusive<'a>(
        &self,
        volumes: &Dir,
        ids: impl Iterator<Item = &'a VolumeId>,
    ) -> Result<HashMap<&'a VolumeId, u64>> {
        let quotas = quota::quotas(volumes)?;
        let usages: HashMap<_, _> = quota::usages(volumes)?.into_iter().collect();
        let of = |id: &VolumeId| {
            let group = limits::group(quotas, self.subvolume(volumes, id).ok()?)?;
            usages.get(&group).map(|usage| usage.exclusive)
        };
        Ok(ids.filter_map(|id| Some((id, of(id)?))).collect())
    }

    /// Makes the subvolume in a directory the data of a new volume, durably.
    fn adopt(&self, dir: &Dir, record: &Record) -> Result<()> {
        // An earlier volume of this name had a subvolume of its own.
        self.subvolumes().remove(&record.id);
        self.leaving().remove(&record.id);
        // A copy of a full volume is at the limit of that.
        limits::lift(dir)?;
        let data = data_in(dir)?;
        make_writable(&data)?;
        compress(&data, record.content)?;
        limits::set(dir, record.capacity_bytes)?;
        Ok(dir.sync_filesystem()?)
    }

    /// Restores the limits of volumes, and notes which are not all that they should be.
    fn look(&self, store: &Arc<Store>, restore: Which) -> Result<()> {
        let full = matches!(quota::quotas(store.root())?, Quotas::Full(_));
        let (mut plain, mut with_subvolumes) = (0, 0);
        for record in store.records() {
            // A volume that is deleted meanwhile is no matter.
            let Ok(Volume { dir, .. }) = store.volume(&record.id) else { continue };
            let stays = !self.leaving().contains(&record.id);
            if stays && let Err(error) = limits::restore(&dir, record.capacity_bytes, restore) {
                warn!(volume = %record.id, error = chain(&error), "cannot restore a volume's limit");
            }
            match limits::subvolume(&dir).and_then(|subvolume| Ok(within(&dir, subvolume)?)) {
                Ok(nested) => with_subvolumes += usize::from(full && !nested.is_empty()),
                Err(error) => {
                    plain += 1;
                    debug!(volume = %record.id, error = chain(&error), "volume has no limit");
                }
            }
        }
        self.plain.store(plain, Ordering::Relaxed);
        self.with_subvolumes.store(with_subvolumes, Ordering::Relaxed);
        limits::sweep(store.root())
    }

    fn leaving(&self) -> MutexGuard<'_, HashSet<VolumeId>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn looked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_after(&self, store: &Arc<Store>, restore: Which) {
        *self.looked() = Some(Instant::now());
        // The records first: whoever asks for what is promised holds them, and then takes this lock.
        let records = store.records();
        let is_there = |id: &VolumeId| records.binary_search_by(|record| record.id.cmp(id)).is_ok();
        self.subvolumes().retain(|id, _| is_there(id));
        self.leaving().retain(is_there);
        if let Err(error) = self.look(store, restore) {
            warn!(error = chain(&error), "cannot look after the quotas of the pool");
        }
    }
}

impl Engine for Btrfs {
    fn unfit(&self, root: &Dir) -> Result<Option<String>> {
        limits::obstacle(root)
    }

    fn unlimited(&self, store: &Store) -> Result<Option<String>> {
        if let Some(obstacle) = limits::obstacle(store.root())? {
            return Ok(Some(obstacle));
        }
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Ok(limits::remaining(count(&self.plain), count(&self.with_subvolumes)))
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["requireLimit"]
    }

    fn mutable_parameters(&self) -> &'static [&'static str] {
        &["compression"]
    }

    fn content(&self, capability: &Capability, _: Allocation) -> Result<Content> {
        folder::check("Btrfs", capability).map(|()| Content::Subvolume { compression: None })
    }

    fn sizes(&self, _: Content) -> Sizes {
        Sizes { minimum: MINIMUM, minimum_for: "a Btrfs volume", step: 1 }
    }

    /// What a volume shares with a snapshot it may have to write anew, so only what is its own is not promised any more.
    fn promised(&self, volumes: &Dir, records: &BTreeMap<VolumeId, Record>) -> u64 {
        let exclusive = self.exclusive(volumes, records.keys()).unwrap_or_else(|error| {
            warn!(error = chain(&error), "cannot tell what volumes take up: all of them count whole");
            HashMap::new()
        });
        promised(records, &exclusive)
    }

    fn charge(&self, record: &Record) -> u64 {
        record.capacity_bytes
    }

    fn room(&self, _: Allocation, available: u64) -> u64 {
        available
    }

    fn shares_space(&self, _: Content) -> bool {
        true
    }

    fn make(&self, dir: &Dir, record: &Record) -> Result<()> {
        create(dir, DATA)?;
        // Open to any user of the pod; nobody else gets past the pool's own directories.
        dir.make_dir(DATA, 0o777)?;
        self.adopt(dir, record)
    }

    fn settle(&self, volume: &mut Volume) -> Result<()> {
        self.leaving().remove(volume.id());
        limits::restore(&volume.dir, volume.record.capacity_bytes, Which::Wrong)
    }

    fn grow(&self, volume: &Volume, bytes: u64) -> Result<()> {
        limits::set(&volume.dir, bytes)
    }

    fn modify(&self, volume: &Volume, content: Content) -> Result<()> {
        compress(&data(volume)?, content).map_err(|error| match error {
            Error::Host(host) if host.is_full() => Error::Precondition(format!(
                "volume {} has no room to note how it is compressed: make it larger, or remove something from it",
                volume.id()
            )),
            error => error,
        })?;
        Ok(volume.dir.sync_filesystem()?)
    }

    fn stage(&self, volume: &mut Volume, _: &Place, _: &Capability) -> Result<()> {
        self.settle(volume)
    }

    fn source(&self, volume: &Volume, _: &Place) -> Result<OwnedFd> {
        self.published.note();
        Ok(data(volume)?.into())
    }

    fn mounts(&self, volume: &Volume) -> Result<Vec<Mount>> {
        folder::mounts(volume)
    }

    fn is_whole(&self, volume: &Volume, mount: &Mount) -> bool {
        folder::is_whole(volume, mount)
    }

    /// All of the pool's file system: one subvolume alone cannot be synced.
    fn persist(&self, volume: &Volume) -> Result<()> {
        Ok(volume.dir.sync_filesystem()?)
    }

    /// At its limit, a subvolume does not let go of what lies in it.
    fn forget(&self, volume: &Volume) -> Result<()> {
        self.leaving().insert(volume.id().clone());
        limits::lift(&volume.dir)
    }

    fn stats(&self, volume: &Volume, _: &Place) -> Result<Space> {
        let used = limits::usage(&volume.dir)?.referenced;
        let disk = volume.space()?;
        let total = volume.record.capacity_bytes;
        let available = total.saturating_sub(used).min(disk.available);
        // btrfs makes inodes as it needs them, and counts none.
        Ok(Space { total, available, used, ..Space::default() })
    }

    /// A copy shares all of them.
    fn data_bytes(&self, _: &Dir) -> Result<u64> {
        Ok(0)
    }

    fn sent_bytes(&self, dir: &Dir) -> Result<u64> {
        Ok(measure(&data_in(dir)?)?.bytes)
    }

    fn copy_volume(&self, volume: &Volume, to: &Dir) -> Result<Taken> {
        limits::subvolume(&volume.dir)?;
        let ((), used) = self.published.watch(volume, || Ok(snapshot(&data(volume)?, to, DATA)?))?;
        Ok(Taken { made: Made::Reflink, source: if used { State::Attached } else { State::AtRest } })
    }

    fn copy_group(&self, group: &[(&Volume, &Dir)]) -> Result<Vec<Taken>> {
        group::copy(group, &folder::used(group)?)
    }

    fn copy_snapshot(&self, from: &Dir, to: &Dir) -> Result<Made> {
        snapshot(&data_in(from)?, to, DATA)?;
        Ok(Made::Reflink)
    }

    /// The copy makes the subvolume.
    fn begin_copy(&self, _: &Dir, _: &Record) -> Result<()> {
        Ok(())
    }

    fn finish_copy(&self, dir: &Dir, record: &Record) -> Result<()> {
        self.adopt(dir, record)
    }

    /// What is sent is read-only, and has empty directories where other subvolumes were.
    fn send(&self, dir: &Dir, sink: &mut dyn Sink<Error = Stop>) -> std::result::Result<(), Stop> {
        data_in(dir)?.send_tree(sink)
    }

    /// The same data can take up more here than there, where files shared blocks or were compressed: the limit of the
    /// volume comes when it is whole, and until then there is one on what may come, with room for names and attributes.
    fn receive(&self, dir: &Dir, at: &Position, most: u64) -> Result<Box<dyn Receive>> {
        limits::set(dir, most.saturating_mul(2))?;
        Ok(Box::new(TreeReceiver::new(dir, DATA, at)?))
    }

    /// Before anybody can ask for a growth.
    fn recover(&self, store: &Arc<Store>) {
        self.look_after(store, Which::Wrong);
    }

    fn tick(&self, store: &Arc<Store>) {
        if self.looked().is_none_or(|at| at.elapsed() >= LOOK) {
            self.look_after(store, Which::Missing);
        }
    }
}

/// Has what is written to a subvolume from now on compressed as its record says, if that says anything.
fn compress(data: &Dir, content: Content) -> Result<()> {
    let Content::Subvolume { compression: Some(compression) } = content else { return Ok(()) };
    Ok(set_compression(data, compression.name())?)
}

/// What volumes may still write.
fn promised(records: &BTreeMap<VolumeId, Record>, exclusive: &HashMap<&VolumeId, u64>) -> u64 {
    let own = |id| exclusive.get(id).copied().unwrap_or_default();
    records.iter().map(|(id, record)| record.capacity_bytes.saturating_sub(own(id))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_promises_what_it_may_have_to_write_anew() {
        let pool = "0123456789abcdef".parse().unwrap();
        let records: BTreeMap<_, _> = ["empty", "half", "shared", "full"]
            .into_iter()
            .map(|name| {
                let id = VolumeId::make(&pool, name);
                let record = Record {
                    id: id.clone(),
                    name: name.into(),
                    capacity_bytes: 100,
                    content: Content::Subvolume { compression: None },
                    published_node: None,
                    source: None,
                    inline: None,
                };
                (id, record)
            })
            .collect();
        let own: HashMap<_, _> = records
            .iter()
            .filter_map(|(id, record)| match record.name.as_str() {
                "half" => Some((id, 50)),
                // All of it is in a snapshot as well.
                "shared" => Some((id, 0)),
                "full" => Some((id, 120)),
                _ => None,
            })
            .collect();
        assert_eq!(promised(&records, &own), 100 + 50 + 100);
    }
}
