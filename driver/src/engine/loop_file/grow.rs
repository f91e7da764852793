//! Growth of an image: its space first, then its own size, then the device's, then the file system's.

use std::path::Path;

use dunnage_host::filesystem::is_growth_forbidden;
use dunnage_host::loopdev::LoopDevice;
use dunnage_host::mountinfo::Mount;
use dunnage_host::space;
use tracing::{debug, info};

use super::plan::{Growth, growth};
use super::{IMAGE, image, image_bytes, mounts_of, probe};
use crate::error::{Error, Result};
use crate::record::{Allocation, Content};
use crate::store::Volume;

/// Cleans up after a call that was cut short: the record follows an image that has grown already, and one that has not
/// grown gives back what was taken for it.
pub(crate) fn settle(volume: &mut Volume) -> Result<()> {
    let bytes = image_bytes(volume)?;
    if bytes <= volume.record.capacity_bytes {
        return Ok(space::give_back(&image(volume)?, &volume.dir.path().join(IMAGE))?);
    }
    volume.note(|record| record.capacity_bytes = bytes)?;
    volume.reach("growth settled");
    Ok(())
}

pub(crate) fn grow(volume: &Volume, bytes: u64) -> Result<()> {
    let path = volume.dir.path().join(IMAGE);
    let image = image(volume)?;
    if volume.record.content.allocation() == Allocation::Thick {
        space::take(&image, bytes, &path)?;
        volume.reach("space beyond the image taken");
    }
    space::extend(&image, bytes, &path)?;
    volume.reach("image grown");
    Ok(space::sync(&image, &path)?)
}

/// Grows the device, and the file system where it is mounted.
pub(crate) fn grow_staged(volume: &Volume) -> Result<()> {
    let not_staged = || {
        Err(Error::Precondition(format!(
            "volume {} is not staged on this node: its file system grows when it is",
            volume.id()
        )))
    };
    let Some(device) = LoopDevice::find(&image(volume)?)? else { return not_staged() };
    if super::plan::is_short(device.size()?, image_bytes(volume)?) {
        device.take_size_of_image()?;
        volume.reach("device grown");
    }
    let Content::Image { fs_type, .. } = volume.record.content else { return Ok(()) };
    let mut mounts = mounts_of(&device)?;
    // Through one that is read-only nothing grows, and one of a part may be a single file.
    mounts.sort_by_key(|mount: &Mount| (mount.read_only, mount.root != Path::new("/")));
    let Some(mount) = mounts.first() else { return not_staged() };
    let growth = growth(fs_type, probe(&device)?, device.size()?);
    debug!(volume = %volume.id(), ?growth, "growing");
    if growth == Growth::None {
        return Ok(());
    }
    match fs_type.grow_mounted(device.path(), &mount.mount_point) {
        Ok(()) => {
            info!(volume = %volume.id(), "file system grown");
            volume.reach("mounted file system grown");
            Ok(())
        }
        Err(error) if is_growth_forbidden(&error) && growth == Growth::Slight => {
            debug!(volume = %volume.id(), "what is left is too little to grow into");
            Ok(())
        }
        Err(error) if is_growth_forbidden(&error) => Err(Error::Precondition(format!(
            "the file system of volume {} does not grow now: the kernel grows a mounted {} only for a process with \
             CAP_SYS_RESOURCE, which this driver lacks; it grows when the volume is next staged, so end all pods that \
             use it on this node ({error})",
            volume.id(),
            fs_type.name()
        ))),
        Err(error) => Err(error.into()),
    }
}
