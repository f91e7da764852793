//! A control plane with the snapshot kinds, one snapshot controller for all tests, and a snapshotter and a driver for
//! each. The roles run with upstream's rights.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use dunnage_crds::snapshot::{
    VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, snapshot_crds_yaml,
};
use dunnage_harness::{ControlPlane, eventually, wait_for};
use dunnage_sidecars::runtime::Error;
use dunnage_sidecars::{provisioner, snapshot_controller, snapshotter};
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::driver::Driver;
use crate::rights::{grant, kubeconfig, rights};

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// What all tests of this binary share; they keep apart by namespace and driver.
struct Shared {
    control_plane: ControlPlane,
    folder: tempfile::TempDir,
    _controller: Running,
}

async fn shared() -> &'static Shared {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            let control_plane = ControlPlane::builder().controller_manager().start().await.unwrap();
            let client = control_plane.client().await.unwrap();
            install(&client).await;
            let folder = tempfile::tempdir().unwrap();
            for (account, rules, own) in rights() {
                grant(&client, account, &rules, &own).await;
                let text = kubeconfig(control_plane.kubeconfig(), &client, account).await;
                std::fs::write(folder.path().join(account), text).unwrap();
            }
            let flags = flags(folder.path(), "snapshot-controller");
            let args = Controller::try_parse_from(&flags).unwrap().args;
            let controller = Running::start(move |stop| snapshot_controller::run(args, stop));
            Shared { control_plane, folder, _controller: controller }
        })
        .await
}

