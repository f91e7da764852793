//! Capabilities for requests.

use dunnage_csi::v1::VolumeCapability;
use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

/// A file-system volume for one node.
pub fn mount(fs_type: &str) -> VolumeCapability {
    mount_as(fs_type, &[], Mode::SingleNodeMultiWriter)
}

/// A file-system volume with options and an access mode.
pub fn mount_as(fs_type: &str, options: &[&str], mode: Mode) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        mount_flags: options.iter().map(ToString::to_string).collect(),
        ..MountVolume::default()
    };
    VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// A block volume for one node.
pub fn block() -> VolumeCapability {
    block_as(Mode::SingleNodeWriter)
}

/// A block volume with an access mode.
pub fn block_as(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}
