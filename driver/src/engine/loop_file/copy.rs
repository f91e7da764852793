//! Copies of images, each of one moment: of a volume at rest, or of one whose file system is frozen meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use dunnage_host::copy::{self, How};
use dunnage_host::dir::Dir;
use dunnage_host::freeze::{Frozen, thaw as thaw_dir};
use dunnage_host::loopdev::LoopDevice;
use dunnage_host::mount::mount_of;
use dunnage_host::mountinfo::Mount;
use dunnage_host::space;
use tracing::info;

use super::{IMAGE, image};
use crate::engine::moment;
use crate::error::{Error, Result};
use crate::snapshot::{Made, State, Taken};
use crate::store::Volume;

/// Writers wait for a frozen file system, and what waits on them gives them up.
const FROZEN_FOR: Duration = Duration::from_secs(30);

/// Lies beside the image while its file system may be frozen, so that the next start knows whom to thaw.
const MARKER: &str = "frozen";

const ATTACHED: &str =
    "it is attached and might be written while it is copied: stop the pod, or put the pool on xfs or btrfs";

/// How an image is used before it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    None,
    /// It is behind a device, which somebody may be writing to.
    Attached,
    Mounted,
    /// Mounted where this driver does not see it.
    OutOfSight,
}

/// How to get a copy of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    Plainly,
    Frozen,
    /// After what was written to the device is in the image.
    Synced,
    Refuse(&'static str),
}

/// `shares` tells whether the copy shares the image's blocks, and so takes but a moment.
fn way(used: Use, shares: bool) -> Way {
    match (used, shares) {
        (Use::None, _) => Way::Plainly,
        (Use::Mounted, _) => Way::Frozen,
        (Use::OutOfSight, _) => {
            Way::Refuse("it is mounted where this driver cannot freeze it: stop what uses it")
        }
        (Use::Attached, true) => Way::Synced,
        (Use::Attached, false) => Way::Refuse(ATTACHED),
    }
}

/// A volume's image that is to be copied, and what keeps it as it is meanwhile.
pub(super) struct Image<'a> {
    volume: &'a Volume,
    to: &'a Dir,
    hold: Hold,
}

enum Hold {
    /// Nobody uses it, and nobody stages it meanwhile.
    AtRest,
    /// The freeze of the file system that is mounted there.
    Freeze(Mount),
    /// Nothing: what was written to the device is brought into the image before it is copied, which takes but a moment.
    Sync(LoopDevice),
}

impl<'a> Image<'a> {
    /// Looks at how a volume is used; it is refused where no copy of one moment can be had.
    pub(super) fn of(volume: &'a Volume, to: &'a Dir, mounts: &[Mount]) -> Result<Self> {
        let device = LoopDevice::find(&image(volume)?)?;
        let mounted = mounts.iter().find(|mount| mount.root == Path::new("/")).or(mounts.first());
        let used = match &device {
            None => Use::None,
            Some(_) if mounted.is_some() => Use::Mounted,
            Some(device) if !volume.record.content.is_block() && device.is_in_use()? => Use::OutOfSight,
            Some(_) => Use::Attached,
        };
        let hold = match (way(used, copy::can_reflink(to)?), mounted, device) {
            (Way::Refuse(why), ..) => return Err(refusal(volume, why)),
            (Way::Frozen, Some(mount), _) => Hold::Freeze(mount.clone()),
            (Way::Synced, _, Some(device)) => Hold::Sync(device),
            _ => Hold::AtRest,
        };
        Ok(Self { volume, to, hold })
    }

    fn copy(&self, until: Option<Instant>) -> Result<How> {
        let Hold::Sync(device) = &self.hold else { return copy_to(&self.volume.dir, self.to, until) };
        space::sync(device.file(), device.path())?;
        match copy_to(&self.volume.dir, self.to, until)? {
            How::Reflink => Ok(How::Reflink),
            // Its blocks were not to be shared after all, so that it may have been written meanwhile.
            How::Copy => Err(refusal(self.volume, ATTACHED)),
        }
    }

