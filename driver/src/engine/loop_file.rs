//! An image file a volume, on a loop device: a hard limit, and a file system of its own or none. All of its space is
//! taken at once, unless its class wants it sparse.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dunnage_csi::mount_options::{DISCARD_NEEDS_SPARSE, On};
use dunnage_host::dir::Dir;
use dunnage_host::filesystem::{self, Kind};
use dunnage_host::loopdev::LoopDevice;
use dunnage_host::mount::Place;
use dunnage_host::mountinfo::{self, Mount};
use dunnage_host::space::{self, Space};
use dunnage_host::stream::{FileReceiver, Position, Receive, Sink, send_file};
use tracing::{debug, warn};

use crate::capability::Capability;
use crate::copies::Stop;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::overcommit::Overcommit;
use crate::record::{Allocation, Content, Format, Record};
use crate::size::Sizes;
use crate::snapshot::{Made, Taken};
use crate::status::chain;
use crate::store::{Store, Volume};

mod block;
mod copy;
mod grow;
mod plan;
mod stage;

const IMAGE: &str = "image";

/// Device sizes are whole sectors of the largest kind in use, so that direct I/O is always possible.
const STEP: u64 = 4096;

/// The engine.
#[derive(Debug)]
pub(crate) struct LoopFile {
    /// How much more than there is sparse volumes may promise.
    pub(crate) overcommit: Overcommit,
}

fn image(volume: &Volume) -> Result<File> {
    volume.file(IMAGE)
}

/// The image's device, attached now unless it was.
fn attach(volume: &Volume) -> Result<LoopDevice> {
    let device = LoopDevice::attach(&image(volume)?, &device_name(volume.id()))?;
    volume.reach("image attached");
    Ok(device)
}

/// What people are told of a device, and how it is known when its image is out of reach.
fn device_name(id: &VolumeId) -> String {
    format!("{id}/{IMAGE}")
}

/// How large the image is.
fn image_bytes(volume: &Volume) -> Result<u64> {
    let look =
        |source| dunnage_host::Error::Io { action: "look at", path: volume.dir.path().join(IMAGE), source };
    Ok(image(volume)?.metadata().map_err(look)?.len())
}

/// All mounts of the file system on a device.
fn mounts_of(device: &LoopDevice) -> Result<Vec<Mount>> {
    Ok(mountinfo::read()?.into_iter().filter(|mount| device.is_mounted_as(mount)).collect())
}

fn kind(fs_type: &str) -> Result<Kind> {
    match fs_type {
        "" => Ok(Kind::Ext4),
        name => Kind::named(name).ok_or_else(|| {
            let known: Vec<&str> = Kind::ALL.into_iter().map(Kind::name).collect();
            Error::Invalid(format!(
                "fs type {name:?} is not possible: csi.storage.k8s.io/fstype may be {}",
                known.join(" or ")
            ))
        }),
    }
}

impl LoopFile {
    /// An image that is to be copied, with how it is used.
    fn look_at<'a>(&self, volume: &'a Volume, to: &'a Dir) -> Result<copy::Image<'a>> {
        // What is mounted of a block volume is the device itself, which nobody can freeze.
        let mounts = if volume.record.content.is_block() { Vec::new() } else { self.mounts(volume)? };
        copy::Image::of(volume, to, &mounts)
    }
}

impl Engine for LoopFile {
    fn unlimited(&self, _: &Store) -> Result<Option<String>> {
        Ok(None)
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["allocation", "requireLimit"]
    }

    fn content(&self, capability: &Capability, allocation: Allocation) -> Result<Content> {
        if allocation == Allocation::Thick && capability.discards() {
            return Err(Error::Invalid(DISCARD_NEEDS_SPARSE.to_owned()));
        }
        if capability.block {
            return Ok(Content::Block { allocation });
        }
        let fs_type = kind(&capability.fs_type)?;
        capability.check_options(match fs_type {
            Kind::Ext4 => On::Ext4,
            Kind::Xfs => On::Xfs,
            Kind::Btrfs => On::Btrfs,
        })?;
        Ok(Content::Image { fs_type, format: Format::Never, allocation })
    }

    fn sizes(&self, content: Content) -> Sizes {
        let Content::Image { fs_type: kind, .. } = content else {
            return Sizes { minimum: STEP, minimum_for: "a block volume", step: STEP };
        };
        let minimum_for = match kind {
            Kind::Ext4 => "an ext4 volume",
            Kind::Xfs => "an xfs volume",
            Kind::Btrfs => "a btrfs volume",
        };
        Sizes { minimum: kind.minimum(), minimum_for, step: STEP }
    }

