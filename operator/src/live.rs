//! Lists straight from the API server, for decisions that a stale cache must not make and that are made seldom.

use std::collections::BTreeSet;

use dunnage_cluster::Error;
use dunnage_cluster::apply::dynamic;
use dunnage_crds::snapshot::{SNAPSHOT_GROUP, VolumeSnapshotClass};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, Resource as _, ResourceExt};
use serde::de::DeserializeOwned;

use crate::plan::facts::Snapshots;
use crate::removal::Uses;
use crate::world::{self, BACKEND, full_name};

const PAGE: u32 = 500;

/// Everything that uses `driver` now.
pub async fn uses(client: &Client, driver: &str) -> Result<Uses, Error> {
    let mut uses = Uses::default();
    each(&Api::<PersistentVolume>::all(client.clone()), "volumes", |volume| {
        if world::driver_of(&volume).is_some_and(|found| found == driver) {
            uses.volumes.push(world::describe(&volume));
        }
    })
    .await?;
    each(&Api::<VolumeAttachment>::all(client.clone()), "attachments", |attachment| {
        if attachment.spec.attacher == driver {
            uses.attachments.push(attachment.name_any());
        }
    })
    .await?;
    each(&Api::<PersistentVolumeClaim>::all(client.clone()), "claims", |claim| {
        if world::provisioner_of(&claim).is_some_and(|found| found == driver) {
            uses.claims.push(full_name(&claim));
        }
    })
    .await?;
    unwatched(client, driver, &mut uses).await?;
    uses.volumes.sort();
    uses.attachments.sort();
    uses.claims.sort();
    Ok(uses)
}

/// Adds what is not watched: pods with inline volumes, and snapshots.
pub async fn unwatched(client: &Client, driver: &str, uses: &mut Uses) -> Result<(), Error> {
    each(&Api::<Pod>::all(client.clone()), "pods", |pod| {
        if is_running(&pod) && has_inline_volume(&pod, driver) {
            uses.inline_pods.push(full_name(&pod));
        }
    })
    .await?;
    let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
    let snapshots = dynamic(client, &ApiResource::from_gvk(&gvk), None);
    let listed = each(&snapshots, "snapshot contents", |content: DynamicObject| {
        if content.data.pointer("/spec/driver").and_then(|found| found.as_str()) == Some(driver) {
            uses.snapshot_contents.push(content.name_any());
        }
    })
    .await;
    match listed {
        // The cluster has no snapshots at all.
        Err(error) if error.is_not_found() => {}
        listed => listed?,
    }
    uses.inline_pods.sort();
    uses.inline_pods.dedup();
    uses.snapshot_contents.sort();
    Ok(())
}

/// What the cluster has of snapshots, as the backend of this name is concerned.
pub async fn snapshots(client: &Client, backend: &str) -> Result<Snapshots, Error> {
    let version = format!("{SNAPSHOT_GROUP}/v1");
    let asked = client.list_api_group_resources(&version).await;
    let served = match asked.map_err(Error::api(format!("ask for the kinds of {version}"))) {
        Err(error) if error.is_not_found() => return Ok(Snapshots::Absent),
        served => served?,
    };
    let plural = VolumeSnapshotClass::plural(&());
    if !served.resources.iter().any(|resource| resource.name == plural) {
        return Ok(Snapshots::Absent);
    }
    let api: Api<VolumeSnapshotClass> = Api::all(client.clone());
    let class =
        api.get_opt(backend).await.map_err(Error::api(format!("get VolumeSnapshotClass {backend}")))?;
    let ours = |class: VolumeSnapshotClass| class.labels().get(BACKEND).is_some_and(|owner| owner == backend);
    Ok(if class.is_none_or(ours) { Snapshots::Present } else { Snapshots::PresentWithForeignClass })
}

/// A running pod that uses one of these claims, or has an inline volume of `driver`.
pub async fn pod_using(
    client: &Client,
    driver: &str,
    claims: &BTreeSet<String>,
) -> Result<Option<String>, Error> {
    let mut found = None;
    each(&Api::<Pod>::all(client.clone()), "pods", |pod| {
        let namespace = pod.namespace().unwrap_or_default();
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut names = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
        let claimed = names.any(|claim| claims.contains(&format!("{namespace}/{}", claim.claim_name)));
        if is_running(&pod) && (claimed || has_inline_volume(&pod, driver)) {
            found.get_or_insert_with(|| full_name(&pod));
        }
    })
    .await?;
    Ok(found)
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

fn has_inline_volume(pod: &Pod, driver: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| volume.csi.as_ref()).any(|csi| csi.driver == driver)
}

async fn each<K>(api: &Api<K>, what: &str, mut visit: impl FnMut(K)) -> Result<(), Error>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let list = api.list(&params).await.map_err(Error::api(format!("list {what}")))?;
        list.items.into_iter().for_each(&mut visit);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}
