//! A control plane without nodes: the test binds claims and plays the nodes, and resizers run with upstream's rights.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use dunnage_harness::{ControlPlane, eventually, wait_for};
use dunnage_sidecars::resizer::{self, Args};
use dunnage_sidecars::runtime::Error;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{
    Event, Namespace, PersistentVolume, PersistentVolumeClaim, Secret, ServiceAccount,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::csi::Driver;

pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const CLAIM: &str = "data";

/// One for all tests of this binary; they keep apart by the names of their drivers.
async fn control_plane() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            let control_plane = ControlPlane::start().await.unwrap();
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

/// A resizer in a runtime of its own, so that it can be killed between any two steps.
struct Running {
    runtime: Option<Runtime>,
    task: JoinHandle<Result<(), Error>>,
    stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A bound claim of 1 GiB in a namespace of the test's name, its volume, and a resizer.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) driver: Driver,
    pub(crate) name: String,
    flags: Vec<String>,
    running: Option<Running>,
}

impl World {
    pub(crate) async fn start(name: &str, flags: &[&str]) -> Self {
        let control_plane = control_plane().await;
        let client = control_plane.client().await.unwrap();
        let driver = Driver::start(&format!("{name}.csi.example.io"));
        let kubeconfig = driver.folder().join("kubeconfig");
        std::fs::write(&kubeconfig, account(control_plane, &client).await).unwrap();
        let mut all = vec![
            format!("--csi-address={}", driver.socket().display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-election".to_owned(),
            "--leader-election-namespace=default".to_owned(),
            "--retry-interval-start=200ms".to_owned(),
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let mut world = Self { client, driver, name: name.to_owned(), flags: all, running: None };
        world.create::<Namespace>(json!({"metadata": {"name": name}})).await;
        world.objects().await;
        world.begin();
        world
    }

    async fn objects(&self) {
        let (name, driver) = (&self.name, &self.driver.name);
        self.create::<StorageClass>(json!({
            "metadata": {"name": name}, "provisioner": driver, "allowVolumeExpansion": true,
        }))
        .await;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), name);
        let secret = json!({"metadata": {"name": "growth"}, "stringData": {"token": "t"}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        let claim = json!({
            "metadata": {"name": CLAIM},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": name, "volumeName": name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let claim = serde_json::from_value(claim).unwrap();
        let claim = self.claims().create(&PostParams::default(), &claim).await.unwrap();
        self.create::<PersistentVolume>(json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": name,
                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": name, "name": CLAIM,
                    "uid": claim.metadata.uid},
                "csi": {"driver": driver, "volumeHandle": format!("handle-of-{name}"), "fsType": "xfs",
                    "controllerExpandSecretRef": {"name": "growth", "namespace": name}},
            },
        }))
        .await;
        self.status(json!({"phase": "Bound", "capacity": {"storage": "1Gi"}})).await;
    }

    /// Starts a resizer.
    pub(crate) fn begin(&mut self) {
        let command = Command::try_parse_from(["resizer".to_owned()].iter().chain(&self.flags)).unwrap();
        let stop = CancellationToken::new();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let task = runtime.spawn(resizer::run(command.args, stop.clone()));
        self.running = Some(Running { runtime: Some(runtime), task, stop });
    }

    /// Ends the resizer in the middle of whatever it does, and lets the next one lead at once.
    pub(crate) async fn kill(&mut self) {
        self.running = None;
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(self.client.clone(), "default");
        leases.delete(&self.lock(), &kube::api::DeleteParams::default()).await.unwrap();
    }

    /// Asks the resizer to end.
    pub(crate) async fn stop(&mut self) {
        let mut running = self.running.take().unwrap();
        running.stop.cancel();
        (&mut running.task).await.unwrap().unwrap();
    }

    pub(crate) fn lock(&self) -> String {
        format!("external-resizer-{}", self.driver.name.replace('.', "-"))
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await.unwrap()
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub(crate) async fn volume(&self) -> PersistentVolume {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.get(&self.name).await.unwrap()
    }

    /// Changes the claim's spec, as its owner does.
    pub(crate) async fn spec(&self, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.claims().patch(CLAIM, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn ask(&self, size: &str) {
        self.spec(json!({"resources": {"requests": {"storage": size}}})).await;
    }

    /// Changes the claim's status, as kubelet does.
    pub(crate) async fn status(&self, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.claims().patch_status(CLAIM, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits for a claim, as JSON.
    pub(crate) async fn claim_is(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let json = |claim: &PersistentVolumeClaim| serde_json::to_value(claim).unwrap();
        let claims = self.claims();
        let wanted = |claim: Option<&PersistentVolumeClaim>| claim.is_some_and(|claim| is(&json(claim)));
        let found = wait_for(&claims, CLAIM, what, SOON, wanted);
        json(&found.await.unwrap())
    }

    pub(crate) async fn has_size(&self, size: &str) -> Value {
        self.claim_is(size, |claim| claim["status"]["capacity"]["storage"] == size).await
    }

    pub(crate) async fn is_told(&self, reason: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.name);
        eventually(&format!("the event {reason}"), SOON, async || {
            let all = events.list(&ListParams::default()).await.unwrap();
            let reasons: Vec<_> = all.iter().filter_map(|event| event.reason.clone()).collect();
            if reasons.iter().any(|found| found == reason) { Ok(()) } else { Err(format!("{reasons:?}")) }
        })
        .await;
    }

    pub(crate) async fn annotation_of_volume(&self, key: &str) -> Option<String> {
        self.volume().await.annotations().get(key).cloned()
    }
}

/// The kinds of the claim's conditions.
pub(crate) fn conditions(claim: &Value) -> Vec<&str> {
    let all = claim["status"]["conditions"].as_array();
    all.into_iter().flatten().filter_map(|condition| condition["type"].as_str()).collect()
}

/// The rights that upstream's manifests give, and no more.
async fn grant(client: &Client) {
    let rule = |group: &str, resource: &str, verbs: &str| {
        let verbs: Vec<&str> = verbs.split(' ').collect();
        json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
    };
    let cluster = json!({"rules": [
        rule("", "persistentvolumes", "get list watch patch"),
        rule("", "persistentvolumeclaims", "get list watch"),
        rule("", "persistentvolumeclaims/status", "patch"),
        rule("", "pods", "get list watch"),
        rule("", "events", "list watch create update patch"),
        rule("storage.k8s.io", "volumeattributesclasses", "get list watch"),
        rule("", "secrets", "get list watch"),
    ]});
    let own = json!({"rules": [
        rule("coordination.k8s.io", "leases", "get watch list delete update create"),
    ]});
    let group = "rbac.authorization.k8s.io";
    let binding = |kind: &str| {
        json!({
            "subjects": [{"kind": "ServiceAccount", "name": "resizer", "namespace": "default"}],
            "roleRef": {"apiGroup": group, "kind": kind, "name": "resizer"},
        })
    };
    for (namespace, kind, data) in [
        (None, "ClusterRole", cluster),
        (None, "ClusterRoleBinding", binding("ClusterRole")),
        (Some("default"), "Role", own),
        (Some("default"), "RoleBinding", binding("Role")),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let object = DynamicObject::new("resizer", &resource).data(data);
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// The administrator's kubeconfig with the resizer's token in it.
async fn account(control_plane: &ControlPlane, client: &Client) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let account = serde_json::from_value(json!({"metadata": {"name": "resizer"}})).unwrap();
    // Another test may have made it.
    let _ = accounts.create(&PostParams::default(), &account).await;
    let request = TokenRequest::default();
    let answer = accounts.create_token_request("resizer", &PostParams::default(), &request).await.unwrap();
    let file: PathBuf = control_plane.kubeconfig().into();
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    config["users"][0]["user"] = json!({"token": answer.status.unwrap().token});
    config.to_string()
}