    /// A thick image has taken what it was promised.
    fn promised(&self, volumes: &Dir, records: &BTreeMap<VolumeId, Record>) -> u64 {
        let sparse = records.values().filter(|record| record.content.allocation() == Allocation::Sparse);
        sparse
            .map(|record| {
                // What cannot be looked at is promised in full.
                let taken =
                    volumes.taken([record.id.as_str(), IMAGE].iter().collect::<PathBuf>()).unwrap_or(0);
                self.charge(record).saturating_sub(taken)
            })
            .sum()
    }

    fn charge(&self, record: &Record) -> u64 {
        match record.content.allocation() {
            Allocation::Thick => record.capacity_bytes,
            Allocation::Sparse => self.overcommit.share(record.capacity_bytes),
        }
    }

    fn room(&self, allocation: Allocation, available: u64) -> u64 {
        match allocation {
            Allocation::Thick => available,
            Allocation::Sparse => self.overcommit.promises(available),
        }
    }

    fn shares_space(&self, content: Content) -> bool {
        content.allocation() == Allocation::Sparse
    }

    fn make(&self, dir: &Dir, record: &Record) -> Result<()> {
        take_space(&dir.create(IMAGE)?, dir, record)
    }

    fn settle(&self, volume: &mut Volume) -> Result<()> {
        grow::settle(volume)
    }

    fn grow(&self, volume: &Volume, bytes: u64) -> Result<()> {
        grow::grow(volume, bytes)
    }

    fn grows_on_node(&self) -> bool {
        true
    }

    fn grow_staged(&self, volume: &mut Volume) -> Result<()> {
        grow::grow_staged(volume)
    }

    fn stage(&self, volume: &mut Volume, staging: &Place, capability: &Capability) -> Result<()> {
        match volume.record.content {
            Content::Block { .. } => block::stage(volume),
            _ => stage::stage(volume, staging, capability),
        }
    }

    fn source(&self, volume: &Volume, staging: &Place) -> Result<OwnedFd> {
        if volume.record.content.is_block() {
            return block::source(volume);
        }
        let device = LoopDevice::find(&image(volume)?)?;
        match (staging.mounted()?, device) {
            (Some(mount), Some(device)) if device.is_mounted_as(&mount) => Ok(staging.open()?),
            _ => Err(Error::Precondition(format!(
                "volume {} is not staged at {}",
                volume.id(),
                staging.path().display()
            ))),
        }
    }

    fn mounts(&self, volume: &Volume) -> Result<Vec<Mount>> {
        if volume.record.content.is_block() {
            return block::mounts(volume);
        }
        match LoopDevice::find(&image(volume)?)? {
            None => Ok(Vec::new()),
            Some(device) => mounts_of(&device),
        }
    }

    fn is_whole(&self, volume: &Volume, mount: &Mount) -> bool {
        volume.record.content.is_block() || mount.root == Path::new("/")
    }

    fn open_for(&self, volume: &Volume, read_only: bool) -> Result<()> {
        match volume.record.content {
            // A mount's own flags do not hold writers of a device back.
            Content::Block { .. } => Ok(block::device(volume)?.set_read_only(read_only)?),
            _ => Ok(()),
        }
    }

    fn release(&self, volume: &Volume) -> Result<bool> {
        // The mount of a node does not keep its device.
        if volume.record.content.is_block() && !block::mounts(volume)?.is_empty() {
            return Ok(false);
        }
        Ok(LoopDevice::detach(&image(volume)?)?)
    }

    fn release_lost(&self, id: &VolumeId) -> Result<bool> {
        block::release_lost(id)
    }

    /// The unmount has written the file system to the image; this writes the image to the disk.
    fn persist(&self, volume: &Volume) -> Result<()> {
        let image = image(volume)?;
        Ok(space::sync(&image, &volume.dir.path().join(IMAGE))?)
    }

    fn forget(&self, _: &Volume) -> Result<()> {
        Ok(())
    }

    fn stats(&self, volume: &Volume, published: &Place) -> Result<Space> {
        if volume.record.content.is_block() {
            return Ok(Space { total: block::device(volume)?.size()?, ..Space::default() });
        }
        Ok(space::of(published.open()?, published.path())?)
    }

    fn data_bytes(&self, dir: &Dir) -> Result<u64> {
        Ok(dunnage_host::copy::data_bytes(&dir.file(IMAGE)?, dir.path())?)
    }

