//! How a volume's data lie in the pool and reach a pod: one engine a pool.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dunnage_host::dir::Dir;
use dunnage_host::mount::Place;
use dunnage_host::mountinfo::Mount;
use dunnage_host::space::Space;
use dunnage_host::stream::{Position, Receive, Sink};

use crate::capability::Capability;
use crate::copies::Stop;
use crate::error::Result;
use crate::id::VolumeId;
use crate::overcommit::Overcommit;
use crate::record::{Allocation, Content, Record};
use crate::size::Sizes;
use crate::snapshot::{Made, Taken};
use crate::store::{Store, Volume};

mod btrfs;
mod directory;
mod folder;
mod loop_file;
mod moment;

/// The engines there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// A directory a volume; sizes are kept in the books alone.
    Directory,
    /// An image file a volume, on a loop device.
    LoopFile,
    /// A subvolume a volume, with a quota.
    Btrfs,
}

impl EngineKind {
    /// Whether anything of its volumes can be changed but their size.
    pub(crate) fn modifies(self) -> bool {
        !self.engine(Overcommit::default()).mutable_parameters().is_empty()
    }

    pub(crate) fn engine(self, overcommit: Overcommit) -> Arc<dyn Engine> {
        match self {
            Self::Directory => Arc::new(directory::Directory::default()),
            Self::LoopFile => Arc::new(loop_file::LoopFile { overcommit }),
            Self::Btrfs => Arc::new(btrfs::Btrfs::default()),
        }
    }
}

/// What an engine does. Everything is idempotent, and done under the volume's lock. What is done unless an engine says
/// otherwise suits data that need no device and no file system of their own.
pub(crate) trait Engine: fmt::Debug + Send + Sync {
    /// Why no volume can be made on the file system of a directory, and what to do; `None` when they can.
    fn unfit(&self, _root: &Dir) -> Result<Option<String>> {
        Ok(None)
    }

    /// Why a volume of this pool can outgrow its size, and what to do; `None` when it cannot.
    fn unlimited(&self, store: &Store) -> Result<Option<String>>;

