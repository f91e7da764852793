//! `dunnage uninstall`: takes everything out of a cluster, with or without a running operator, and never a volume.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dunnage_cluster::apply::dynamic;
use dunnage_cluster::{Error, finalizer};
use dunnage_crds::{FINALIZER, Protection, StorageBackend, defaults};
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::{ApiResource, DeleteParams, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep};

use crate::apply::ignore_missing;
use crate::removal::{blockers, summary};
use crate::run::LEASE;
use crate::teardown::{Scope, classes, rest, workloads};
use crate::world::BACKEND;
use crate::{live, policy, views};

/// A running operator gets so long for a backend, and a pod so long to end.
const PATIENCE: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_secs(2);
const CRD: &str = "storagebackends.dunnage.dev";

/// What the chart made, found by its label: group, version, kind, whether it has a namespace. The operator goes first.
const CHART: [(&str, &str, &str, bool); 9] = [
    ("apps", "v1", "Deployment", true),
    ("batch", "v1", "Job", true),
    ("", "v1", "Service", true),
    ("policy", "v1", "PodDisruptionBudget", true),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", false),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", false),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", true),
    ("rbac.authorization.k8s.io", "v1", "Role", true),
    ("", "v1", "ServiceAccount", true),
];

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Fails while any backend exists, and changes nothing: the chart's check before it goes.
    Check,
    /// Says what would be done.
    DryRun,
    Run,
}

/// Why nothing, or not everything, was removed.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    #[error("these StorageBackends exist, and need the operator to be deleted: {}. Delete them first", names.join(", "))]
    Backends { names: Vec<String> },
    #[error("nothing was removed, because volumes exist: {}", held.join("; "))]
    InUse { held: Vec<String> },
    #[error("StorageBackend {name} is not gone after {seconds} s: look at its status and events")]
    Slow { name: String, seconds: u64 },
    #[error(transparent)]
    Cluster(#[from] Error),
}

/// Uninstalls. `operator_namespace` is where backends live that name none; `progress` gets a line a step.
pub async fn uninstall(
    client: &Client,
    operator_namespace: &str,
    mode: Mode,
    mut progress: impl FnMut(String),
) -> Result<(), UninstallError> {
    let mut found = backends(client, operator_namespace).await?;
    if mode == Mode::Check {
        let names: Vec<String> = found.into_iter().map(|found| found.name).collect();
        return if names.is_empty() { Ok(()) } else { Err(UninstallError::Backends { names }) };
    }
    // Their StorageBackend was removed by force, and their volumes may still be there.
    found.extend(orphans(client, &found).await?);

    let held = held(client, &found).await?;
    if !held.is_empty() {
        return Err(UninstallError::InUse { held });
    }
    if mode == Mode::DryRun {
        for backend in &found {
            progress(format!("would remove StorageBackend {} and all that was made of it", backend.name));
        }
        progress(format!("would remove the operator from namespace {operator_namespace}, and the CRD {CRD}"));
        return Ok(());
    }

    policy::remove(client).await?;
    progress("removed the policy that refuses deletions".to_owned());
    let operator = is_operator_alive(client, operator_namespace).await?;
    for backend in &found {
        remove_backend(client, backend, operator, &mut progress).await?;
    }
    remove_chart(client, operator_namespace, &mut progress).await?;
    remove_crd(client).await?;
    progress("removed the CRD: nothing is left in the cluster".to_owned());
    Ok(())
}

/// A backend, or what is left of one.
#[derive(Debug)]
struct Found {
    name: String,
    namespace: String,
    driver: String,
    protection: Protection,
    /// Whether its StorageBackend exists.
    exists: bool,
}

async fn backends(client: &Client, operator_namespace: &str) -> Result<Vec<Found>, Error> {
    let api: Api<StorageBackend> = Api::all(client.clone());
    let list = match api.list(&ListParams::default()).await.map_err(Error::api("list StorageBackends")) {
        Ok(list) => list.items,
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(error),
    };
    let found = list.iter().map(|backend| Found {
        name: backend.name_any(),
        namespace: defaults::namespace(backend, operator_namespace).to_owned(),
        driver: defaults::driver_name(backend),
        protection: backend.spec.deletion.as_ref().map(|deletion| deletion.protection).unwrap_or_default(),
        exists: true,
    });
    Ok(found.collect())
}

async fn held(client: &Client, found: &[Found]) -> Result<Vec<String>, Error> {
    let mut held = Vec::new();
    for backend in found {
        let blockers = blockers(&live::uses(client, &backend.driver).await?, backend.protection);
        if !blockers.is_empty() {
            held.push(format!("StorageBackend {}: {}", backend.name, summary(&blockers)));
        }
    }
    Ok(held)
}

/// An operator renews its lease every few seconds.
async fn is_operator_alive(client: &Client, namespace: &str) -> Result<bool, Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let renewed = async || -> Result<_, Error> {
        let lease = api.get_opt(LEASE).await.map_err(Error::api(format!("get Lease {LEASE}")))?;
        let spec = lease.and_then(|lease| lease.spec);
        Ok(spec
            .filter(|spec| spec.holder_identity.as_deref().is_some_and(|who| !who.is_empty()))
            .map(|s| s.renew_time))
    };
    // Compared with itself: the clock of this machine may be wrong.
    let Some(first) = renewed().await? else { return Ok(false) };
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(16) {
        sleep(POLL).await;
        match renewed().await? {
            None => return Ok(false),
            Some(later) if later != first => return Ok(true),
            Some(_) => {}
        }
    }
    Ok(false)
}

