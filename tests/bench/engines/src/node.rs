//! The driver as a process of its own, and the calls to it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use dunnage_csi::uds;
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::identity_client::IdentityClient;
use dunnage_csi::v1::node_client::NodeClient;
use dunnage_csi::v1::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    ProbeRequest, VolumeCapability, VolumeContentSource,
};
use dunnage_driver::node::{Config, Driver};
use dunnage_driver::steps::Steps;
use dunnage_driver::{CopySettings, Overcommit, Reserve};
use dunnage_tests_driver::{BACKEND, DRIVER, NODE, free_address, pool_id};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tonic::transport::Channel;

use crate::pools::{Place, Pool};

/// A driver that serves.
pub(crate) struct Node {
    process: Child,
    channel: Channel,
    kubelet: PathBuf,
    /// From the start of the process to its first answer that it is ready.
    pub(crate) started_in: Duration,
}

/// Makes the pool, which the operator would ask for.
fn make_pool(pool: &Pool, place: &Place) -> anyhow::Result<()> {
    let config = Config {
        driver_name: DRIVER.into(),
        node_id: NODE.into(),
        version: "bench".into(),
        engine: pool.engine,
        pool_path: place.pool(),
        backend_uid: BACKEND.into(),
        require_mount_point: false,
        attach: false,
        kubelet_dir: place.kubelet(),
        steps: Steps::default(),
        overcommit: Overcommit::default(),
        reserve: Reserve::default(),
        copies: CopySettings::default(),
    };
    Driver::open(config).init_pool(&pool_id(), BACKEND).map_err(|error| anyhow::anyhow!("{error}"))
}

impl Node {
    /// Starts it on a pool, which is made if it is not there.
    #[expect(
        clippy::disallowed_methods,
        reason = "the program is what is measured; the rule guards the product"
    )]
    pub(crate) async fn start(program: &Path, pool: &Pool, place: &Place) -> anyhow::Result<Self> {
        if !place.pool().join(".dunnage").exists() {
            make_pool(pool, place)?;
        }
        let socket = place.socket();
        let began = Instant::now();
        let process = Command::new(program)
            .args(["driver", "--mode=node", "--log-level=error", "--overcommit-ratio=100"])
            .arg(format!("--engine={}", pool.engine_name()))
            .arg(format!("--driver-name={DRIVER}"))
            .arg(format!("--node-id={NODE}"))
            .arg(format!("--backend-uid={BACKEND}"))
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!("--pool-path={}", place.pool().display()))
            .arg(format!("--kubelet-dir={}", place.kubelet().display()))
            .arg(format!("--tls-dir={}", place.tls.display()))
            .arg(format!("--agent-address={}", free_address()))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| program.display().to_string())?;
        let channel = loop {
            if let Ok(channel) = uds::connect(&socket.display().to_string()).await
                && let Ok(answer) = IdentityClient::new(channel.clone()).probe(ProbeRequest {}).await
                && answer.into_inner().ready == Some(true)
            {
                break channel;
            }
            if began.elapsed() > Duration::from_secs(120) {
                bail!("the driver is not ready after two minutes");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        Ok(Self { process, channel, kubelet: place.kubelet(), started_in: began.elapsed() })
    }

    /// Ends it as kubelet would.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let id = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("it has ended")?;
        kill_process(id, Signal::TERM)?;
        self.process.wait().await?;
        Ok(())
    }

    /// Anonymous and resident memory of the process, in MiB.
    pub(crate) fn memory(&self) -> anyhow::Result<(f64, f64)> {
        let id = self.process.id().context("the driver has ended")?;
        let rollup = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup"))?;
        let of = |key: &str| -> Option<f64> {
            let line = rollup.lines().find(|line| line.starts_with(key))?;
            Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
        };
        of("Anonymous:").zip(of("Rss:")).context("no memory is told")
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.kubelet.join("pods").join(name)
    }

    fn staging(&self, name: &str) -> String {
        self.kubelet.join("plugins").join(name).display().to_string()
    }

    pub(crate) async fn create(
        &self,
        name: &str,
        bytes: i64,
        capability: &VolumeCapability,
        parameters: &[(&str, &str)],
        source: Option<VolumeContentSource>,
    ) -> anyhow::Result<String> {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![capability.clone()],
            parameters: parameters.collect(),
            volume_content_source: source,
            ..CreateVolumeRequest::default()
        };
        let made = self.controller().create_volume(request).await?.into_inner();
        Ok(made.volume.context("no volume in the answer")?.volume_id)
    }

    pub(crate) async fn delete(&self, id: &str) -> anyhow::Result<()> {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
        self.controller().delete_volume(request).await?;
        Ok(())
    }

    pub(crate) async fn stage(&self, id: &str, capability: &VolumeCapability) -> anyhow::Result<()> {
        let request = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.staging(id),
            volume_capability: Some(capability.clone()),
            ..NodeStageVolumeRequest::default()
        };
        self.node().node_stage_volume(request).await?;
        Ok(())
    }

    /// Publishes it to a pod of the volume's own id; gives where.
    pub(crate) async fn publish(&self, id: &str, capability: &VolumeCapability) -> anyhow::Result<PathBuf> {
        let target = self.target(id);
        let request = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.staging(id),
            target_path: target.display().to_string(),
            volume_capability: Some(capability.clone()),
            ..NodePublishVolumeRequest::default()
        };
        self.node().node_publish_volume(request).await?;
        Ok(target)
    }

    pub(crate) async fn unpublish(&self, id: &str) -> anyhow::Result<()> {
        let target_path = self.target(id).display().to_string();
        let request = NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path };
        self.node().node_unpublish_volume(request).await?;
        Ok(())
    }

    pub(crate) async fn unstage(&self, id: &str) -> anyhow::Result<()> {
        let staging_target_path = self.staging(id);
        let request = NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path };
        self.node().node_unstage_volume(request).await?;
        Ok(())
    }

    pub(crate) async fn snapshot(&self, name: &str, volume: &str) -> anyhow::Result<String> {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            ..CreateSnapshotRequest::default()
        };
        let made = self.controller().create_snapshot(request).await?.into_inner();
        Ok(made.snapshot.context("no snapshot in the answer")?.snapshot_id)
    }

    pub(crate) async fn delete_snapshot(&self, id: &str) -> anyhow::Result<()> {
        let request =
            DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() };
        self.controller().delete_snapshot(request).await?;
        Ok(())
    }
}