    /// The parameters of a class that it understands.
    fn parameters(&self) -> &'static [&'static str];

    /// The parameters of a `VolumeAttributesClass` that it understands.
    fn mutable_parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// What a volume for this capability consists of, or why it cannot be.
    fn content(&self, capability: &Capability, allocation: Allocation) -> Result<Content>;

    fn sizes(&self, content: Content) -> Sizes;

    /// Bytes of the pool that volumes were promised and do not take up yet; `volumes` is the directory of all of them.
    fn promised(&self, volumes: &Dir, records: &BTreeMap<VolumeId, Record>) -> u64;

    /// Bytes of the pool that stand for a volume of this record.
    fn charge(&self, record: &Record) -> u64;

    /// The largest volume that so many bytes of the pool can stand for.
    fn room(&self, allocation: Allocation, available: u64) -> u64;

    /// Whether writes to a volume need space that others can take.
    fn shares_space(&self, content: Content) -> bool;

    /// Makes the data of a new volume beside its record-to-be.
    fn make(&self, dir: &Dir, record: &Record) -> Result<()>;

    /// Finishes a growth that was cut short after its space was taken.
    fn settle(&self, volume: &mut Volume) -> Result<()>;

    /// Takes the space that a volume needs to become this large; its record says so afterwards.
    fn grow(&self, volume: &Volume, bytes: u64) -> Result<()>;

    /// Gives the data of a volume what of this content can be changed; its record says so afterwards.
    fn modify(&self, _volume: &Volume, _content: Content) -> Result<()> {
        Ok(())
    }

    /// Whether a volume that has grown has to be grown on its node as well before pods see it.
    fn grows_on_node(&self) -> bool {
        false
    }

    /// Gives what is staged on this node the size of the volume.
    fn grow_staged(&self, _volume: &mut Volume) -> Result<()> {
        Ok(())
    }

    /// Makes the volume usable on this node, mounted at `staging` if the engine needs that.
    fn stage(&self, volume: &mut Volume, staging: &Place, capability: &Capability) -> Result<()>;

    /// The open directory or device node that pods get to see.
    fn source(&self, volume: &Volume, staging: &Place) -> Result<OwnedFd>;

    /// All mounts of the volume's data or of parts of it, as `subPath` makes them.
    fn mounts(&self, volume: &Volume) -> Result<Vec<Mount>>;

    /// Whether one of those is of all data.
    fn is_whole(&self, volume: &Volume, mount: &Mount) -> bool;

    /// Makes ready what is published for this way of use, which a block device has for all its pods at once.
    fn open_for(&self, _volume: &Volume, _read_only: bool) -> Result<()> {
        Ok(())
    }

    /// Lets go of what staging holds, once nothing is mounted; `false` when somebody else still holds it.
    fn release(&self, _volume: &Volume) -> Result<bool> {
        Ok(true)
    }

    /// The same for a volume whose pool is gone, as far as anything of it outlives its last mount.
    fn release_lost(&self, _id: &VolumeId) -> Result<bool> {
        Ok(true)
    }

    /// Makes durable what was written while the volume was staged.
    fn persist(&self, volume: &Volume) -> Result<()>;

    /// Gives back what a volume has outside its own directory, which goes next.
    fn forget(&self, volume: &Volume) -> Result<()>;

    /// How full the volume is.
    fn stats(&self, volume: &Volume, published: &Place) -> Result<Space>;

    /// Bytes that a copy of the data in a volume's or snapshot's directory takes at most, unless it shares blocks.
    fn data_bytes(&self, dir: &Dir) -> Result<u64>;

    /// Bytes of data that are sent at most of the data in such a directory.
    fn sent_bytes(&self, dir: &Dir) -> Result<u64> {
        self.data_bytes(dir)
    }

    /// Copies a volume's data to a new directory, as they are at one moment if the engine can bring that about. While
    /// this lasts the volume is neither staged, unstaged nor resized, if [`Engine::stages_data`].
    fn copy_volume(&self, volume: &Volume, to: &Dir) -> Result<Taken>;

    /// Copies the data of several volumes, each to its new directory, all as they are at one and the same moment; refuses
    /// it where that cannot be brought about. While this lasts none of the volumes is staged, unstaged or resized, nor,
    /// unless [`Engine::stages_data`], published or unpublished.
    fn copy_group(&self, group: &[(&Volume, &Dir)]) -> Result<Vec<Taken>>;

    /// Copies a snapshot's data to a new directory.
    fn copy_snapshot(&self, from: &Dir, to: &Dir) -> Result<Made>;

    /// Prepares the directory of a new volume for data that are copied there.
    fn begin_copy(&self, dir: &Dir, record: &Record) -> Result<()>;

    /// Makes of copied data those of a new volume, which is no smaller.
    fn finish_copy(&self, dir: &Dir, record: &Record) -> Result<()>;

    /// Sends the data in a directory that nobody changes.
    fn send(&self, dir: &Dir, sink: &mut dyn Sink<Error = Stop>) -> std::result::Result<(), Stop>;

    /// Receives such data, at most so many bytes of them, into the directory of a new volume, which [`Engine::make`] has
    /// prepared and [`Engine::finish_copy`] will finish.
    fn receive(&self, dir: &Dir, at: &Position, most: u64) -> Result<Box<dyn Receive>>;

    /// Whether staging and unstaging write to the data, so that both have to wait for a copy.
    fn stages_data(&self) -> bool {
        false
    }

    /// Undoes, when a pool is opened, what a killed process did to volumes in use.
    fn recover(&self, store: &Arc<Store>);

    /// Work to do now and then.
    fn tick(&self, store: &Arc<Store>);
}
