//! A control plane without a scheduler or nodes: the test plays both, and provisioners run with the chart's rights.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use dunnage_harness::{ControlPlane, eventually, wait_for};
use dunnage_sidecars::provisioner::{self, Args};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, StorageClass};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::csi::{Abilities, Driver};

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// One for all tests of this binary; they keep apart by the names of their drivers.
async fn control_plane() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            let control_plane = ControlPlane::builder().controller_manager().start().await.unwrap();
            grant(&control_plane.client().await.unwrap()).await;
            control_plane
        })
        .await
}

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// A provisioner in a runtime of its own, so that it can be killed between any two steps.
struct Running {
    runtime: Option<Runtime>,
    task: JoinHandle<Result<(), provisioner::Error>>,
    stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) driver: Driver,
    /// Of the test: its namespace, and its class unless it makes another.
    pub(crate) name: String,
    flags: Vec<String>,
    running: Option<Running>,
}

impl World {
    /// A driver, a namespace and a provisioner with these further flags.
    pub(crate) async fn start(name: &str, abilities: Abilities, flags: &[&str]) -> Self {
        let control_plane = control_plane().await;
        let client = control_plane.client().await.unwrap();
        let driver = Driver::start(&format!("{name}.csi.example.io"), abilities);
        let kubeconfig = driver.folder().join("kubeconfig");
        std::fs::write(&kubeconfig, account(control_plane, &client).await).unwrap();
        let mut all = vec![
            format!("--csi-address={}", driver.socket().display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-election".to_owned(),
            "--leader-election-namespace=default".to_owned(),
            "--timeout=5s".to_owned(),
            "--capacity-ownerref-level=-1".to_owned(),
        ];
        if !flags.iter().any(|flag| flag.starts_with("--retry-interval-start")) {
            all.push("--retry-interval-start=200ms".to_owned());
        }
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let world = Self { client, driver, name: name.to_owned(), flags: all, running: None };
        world.create::<Namespace>(json!({"metadata": {"name": name}})).await;
        let mut world = world;
        world.begin();
        world
    }

    /// Starts a provisioner.
    pub(crate) fn begin(&mut self) {
        let command = Command::try_parse_from(["provisioner".to_owned()].iter().chain(&self.flags)).unwrap();
        let stop = CancellationToken::new();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let task = runtime.spawn(provisioner::run(command.args, stop.clone()));
        self.running = Some(Running { runtime: Some(runtime), task, stop });
    }

    /// Ends the provisioner in the middle of whatever it does.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// Asks the provisioner to end.
    pub(crate) async fn stop(&mut self) {
        let mut running = self.running.take().unwrap();
        running.stop.cancel();
        (&mut running.task).await.unwrap().unwrap();
    }

    async fn create<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await.unwrap()
    }

    pub(crate) async fn class(&self, name: &str, binding: &str, more: Value) {
        let mut class = json!({
            "metadata": {"name": name}, "provisioner": self.driver.name, "volumeBindingMode": binding,
        });
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.create::<StorageClass>(class).await;
    }

