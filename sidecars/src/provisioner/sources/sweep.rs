//! Lets go of sources that no volume is filled from any more.

use std::sync::Arc;
use std::time::Duration;

use dunnage_cluster::error::{Category, chain};
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, Key};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Resource as _;
use kube::api::{Api, DynamicObject, ListParams};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{index_key, resource, unprotect};
use crate::provisioner::context::Context;
use crate::provisioner::names;
use crate::provisioner::source::{self, Place, Reference};

/// Snapshots read at once.
const PAGE: u32 = 500;

/// Whether a claim that was cloned is waiting to be let go.
pub fn is_due(claim: &PersistentVolumeClaim) -> bool {
    let metadata = &claim.metadata;
    metadata.deletion_timestamp.is_some()
        && metadata.finalizers.iter().flatten().any(|found| found == names::CLONE_FINALIZER)
}

/// Lets a claim go when no clone of it is being made.
pub async fn release_claim(context: Arc<Context>, key: Key) -> Outcome {
    let place = Place { namespace: &key.namespace, name: &key.name };
    if is_used(&context, Reference::Claim(place)) {
        return Outcome::Retry;
    }
    let path = PersistentVolumeClaim::url_path(&(), Some(&key.namespace));
    match unprotect(&context.client, &path, &key.name, names::CLONE_FINALIZER).await {
        Ok(()) => Outcome::Done,
        Err(error) => {
            warn!(claim = %key, error = chain(&error), "cannot let a cloned claim go");
            Outcome::Retry
        }
    }
}

/// Looks for snapshots left protected by a crash, until `stop`.
pub async fn sweep_snapshots(context: Arc<Context>, every: Duration, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        match sweep(&context).await {
            Ok(()) => {}
            Err(error) if [Category::Forbidden, Category::NotFound].contains(&error.category()) => {
                info!(
                    error = chain(&error),
                    "snapshots are not swept: there are none, or the role may not list them"
                );
                return;
            }
            Err(error) => warn!(error = chain(&error), "cannot sweep snapshots, trying again"),
        }
    }
}

async fn sweep(context: &Context) -> Result<(), Error> {
    let resource = resource("VolumeSnapshot");
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = api.list_metadata(&page).await.map_err(Error::api("list VolumeSnapshots"))?;
        for snapshot in &list.items {
            let metadata = &snapshot.metadata;
            if !metadata.finalizers.iter().flatten().any(|found| found == names::SNAPSHOT_FINALIZER) {
                continue;
            }
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            let name = metadata.name.as_deref().unwrap_or_default();
            if !is_used(context, Reference::Snapshot(Place { namespace, name })) {
                let path = DynamicObject::url_path(&resource, Some(namespace));
                unprotect(&context.client, &path, name, names::SNAPSHOT_FINALIZER).await?;
                info!(snapshot = format!("{namespace}/{name}"), "let go of a snapshot that nobody restores");
            }
        }
        match list.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => page = page.continue_token(&more),
            None => return Ok(()),
        }
    }
}

/// Whether a claim waits to be filled from this source, or a call that was begun may still read it.
fn is_used(context: &Context, source: Reference<'_>) -> bool {
    let of = |claim: &PersistentVolumeClaim| source::reference(claim) == Ok(source);
    let waiting = |claim: &Arc<PersistentVolumeClaim>| {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, None | Some("" | "Pending"))
    };
    let key = index_key(source).unwrap_or_default();
    context.watched.claims_by_source.get(&key).iter().any(waiting)
        || context.progress.owes(|entry| of(&entry.claim))
}