async fn install(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for document in snapshot_crds_yaml().unwrap().split("\n---\n") {
        let definition = serde_saphyr::from_str(document).unwrap();
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    let contents: Api<VolumeSnapshotContent> = Api::all(client.clone());
    let snapshots: Api<VolumeSnapshot> = Api::all(client.clone());
    let classes: Api<VolumeSnapshotClass> = Api::all(client.clone());
    eventually("the API server serves the snapshot kinds", SOON, async || {
        contents.list(&ListParams::default()).await?;
        classes.list(&ListParams::default()).await?;
        snapshots.list(&ListParams::default()).await.map(drop)
    })
    .await;
}

#[derive(Parser)]
struct Controller {
    #[command(flatten)]
    args: snapshot_controller::Args,
}

#[derive(Parser)]
struct Snapshotter {
    #[command(flatten)]
    args: snapshotter::Args,
}

#[derive(Parser)]
struct Provisioner {
    #[command(flatten)]
    args: provisioner::Args,
}

fn flags(folder: &Path, account: &str) -> Vec<String> {
    vec![
        account.to_owned(),
        format!("--kubeconfig={}", folder.join(account).display()),
        "--leader-election".to_owned(),
        "--leader-election-namespace=default".to_owned(),
        "--retry-interval-start=200ms".to_owned(),
    ]
}

/// A role in a runtime of its own, so that it can be killed between any two steps.
pub(crate) struct Running {
    runtime: Option<Runtime>,
}

impl Running {
    fn start<F>(run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let role = run(CancellationToken::new());
        runtime.spawn(async move {
            if let Err(error) = role.await {
                eprintln!("a role has ended: {}", dunnage_cluster::error::chain(&error));
            }
        });
        Self { runtime: Some(runtime) }
    }
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
    /// Of the test: its namespace, its class and its claim's volume.
    pub(crate) name: String,
    folder: PathBuf,
    flags: Vec<String>,
    running: Option<Running>,
}

impl World {
    /// A driver, a namespace with a bound claim `data`, a class, and a snapshotter with these further flags.
    pub(crate) async fn start(name: &str, flags_more: &[&str]) -> Self {
        let mut world = Self::without_snapshotter(name, flags_more).await;
        world.class(name, json!({})).await;
        world.claim_with_volume("data").await;
        world.begin();
        world
    }

    pub(crate) async fn without_snapshotter(name: &str, flags_more: &[&str]) -> Self {
        let shared = shared().await;
        let client = shared.control_plane.client().await.unwrap();
        let driver = Driver::start(&format!("{name}.csi.example.io"));
        let folder = shared.folder.path().to_path_buf();
        let mut flags = flags(&folder, "snapshotter");
        flags.push(format!("--csi-address={}", driver.socket().display()));
        flags.extend(flags_more.iter().map(|flag| (*flag).to_owned()));
        if !flags_more.iter().any(|flag| flag.starts_with("--timeout")) {
            flags.push("--timeout=5s".to_owned());
        }
        let world = Self { client, driver, name: name.to_owned(), folder, flags, running: None };
        world.create::<Namespace>(json!({"metadata": {"name": name}})).await;
        world
    }

    /// Starts a snapshotter.
    pub(crate) fn begin(&mut self) {
        let args = Snapshotter::try_parse_from(&self.flags).unwrap().args;
        self.running = Some(Running::start(move |stop| snapshotter::run(args, stop)));
    }

    /// Ends the snapshotter in the middle of whatever it does.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// A provisioner of ours for the same driver.
    pub(crate) fn provisioner(&self) -> Running {
        let mut flags = flags(&self.folder, "provisioner");
        flags.push(format!("--csi-address={}", self.driver.socket().display()));
        let args = Provisioner::try_parse_from(&flags).unwrap().args;
        Running::start(move |stop| provisioner::run(args, stop))
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        let object: K = serde_json::from_value(object).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await.unwrap()
    }

    pub(crate) async fn class(&self, name: &str, more: Value) {
        let mut class = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": name}, "driver": self.driver.name, "deletionPolicy": "Delete",
        });
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        // The type has neither kind nor version, which the API server wants.
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind));
        api.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    }

    /// A claim bound to a volume of the driver.
    pub(crate) async fn claim_with_volume(&self, name: &str) {
        let volume = format!("{}-{name}", self.name);
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let claim = serde_json::from_value(claim).unwrap();
        self.claims().create(&PostParams::default(), &claim).await.unwrap();
        self.create::<PersistentVolume>(json!({
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"name": name, "namespace": self.name},
                "csi": {"driver": self.driver.name, "volumeHandle": format!("handle-of-{name}")},
            },
        }))
        .await;
        let bound = |claim: Option<&PersistentVolumeClaim>| {
            claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some("Bound")
        };
        wait_for(&self.claims(), name, "bound", SOON, bound).await;
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub(crate) fn snapshots(&self) -> Api<VolumeSnapshot> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub(crate) fn contents(&self) -> Api<VolumeSnapshotContent> {
        Api::all(self.client.clone())
    }

    /// A snapshot of claim `data` by the test's class. Returns the name that its content gets.
    pub(crate) async fn snapshot(&self, name: &str) -> String {
        let spec = json!({
            "source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": self.name,
        });
        self.snapshot_with(name, spec).await
    }

    pub(crate) async fn snapshot_with(&self, name: &str, spec: Value) -> String {
        let snapshot = VolumeSnapshot::new(name, serde_json::from_value(spec).unwrap());
        let made = self.snapshots().create(&PostParams::default(), &snapshot).await.unwrap();
        format!("snapcontent-{}", made.metadata.uid.unwrap())
    }

    /// A content for a snapshot that the driver has already.
    pub(crate) async fn content_by_hand(&self, name: &str, snapshot: &str, handle: &str, policy: &str) {
        self.create::<VolumeSnapshotContent>(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": name},
            "spec": {
                "volumeSnapshotRef": {"name": snapshot, "namespace": self.name}, "deletionPolicy": policy,
                "driver": self.driver.name, "source": {"snapshotHandle": handle},
            },
        }))
        .await;
    }

    pub(crate) async fn delete_snapshot(&self, name: &str) {
        self.snapshots().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the snapshot is ready.
    pub(crate) async fn ready(&self, name: &str) -> VolumeSnapshot {
        let ready = |snapshot: Option<&VolumeSnapshot>| {
            snapshot.and_then(|snapshot| snapshot.status.as_ref()?.ready_to_use) == Some(true)
        };
        wait_for(&self.snapshots(), name, "ready", SOON, ready).await.unwrap()
    }

    pub(crate) async fn snapshot_gone(&self, name: &str) {
        wait_for(&self.snapshots(), name, "gone", SOON, |snapshot| snapshot.is_none()).await;
    }

    pub(crate) async fn content_gone(&self, name: &str) {
        wait_for(&self.contents(), name, "gone", SOON, |content| content.is_none()).await;
    }

    /// Waits until the snapshot's status has an error, and gives it.
    pub(crate) async fn snapshot_error(&self, name: &str, part: &str) -> String {
        let message = |snapshot: Option<&VolumeSnapshot>| {
            snapshot.and_then(|snapshot| snapshot.status.clone()?.error?.message)
        };
        let says = |snapshot: Option<&VolumeSnapshot>| {
            message(snapshot).is_some_and(|message| message.contains(part))
        };
        let told = wait_for(&self.snapshots(), name, part, SOON, says).await;
        message(told.as_ref()).unwrap()
    }

    /// Waits until the claim has, or has not, the finalizer that keeps it for a snapshot.
    pub(crate) async fn claim_is_kept(&self, name: &str, kept: bool) {
        let finalizer = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
        let has = move |claim: Option<&PersistentVolumeClaim>| {
            let found = claim.and_then(|claim| claim.metadata.finalizers.as_ref());
            found.is_some_and(|list| list.iter().any(|found| found == finalizer)) == kept
        };
        wait_for(&self.claims(), name, "kept or not", SOON, has).await;
    }

    /// Waits for an event about an object, and gives its message.
    pub(crate) async fn event(&self, namespace: &str, object: &str, reason: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let query = ListParams::default().fields(&format!("involvedObject.name={object},reason={reason}"));
        eventually(&format!("an event {reason} about {object}"), SOON, async || {
            let list = events.list(&query).await.map_err(|error| error.to_string())?;
            list.items.into_iter().find_map(|event| event.message).ok_or_else(|| "there is none".to_owned())
        })
        .await
    }

    /// Waits until the driver shows this.
    pub(crate) async fn driver_shows(&self, what: &str, check: impl Fn(&crate::driver::State) -> bool) {
        eventually(what, SOON, async || {
            let state = self.driver.state();
            if check(&state) {
                return Ok(());
            }
            let names: Vec<&String> = state.snapshots.keys().collect();
            Err(format!("{} creates, {} deletes, {names:?}", state.creates.len(), state.deletes.len()))
        })
        .await;
    }

    pub(crate) async fn change_content(&self, name: &str, patch: Value) -> Result<(), kube::Error> {
        let patched = self.contents().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map(drop)
    }
}
