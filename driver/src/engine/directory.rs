//! A directory a volume: nothing to attach, nothing to format, and a limit where the pool's file system can keep to one.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dunnage_host::dir::{Dir, TreeReceiver};
use dunnage_host::mount::Place;
use dunnage_host::mountinfo::Mount;
use dunnage_host::space::Space;
use dunnage_host::stream::{Position, Receive, Sink};
use dunnage_host::usage::{Usage, measure};
use tracing::debug;

use crate::capability::Capability;
use crate::copies::Stop;
use crate::engine::Engine;
use crate::engine::folder::{self, DATA, Published, data, data_in};
use crate::engine::moment;
use crate::error::Result;
use crate::id::VolumeId;
use crate::record::{Allocation, Content, Record};
use crate::size::Sizes;
use crate::snapshot::{Made, State, Taken};
use crate::status::chain;
use crate::store::{Store, Volume};

mod limits;

/// Counting a volume's files is dear: it is done at most this often, and takes at most a twentieth of the time.
const FRESH: Duration = Duration::from_secs(60);
const SHARE: u32 = 20;

/// The engine, with what its volumes were last seen to take up.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    seen: Mutex<HashMap<VolumeId, Seen>>,
    published: Published,
    /// How many volumes the last look found without a limit.
    without_limit: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    usage: Usage,
    at: Instant,
    took: Duration,
}

impl Seen {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH.max(self.took * SHARE)
    }
}

impl Directory {
    fn seen(&self) -> MutexGuard<'_, HashMap<VolumeId, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the volume takes up, counted now unless that was done a moment ago.
    fn usage(&self, volume: &Volume) -> Result<Usage> {
        let known = self.seen().get(volume.id()).copied();
        if let Some(seen) = known.filter(Seen::is_fresh) {
            return Ok(seen.usage);
        }
        let start = Instant::now();
        let data = data(volume)?;
        let usage = match limits::usage(&data)? {
            Some(counted) => Usage { bytes: counted.bytes, inodes: counted.inodes },
            None => measure(&data)?,
        };
        let seen = Seen { usage, at: Instant::now(), took: start.elapsed() };
        self.seen().insert(volume.id().clone(), seen);
        Ok(usage)
    }
}

impl Engine for Directory {
    fn unlimited(&self, store: &Store) -> Result<Option<String>> {
        if let Some(obstacle) = limits::obstacle(store.root(), &store.filesystem()?)? {
            return Ok(Some(obstacle));
        }
        Ok(limits::remaining(self.without_limit.load(Ordering::Relaxed)))
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["requireLimit"]
    }

    fn content(&self, capability: &Capability, _: Allocation) -> Result<Content> {
        folder::check("Directory", capability).map(|()| Content::Directory)
    }

    fn sizes(&self, _: Content) -> Sizes {
        Sizes { minimum: 1, minimum_for: "a volume", step: 1 }
    }

    fn promised(&self, _: &Dir, records: &BTreeMap<VolumeId, Record>) -> u64 {
        promised(records, |id| self.seen().get(id).map_or(0, |seen| seen.usage.bytes))
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
        // An earlier volume of this name had its own files.
        self.seen().remove(&record.id);
        // Open to any user of the pod; nobody else gets past the pool's own directories.
        let data = dir.make_dir(DATA, 0o777)?;
        limits::set(&data, &record.id, record.capacity_bytes)?;
        Ok(data.sync()?)
    }

    fn settle(&self, volume: &mut Volume) -> Result<()> {
        limits::change(&data(volume)?, volume.record.capacity_bytes)
    }

    /// Without a limit, the books alone have a size.
    fn grow(&self, volume: &Volume, bytes: u64) -> Result<()> {
        limits::change(&data(volume)?, bytes)
    }

