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

/// Copies a volume's image.
pub(super) fn volume(volume: &Volume, to: &Dir, mounts: &[Mount]) -> Result<Taken> {
    let source = image(volume)?;
    let device = LoopDevice::find(&source)?;
    let mounted = mounts.iter().find(|mount| mount.root == Path::new("/")).or(mounts.first());
    let used = match &device {
        None => Use::None,
        Some(_) if mounted.is_some() => Use::Mounted,
        Some(device) if !volume.record.content.is_block() && device.is_in_use()? => Use::OutOfSight,
        Some(_) => Use::Attached,
    };
    let refuse =
        |why: &str| Err(Error::Precondition(format!("volume {} cannot be copied: {why}", volume.id())));
    let (how, state) = match (way(used, copy::can_reflink(to)?), mounted, &device) {
        (Way::Refuse(why), ..) => return refuse(why),
        (Way::Frozen, Some(mount), _) => {
            let dir = Dir::open(&mount.mount_point)?;
            // The path could lead elsewhere by now, and nothing else is to be frozen.
            if mount_of(&dir)?.0.id != mount.id {
                return refuse("its mount has just changed");
            }
            (while_frozen(volume, dir, to)?, State::Frozen)
        }
        (Way::Synced, _, Some(device)) => {
            space::sync(device.file(), device.path())?;
            match copy_to(&volume.dir, to, None)? {
                How::Reflink => (How::Reflink, State::Attached),
                // Its blocks were not to be shared after all, so that it may have been written meanwhile.
                How::Copy => return refuse(ATTACHED),
            }
        }
        _ => (copy_to(&volume.dir, to, None)?, State::AtRest),
    };
    sync(to)?;
    Ok(Taken { made: how.into(), source: state })
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

fn while_frozen(volume: &Volume, mounted: Dir, to: &Dir) -> Result<How> {
    let timed =
        || copy_to(&volume.dir, to, Some(Instant::now() + FROZEN_FOR)).map_err(|error| late(volume, error));
    // A rehearsal: what takes too long is found out without anybody having to wait, call after call.
    timed()?;
    sync(to)?;
    volume.dir.write(MARKER, b"")?;
    volume.reach("freeze noted");
    let copied = Frozen::freeze(mounted).map_err(Error::from).and_then(|frozen| {
        volume.reach("file system frozen");
        let copied = timed();
        // Not given up by it: what was thawed by others is no copy of one moment.
        frozen.thaw()?;
        volume.reach("file system thawed");
        copied
    });
    unmark(volume)?;
    copied
}

fn late(volume: &Volume, error: Error) -> Error {
    match error {
        Error::Host(host) if host.is_timeout() => Error::Precondition(format!(
            "volume {} is in use, and to copy it takes longer than the {} seconds that its writers may have to wait: \
             stop the pod, or put the pool on xfs or btrfs, where a copy takes but a moment",
            volume.id(),
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
