//! The health monitor between a real API server, with exactly upstream's rights, and a driver of the test's own.

#[path = "health_monitor/driver.rs"]
mod driver;

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use dunnage_harness::{ControlPlane, Right, account, eventually};
use dunnage_sidecars::health_monitor;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use driver::{Driver, NAME};

const SOON: Duration = Duration::from_secs(30);

/// The rights that upstream's manifests give, and no more.
const RIGHTS: [Right; 5] = [
    ("", "persistentvolumes", "get list watch"),
    ("", "persistentvolumeclaims", "get list watch"),
    ("", "nodes", "get list watch"),
    ("", "pods", "get list watch"),
    ("", "events", "get list watch create patch"),
];

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: health_monitor::Args,
}

struct Scene {
    client: Client,
    driver: Driver,
    stop: CancellationToken,
    monitor: tokio::task::JoinHandle<Result<(), dunnage_sidecars::runtime::Error>>,
    _directory: tempfile::TempDir,
    _control_plane: ControlPlane,
}

impl Scene {
    async fn start(lists: bool) -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client().await?;
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("csi.sock");
        let driver = Driver::serve(&socket, lists)?;
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, account(&client, control_plane.kubeconfig(), "monitor", &RIGHTS).await?)?;
        let command = Command::try_parse_from([
            "health-monitor",
            &format!("--csi-address={}", socket.display()),
            &format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-election",
            "--leader-election-namespace=default",
            "--monitor-interval=500ms",
            "--list-volumes-interval=500ms",
            "--enable-node-watcher",
        ])?;
        let stop = CancellationToken::new();
        let monitor = tokio::spawn(health_monitor::run(command.args, stop.clone()));
        Ok(Self { client, driver, stop, monitor, _directory: directory, _control_plane: control_plane })
    }

    /// A volume of the driver that is bound to the claim `data`.
    async fn bound(&self, handle: &str) -> Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = json!({
            "metadata": {"name": handle},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": NAME, "volumeHandle": handle},
                "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default",
                    "name": "data", "uid": "6f1c2a34-0000-4000-8000-000000000001"},
            },
        });
        volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
        let status = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        volumes.patch_status(handle, &PatchParams::default(), &status).await?;
        Ok(())
    }

    /// Waits for an event on the claim, and gives its message.
    async fn event(&self, reason: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let query = ListParams::default().fields(&format!("involvedObject.name=data,reason={reason}"));
        eventually(&format!("an event {reason}"), SOON, async || {
            let list = events.list(&query).await.map_err(|error| error.to_string())?;
            list.items.into_iter().find_map(|event| event.message).ok_or_else(|| "there is none".to_owned())
        })
        .await
    }

    async fn end(self) -> Result<()> {
        self.stop.cancel();
        self.monitor.await??;
        Ok(())
    }
}

#[tokio::test]
async fn an_abnormal_volume_and_its_recovery_are_told_on_the_claim() -> Result<()> {
    for lists in [true, false] {
        let scene = Scene::start(lists).await?;
        scene.driver.set("volume-1", Some("the disk is failing"));
        scene.driver.set("somebody-elses", Some("nobody asks"));
        scene.bound("volume-1").await?;
        assert_eq!(scene.event("VolumeConditionAbnormal").await, "the disk is failing");
        scene.driver.set("volume-1", None);
        scene.event("VolumeConditionNormal").await;
        scene.end().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_node_that_fails_comes_back_and_goes_is_told_on_the_claims_of_its_pods() -> Result<()> {
    let scene = Scene::start(true).await?;
    scene.bound("volume-1").await?;
    let (nodes, pods): (Api<Node>, Api<Pod>) =
        (Api::all(scene.client.clone()), Api::namespaced(scene.client.clone(), "default"));
    nodes
        .create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "node-1"}}))?)
        .await?;
    let pod = json!({
        "metadata": {"name": "pod-1"},
        "spec": {
            "nodeName": "node-1", "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "none"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    });
    eventually("the namespace has its service account", SOON, async || {
        pods.create(&PostParams::default(), &serde_json::from_value(pod.clone()).expect("pod"))
            .await
            .map(drop)
    })
    .await;
    let ready = async |status: &str, minutes: i64| {
        let since = (Timestamp::now() - SignedDuration::from_mins(minutes)).to_string();
        let condition = json!({"type": "Ready", "status": status, "lastTransitionTime": since});
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        nodes.patch_status("node-1", &PatchParams::default(), &patch).await.map(drop)
    };
    ready("Unknown", 6).await?;
    let message = scene.event("NodeFailed").await;
    assert!(message.contains("node-1") && message.contains("pod-1"), "{message}");
    ready("True", 0).await?;
    scene.event("NodeRecovered").await;
    nodes.delete("node-1", &DeleteParams::default()).await?;
    let events: Api<Event> = Api::namespaced(scene.client.clone(), "default");
    eventually("the deletion is told", SOON, async || {
        let list = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let told =
            list.items.iter().any(|event| event.message.iter().any(|text| text.contains("was deleted")));
        if told { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    scene.end().await
}
