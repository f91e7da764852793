//! One pass over one PersistentVolume: its finalizer, or the end of its volume.

use std::collections::HashMap;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, finalizer};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Api, DeleteParams, Preconditions};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{DeletionSecret, Step, deletion_secret, plan};
use crate::provisioner::context::Context;
use crate::provisioner::driver::describe;
use crate::provisioner::metrics::Result as Ended;
use crate::provisioner::params::{self, SecretKind};
use crate::provisioner::progress::Wait;
use crate::provisioner::provision::read_secret;
use crate::provisioner::secrets::{self, Facts, SecretRef};
use crate::provisioner::{capacity, names};

/// A safety net only: the end of the attachment wakes the volume.
const ATTACHED: Duration = Duration::from_secs(15);

/// Works the PersistentVolume of this name.
pub async fn sync(context: &Context, name: String) -> Outcome {
    let Some(volume) = context.watched.volumes.named(&name) else { return Outcome::Done };
    let attached = context.watched.attachments.as_ref().is_some_and(|by_volume| by_volume.contains(&name));
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let done = match plan(&volume, &context.driver.name, attached) {
        Step::Nothing => return Outcome::Done,
        Step::AddFinalizer => {
            finalizer::add_to(&api, volume.as_ref(), names::VOLUME_FINALIZER).await.map(drop)
        }
        Step::RemoveFinalizer => {
            finalizer::remove_from(&api, volume.as_ref(), names::VOLUME_FINALIZER).await.map(drop)
        }
        Step::AwaitDetach => {
            let message = "The volume is deleted as soon as it is detached from its node";
            context.events.tell(volume.as_ref(), Kind::Normal, "VolumeDelete", message);
            return Outcome::Again(ATTACHED);
        }
        Step::Delete { .. } => return delete(context, &api, &name).await,
    };
    match done {
        Ok(()) => Outcome::Done,
        Err(error) if error.is_not_found() => Outcome::Done,
        Err(error) => {
            warn!(volume = name, error = chain(&error), "cannot keep the finalizer");
            Outcome::Retry
        }
    }
}

async fn delete(context: &Context, api: &Api<PersistentVolume>, name: &str) -> Outcome {
    // Data goes: the cache may be behind somebody who has just decided to keep it.
    let fresh = match api.get_opt(name).await.map_err(Error::api(format!("get PersistentVolume {name}"))) {
        Ok(Some(fresh)) => fresh,
        Ok(None) => return Outcome::Done,
        Err(error) => {
            warn!(volume = name, error = chain(&error), "cannot delete");
            return Outcome::Retry;
        }
    };
    let Step::Delete { handle } = plan(&fresh, &context.driver.name, false) else { return Outcome::Done };
    let class = fresh.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
    let started = Instant::now();
    match end(context, api, &fresh, name, handle).await {
        Ok(()) => {
            info!(volume = name, handle, "deleted");
            context.metrics.delete(&class, started.elapsed(), Ended::Done);
            if let Some(capacity) = &context.capacity {
                capacity.freed(&capacity::segments_of(&fresh));
            }
            context.wake(Wait::Room);
            Outcome::Done
        }
        Err(problem) => {
            warn!(volume = name, handle, problem, "cannot delete");
            context.metrics.delete(&class, started.elapsed(), Ended::Failed);
            context.events.tell(&fresh, Kind::Warning, "VolumeFailedDelete", problem);
            Outcome::Retry
        }
    }
}

/// Deletes the volume, then the object, then lets it go.
async fn end(
    context: &Context,
    api: &Api<PersistentVolume>,
    volume: &PersistentVolume,
    name: &str,
    handle: &str,
) -> Result<(), String> {
    if !context.driver.can.create_and_delete {
        return Err("the driver cannot delete volumes: it lacks CREATE_DELETE_VOLUME".to_owned());
    }
    let secrets = deletion_secrets(context, volume).await?;
    context.driver.delete_volume(handle, secrets).await.map_err(|status| describe(&status))?;
    let uid = volume.metadata.uid.clone();
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    };
    let deleted =
        api.delete(name, &params).await.map_err(Error::api(format!("delete PersistentVolume {name}")));
    let left = match deleted {
        Ok(deleted) => deleted.left(),
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(chain(&error)),
    };
    let Some(left) = left else { return Ok(()) };
    match finalizer::remove_from(api, &left, names::VOLUME_FINALIZER).await {
        Err(error) if !error.is_not_found() => Err(chain(&error)),
        _ => Ok(()),
    }
}

async fn deletion_secrets(
    context: &Context,
    volume: &PersistentVolume,
) -> Result<HashMap<String, String>, String> {
    let secret = match deletion_secret(volume) {
        DeletionSecret::None => None,
        DeletionSecret::Named(secret) => Some(secret),
        DeletionSecret::ByClass => secret_of_class(context, volume)?,
    };
    let Some(secret) = secret else { return Ok(HashMap::new()) };
    match read_secret(context, &secret).await {
        Ok(data) => Ok(data),
        // Whoever removed the secret first shall still get rid of the volume, if the driver agrees.
        Err(error) if error.is_not_found() => {
            let SecretRef { name, namespace } = &secret;
            let message =
                format!("Deleting without secret {namespace}/{name}, which does not exist any more");
            context.events.tell(volume, Kind::Warning, "VolumeFailedDelete", message);
            Ok(HashMap::new())
        }
        Err(error) => Err(chain(&error)),
    }
}

/// The secret that the class's templates give for the claim that was bound.
fn secret_of_class(context: &Context, volume: &PersistentVolume) -> Result<Option<SecretRef>, String> {
    let spec = volume.spec.as_ref();
    let class = spec.and_then(|spec| spec.storage_class_name.as_deref());
    let class = class.and_then(|name| context.watched.classes.named(name));
    let Some(class) = class else { return Ok(None) };
    let parameters = params::parse(class.parameters.as_ref().unwrap_or(&<_>::default()), "");
    let parameters = parameters.map_err(|error| error.to_string())?;
    let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
    let facts = Facts {
        volume: volume.metadata.name.as_deref().unwrap_or_default(),
        claim: claim.and_then(|claim| claim.name.as_deref()).unwrap_or_default(),
        namespace: claim.and_then(|claim| claim.namespace.as_deref()).unwrap_or_default(),
        annotations: None,
    };
    secrets::resolve(&parameters.secrets, SecretKind::Provisioner, &facts).map_err(|error| error.to_string())
}
