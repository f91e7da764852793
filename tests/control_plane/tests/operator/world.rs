//! A cluster without kubelets: the test plays the nodes, and the operator is real.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result};
use dunnage_crds::conditions::find;
use dunnage_crds::{StorageBackend, crd_yaml};
use dunnage_harness::{ControlPlane, eventually, wait_for};
use dunnage_operator::run::{Args, run_with};
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, PersistentVolume, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::agent::Disk;

pub(crate) const NAMESPACE: &str = "dunnage-system";
pub(crate) const DRIVER: &str = "local.csi.dunnage.dev";
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) backends: Api<StorageBackend>,
    control_plane: ControlPlane,
}

/// An operator that is killed with this value.
pub(crate) struct Operator {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

impl World {
    pub(crate) async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client().await?;
        let definition: CustomResourceDefinition = serde_saphyr::from_str(&crd_yaml()?)?;
        Api::all(client.clone()).create(&PostParams::default(), &definition).await?;
        let namespace: Namespace = from(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let backends: Api<StorageBackend> = Api::all(client.clone());
        eventually("the definition is served", LONG, async || backends.list(&ListParams::default()).await)
            .await;
        Ok(Self { client, backends, control_plane })
    }

    pub(crate) fn namespaced<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Runs an operator, under a name of its own so that a killed one's lease does not pass for its own.
    pub(crate) async fn operator(&self, identity: &str) -> Result<Operator> {
        let (client, election) = (self.control_plane.client().await?, self.control_plane.client().await?);
        // A killed operator cannot give its lease back; nobody waits for it here.
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> = self.namespaced();
        let _ = leases.delete(dunnage_operator::run::LEASE, &DeleteParams::default()).await;
        let args = Args {
            namespace: NAMESPACE.into(),
            image: "dunnage:test".into(),
            http_endpoint: free_address()?,
            identity: identity.into(),
            kubeconfig: None,
        };
        let stop = CancellationToken::new();
        let token = stop.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = run_with(client, election, args, token).await {
                eprintln!("operator ended: {error:?}");
            }
        });
        Ok(Operator { task, stop })
    }

    pub(crate) async fn apply_backend(&self, name: &str, spec: Value) -> Result<StorageBackend> {
        let object = json!({
            "apiVersion": "dunnage.dev/v1alpha1", "kind": "StorageBackend",
            "metadata": {"name": name}, "spec": spec,
        });
        Ok(self.backends.patch(name, &PatchParams::apply("test"), &Patch::Apply(&object)).await?)
    }

    pub(crate) async fn annotate(&self, name: &str, key: &str, value: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        self.backends.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until a condition of a backend has this status, and gives its message.
    pub(crate) async fn until(&self, name: &str, type_: &str, status: &str) -> String {
        let is = |backend: Option<&StorageBackend>| {
            backend
                .and_then(|backend| backend.status.as_ref())
                .and_then(|seen| find(&seen.conditions, type_))
                .is_some_and(|condition| condition.status == status)
        };
        let what = format!("{type_} is {status}");
        let backend = wait_for(&self.backends, name, &what, LONG, is).await.expect("it was seen");
        let status = backend.status.unwrap_or_default();
        find(&status.conditions, type_).map(|condition| condition.message.clone()).unwrap_or_default()
    }

    pub(crate) async fn until_gone(&self, name: &str) {
        wait_for(&self.backends, name, "is gone", LONG, |backend| backend.is_none()).await;
    }

    /// A node with its kubelet's word, and a node pod of `backend` at `address` that a disk answers for.
    pub(crate) async fn add_node(
        &self,
        backend: &str,
        disk: &Disk,
        node: &str,
        address: Ipv4Addr,
    ) -> Result<DropGuard> {
        self.create::<Node>(&Api::all(self.client.clone()), json!({"metadata": {"name": node}})).await?;
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(&ready)).await?;

        let secrets: Api<Secret> = self.namespaced();
        let name = format!("dunnage-{backend}-agent-tls");
        let secret = wait_for(&secrets, &name, "is made", LONG, |secret| secret.is_some()).await;
        let agent = disk.serve(address, &secret.context("made")?).await?;
        let sets: Api<DaemonSet> = self.namespaced();
        let set =
            wait_for(&sets, &format!("dunnage-{backend}-node"), "is made", LONG, |set| set.is_some()).await;
        let owner = set.context("made")?;
        self.add_pod(backend, "node", node, Some((&owner, address))).await?;
        Ok(agent)
    }

    /// A pod of the controller that is ready.
    pub(crate) async fn add_controller_pod(&self, backend: &str, node: &str) -> Result<()> {
        let sets: Api<StatefulSet> = self.namespaced();
        wait_for(&sets, &format!("dunnage-{backend}-controller"), "is made", LONG, |set| set.is_some()).await;
        self.add_pod(backend, "controller", node, None).await
    }

    async fn add_pod(
        &self,
        backend: &str,
        component: &str,
        node: &str,
        owner: Option<(&DaemonSet, Ipv4Addr)>,
    ) -> Result<()> {
        let name = format!("dunnage-{backend}-{component}-{node}");
        let mut labels = json!({"dunnage.dev/backend": backend, "dunnage.dev/component": component});
        let mut owners = json!([]);
        if let Some((set, _)) = owner {
            labels["pod-template-generation"] = "1".into();
            owners = json!([{
                "apiVersion": "apps/v1", "kind": "DaemonSet", "controller": true,
                "name": set.name_any(), "uid": set.uid(),
            }]);
        }
        let pods: Api<Pod> = self.namespaced();
        self.create(&pods, json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            "spec": {
                "nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "driver", "image": "dunnage:test"}],
            },
        }))
        .await?;
        let mut status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        if let Some((_, address)) = owner {
            status["podIP"] = address.to_string().into();
            status["podIPs"] = json!([{"ip": address.to_string()}]);
        }
        let patch = Patch::Merge(json!({"status": status}));
        pods.patch_status(&name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// What kubelet does when the driver registers.
    pub(crate) async fn register(&self, node: &str, pool: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let label = format!("topology.{DRIVER}/pool");
        let patch = Patch::Merge(json!({"metadata": {"labels": {&label: pool}}}));
        nodes.patch(node, &PatchParams::default(), &patch).await?;
        let csi_node = json!({
            "metadata": {"name": node},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": node, "topologyKeys": [label]}]},
        });
        self.create::<CSINode>(&Api::all(self.client.clone()), csi_node).await.map(drop)
    }

    /// What kubelet does when the plugin goes.
    pub(crate) async fn deregister(&self, node: &str) -> Result<()> {
        let csi_nodes: Api<CSINode> = Api::all(self.client.clone());
        csi_nodes.delete(node, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Ends the pods of a backend, as their controllers and kubelets would.
    pub(crate) async fn end_pods(&self, backend: &str) -> Result<()> {
        let pods: Api<Pod> = self.namespaced();
        let selector = ListParams::default().labels(&format!("dunnage.dev/backend={backend}"));
        for pod in pods.list(&selector).await?.items {
            pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
        }
        Ok(())
    }

    pub(crate) async fn add_volume(&self, name: &str) -> Result<()> {
        let volume = json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": DRIVER, "volumeHandle": format!("handle-{name}")},
            },
        });
        self.create::<PersistentVolume>(&Api::all(self.client.clone()), volume).await.map(drop)
    }

    /// The pool record's ids.
    pub(crate) async fn recorded(&self, backend: &str) -> Vec<String> {
        let maps: Api<ConfigMap> = self.namespaced();
        let map = maps.get_opt(&format!("dunnage-{backend}-pools")).await.ok().flatten();
        map.and_then(|map| map.data).unwrap_or_default().into_keys().collect()
    }

    /// Everything that carries the backend's label or is named after it.
    pub(crate) async fn left_of(&self, backend: &str) -> Result<Vec<String>> {
        let label = ListParams::default().labels(&format!("dunnage.dev/backend={backend}"));
        let mut left = Vec::new();
        names::<StatefulSet>(&self.namespaced(), &label, &mut left).await?;
        names::<DaemonSet>(&self.namespaced(), &label, &mut left).await?;
        names::<Secret>(&self.namespaced(), &label, &mut left).await?;
        names::<ConfigMap>(&self.namespaced(), &label, &mut left).await?;
        names::<k8s_openapi::api::core::v1::ServiceAccount>(&self.namespaced(), &label, &mut left).await?;
        names::<k8s_openapi::api::rbac::v1::RoleBinding>(&self.namespaced(), &label, &mut left).await?;
        names::<k8s_openapi::api::rbac::v1::Role>(&self.namespaced(), &label, &mut left).await?;
        names::<k8s_openapi::api::networking::v1::NetworkPolicy>(&self.namespaced(), &label, &mut left)
            .await?;
        names::<k8s_openapi::api::policy::v1::PodDisruptionBudget>(&self.namespaced(), &label, &mut left)
            .await?;
        let all = self.client.clone();
        names::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>(&Api::all(all.clone()), &label, &mut left)
            .await?;
        names::<CSIDriver>(&Api::all(all.clone()), &label, &mut left).await?;
        names::<StorageClass>(&Api::all(all.clone()), &label, &mut left).await?;
        let pool = ListParams::default().labels(&format!("topology.{DRIVER}/pool"));
        names::<Node>(&Api::all(all), &pool, &mut left).await?;
        Ok(left)
    }

    /// Names and versions of what the operator wrote.
    pub(crate) async fn versions(&self) -> Result<Vec<String>> {
        let label = ListParams::default().labels("dunnage.dev/backend");
        let mut found = Vec::new();
        versions::<StatefulSet>(&self.namespaced(), &label, &mut found).await?;
        versions::<DaemonSet>(&self.namespaced(), &label, &mut found).await?;
        versions::<Secret>(&self.namespaced(), &label, &mut found).await?;
        versions::<ConfigMap>(&self.namespaced(), &label, &mut found).await?;
        versions::<CSIDriver>(&Api::all(self.client.clone()), &label, &mut found).await?;
        versions::<StorageClass>(&Api::all(self.client.clone()), &label, &mut found).await?;
        versions::<k8s_openapi::api::rbac::v1::Role>(&self.namespaced(), &label, &mut found).await?;
        versions::<StorageBackend>(&self.backends, &ListParams::default(), &mut found).await?;
        Ok(found)
    }

    pub(crate) async fn create<K>(&self, api: &Api<K>, object: Value) -> Result<K>
    where
        K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        Ok(api.create(&PostParams::default(), &from(object)?).await?)
    }
}

async fn names<K>(api: &Api<K>, selector: &ListParams, found: &mut Vec<String>) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let list = api.list(selector).await?;
    found.extend(list.items.iter().map(|object| format!("{} {}", K::kind(&()), object.name_any())));
    Ok(())
}

async fn versions<K>(api: &Api<K>, selector: &ListParams, found: &mut Vec<String>) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    for object in api.list(selector).await?.items {
        let version = object.resource_version().unwrap_or_default();
        found.push(format!("{} {} {version}", K::kind(&()), object.name_any()));
    }
    Ok(())
}

fn from<T: DeserializeOwned>(value: Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

pub(crate) fn directory() -> Value {
    json!({"type": "Directory", "directory": {"path": "/var/lib/dunnage"}})
}
