//! What a volume was made from, and what a copy of its data is.

use std::fmt;

use dunnage_csi::agent::volume;
use dunnage_csi::v1::VolumeContentSource;
use dunnage_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use serde::{Deserialize, Serialize};

use super::{Allocation, Content, Format};
use crate::error::{Error, Result};
use crate::id::{PoolId, SnapshotId, VolumeId};

/// What a volume's data were copied from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "id", rename_all = "camelCase")]
pub(crate) enum Source {
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

impl Source {
    /// Reads the source of a request; an id that this driver could not have made names nothing that is there.
    pub(crate) fn parse(asked: Option<&VolumeContentSource>) -> Result<Option<Self>> {
        let Some(asked) = asked else { return Ok(None) };
        let need = |id: &str, field| if id.is_empty() { Err(Error::Missing { field }) } else { Ok(()) };
        match &asked.r#type {
            None => Err(Error::Missing { field: "volume_content_source.type" }),
            Some(Type::Snapshot(SnapshotSource { snapshot_id })) => {
                need(snapshot_id, "volume_content_source.snapshot.snapshot_id")?;
                Ok(Some(Self::Snapshot(snapshot_id.parse()?)))
            }
            Some(Type::Volume(VolumeSource { volume_id })) => {
                need(volume_id, "volume_content_source.volume.volume_id")?;
                Ok(Some(Self::Volume(volume_id.parse().and_then(VolumeId::not_inline)?)))
            }
        }
    }

    /// The pool that holds it.
    pub(crate) fn pool(&self) -> PoolId {
        match self {
            Self::Snapshot(id) => id.pool(),
            Self::Volume(id) => id.pool(),
        }
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Snapshot(id) => id.as_str(),
            Self::Volume(id) => id.as_str(),
        }
    }

    /// The source as an answer has it.
    pub(crate) fn to_csi(&self) -> VolumeContentSource {
        let source = match self {
            Self::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.to_string() }),
            Self::Volume(id) => Type::Volume(VolumeSource { volume_id: id.to_string() }),
        };
        VolumeContentSource { r#type: Some(source) }
    }

    /// The source as an agent tells it.
    pub(crate) fn to_agent(&self) -> volume::Source {
        match self {
            Self::Snapshot(id) => volume::Source::SourceSnapshotId(id.to_string()),
            Self::Volume(id) => volume::Source::SourceVolumeId(id.to_string()),
        }
    }

    /// Reads what an agent tells.
    pub(crate) fn of_agent(told: &volume::Source) -> Result<Self> {
        match told {
            volume::Source::SourceSnapshotId(id) => id.parse().map(Self::Snapshot),
            volume::Source::SourceVolumeId(id) => id.parse().map(Self::Volume),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
            Self::Volume(id) => write!(f, "volume {id}"),
        }
    }
}

impl Content {
    /// What a copy of such data is: a file system in it has its original's UUID still.
    #[must_use]
    pub(crate) fn copied(mut self) -> Self {
        if let Self::Image { format, .. } = &mut self
            && *format == Format::Done
        {
            *format = Format::Copied;
        }
        self
    }
}

impl Content {
    /// The same with the space of its image taken as asked.
    #[must_use]
    pub(crate) fn allocated(mut self, as_asked: Allocation) -> Self {
        if let Self::Image { allocation, .. } | Self::Block { allocation } = &mut self {
            *allocation = as_asked;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use dunnage_host::filesystem::Kind;

    use super::*;

    #[test]
    fn a_source_is_read_and_told_again() {
        let pool = "0123456789abcdef".parse().unwrap();
        for source in
            [Source::Snapshot(SnapshotId::make(&pool, "a")), Source::Volume(VolumeId::make(&pool, "a"))]
        {
            assert_eq!(Source::parse(Some(&source.to_csi())).unwrap(), Some(source.clone()));
            assert_eq!(Source::of_agent(&source.to_agent()).unwrap(), source);
            let text = serde_json::to_string(&source).unwrap();
            assert_eq!(serde_json::from_str::<Source>(&text).unwrap(), source, "{text}");
            assert_eq!(source.pool(), pool);
        }
        assert_eq!(Source::parse(None).unwrap(), None);
    }

    #[test]
    fn a_source_that_is_none_is_told_from_one_that_is_not_there() {
        let snapshot = |id: &str| Type::Snapshot(SnapshotSource { snapshot_id: id.into() });
        let volume = |id: &str| Type::Volume(VolumeSource { volume_id: id.into() });
        for (source, code) in [
            (None, tonic::Code::InvalidArgument),
            (Some(snapshot("")), tonic::Code::InvalidArgument),
            (Some(volume("")), tonic::Code::InvalidArgument),
            (Some(snapshot("x")), tonic::Code::NotFound),
            (Some(volume("x")), tonic::Code::NotFound),
            // A volume is no snapshot.
            (Some(snapshot("0123456789abcdef-0123456789abcdef0123456789abcdef")), tonic::Code::NotFound),
        ] {
            let error = Source::parse(Some(&VolumeContentSource { r#type: source.clone() })).unwrap_err();
            assert_eq!(error.code(), code, "{source:?}");
        }
    }

    #[test]
    fn only_a_finished_file_system_has_an_original() {
        for (format, expected) in [
            (Format::Never, Format::Never),
            (Format::Started, Format::Started),
            (Format::Done, Format::Copied),
            (Format::Copied, Format::Copied),
        ] {
            let content =
                |format| Content::Image { fs_type: Kind::Xfs, format, allocation: Allocation::Thick };
            assert_eq!(content(format).copied(), content(expected));
        }
        assert_eq!(Content::Directory.copied(), Content::Directory);
    }
}
