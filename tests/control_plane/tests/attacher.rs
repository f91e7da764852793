//! The attacher between a real API server, with exactly upstream's rights, and a driver of the test's own.

#[path = "attacher/driver.rs"]
mod driver;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use dunnage_harness::{ControlPlane, Right, account, eventually, wait_for};
use dunnage_sidecars::attacher;
use dunnage_sidecars::runtime::Error;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use driver::{Driver, NAME};

const SOON: Duration = Duration::from_secs(30);
const FINALIZER: &str = "external-attacher/fake-csi-dunnage-dev";

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: attacher::Args,
}

/// An attacher at work, and what is around it.
struct Scene {
    client: Client,
    driver: Driver,
    driver_stop: CancellationToken,
    attacher: JoinHandle<Result<(), Error>>,
    stop: CancellationToken,
    _directory: TempDir,
    _control_plane: ControlPlane,
}

impl Scene {
    async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client().await?;
        let directory = tempfile::tempdir()?;
        let (driver, socket) = (Driver::default(), directory.path().join("csi.sock"));
        let driver_stop = CancellationToken::new();
        driver.serve(&socket, driver_stop.clone())?;
        let kubeconfig = directory.path().join("kubeconfig");
        let account = account(&client, control_plane.kubeconfig(), "attacher", &RIGHTS).await?;
        std::fs::write(&kubeconfig, account)?;
        let command = Command::try_parse_from([
            "attacher",
            &format!("--csi-address={}", socket.display()),
            &format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-election",
            "--leader-election-namespace=default",
            "--retry-interval-start=100ms",
            "--reconcile-sync=1s",
        ])?;
        let stop = CancellationToken::new();
        let attacher = tokio::spawn(attacher::run(command.args, stop.clone()));
        let scene = Self {
            client,
            driver,
            driver_stop,
            attacher,
            stop,
            _directory: directory,
            _control_plane: control_plane,
        };
        scene
            .create::<CSINode>(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "node-1"},
                "spec": {"drivers": [{"name": NAME, "nodeID": "id-of-node-1", "topologyKeys": []}]},
            }))
            .await?;
        Ok(scene)
    }

    async fn create<K>(&self, object: Value) -> Result<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
    {
        Ok(Api::all(self.client.clone())
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?)
    }

    async fn volume(&self, name: &str) -> Result<PersistentVolume> {
        self.create(json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"],
                "csi": {"driver": NAME, "volumeHandle": format!("handle-of-{name}"), "fsType": "xfs",
                    "volumeAttributes": {"a": "b"}},
            },
        }))
        .await
    }

    async fn attachment(&self, name: &str, volume: &str) -> Result<VolumeAttachment> {
        self.create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": NAME, "nodeName": "node-1", "source": {"persistentVolumeName": volume}},
        }))
        .await
    }

    fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.client.clone())
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    async fn attached(&self, name: &str) -> Result<VolumeAttachment> {
        let attached = |found: Option<&VolumeAttachment>| {
            found.and_then(|found| found.status.as_ref()).is_some_and(|status| status.attached)
        };
        wait_for(&self.attachments(), name, "attached", SOON, attached).await.context("no attachment")
    }
}

/// The rights that upstream's manifests give, and no more.
const RIGHTS: [Right; 4] = [
    ("", "persistentvolumes", "get list watch patch"),
    ("storage.k8s.io", "csinodes", "get list watch"),
    ("storage.k8s.io", "volumeattachments", "get list watch patch"),
    ("storage.k8s.io", "volumeattachments/status", "patch"),
];