    fn taken(&self, how: How) -> Taken {
        let source = match self.hold {
            Hold::AtRest => State::AtRest,
            Hold::Freeze(_) => State::Frozen,
            Hold::Sync(_) => State::Attached,
        };
        Taken { made: how.into(), source }
    }

    /// What can be frozen, if that is what holds it.
    fn mounted(&self) -> Option<Result<Freezing<'a>>> {
        let Hold::Freeze(mount) = &self.hold else { return None };
        Some(Dir::open(&mount.mount_point).map_err(Error::from).and_then(|dir| {
            // The path could lead elsewhere by now, and nothing else is to be frozen.
            if mount_of(&dir)?.0.id != mount.id {
                return Err(refusal(self.volume, "its mount has just changed"));
            }
            Ok(Freezing { volume: self.volume, dir })
        }))
    }
}

fn refusal(volume: &Volume, why: &str) -> Error {
    Error::Precondition(format!("volume {} cannot be copied: {why}", volume.id()))
}

/// Copies a volume's image.
pub(super) fn volume(image: &Image<'_>) -> Result<Taken> {
    let how = match image.mounted() {
        None => image.copy(None)?,
        Some(mounted) => while_frozen(vec![mounted?], |until| image.copy(until), || sync(image.to))?,
    };
    sync(image.to)?;
    Ok(image.taken(how))
}

/// Copies the images of several volumes, all as they are at one moment: while everything that can be frozen is, and what is at
/// rest already before that.
pub(super) fn volumes(images: &[Image<'_>]) -> Result<Vec<Taken>> {
    let changing = images.iter().filter(|image| matches!(image.hold, Hold::Sync(_)));
    let changing: Vec<_> = changing.map(|image| image.volume.id()).collect();
    moment::check(&changing, 1, "what is attached and not mounted, as a block volume, cannot be frozen")?;
    let early = images.iter().map(|image| match image.hold {
        Hold::AtRest => image.copy(None).map(Some),
        _ => Ok(None),
    });
    let early: Vec<Option<How>> = early.collect::<Result<_>>()?;
    let copy = |until| {
        let rest = images.iter().zip(&early);
        let how = rest.map(|(image, early)| early.map_or_else(|| image.copy(until), Ok));
        how.collect::<Result<Vec<How>>>()
    };
    let sync_all = || images.iter().try_for_each(|image| sync(image.to));
    let mounted: Vec<_> = images.iter().filter_map(Image::mounted).collect::<Result<_>>()?;
    let how = if mounted.is_empty() { copy(None)? } else { while_frozen(mounted, copy, sync_all)? };
    sync_all()?;
    Ok(images.iter().zip(how).map(|(image, how)| image.taken(how)).collect())
}

/// Copies a snapshot's image.
pub(super) fn snapshot(from: &Dir, to: &Dir) -> Result<Made> {
    let how = copy_to(from, to, None)?;
    sync(to)?;
    Ok(how.into())
}

fn copy_to(from: &Dir, to: &Dir, until: Option<Instant>) -> Result<How> {
    Ok(copy::file(&from.file(IMAGE)?, &to.create(IMAGE)?, &from.path().join(IMAGE), until)?)
}

fn sync(to: &Dir) -> Result<()> {
    Ok(space::sync(&to.file(IMAGE)?, &to.path().join(IMAGE))?)
}

/// A volume in use, and where its file system is mounted.
struct Freezing<'a> {
    volume: &'a Volume,
    dir: Dir,
}

