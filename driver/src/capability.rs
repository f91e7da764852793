//! How a volume may be used: the capabilities of a request, checked against what there is.

use dunnage_csi::mount_options::{self, On};
use dunnage_csi::v1::VolumeCapability;
use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::volume_capability::{AccessType, MountVolume};
use dunnage_host::options::{self, Options};

use crate::error::{Error, Result};

/// A checked capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capability {
    /// The file system asked for; empty when any will do.
    pub fs_type: String,
    pub options: Options,
    pub access: Access,
    /// The device itself is wanted, not a file system.
    pub block: bool,
}

impl Capability {
    /// Refuses mount options that a volume of this kind does not take.
    pub(crate) fn check_options(&self, on: On) -> Result<()> {
        let words = self.options.words();
        mount_options::check(on, words.iter().map(String::as_str))
            .map_err(|refused| Error::Invalid(refused.to_string()))
    }

    /// Whether space is to be given back as files are deleted.
    pub(crate) fn discards(&self) -> bool {
        mount_options::discards(self.options.words().iter().map(String::as_str))
    }
}

/// Who may use the volume at a time, always on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Shared,
    ReadOnly,
    /// One pod alone (`ReadWriteOncePod`).
    Single,
}

/// Reads one capability.
pub(crate) fn parse(capability: Option<&VolumeCapability>) -> Result<Capability> {
    let capability = capability.ok_or(Error::Missing { field: "volume_capability" })?;
    let (fs_type, options, block) = match &capability.access_type {
        Some(AccessType::Mount(mount)) => (mount.fs_type.clone(), options_of(mount), false),
        Some(AccessType::Block(_)) => (String::new(), Options::default(), true),
        None => return Err(Error::Missing { field: "volume_capability.access_type" }),
    };
    let mode =
        capability.access_mode.as_ref().ok_or(Error::Missing { field: "volume_capability.access_mode" })?;
    Ok(Capability { fs_type, options, access: access(mode.mode)?, block })
}

/// Reads all capabilities of a request; they must agree on the file system, or that there is none.
pub(crate) fn parse_all(capabilities: &[VolumeCapability]) -> Result<Vec<Capability>> {
    if capabilities.is_empty() {
        return Err(Error::Missing { field: "volume_capabilities" });
    }
    let parsed: Vec<_> = capabilities.iter().map(|one| parse(Some(one))).collect::<Result<_>>()?;
    if parsed.iter().any(|one| one.fs_type != parsed[0].fs_type) {
        return Err(Error::Invalid("volume_capabilities name different file systems".to_owned()));
    }
    if parsed.iter().any(|one| one.block != parsed[0].block) {
        return Err(Error::Invalid(
            "volume_capabilities ask for a block device and for a file system: a volume is one of them"
                .to_owned(),
        ));
    }
    Ok(parsed)
}

fn options_of(mount: &MountVolume) -> Options {
    options::parse(mount.mount_flags.iter().map(String::as_str))
}

fn access(mode: i32) -> Result<Access> {
    match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter) => Ok(Access::Shared),
        Ok(Mode::SingleNodeReaderOnly) => Ok(Access::ReadOnly),
        Ok(Mode::SingleNodeSingleWriter) => Ok(Access::Single),
        other => {
            let name = other.map_or_else(|_| mode.to_string(), |mode| mode.as_str_name().to_owned());
            Err(Error::Invalid(format!(
                "access mode {name} is not possible: a volume lives on one node, so use ReadWriteOnce or ReadWriteOncePod"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunnage_csi::v1::volume_capability::{AccessMode, BlockVolume};

    fn capability(access_type: impl Into<Option<AccessType>>, mode: Mode) -> VolumeCapability {
        VolumeCapability {
            access_type: access_type.into(),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    fn mount(fs_type: &str) -> AccessType {
        AccessType::Mount(MountVolume { fs_type: fs_type.into(), ..MountVolume::default() })
    }

    #[test]
    fn only_single_node_modes_are_taken() {
        for (mode, expected) in [
            (Mode::SingleNodeWriter, Some(Access::Shared)),
            (Mode::SingleNodeMultiWriter, Some(Access::Shared)),
            (Mode::SingleNodeSingleWriter, Some(Access::Single)),
            (Mode::SingleNodeReaderOnly, Some(Access::ReadOnly)),
            (Mode::MultiNodeReaderOnly, None),
            (Mode::MultiNodeSingleWriter, None),
            (Mode::MultiNodeMultiWriter, None),
            (Mode::Unknown, None),
        ] {
            let parsed = parse(Some(&capability(mount(""), mode)));
            if let Some(access) = expected {
                assert_eq!(parsed.unwrap().access, access);
                continue;
            }
            let message = parsed.unwrap_err().to_string();
            assert!(message.contains(mode.as_str_name()) && message.contains("ReadWriteOnce"), "{message}");
        }
    }

    #[test]
    fn block_mode_is_told_from_a_file_system_and_never_mixed_with_it() {
        let block = || capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter);
        let mount = || capability(mount(""), Mode::SingleNodeWriter);
        assert!(parse(Some(&block())).unwrap().block && !parse(Some(&mount())).unwrap().block);
        assert!(parse_all(&[block(), block()]).is_ok());
        let mixed = parse_all(&[mount(), block()]).unwrap_err();
        assert!(matches!(mixed, Error::Invalid(_)), "{mixed:?}");
    }

    #[test]
    fn half_capabilities_are_refused_by_name() {
        assert!(matches!(parse(None), Err(Error::Missing { .. })));
        assert!(matches!(parse(Some(&capability(None, Mode::SingleNodeWriter))), Err(Error::Missing { .. })));
        let no_mode = VolumeCapability { access_type: Some(mount("")), access_mode: None };
        assert!(matches!(parse(Some(&no_mode)), Err(Error::Missing { .. })));
        assert!(matches!(parse_all(&[]), Err(Error::Missing { .. })));
        let (a, b) = (
            capability(mount("ext4"), Mode::SingleNodeWriter),
            capability(mount("xfs"), Mode::SingleNodeWriter),
        );
        assert!(matches!(parse_all(&[a, b]), Err(Error::Invalid(_))));
    }
}