    fn copy_volume(&self, volume: &Volume, to: &Dir) -> Result<Taken> {
        copy::volume(&self.look_at(volume, to)?)
    }

    fn copy_group(&self, group: &[(&Volume, &Dir)]) -> Result<Vec<Taken>> {
        let images: Vec<_> =
            group.iter().map(|(volume, to)| self.look_at(volume, to)).collect::<Result<_>>()?;
        copy::volumes(&images)
    }

    fn copy_snapshot(&self, from: &Dir, to: &Dir) -> Result<Made> {
        copy::snapshot(from, to)
    }

    fn begin_copy(&self, _: &Dir, _: &Record) -> Result<()> {
        Ok(())
    }

    fn finish_copy(&self, dir: &Dir, record: &Record) -> Result<()> {
        take_space(&dir.file(IMAGE)?, dir, record)
    }

    fn send(&self, dir: &Dir, sink: &mut dyn Sink<Error = Stop>) -> std::result::Result<(), Stop> {
        send_file(&dir.file(IMAGE)?, &dir.path().join(IMAGE), sink)
    }

    fn receive(&self, dir: &Dir, _: &Position, _: u64) -> Result<Box<dyn Receive>> {
        Ok(Box::new(FileReceiver::new(dir, IMAGE)?))
    }

    fn stages_data(&self) -> bool {
        true
    }

    fn recover(&self, store: &Arc<Store>) {
        for record in store.records() {
            let thawed = store.volume(&record.id).and_then(|volume| {
                let mounts = if copy::was_frozen(&volume)? { self.mounts(&volume)? } else { Vec::new() };
                copy::thaw(&volume, &mounts)
            });
            if let Err(error) = thawed {
                warn!(volume = %record.id, error = chain(&error), "cannot thaw the volume: thaw it with fsfreeze -u");
            }
        }
    }

    fn tick(&self, store: &Arc<Store>) {
        for record in store.records() {
            // A volume that went meanwhile is nobody's trouble.
            if let Ok(volume) = store.volume(&record.id) {
                fill_holes(&volume);
            }
        }
    }
}

/// Gives an image its size, with all of the space taken now unless it is sparse.
fn take_space(image: &File, dir: &Dir, record: &Record) -> Result<()> {
    let path = dir.path().join(IMAGE);
    if record.content.allocation() == Allocation::Sparse {
        space::extend(image, record.capacity_bytes, &path)?;
        return Ok(space::sync(image, &path)?);
    }
    space::allocate(image, record.capacity_bytes, &path).map_err(|error| match error.kind() {
        Some(ErrorKind::Unsupported) => Error::Precondition(
            "the pool's file system cannot reserve space for an image (fallocate): put the pool on ext4, xfs or btrfs"
                .to_owned(),
        ),
        _ => Error::Host(error),
    })?;
    Ok(space::sync(image, &path)?)
}

/// Takes back what an image has lost: the kernel punches a hole where a file system in it asks for zeros. Without room
/// for that the volume still works, until something is written just there.
fn fill_holes(volume: &Volume) {
    if volume.record.content.allocation() == Allocation::Sparse {
        return;
    }
    let path = volume.dir.path().join(IMAGE);
    let filled = image(volume).and_then(|image| {
        if space::has_holes(&image, &path)? {
            space::allocate(&image, volume.record.capacity_bytes, &path)?;
            debug!(volume = %volume.id(), "space of the image taken back");
        }
        Ok(())
    });
    if let Err(error) = filled {
        warn!(volume = %volume.id(), error = chain(&error), "the image has lost some of its space");
    }
}

/// What the device holds.
fn probe(device: &LoopDevice) -> Result<dunnage_host::superblock::Content> {
    Ok(filesystem::probe(device.file(), device.path())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_ext4_unless_asked_otherwise() {
        for (fs_type, expected) in [
            ("", Some(Kind::Ext4)),
            ("ext4", Some(Kind::Ext4)),
            ("xfs", Some(Kind::Xfs)),
            ("btrfs", Some(Kind::Btrfs)),
            ("zfs", None),
        ] {
            match (kind(fs_type), expected) {
                (Ok(kind), Some(expected)) => assert_eq!(kind, expected),
                (Err(error), None) => assert!(error.to_string().contains("ext4 or xfs or btrfs"), "{error}"),
                (got, _) => panic!("{fs_type}: {got:?}"),
            }
        }
    }
}
