//! A node in a temporary directory: a pool, kubelet's directory, and the driver between them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use dunnage_csi::v1::controller_server::Controller as _;
use dunnage_csi::v1::node_server::Node as _;
use dunnage_csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, ListVolumesRequest, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, Volume, VolumeCapability, VolumeUsage, volume_usage,
};
use dunnage_driver::id::PoolId;
use dunnage_driver::node::{Config, Driver};
use dunnage_driver::steps::Steps;
use dunnage_driver::{CopySettings, EngineKind, Overcommit, Reserve};
use dunnage_host::btrfs::is_btrfs;
use dunnage_host::dir::Dir;
use dunnage_host::mountinfo;
use tempfile::TempDir;
use tonic::{Request, Status};

use crate::{Disk, must, text};

pub const DRIVER: &str = "local.csi.dunnage.dev";
pub const NODE: &str = "node-1";
pub const BACKEND: &str = "11111111-2222-3333-4444-555555555555";
pub const POOL: &str = "0123456789abcdef";

pub fn pool_id() -> PoolId {
    POOL.parse().unwrap()
}

/// The node. When dropped it unmounts and detaches what is left, so that a failed test leaves nothing.
pub struct Lab {
    pub directory: TempDir,
    pub config: Config,
    pub driver: Option<Driver>,
    /// What the pool lies on, where the engine takes no other file system.
    pub disk: Option<Disk>,
    /// Where that disk lies, so that it is fast.
    memory: Option<TempDir>,
}

impl Lab {
    /// A node with a pool.
    pub fn new(engine: EngineKind) -> Self {
        Self::with(engine, |_| {})
    }

    /// A node with a pool and settings of its own.
    pub fn with(engine: EngineKind, change: impl FnOnce(&mut Config)) -> Self {
        let mut lab = Self::without_pool(engine, change);
        lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
        lab.restart();
        lab
    }

    /// A node whose pool's path is an empty directory.
    pub fn without_pool(engine: EngineKind, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::Builder::new().prefix("dunnage-driver-").tempdir().unwrap();
        // Mounts are listed by their real paths.
        let root = directory.path().canonicalize().unwrap();
        let mut config = Config {
            driver_name: DRIVER.into(),
            node_id: NODE.into(),
            version: "test".into(),
            engine,
            pool_path: root.join("pool"),
            backend_uid: BACKEND.into(),
            require_mount_point: false,
            attach: false,
            kubelet_dir: root.join("kubelet"),
            steps: Steps::default(),
            overcommit: Overcommit::default(),
            reserve: Reserve::default(),
            copies: CopySettings::default(),
        };
        change(&mut config);
        std::fs::create_dir_all(&config.pool_path).unwrap();
        std::fs::create_dir_all(config.kubelet_dir.join("plugins")).unwrap();
        std::fs::create_dir_all(config.kubelet_dir.join("pods")).unwrap();
        let mut lab = Self { directory, config, driver: None, disk: None, memory: None };
        if engine == EngineKind::Btrfs && !is_btrfs(&Dir::open(&lab.config.pool_path).unwrap()).unwrap() {
            lab.mount_disk(|directory| Disk::btrfs(directory, 2048));
        }
        lab.restart();
        lab
    }

    /// Gives the pool a disk of its own in memory.
    fn mount_disk(&mut self, make: impl FnOnce(&Path) -> Disk) {
        let memory = tempfile::Builder::new().prefix("dunnage-driver-").tempdir_in("/dev/shm").unwrap();
        let mut disk = make(memory.path());
        disk.mount(&self.config.pool_path);
        (self.disk, self.memory) = (Some(disk), Some(memory));
    }

    pub fn driver(&self) -> &Driver {
        self.driver.as_ref().unwrap()
    }

    /// A new process of the driver on the same node.
    pub fn restart(&mut self) {
        self.driver = None;
        self.driver = Some(Driver::open(self.config.clone()));
    }

    /// The node loses power: nothing is mounted or attached any more.
    pub fn reboot(&mut self) {
        self.driver = None;
        self.clear();
        self.restart();
    }

    pub fn root(&self) -> &Path {
        self.config.kubelet_dir.parent().unwrap()
    }

    pub fn staging(&self, name: &str) -> PathBuf {
        self.config.kubelet_dir.join("plugins").join(name)
    }

    pub fn target(&self, name: &str) -> PathBuf {
        self.config.kubelet_dir.join("pods").join(name)
    }

