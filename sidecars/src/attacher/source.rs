//! The volume of an attachment.

use std::sync::Arc;

use dunnage_cluster::cache::Cache;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::plan::Invalid;

/// What is attached.
#[derive(Clone, Debug)]
pub(super) enum Volume {
    Persistent(Arc<PersistentVolume>),
    /// A volume of a pod that has no object of its own.
    Inline(Box<PersistentVolumeSpec>),
}

impl Volume {
    /// The volume of `attachment`, as the cache has it.
    pub(super) fn of(
        attachment: &VolumeAttachment,
        volumes: &Cache<PersistentVolume>,
    ) -> Result<Self, Invalid> {
        let source = &attachment.spec.source;
        match (&source.persistent_volume_name, &source.inline_volume_spec) {
            (Some(name), None) => {
                volumes.named(name).map(Self::Persistent).ok_or_else(|| Invalid::NoVolume(name.clone()))
            }
            (None, Some(spec)) => Ok(Self::Inline(Box::new(spec.clone()))),
            _ => Err(Invalid::Source),
        }
    }

    pub(super) fn spec(&self) -> Result<&PersistentVolumeSpec, Invalid> {
        match self {
            Self::Persistent(volume) => volume.spec.as_ref().ok_or(Invalid::NotCsi),
            Self::Inline(spec) => Ok(spec),
        }
    }

    /// The volume's object, which must not be going away when something is to be attached.
    pub(super) fn living(&self) -> Result<Option<&Arc<PersistentVolume>>, Invalid> {
        match self {
            Self::Persistent(volume) if volume.metadata.deletion_timestamp.is_some() => {
                Err(Invalid::Deleting(volume.metadata.name.clone().unwrap_or_default()))
            }
            Self::Persistent(volume) => Ok(Some(volume)),
            Self::Inline(_) => Ok(None),
        }
    }
}