async fn remove_backend(
    client: &Client,
    found: &Found,
    operator: bool,
    progress: &mut impl FnMut(String),
) -> Result<(), UninstallError> {
    let Found { name, namespace, driver, exists, .. } = found;
    let api: Api<StorageBackend> = Api::all(client.clone());
    let get = async || api.get_opt(name).await.map_err(Error::api(format!("get StorageBackend {name}")));
    if *exists {
        let deleted = api.delete(name, &DeleteParams::default()).await.map(drop);
        ignore_missing(deleted, || format!("delete StorageBackend {name}"))?;
    }
    if operator && *exists {
        progress(format!("the operator is removing StorageBackend {name}"));
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            if get().await?.is_none() {
                return Ok(());
            }
            sleep(POLL).await;
        }
        return Err(UninstallError::Slow { name: name.clone(), seconds: PATIENCE.as_secs() });
    }

    progress(format!(
        "removing StorageBackend {name} without an operator; the markers of its pools stay on the nodes"
    ));
    let drivers: Api<CSIDriver> = Api::all(client.clone());
    let stored = drivers.get_opt(driver).await.map_err(Error::api(format!("get CSIDriver {driver}")))?;
    let owned = stored.is_none_or(|stored| stored.labels().get(BACKEND) == Some(name));
    dismantle(client, &Scope { backend: name, namespace, driver: owned.then_some(driver) }).await?;
    if let Some(current) = get().await? {
        match finalizer::remove_from(&api, &current, FINALIZER).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

async fn dismantle(client: &Client, scope: &Scope<'_>) -> Result<(), Error> {
    classes(client, scope.backend).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?.items;
    let ready: BTreeMap<String, bool> = views::ready_nodes(&nodes);
    let since = Instant::now();
    while !workloads(client, scope, &ready).await? && since.elapsed() < PATIENCE {
        sleep(POLL).await;
    }
    rest(client, scope).await
}

/// Backends that are gone but left objects: each has a driver object with its label, and plugins in a namespace.
async fn orphans(client: &Client, known: &[Found]) -> Result<Vec<Found>, Error> {
    let selector = ListParams::default().labels(BACKEND);
    let drivers: Api<CSIDriver> = Api::all(client.clone());
    let drivers = drivers.list_metadata(&selector).await.map_err(Error::api("list CSIDrivers"))?.items;
    let daemon_sets: Api<DaemonSet> = Api::all(client.clone());
    let stateful_sets: Api<StatefulSet> = Api::all(client.clone());
    let sets = daemon_sets.list_metadata(&selector).await.map_err(Error::api("list DaemonSets"))?.items;
    let more = stateful_sets.list_metadata(&selector).await.map_err(Error::api("list StatefulSets"))?.items;
    let metas = sets.into_iter().map(|set| set.metadata).chain(more.into_iter().map(|set| set.metadata));

    let mut found: BTreeMap<String, Found> = BTreeMap::new();
    for meta in metas {
        let name = meta.labels.as_ref().and_then(|labels| labels.get(BACKEND)).cloned();
        let Some((name, namespace)) = name.zip(meta.namespace) else { continue };
        if known.iter().any(|known| known.name == name) {
            continue;
        }
        let driver = drivers.iter().find(|driver| driver.labels().get(BACKEND) == Some(&name));
        let driver = driver.map_or_else(|| format!("{name}.csi.dunnage.dev"), ResourceExt::name_any);
        let protection = Protection::InUse;
        found.insert(name.clone(), Found { name, namespace, driver, protection, exists: false });
    }
    Ok(found.into_values().collect())
}

async fn remove_chart(
    client: &Client,
    namespace: &str,
    progress: &mut impl FnMut(String),
) -> Result<(), Error> {
    let selector =
        ListParams::default().labels("app.kubernetes.io/name=dunnage,app.kubernetes.io/managed-by=Helm");
    let mut releases = BTreeSet::new();
    for (group, version, kind, namespaced) in CHART {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = dynamic(client, &resource, namespaced.then_some(namespace));
        let found = api.list_metadata(&selector).await.map_err(Error::api(format!("list {kind} objects")))?;
        for object in found.items {
            releases.extend(object.labels().get("app.kubernetes.io/instance").cloned());
            let name = object.name_any();
            let deleted = api.delete(&name, &DeleteParams::background()).await.map(drop);
            ignore_missing(deleted, || format!("delete {kind} {name}"))?;
            progress(format!("removed {kind} {name}"));
        }
    }
    // Else Helm believes that the release is installed.
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(client.clone(), namespace);
    for release in releases {
        let records = ListParams::default().labels(&format!("owner=helm,name={release}"));
        for record in secrets.list_metadata(&records).await.map_err(Error::api("list Helm's records"))?.items
        {
            let deleted = secrets.delete(&record.name_any(), &DeleteParams::default()).await.map(drop);
            ignore_missing(deleted, || format!("delete Secret {}", record.name_any()))?;
        }
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let deleted = leases.delete(LEASE, &DeleteParams::default()).await.map(drop);
    ignore_missing(deleted, || format!("delete Lease {LEASE}"))
}

async fn remove_crd(client: &Client) -> Result<(), Error> {
    let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api = dynamic(client, &ApiResource::from_gvk(&gvk), None);
    let deleted = api.delete(CRD, &DeleteParams::default()).await.map(drop);
    ignore_missing(deleted, || format!("delete CustomResourceDefinition {CRD}"))
}
