//! Staging an image: look, take one step, look again.

use dunnage_host::filesystem::Kind;
use dunnage_host::loopdev::LoopDevice;
use dunnage_host::mount::Place;
use dunnage_host::options::Options;
use dunnage_host::uuid;
use tracing::{debug, info};

use super::grow::settle;
use super::plan::{Device, Done, Seen, Staging, Step, next};
use super::{attach, fill_holes, image, image_bytes, probe};
use crate::capability::Capability;
use crate::error::{Error, Result};
use crate::record::{Allocation, Content, Format};
use crate::status::chain;
use crate::store::Volume;

/// Attaches, formats if it never was, checks, grows and mounts, as far as each is still to do.
pub(crate) fn stage(volume: &mut Volume, staging: &Place, capability: &Capability) -> Result<()> {
    let Content::Image { fs_type, .. } = volume.record.content else {
        return Err(Error::Precondition(format!("volume {} is no image", volume.id())));
    };
    staging.make()?;
    settle(volume)?;
    fill_holes(volume);
    let image_bytes = image_bytes(volume)?;
    let mut device = LoopDevice::find(&image(volume)?)?;
    let mut done = Done::default();
    loop {
        let seen = look(volume, staging, device.as_ref(), image_bytes, done)?;
        let step = next(seen);
        debug!(volume = %volume.id(), ?seen, ?step, "staging");
        match (step, &device) {
            (Step::Finished, _) => return Ok(()),
            (Step::Refuse(why), _) => {
                return Err(Error::Precondition(format!(
                    "volume {} cannot be staged at {}: {why}",
                    volume.id(),
                    staging.path().display()
                )));
            }
            (Step::Attach, _) | (_, None) => {
                device = Some(attach(volume)?);
            }
            (Step::Resize, Some(device)) => {
                device.take_size_of_image()?;
                volume.reach("device grown");
            }
            (Step::NoteFormatStarted, _) => note_format(volume, Format::Started)?,
            (Step::Format, Some(device)) => {
                info!(volume = %volume.id(), fs_type = fs_type.name(), "formatting");
                fs_type.format(device.path())?;
                done.formatted = true;
                volume.reach("image formatted");
            }
            (Step::NoteFormatDone, _) => {
                note_format(volume, Format::Done)?;
                // Just made: there is nothing to repair.
                done.checked = true;
            }
            (Step::Renew, Some(device)) => {
                info!(volume = %volume.id(), "giving the copied file system a new UUID");
                uuid::renew(fs_type, device.file(), device.path())?;
                done.renewed = true;
                volume.reach("UUID renewed");
            }
            (Step::NoteRenewed, _) => note_format(volume, Format::Done)?,
            (Step::Check, Some(device)) => {
                fs_type.check(device.path()).map_err(|error| damaged(volume, fs_type, &error))?;
                done.checked = true;
            }
            (Step::GrowUnmounted, Some(device)) => {
                info!(volume = %volume.id(), "growing the file system");
                fs_type.grow_unmounted(device.path())?;
                done.grown = true;
                volume.reach("file system grown");
            }
            (Step::Mount, Some(device)) => {
                staging
                    .mount(device.path(), fs_type.name(), &options(volume.record.content, capability))
                    .map_err(|error| match error {
                        dunnage_host::Error::Io { .. } => damaged(volume, fs_type, &error),
                        error => error.into(),
                    })?;
                volume.reach("image mounted");
            }
            (Step::GrowMounted, Some(device)) => {
                info!(volume = %volume.id(), "growing the file system");
                fs_type.grow_mounted(device.path(), staging.path())?;
                done.grown = true;
                volume.reach("mounted file system grown");
            }
        }
    }
}

/// What cannot be checked or mounted may be damaged, and is for people to repair.
fn damaged(volume: &Volume, fs_type: Kind, error: &dunnage_host::Error) -> Error {
    Error::Precondition(format!(
        "volume {} cannot be mounted: {}; if its {} is damaged, repair a copy of its image ({} may do) or restore it \
         from a backup, for it is never formatted again",
        volume.id(),
        chain(error),
        fs_type.name(),
        fs_type.repair()
    ))
}

/// Btrfs discards unless told otherwise, which would give away the space that the volume was promised.
fn options(content: Content, capability: &Capability) -> Options {
    let mut options = capability.options.clone();
    if matches!(content, Content::Image { fs_type: Kind::Btrfs, allocation: Allocation::Thick, .. }) {
        options.filesystem.insert(0, ("nodiscard".to_owned(), None));
    }
    options
}

fn note_format(volume: &mut Volume, to: Format) -> Result<()> {
    volume.note(|record| {
        if let Content::Image { format, .. } = &mut record.content {
            *format = to;
        }
    })?;
    volume.reach("format noted");
    Ok(())
}

fn look(
    volume: &Volume,
    staging: &Place,
    device: Option<&LoopDevice>,
    image_bytes: u64,
    done: Done,
) -> Result<Seen> {
    let Content::Image { fs_type, format, .. } = volume.record.content else {
        return Err(Error::Precondition(format!("volume {} is no image", volume.id())));
    };
    let mounted = staging.mounted()?;
    let staging = match (&mounted, device) {
        (None, _) => Staging::Free,
        (Some(mount), Some(device)) if device.is_mounted_as(mount) => Staging::Ours,
        (Some(_), _) => Staging::Other,
    };
    let device = match device {
        None => None,
        Some(device) => {
            Some(Device { bytes: device.size()?, content: probe(device)?, in_use: device.is_in_use()? })
        }
    };
    Ok(Seen { fs_type, format, image_bytes, device, staging, done })
}
