//! Reads and protects the objects that volumes are filled from.

mod grant;
pub mod sweep;

use dunnage_cluster::Error;
use dunnage_cluster::error::{Category, chain};
use dunnage_cluster::events::Kind;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, Resource as _};
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use super::context::Context;
use super::names;
use super::provision::Stop;
use super::source::{self, Content, Place, Reference, Snapshot, Source};
use crate::untyped;

/// Finds what the claim is to be filled from and keeps it from being deleted.
pub(super) async fn resolve(
    context: &Context,
    claim: &PersistentVolumeClaim,
) -> Result<Option<Source>, Stop> {
    let reference = source::reference(claim).map_err(Stop::early)?;
    grant::check(context, claim, reference).await?;
    match reference {
        Reference::None => Ok(None),
        Reference::Populator(kind) => {
            let message = format!("Waiting for a volume populator to fill the claim from its {kind}");
            context.tell(claim, Kind::Normal, "Provisioning", message);
            Err(Stop::Leave("a volume populator fills it"))
        }
        Reference::Claim(_) if !context.driver.can.clone => {
            Err(Stop::early("the driver cannot clone volumes: it lacks CLONE_VOLUME"))
        }
        Reference::Snapshot(_) if !context.driver.can.snapshot => {
            Err(Stop::early("the driver cannot restore snapshots: it lacks CREATE_DELETE_SNAPSHOT"))
        }
        Reference::Claim(place) => clone_of(context, claim, place).await.map(Some),
        Reference::Snapshot(place) => snapshot(context, claim, place).await.map(Some),
    }
}

async fn clone_of(
    context: &Context,
    claim: &PersistentVolumeClaim,
    Place { namespace, name }: Place<'_>,
) -> Result<Source, Stop> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let found = claims.get(name).await.map_err(Error::api(format!("get source claim {namespace}/{name}")));
    let found = found.map_err(|error| Stop::api(&error))?;
    let bound = found.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    let volume = if bound.is_empty() {
        None
    } else {
        let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
        let volume =
            volumes.get_opt(bound).await.map_err(Error::api(format!("get PersistentVolume {bound}")));
        volume.map_err(|error| Stop::api(&error))?
    };
    let source =
        source::from_claim(claim, &context.driver.name, &found, volume.as_ref()).map_err(Stop::early)?;
    let path = PersistentVolumeClaim::url_path(&(), Some(namespace));
    let kept = untyped::change(&context.client, &path, name, |object| {
        untyped::add_finalizer(object, names::CLONE_FINALIZER)
    });
    kept.await.map_err(|error| Stop::api(&error))?;
    Ok(source)
}

async fn snapshot(
    context: &Context,
    claim: &PersistentVolumeClaim,
    Place { namespace, name }: Place<'_>,
) -> Result<Source, Stop> {
    let found: Snapshot =
        read(&context.client, "VolumeSnapshot", Some(namespace), name).await.map_err(|e| Stop::api(&e))?;
    let content_name = source::content_name(&found).map_err(Stop::early)?;
    let bound: Content = read(&context.client, "VolumeSnapshotContent", None, content_name)
        .await
        .map_err(|error| Stop::api(&error))?;
    let keep_mode = context.args.prevent_volume_mode_conversion;
    let source = source::from_snapshot(claim, &context.driver.name, keep_mode, &found, &bound);
    let source = source.map_err(Stop::early)?;
    let path = DynamicObject::url_path(&resource("VolumeSnapshot"), Some(namespace));
    let kept = untyped::change(&context.client, &path, name, |object| {
        untyped::add_finalizer(object, names::SNAPSHOT_FINALIZER)
    });
    match kept.await {
        // Older roles may not write snapshots; the restore still works.
        Err(error) if error.category() == Category::Forbidden => {
            debug!(snapshot = name, "the snapshot cannot be protected with this role");
        }
        kept => kept.map_err(|error| Stop::api(&error))?,
    }
    Ok(source)
}

/// Takes the finalizer off a snapshot that has been restored.
pub(super) async fn release(context: &Context, claim: &PersistentVolumeClaim) {
    let Ok(Reference::Snapshot(Place { namespace, name })) = source::reference(claim) else { return };
    let path = DynamicObject::url_path(&resource("VolumeSnapshot"), Some(namespace));
    if let Err(error) = unprotect(&context.client, &path, name, names::SNAPSHOT_FINALIZER).await {
        warn!(
            namespace,
            snapshot = name,
            error = chain(&error),
            "cannot take the finalizer off; the sweep will"
        );
    }
}

async fn unprotect(client: &Client, path: &str, name: &str, finalizer: &str) -> Result<(), Error> {
    untyped::change(client, path, name, |object| untyped::remove_finalizer(object, finalizer)).await
}

async fn read<T: DeserializeOwned>(
    client: &Client,
    kind: &str,
    namespace: Option<&str>,
    name: &str,
) -> Result<T, Error> {
    let resource = resource(kind);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let action = format!("get {kind} {name}");
    let object = api.get(name).await.map_err(Error::api(action.clone()))?;
    parse(&object).map_err(|error| Error::api(action)(kube::Error::SerdeError(error)))
}

fn parse<T: DeserializeOwned>(object: &DynamicObject) -> Result<T, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(object)?)
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind))
}

/// The index of claims by what they are filled from.
pub(super) fn index_keys(claim: &PersistentVolumeClaim) -> Vec<String> {
    source::reference(claim).ok().and_then(index_key).into_iter().collect()
}

fn index_key(source: Reference<'_>) -> Option<String> {
    match source {
        Reference::Claim(Place { namespace, name }) => Some(format!("claim/{namespace}/{name}")),
        Reference::Snapshot(Place { namespace, name }) => Some(format!("snapshot/{namespace}/{name}")),
        Reference::None | Reference::Populator(_) => None,
    }
}