#[tokio::test]
async fn a_volume_is_attached_detached_and_let_go() -> Result<()> {
    let scene = Scene::start().await?;
    // The attachment comes before its volume: it waits for it.
    scene.attachment("csi-1", "pv-1").await?;
    scene.volume("pv-1").await?;
    let attached = scene.attached("csi-1").await?;
    let status = attached.status.context("status")?;
    assert_eq!(status.attachment_metadata, Some([("slot".to_owned(), "7".to_owned())].into()));
    assert_eq!(status.attach_error, None);
    assert_eq!(attached.metadata.finalizers.unwrap_or_default(), [FINALIZER]);
    let notes = attached.metadata.annotations.unwrap_or_default();
    assert_eq!(notes.get("csi.alpha.kubernetes.io/node-id").map(String::as_str), Some("id-of-node-1"));
    let request = scene.driver.state().requests.last().cloned().context("no call")?;
    assert_eq!((request.volume_id.as_str(), request.node_id.as_str()), ("handle-of-pv-1", "id-of-node-1"));
    assert_eq!(request.volume_context, [("a".to_owned(), "b".to_owned())].into());

    // The volume's object stays while it is attached, and the node's entry is not needed to detach.
    scene.volumes().delete("pv-1", &DeleteParams::default()).await?;
    Api::<CSINode>::all(scene.client.clone()).delete("node-1", &DeleteParams::default()).await?;
    let volume = scene.volumes().get("pv-1").await?;
    assert!(volume.metadata.finalizers.unwrap_or_default().contains(&FINALIZER.to_owned()));
    scene.attachments().delete("csi-1", &DeleteParams::default()).await?;
    wait_for(&scene.attachments(), "csi-1", "gone", SOON, |found| found.is_none()).await;
    // Others' finalizers are not ours to remove; here only the protection of volumes in use is left, if anything.
    wait_for(&scene.volumes(), "pv-1", "let go", SOON, |volume| {
        volume
            .is_none_or(|volume| !volume.metadata.finalizers.iter().flatten().any(|found| found == FINALIZER))
    })
    .await;
    let calls = scene.driver.state().unpublished.clone();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!((calls[0].volume_id.as_str(), calls[0].node_id.as_str()), ("handle-of-pv-1", "id-of-node-1"));
    Ok(())
}

#[tokio::test]
async fn a_refusal_shows_with_its_code_and_is_tried_again() -> Result<()> {
    let scene = Scene::start().await?;
    scene.driver.state().full = true;
    scene.volume("pv-1").await?;
    scene.attachment("csi-1", "pv-1").await?;
    let told = wait_for(&scene.attachments(), "csi-1", "an error", SOON, |found| {
        found.and_then(|found| found.status.as_ref()).is_some_and(|status| status.attach_error.is_some())
    })
    .await;
    let error = told.and_then(|found| found.status?.attach_error).context("no error")?;
    assert_eq!(error.error_code, Some(8));
    let message = "rpc error: code = ResourceExhausted desc = the node has no slot left";
    assert_eq!(error.message.as_deref(), Some(message));
    scene.driver.state().full = false;
    let attached = scene.attached("csi-1").await?;
    assert_eq!(attached.status.context("status")?.attach_error, None);
    Ok(())
}

#[tokio::test]
async fn what_the_driver_has_lost_is_published_again() -> Result<()> {
    let scene = Scene::start().await?;
    for number in 1..=3 {
        scene.volume(&format!("pv-{number}")).await?;
        scene.attachment(&format!("csi-{number}"), &format!("pv-{number}")).await?;
    }
    for number in 1..=3 {
        scene.attached(&format!("csi-{number}")).await?;
    }
    scene.driver.state().published.entry("handle-of-pv-2".to_owned()).or_default().clear();
    eventually("published again", SOON, async || {
        let published = scene.driver.state().published.clone();
        if published.values().all(|nodes| nodes.len() == 1) { Ok(()) } else { Err(format!("{published:?}")) }
    })
    .await;
    assert!(scene.driver.state().unpublished.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_stop_releases_the_lease_and_a_lost_driver_ends_the_process() -> Result<()> {
    let scene = Scene::start().await?;
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), "default");
    let lock = "external-attacher-leader-fake-csi-dunnage-dev";
    let holder = |lease: Option<&Lease>| lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.clone());
    wait_for(&leases, lock, "held", SOON, |lease| holder(lease).is_some_and(|name| !name.is_empty())).await;
    scene.stop.cancel();
    scene.attacher.await?.context("a stop is no error")?;
    assert_eq!(holder(leases.get_opt(lock).await?.as_ref()), Some(String::new()));

    let scene = Scene::start().await?;
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), "default");
    wait_for(&leases, lock, "held", SOON, |lease| lease.is_some()).await;
    scene.driver_stop.cancel();
    let ended = tokio::time::timeout(SOON, scene.attacher).await.context("still running")??;
    assert!(matches!(ended, Err(Error::ConnectionLost { .. })), "{ended:?}");
    Ok(())
}