    pub fn volume_dir(&self, id: &str) -> PathBuf {
        self.config.pool_path.join("volumes").join(id)
    }

    pub async fn create(
        &self,
        name: &str,
        bytes: i64,
        capability: VolumeCapability,
    ) -> Result<Volume, Status> {
        self.create_with(name, bytes, capability, &[]).await
    }

    /// A volume of a class with parameters.
    pub async fn create_with(
        &self,
        name: &str,
        bytes: i64,
        capability: VolumeCapability,
        parameters: &[(&str, &str)],
    ) -> Result<Volume, Status> {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let request = CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![capability],
            parameters: parameters.collect(),
            ..CreateVolumeRequest::default()
        };
        let answer = self.driver().controller().create_volume(Request::new(request)).await?;
        Ok(answer.into_inner().volume.unwrap())
    }

    pub async fn delete(&self, id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: id.into(), ..DeleteVolumeRequest::default() };
        self.driver().controller().delete_volume(Request::new(request)).await.map(|_| ())
    }

    pub async fn attach(&self, id: &str, node: &str) -> Result<(), Status> {
        let request = ControllerPublishVolumeRequest {
            volume_id: id.into(),
            node_id: node.into(),
            volume_capability: Some(crate::mount("")),
            ..ControllerPublishVolumeRequest::default()
        };
        self.driver().controller().controller_publish_volume(Request::new(request)).await.map(|_| ())
    }

    pub async fn detach(&self, id: &str, node: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: id.into(),
            node_id: node.into(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        self.driver().controller().controller_unpublish_volume(Request::new(request)).await.map(|_| ())
    }

    pub async fn expand(&self, id: &str, bytes: i64) -> Result<ControllerExpandVolumeResponse, Status> {
        self.expand_within(id, bytes, 0).await
    }

    /// Asks for a size with a limit; a limit of 0 is none.
    pub async fn expand_within(
        &self,
        id: &str,
        required_bytes: i64,
        limit_bytes: i64,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.into(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
            ..ControllerExpandVolumeRequest::default()
        };
        let answer = self.driver().controller().controller_expand_volume(Request::new(request)).await?;
        Ok(answer.into_inner())
    }

    /// Lets what is staged grow, and tells the size.
    pub async fn expand_staged(&self, id: &str, required_bytes: i64) -> Result<i64, Status> {
        let request = NodeExpandVolumeRequest {
            volume_id: id.into(),
            volume_path: text(&self.staging(id)).into(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            ..NodeExpandVolumeRequest::default()
        };
        let answer = self.driver().node().node_expand_volume(Request::new(request)).await?;
        Ok(answer.into_inner().capacity_bytes)
    }

    /// The size that the list has for a volume.
    pub async fn listed_bytes(&self, id: &str) -> i64 {
        let request = Request::new(ListVolumesRequest::default());
        let list = self.driver().controller().list_volumes(request).await.unwrap().into_inner();
        let volumes = list.entries.into_iter().filter_map(|entry| entry.volume);
        volumes.filter(|volume| volume.volume_id == id).map(|volume| volume.capacity_bytes).sum()
    }

    /// The bytes of a published volume, as its pod has them.
    pub async fn bytes(&self, id: &str, target: &Path) -> VolumeUsage {
        let bytes = i32::from(volume_usage::Unit::Bytes);
        self.stats(id, target).await.usage.into_iter().find(|usage| usage.unit == bytes).unwrap()
    }

    pub async fn stats(&self, id: &str, target: &Path) -> NodeGetVolumeStatsResponse {
        let request = NodeGetVolumeStatsRequest {
            volume_id: id.into(),
            volume_path: text(target).into(),
            ..NodeGetVolumeStatsRequest::default()
        };
        self.driver().node().node_get_volume_stats(Request::new(request)).await.unwrap().into_inner()
    }

    /// Stages at the staging path of the volume's own id.
    pub async fn stage(&self, id: &str, capability: VolumeCapability) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&self.staging(id)).into(),
            volume_capability: Some(capability),
            ..NodeStageVolumeRequest::default()
        };
        self.driver().node().node_stage_volume(Request::new(request)).await.map(|_| ())
    }

    pub async fn unstage(&self, id: &str) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&self.staging(id)).into(),
        };
        self.driver().node().node_unstage_volume(Request::new(request)).await.map(|_| ())
    }

    pub async fn publish(
        &self,
        id: &str,
        target: &Path,
        capability: VolumeCapability,
        readonly: bool,
    ) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&self.staging(id)).into(),
            target_path: text(target).into(),
            volume_capability: Some(capability),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        self.driver().node().node_publish_volume(Request::new(request)).await.map(|_| ())
    }

    pub async fn unpublish(&self, id: &str, target: &Path) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: text(target).into() };
        self.driver().node().node_unpublish_volume(Request::new(request)).await.map(|_| ())
    }

    /// Stages the volume and publishes it to a pod; gives where.
    pub async fn to_pod(&self, id: &str, pod: &str, capability: VolumeCapability) -> PathBuf {
        self.stage(id, capability.clone()).await.unwrap();
        let target = self.target(pod);
        self.publish(id, &target, capability, false).await.unwrap();
        target
    }

    /// Takes the volume from its only pod again, and from the node.
    pub async fn from_pod(&self, id: &str, pod: &str) {
        self.unpublish(id, &self.target(pod)).await.unwrap();
        self.unstage(id).await.unwrap();
    }

    /// All mounts below the node's directory, but for the pool's own disk.
    pub fn mounts(&self) -> Vec<PathBuf> {
        mountinfo::read()
            .unwrap()
            .into_iter()
            .map(|mount| mount.mount_point)
            .filter(|path| path.starts_with(self.root()) && *path != self.config.pool_path)
            .collect()
    }

    /// Loop devices whose image lies in the pool.
    pub fn loops(&self) -> Vec<PathBuf> {
        let mut loops = Vec::new();
        for entry in std::fs::read_dir("/sys/block").unwrap().flatten() {
            if let Ok(image) = std::fs::read_to_string(entry.path().join("loop/backing_file"))
                && image.contains(&*self.root().file_name().unwrap().to_string_lossy())
                && image.contains("/image")
            {
                loops.push(Path::new("/dev").join(entry.file_name()));
            }
        }
        loops
    }

    /// Nothing mounted, nothing attached, and in the end nothing on the disk.
    pub fn assert_clean(&self) {
        assert_eq!(self.mounts(), Vec::<PathBuf>::new());
        assert_eq!(self.loops(), Vec::<PathBuf>::new());
        for directory in ["volumes", "snapshots", "trash"] {
            let path = self.config.pool_path.join(directory);
            eventually(&format!("{} is empty", path.display()), || {
                std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none())
            });
        }
    }

    fn clear(&self) {
        let mut mounts = self.mounts();
        mounts.reverse();
        // A frozen one would keep its writers and this test waiting for ever.
        for mount in &mounts {
            let _ = Command::new("fsfreeze").arg("-u").arg(mount).output();
        }
        for mount in mounts {
            let _ = Command::new("umount").arg(mount).status();
        }
        for device in self.loops() {
            let _ = Command::new("losetup").arg("-d").arg(device).status();
        }
    }

    /// Mounts a directory at another place as well, as kubelet does.
    pub fn bind(&self, source: &Path, at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        must("mount", &["--bind", text(source), text(at)]);
    }

    /// Kubelet's directory as it is seen outside of the driver's container: what is mounted in one is mounted in the other.
    /// Both mounts are the caller's to unbind.
    pub fn share(&self, outside: &Path) {
        let inside = &self.config.kubelet_dir;
        self.bind(inside, inside);
        must("mount", &["--make-shared", text(inside)]);
        self.bind(inside, outside);
    }

    pub fn unbind(&self, at: &Path) {
        must("umount", &[text(at)]);
    }

    /// Gives back all blocks of an image that hold nothing but zeros.
    pub fn dig_holes(&self, id: &str) {
        must("fallocate", &["--dig-holes", text(&self.volume_dir(id).join("image"))]);
    }

    /// Makes the image larger, as an expansion that could not reach the file system leaves it.
    pub fn enlarge_image(&self, id: &str, bytes: u64) {
        must("fallocate", &["-l", &bytes.to_string(), text(&self.volume_dir(id).join("image"))]);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.driver = None;
        self.clear();
        // Before the directory that it is mounted in.
        self.disk = None;
    }
}

/// Whether the kernel lets this process grow every mounted file system: ext4 asks for `CAP_SYS_RESOURCE`.
pub fn grows_ext4_mounted() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(effective.trim(), 16).unwrap() & CAP_SYS_RESOURCE != 0
}

/// An address that nothing listens on, and that no other test is given: each has a loopback address of its own.
pub fn free_address() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, high | 1, low, COUNT.fetch_add(1, Ordering::Relaxed));
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

/// Waits for what must become true.
pub fn eventually(what: &str, check: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !check() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