/// Copies while the file systems of all of these volumes are frozen together.
fn while_frozen<T>(
    volumes: Vec<Freezing<'_>>,
    copy: impl Fn(Option<Instant>) -> Result<T>,
    sync: impl Fn() -> Result<()>,
) -> Result<T> {
    let (volumes, dirs): (Vec<_>, Vec<_>) =
        volumes.into_iter().map(|Freezing { volume, dir }| (volume, dir)).unzip();
    let timed = || copy(Some(Instant::now() + FROZEN_FOR)).map_err(|error| late(&volumes, error));
    // A rehearsal: what takes too long is found out without anybody having to wait, call after call.
    timed()?;
    sync()?;
    let copied = freeze(&volumes, dirs).and_then(|frozen| {
        let copied = timed();
        // Not given up by it: what was thawed by others is no copy of one moment.
        for (volume, frozen) in volumes.iter().zip(frozen) {
            frozen.thaw()?;
            volume.reach("file system thawed");
        }
        copied
    });
    for volume in &volumes {
        unmark(volume)?;
    }
    copied
}

/// Freezes all or none; a mark tells the next start of each before the first is frozen.
fn freeze(volumes: &[&Volume], dirs: Vec<Dir>) -> Result<Vec<Frozen>> {
    // None is to wait for what another has not written yet.
    if dirs.len() > 1 {
        dirs.iter().try_for_each(Dir::sync_filesystem)?;
    }
    for volume in volumes {
        volume.dir.write(MARKER, b"")?;
        volume.reach("freeze noted");
    }
    let mut frozen = Vec::new();
    for (volume, dir) in volumes.iter().zip(dirs) {
        frozen.push(Frozen::freeze(dir)?);
        volume.reach("file system frozen");
    }
    Ok(frozen)
}

fn late(volumes: &[&Volume], error: Error) -> Error {
    match error {
        Error::Host(host) if host.is_timeout() => Error::Precondition(format!(
            "{} in use, and to copy that takes longer than the {} seconds that its writers may have to wait: stop the pods, \
             or put the pool on xfs or btrfs, where a copy takes but a moment",
            moment::are(&volumes.iter().map(|volume| volume.id()).collect::<Vec<_>>()),
            FROZEN_FOR.as_secs()
        )),
        error => error,
    }
}

fn unmark(volume: &Volume) -> Result<()> {
    volume.dir.remove_file(MARKER)?;
    Ok(volume.dir.sync()?)
}

/// Whether an earlier process may have left the volume frozen.
pub(super) fn was_frozen(volume: &Volume) -> Result<bool> {
    Ok(volume.dir.has(MARKER)?)
}

/// Thaws what an earlier process left frozen.
pub(super) fn thaw(volume: &Volume, mounts: &[Mount]) -> Result<()> {
    if !was_frozen(volume)? {
        return Ok(());
    }
    // All of them are of the one file system, and some may be out of reach.
    let mut failed = None;
    for mount in mounts {
        match thaw_mount(mount) {
            Ok(Some(thawed)) => {
                if thawed {
                    info!(volume = %volume.id(), "thawed what an earlier process left frozen");
                }
                return unmark(volume);
            }
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) => Err(error.into()),
        None => unmark(volume),
    }
}

/// Whether it was frozen; none when its path leads elsewhere by now.
fn thaw_mount(mount: &Mount) -> dunnage_host::Result<Option<bool>> {
    let dir = Dir::open(&mount.mount_point)?;
    if mount_of(&dir)?.0.id == mount.id { thaw_dir(&dir).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_of_one_moment_or_refused() {
        for (used, shares, expected) in [
            (Use::None, false, Some(Way::Plainly)),
            (Use::None, true, Some(Way::Plainly)),
            (Use::Attached, false, None),
            (Use::Attached, true, Some(Way::Synced)),
            (Use::OutOfSight, false, None),
            (Use::OutOfSight, true, None),
            (Use::Mounted, false, Some(Way::Frozen)),
            (Use::Mounted, true, Some(Way::Frozen)),
        ] {
            match (way(used, shares), expected) {
                (Way::Refuse(why), None) => assert!(why.contains("stop"), "{why}"),
                (got, expected) => assert_eq!(Some(got), expected, "{used:?} {shares}"),
            }
        }
    }
}
