//! The one capability that a whole volume is published, grown and shown with.

use dunnage_csi::v1::VolumeCapability;
use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use k8s_openapi::api::core::v1::PersistentVolumeSpec;

/// Access modes that no single mode of CSI stands for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("access mode {0:?} is not known")]
    Unknown(String),
    #[error("access modes {0:?} cannot be had together")]
    Together(Vec<String>),
    #[error("the volume has no access mode")]
    None,
}

/// What the process has to add to a volume's own words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// The driver tells one writer from several on one node.
    pub(crate) multi_writer: bool,
    /// File system of volumes that name none.
    pub(crate) default_fstype: String,
}

/// How `spec`'s volume is accessed.
pub(crate) fn capability(spec: &PersistentVolumeSpec, rules: &Rules) -> Result<VolumeCapability, Invalid> {
    let mode = mode(spec.access_modes.as_deref().unwrap_or_default(), rules.multi_writer)?;
    let access_type = if spec.volume_mode.as_deref() == Some("Block") {
        AccessType::Block(BlockVolume {})
    } else {
        let named = spec.csi.as_ref().and_then(|csi| csi.fs_type.clone()).filter(|name| !name.is_empty());
        AccessType::Mount(MountVolume {
            fs_type: named.unwrap_or_else(|| rules.default_fstype.clone()),
            mount_flags: spec.mount_options.clone().unwrap_or_default(),
            ..MountVolume::default()
        })
    };
    Ok(VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    })
}

/// All modes of a volume as one of CSI's.
fn mode(modes: &[String], multi_writer: bool) -> Result<Mode, Invalid> {
    let known = ["ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce", "ReadWriteOncePod"];
    if let Some(unknown) = modes.iter().find(|mode| !known.contains(&mode.as_str())) {
        return Err(Invalid::Unknown(unknown.clone()));
    }
    let [many, read_only, once, pod] = known.map(|name| modes.iter().any(|mode| mode == name));
    match (many, read_only, once, pod) {
        (false, false, false, false) => Err(Invalid::None),
        (false, false, false, true) if multi_writer => Ok(Mode::SingleNodeSingleWriter),
        (false, false, true, false) if multi_writer => Ok(Mode::SingleNodeMultiWriter),
        (false, false, false, true) | (false, false, true, false) => Ok(Mode::SingleNodeWriter),
        (_, _, _, true) | (false, true, true, false) => Err(Invalid::Together(modes.to_vec())),
        (true, _, _, false) => Ok(Mode::MultiNodeMultiWriter),
        (false, true, false, false) => Ok(Mode::MultiNodeReaderOnly),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RWX: &str = "ReadWriteMany";
    const ROX: &str = "ReadOnlyMany";
    const RWO: &str = "ReadWriteOnce";
    const RWOP: &str = "ReadWriteOncePod";

    #[test]
    fn the_modes_of_a_volume_become_one() {
        let owned = |modes: &[&str]| modes.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (modes, plain, multi_writer) in [
            (&[RWX][..], Some(Mode::MultiNodeMultiWriter), Some(Mode::MultiNodeMultiWriter)),
            (&[RWX, ROX], Some(Mode::MultiNodeMultiWriter), Some(Mode::MultiNodeMultiWriter)),
            (&[RWO, RWX, ROX], Some(Mode::MultiNodeMultiWriter), Some(Mode::MultiNodeMultiWriter)),
            (&[ROX], Some(Mode::MultiNodeReaderOnly), Some(Mode::MultiNodeReaderOnly)),
            (&[RWO], Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeMultiWriter)),
            (&[RWO, RWO], Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeMultiWriter)),
            (&[RWOP], Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeSingleWriter)),
            (&[RWOP, RWO], None, None),
            (&[RWOP, RWX], None, None),
            (&[ROX, RWO], None, None),
            (&["Sometimes"], None, None),
            (&[], None, None),
        ] {
            assert_eq!(mode(&owned(modes), false).ok(), plain, "{modes:?}");
            assert_eq!(mode(&owned(modes), true).ok(), multi_writer, "{modes:?}");
        }
    }

    #[test]
    fn the_access_type_comes_from_the_volumes_mode_and_file_system() {
        let mount = |fs_type: &str, flags: &[&str]| {
            AccessType::Mount(MountVolume {
                fs_type: fs_type.to_owned(),
                mount_flags: flags.iter().map(ToString::to_string).collect(),
                ..MountVolume::default()
            })
        };
        for (volume_mode, fs_type, options, default, expected) in [
            (Some("Block"), Some("xfs"), None, "ext4", AccessType::Block(BlockVolume {})),
            (Some("Filesystem"), Some("xfs"), Some(json!(["noatime"])), "ext4", mount("xfs", &["noatime"])),
            (None, None, None, "ext4", mount("ext4", &[])),
            (None, Some(""), None, "ext4", mount("ext4", &[])),
            (None, None, None, "", mount("", &[])),
        ] {
            let spec: PersistentVolumeSpec = serde_json::from_value(json!({
                "accessModes": [RWO],
                "volumeMode": volume_mode,
                "mountOptions": options,
                "csi": {"driver": "d", "volumeHandle": "h", "fsType": fs_type},
            }))
            .expect("spec");
            let rules = Rules { default_fstype: default.to_owned(), ..Rules::default() };
            assert_eq!(capability(&spec, &rules).expect("valid").access_type, Some(expected));
        }
    }
}
