//! The volume of an attachment, and the secret that its driver wants.

use std::collections::HashMap;
use std::sync::Arc;

use dunnage_cluster::Error;
use dunnage_cluster::cache::Cache;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Secret};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, Client};

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

/// Why a secret cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecretError {
    #[error(transparent)]
    Api(#[from] Error),
    #[error(transparent)]
    Content(#[from] Invalid),
}

/// The content of a secret, read now; nothing when there is none to be read.
pub(super) async fn secrets(
    client: &Client,
    reference: Option<(&str, &str)>,
) -> Result<HashMap<String, String>, SecretError> {
    let Some((namespace, name)) = reference else { return Ok(HashMap::new()) };
    let secret = format!("{namespace}/{name}");
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = api.get(name).await.map_err(Error::api(format!("get secret {secret}")))?;
    let text = |(key, value): (String, k8s_openapi::ByteString)| match String::from_utf8(value.0) {
        Ok(value) => Ok((key, value)),
        // The error of the conversion would hold the value.
        Err(_) => Err(Invalid::SecretValue { secret: secret.clone(), key }),
    };
    Ok(found.data.unwrap_or_default().into_iter().map(text).collect::<Result<_, _>>()?)
}