    fn stage(&self, volume: &mut Volume, _: &Place, _: &Capability) -> Result<()> {
        data(volume).map(|_| ())
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

    /// All of the pool's file system: the kernel does not know which of it is the volume's.
    fn persist(&self, volume: &Volume) -> Result<()> {
        Ok(volume.dir.sync_filesystem()?)
    }

    fn forget(&self, volume: &Volume) -> Result<()> {
        // What is left in the trash still counts for the project, so that nobody takes it before it is empty.
        limits::change(&data(volume)?, 0)
    }

    fn stats(&self, volume: &Volume, _: &Place) -> Result<Space> {
        let usage = self.usage(volume)?;
        let disk = volume.space()?;
        let total = volume.record.capacity_bytes;
        Ok(Space {
            total,
            available: total.saturating_sub(usage.bytes).min(disk.available),
            used: usage.bytes,
            inodes: disk.inodes,
            inodes_free: disk.inodes_free,
        })
    }

    fn data_bytes(&self, dir: &Dir) -> Result<u64> {
        Ok(measure(&data_in(dir)?)?.bytes)
    }

    fn copy_volume(&self, volume: &Volume, to: &Dir) -> Result<Taken> {
        let (made, used) = self.published.watch(volume, || Ok(data(volume)?.copy_tree(to, DATA)?.into()))?;
        Ok(Taken { made, source: if used { State::InUse } else { State::AtRest } })
    }

    fn copy_group(&self, group: &[(&Volume, &Dir)]) -> Result<Vec<Taken>> {
        moment::check(&folder::used(group)?, 0, "a directory cannot be frozen alone")?;
        let copy = |(volume, to): &(&Volume, &Dir)| {
            let made = data(volume)?.copy_tree(to, DATA)?.into();
            Ok(Taken { made, source: State::AtRest })
        };
        group.iter().map(copy).collect()
    }

    fn copy_snapshot(&self, from: &Dir, to: &Dir) -> Result<Made> {
        Ok(data_in(from)?.copy_tree(to, DATA)?.into())
    }

    /// The limit first: what is made in the directory then belongs to it.
    fn begin_copy(&self, dir: &Dir, record: &Record) -> Result<()> {
        self.make(dir, record)
    }

    fn finish_copy(&self, _: &Dir, _: &Record) -> Result<()> {
        Ok(())
    }

    fn send(&self, dir: &Dir, sink: &mut dyn Sink<Error = Stop>) -> std::result::Result<(), Stop> {
        data_in(dir)?.send_tree(sink)
    }

    fn receive(&self, dir: &Dir, at: &Position, _: u64) -> Result<Box<dyn Receive>> {
        Ok(Box::new(TreeReceiver::new(dir, DATA, at)?))
    }

    fn recover(&self, _: &Arc<Store>) {}

    fn tick(&self, store: &Arc<Store>) {
        // The records first: whoever asks for what is promised holds them, and then takes this lock.
        let records = store.records();
        self.seen().retain(|id, _| records.binary_search_by(|record| record.id.cmp(id)).is_ok());
        let mut without_limit = 0;
        for record in records {
            let counted = store.volume(&record.id).and_then(|volume| {
                self.usage(&volume)?;
                Ok(limits::usage(&data(&volume)?)?.is_none())
            });
            match counted {
                Ok(unlimited) => without_limit += usize::from(unlimited),
                Err(error) => {
                    debug!(volume = %record.id, error = chain(&error), "cannot count a volume's files");
                }
            }
        }
        self.without_limit.store(without_limit, Ordering::Relaxed);
    }
}

/// What volumes may still write. One that outgrew its size promises nothing more.
fn promised(records: &BTreeMap<VolumeId, Record>, used: impl Fn(&VolumeId) -> u64) -> u64 {
    records.values().map(|record| record.capacity_bytes.saturating_sub(used(&record.id))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_promises_what_it_does_not_use_yet() {
        let pool = "0123456789abcdef".parse().unwrap();
        let records: BTreeMap<_, _> = [("empty", 100), ("half", 100), ("outgrown", 100)]
            .into_iter()
            .map(|(name, capacity_bytes)| {
                let id = VolumeId::make(&pool, name);
                let content = Content::Directory;
                let record = Record {
                    id: id.clone(),
                    name: name.into(),
                    capacity_bytes,
                    content,
                    published_node: None,
                    source: None,
                    inline: None,
                };
                (id, record)
            })
            .collect();
        let used = |id: &VolumeId| match records[id].name.as_str() {
            "half" => 50,
            "outgrown" => 300,
            _ => 0,
        };
        assert_eq!(promised(&records, used), 150);
    }
}
