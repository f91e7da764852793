//! Removes a backend's objects, in an order that leaves no part without what it needs to end well.

use std::collections::BTreeMap;

use dunnage_cluster::Error;
use dunnage_cluster::leader::lock_name;
use dunnage_crds::defaults::topology_key;
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tracing::info;

use crate::apply::{Applier, ignore_missing, is_ours};
use crate::world::BACKEND;

/// The provisioner's own label on capacity objects.
const CAPACITY_DRIVER: &str = "csi.storage.k8s.io/drivername";

/// Whose objects.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    pub backend: &'a str,
    pub namespace: &'a str,
    /// None when the driver of the backend's name is somebody else's.
    pub driver: Option<&'a str>,
}

impl Scope<'_> {
    fn selector(&self) -> ListParams {
        ListParams::default().labels(&format!("{BACKEND}={}", self.backend))
    }
}

/// Removes the classes that are the backend's.
pub async fn classes(client: &Client, backend: &str) -> Result<(), Error> {
    let api: Api<StorageClass> = Api::all(client.clone());
    let selector = ListParams::default().labels(&format!("{BACKEND}={backend}"));
    let found = api.list_metadata(&selector).await.map_err(Error::api("list StorageClasses"))?;
    for class in found.items.iter().filter(|class| is_ours(&class.metadata)) {
        let name = class.name_any();
        let deleted = api.delete(&name, &DeleteParams::default()).await.map(drop);
        ignore_missing(deleted, || format!("delete StorageClass {name}"))?;
    }
    Ok(())
}

/// Removes the plugins. Whether their pods are gone, but for those on nodes that do not answer.
pub async fn workloads(
    client: &Client,
    scope: &Scope<'_>,
    ready: &BTreeMap<String, bool>,
) -> Result<bool, Error> {
    delete_all::<StatefulSet>(client, scope.namespace, &scope.selector()).await?;
    delete_all::<DaemonSet>(client, scope.namespace, &scope.selector()).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), scope.namespace);
    let left = pods.list(&scope.selector()).await.map_err(Error::api("list the plugins' pods"))?;
    let runs = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        node.is_none_or(|node| ready.get(node).copied().unwrap_or(false))
    };
    Ok(!left.items.iter().any(runs))
}

/// Removes everything else.
pub async fn rest(client: &Client, scope: &Scope<'_>) -> Result<(), Error> {
    let applier = Applier::new(client.clone());
    for key in applier.existing(scope.backend, scope.namespace).await? {
        info!(backend = scope.backend, kind = key.kind, name = key.name, "removing");
        applier.delete(&key).await?;
    }
    if let Some(driver) = scope.driver {
        let capacities = ListParams::default().labels(&format!("{CAPACITY_DRIVER}={driver}"));
        delete_all::<CSIStorageCapacity>(client, scope.namespace, &capacities).await?;
        leases(client, scope.namespace, driver).await?;
        labels(client, &topology_key(driver)).await?;
    }
    // Certificates and record last: until here, a pass that starts again needs them.
    delete_all::<Secret>(client, scope.namespace, &scope.selector()).await?;
    delete_all::<ConfigMap>(client, scope.namespace, &scope.selector()).await
}

/// The leases that the sidecars left, with the provisioner's journal.
async fn leases(client: &Client, namespace: &str, driver: &str) -> Result<(), Error> {
    let provisioner = lock_name(driver);
    let attacher = lock_name(&format!("external-attacher-leader-{driver}"));
    let resizer = lock_name(&format!("external-resizer-{driver}"));
    let snapshotter = lock_name(&format!("external-snapshotter-leader-{driver}"));
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    for name in [format!("{provisioner}-journal"), provisioner, resizer, snapshotter, attacher] {
        let deleted = api.delete(&name, &DeleteParams::default()).await.map(drop);
        ignore_missing(deleted, || format!("delete Lease {name}"))?;
    }
    Ok(())
}

/// Kubelet sets topology labels and never takes them away.
async fn labels(client: &Client, key: &str) -> Result<(), Error> {
    let api: Api<Node> = Api::all(client.clone());
    let labelled = api.list_metadata(&ListParams::default().labels(key)).await;
    for node in labelled.map_err(Error::api("list labelled nodes"))?.items {
        let name = node.name_any();
        let patch = Patch::Merge(json!({"metadata": {"labels": {key: null}}}));
        let patched = api.patch_metadata(&name, &PatchParams::default(), &patch).await.map(drop);
        ignore_missing(patched, || format!("clear a label of node {name}"))?;
    }
    Ok(())
}

async fn delete_all<K>(client: &Client, namespace: &str, selector: &ListParams) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let kind = K::kind(&());
    let found = api.list_metadata(selector).await.map_err(Error::api(format!("list {kind} objects")))?;
    for object in found.items.iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
        let name = object.name_any();
        let deleted = api.delete(&name, &DeleteParams::background()).await.map(drop);
        ignore_missing(deleted, || format!("delete {kind} {name}"))?;
    }
    Ok(())
}
