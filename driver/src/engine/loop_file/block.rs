//! Block mode: what a pod gets is the image's device itself, and nobody looks at what is on it.

use std::os::fd::OwnedFd;

use dunnage_host::loopdev::LoopDevice;
use dunnage_host::mountinfo::{self, Mount};

use super::grow::settle;
use super::plan::is_short;
use super::{attach, device_name, fill_holes, image, image_bytes};
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::store::Volume;

/// Attaches the image and keeps it so, for there is no mount that would.
pub(crate) fn stage(volume: &mut Volume) -> Result<()> {
    settle(volume)?;
    fill_holes(volume);
    let device = attach(volume)?;
    if is_short(device.size()?, image_bytes(volume)?) {
        device.take_size_of_image()?;
        volume.reach("device grown");
    }
    if !device.is_kept()? {
        device.keep()?;
        volume.reach("device kept");
    }
    Ok(())
}

/// The device, if the volume is staged.
pub(crate) fn device(volume: &Volume) -> Result<LoopDevice> {
    match LoopDevice::find(&image(volume)?)? {
        Some(device) if device.is_kept()? => Ok(device),
        _ => Err(Error::Precondition(format!("volume {} is not staged on this node", volume.id()))),
    }
}

pub(crate) fn source(volume: &Volume) -> Result<OwnedFd> {
    Ok(device(volume)?.node()?)
}

/// Where the device's node is mounted.
pub(crate) fn mounts(volume: &Volume) -> Result<Vec<Mount>> {
    match LoopDevice::find(&image(volume)?)? {
        None => Ok(Vec::new()),
        Some(device) => Ok(device.node_mounts(mountinfo::read()?)?),
    }
}

/// Detaches the device of a volume whose image cannot be reached any more.
pub(crate) fn release_lost(id: &VolumeId) -> Result<bool> {
    let name = device_name(id);
    match LoopDevice::kept_as(&name)? {
        Some(device) if device.node_mounts(mountinfo::read()?)?.is_empty() => {
            Ok(LoopDevice::detach_kept(&name)?)
        }
        Some(_) => Ok(false),
        None => Ok(true),
    }
}