    pub(crate) async fn delete_class(&self, name: &str) {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        classes.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// A node with the driver, in a pool of its own.
    pub(crate) async fn node(&self, name: &str, pool: &str) {
        let key = format!("topology.{}/pool", self.driver.name);
        self.create::<Node>(json!({"metadata": {"name": name, "labels": {key.as_str(): pool}}})).await;
        self.create::<CSINode>(json!({
            "metadata": {"name": name},
            "spec": {"drivers": [{"name": self.driver.name, "nodeID": name, "topologyKeys": [key]}]},
        }))
        .await;
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub(crate) fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    /// A claim of 1 GiB; `node` is what the scheduler would have chosen. Returns the name that its volume gets.
    pub(crate) async fn claim(&self, name: &str, class: &str, node: Option<&str>) -> String {
        self.claim_with(name, class, node, json!({})).await
    }

    pub(crate) async fn claim_with(
        &self,
        name: &str,
        class: &str,
        node: Option<&str>,
        spec: Value,
    ) -> String {
        let annotations = node.map(|node| json!({"volume.kubernetes.io/selected-node": node}));
        let mut claim = json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        claim["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let claim = serde_json::from_value(claim).unwrap();
        let made = self.claims().create(&PostParams::default(), &claim).await.unwrap();
        format!("pvc-{}", made.uid().unwrap())
    }

    /// What the scheduler does.
    pub(crate) async fn choose(&self, claim: &str, node: &str) {
        let patch = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
        self.claims().patch(claim, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn delete_claim(&self, name: &str) {
        self.claims().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the claim is bound, and gives its volume.
    pub(crate) async fn bound(&self, claim: &str) -> PersistentVolume {
        let bound = |claim: Option<&PersistentVolumeClaim>| {
            claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some("Bound")
        };
        let claim = wait_for(&self.claims(), claim, "bound", SOON, bound).await.unwrap();
        self.volumes().get(&claim.spec.unwrap().volume_name.unwrap()).await.unwrap()
    }

    /// Waits until the claim has no chosen node.
    pub(crate) async fn handed_back(&self, claim: &str) {
        let bare = |claim: Option<&PersistentVolumeClaim>| {
            claim.is_some_and(|claim| !claim.annotations().contains_key("volume.kubernetes.io/selected-node"))
        };
        wait_for(&self.claims(), claim, "without a node", SOON, bare).await;
    }

    pub(crate) async fn volume_gone(&self, name: &str) {
        wait_for(&self.volumes(), name, "gone", SOON, |volume| volume.is_none()).await;
    }

    /// Waits for an event about a claim, and gives its message.
    pub(crate) async fn event(&self, claim: &str, reason: &str) -> String {
        self.event_in(&self.name, claim, reason).await
    }

    /// Waits for an event about a volume, and gives its message.
    pub(crate) async fn volume_event(&self, volume: &str, reason: &str) -> String {
        self.event_in("default", volume, reason).await
    }

    async fn event_in(&self, namespace: &str, object: &str, reason: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let query = ListParams::default().fields(&format!("involvedObject.name={object},reason={reason}"));
        eventually(&format!("an event {reason} about {object}"), SOON, async || {
            let list = events.list(&query).await.map_err(|error| error.to_string())?;
            list.items.into_iter().find_map(|event| event.message).ok_or_else(|| "there is none".to_owned())
        })
        .await
    }

    /// Waits until the driver shows this.
    pub(crate) async fn driver_shows(&self, what: &str, check: impl Fn(&crate::csi::State) -> bool) {
        eventually(what, SOON, async || {
            let state = self.driver.state();
            if check(&state) {
                return Ok(());
            }
            let volumes: Vec<&String> = state.volumes.keys().collect();
            Err(format!("{} creates, {} deletes, {volumes:?}", state.creates.len(), state.deletes.len()))
        })
        .await;
    }

    /// Published room by pool, for one class.
    pub(crate) async fn room(&self, class: &str) -> Vec<(String, String)> {
        let objects: Api<CSIStorageCapacity> = Api::namespaced(self.client.clone(), "default");
        let mut room = Vec::new();
        for object in objects.list(&ListParams::default()).await.unwrap() {
            if object.storage_class_name == class {
                let labels = object.node_topology.unwrap().match_labels.unwrap();
                room.push((labels.into_values().collect(), object.capacity.unwrap().0));
            }
        }
        room.sort();
        room
    }

    pub(crate) async fn room_is(&self, class: &str, expected: &[(&str, &str)]) {
        let expected: Vec<(String, String)> =
            expected.iter().map(|(pool, room)| ((*pool).to_owned(), (*room).to_owned())).collect();
        eventually("the published room", SOON, async || {
            let room = self.room(class).await;
            if room == expected { Ok(()) } else { Err(format!("{room:?} instead of {expected:?}")) }
        })
        .await;
    }

    /// How many claims the journal holds.
    pub(crate) async fn journal(&self) -> usize {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "default");
        let name = format!("{}-journal", self.driver.name.replace('.', "-"));
        let lease = leases.get_opt(&name).await.unwrap();
        let annotations = lease.and_then(|lease| lease.metadata.annotations).unwrap_or_default();
        annotations.keys().filter(|key| key.contains("/claim-")).count()
    }

    pub(crate) async fn journal_has(&self, entries: usize) {
        eventually(&format!("{entries} entries in the journal"), SOON, async || {
            let found = self.journal().await;
            if found == entries { Ok(()) } else { Err(format!("{found} entries")) }
        })
        .await;
    }
}

/// The rights that the chart and the operator give, and Secrets, which are for classes of other drivers.
async fn grant(client: &Client) {
    let rule = |group: &str, resource: &str, verbs: &str| {
        let verbs: Vec<&str> = verbs.split(' ').collect();
        json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
    };
    let mut cluster = chart_role("dunnage-provisioner");
    cluster["rules"].as_array_mut().unwrap().push(rule("", "secrets", "get list"));
    let own = json!({"rules": [
        rule("coordination.k8s.io", "leases", "get watch list delete update create"),
        rule("storage.k8s.io", "csistoragecapacities", "get list watch create update patch delete"),
        rule("", "pods", "get"),
        rule("apps", "replicasets", "get"),
    ]});
    let group = "rbac.authorization.k8s.io";
    let binding = |kind: &str| {
        json!({
            "subjects": [{"kind": "ServiceAccount", "name": "provisioner", "namespace": "default"}],
            "roleRef": {"apiGroup": group, "kind": kind, "name": "provisioner"},
        })
    };
    for (namespace, kind, data) in [
        (None, "ClusterRole", cluster),
        (None, "ClusterRoleBinding", binding("ClusterRole")),
        (Some("default"), "Role", own),
        (Some("default"), "RoleBinding", binding("Role")),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let object = DynamicObject::new("provisioner", &resource).data(data);
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// A cluster role as the chart renders it.
fn chart_role(name: &str) -> Value {
    let rendered = include_str!("../../../chart/golden/default.yaml");
    let objects = rendered.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let is_it = |object: &Value| object["kind"] == "ClusterRole" && object["metadata"]["name"] == name;
    let role = objects.into_iter().find(is_it).unwrap();
    json!({"rules": role["rules"]})
}

/// The administrator's kubeconfig with the provisioner's token in it.
async fn account(control_plane: &ControlPlane, client: &Client) -> String {
    use k8s_openapi::api::authentication::v1::TokenRequest;
    use k8s_openapi::api::core::v1::ServiceAccount;

    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let account = serde_json::from_value(json!({"metadata": {"name": "provisioner"}})).unwrap();
    // Another test may have made it.
    let _ = accounts.create(&PostParams::default(), &account).await;
    let request = TokenRequest::default();
    let answer =
        accounts.create_token_request("provisioner", &PostParams::default(), &request).await.unwrap();
    let file: PathBuf = control_plane.kubeconfig().into();
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    config["users"][0]["user"] = json!({"token": answer.status.unwrap().token});
    config.to_string()
}
