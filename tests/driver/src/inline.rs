//! Volumes that a pod has in its own spec, as kubelet speaks of them.

use std::path::{Path, PathBuf};

use dunnage_csi::v1::NodePublishVolumeRequest;
use dunnage_csi::v1::node_server::Node as _;
use dunnage_driver::id::VolumeId;
use tonic::{Request, Status};

use crate::{Lab, mount, pool_id, text};

/// Kubelet's id of a pod's only inline volume.
pub fn inline_id(pod: &str) -> String {
    let number = pod.bytes().fold(0_u128, |number, byte| number << 8 | u128::from(byte));
    format!("csi-{number:064x}")
}

/// The id of that volume in the pool.
pub fn id_in_pool(pod: &str) -> String {
    VolumeId::inline(&pool_id(), &inline_id(pod).parse().unwrap()).to_string()
}

impl Lab {
    /// Where kubelet wants the volume of a pod, in a directory that it makes before it asks for it.
    pub fn pod_target(&self, pod: &str) -> PathBuf {
        let volume = self.target(pod).join("volumes/kubernetes.io~csi/scratch");
        std::fs::create_dir_all(&volume).unwrap();
        volume.join("mount")
    }

    /// Kubelet forgets the pod, and its directory is gone.
    pub fn forget_pod(&self, pod: &str) {
        if self.target(pod).exists() {
            std::fs::remove_dir_all(self.target(pod)).unwrap();
        }
    }

    /// What kubelet asks for the inline volume of a pod.
    pub fn inline_request(
        &self,
        pod: &str,
        fs_type: &str,
        attributes: &[(&str, &str)],
    ) -> NodePublishVolumeRequest {
        let kubelets = [
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/pod.name", pod),
            ("csi.storage.k8s.io/pod.namespace", "shop"),
        ];
        let context = attributes.iter().chain(&kubelets);
        NodePublishVolumeRequest {
            volume_id: inline_id(pod),
            target_path: text(&self.pod_target(pod)).into(),
            volume_capability: Some(mount(fs_type)),
            volume_context: context.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..NodePublishVolumeRequest::default()
        }
    }

    /// Publishes the inline volume of a pod; gives where.
    pub async fn publish_inline(
        &self,
        pod: &str,
        fs_type: &str,
        attributes: &[(&str, &str)],
    ) -> Result<PathBuf, Status> {
        let request = self.inline_request(pod, fs_type, attributes);
        let target = PathBuf::from(&request.target_path);
        self.driver().node().node_publish_volume(Request::new(request)).await.map(|_| target)
    }

    /// Unpublishes it, which ends it.
    pub async fn unpublish_inline(&self, pod: &str) -> Result<(), Status> {
        let target = self.target(pod).join("volumes/kubernetes.io~csi/scratch/mount");
        self.unpublish(&inline_id(pod), &target).await
    }

    /// What the driver does now and then.
    pub async fn tick(&self) {
        let driver = self.driver().clone();
        tokio::task::spawn_blocking(move || driver.tick()).await.unwrap();
    }

    /// Whether the pool still has the volume of a pod.
    pub fn has_inline(&self, pod: &str) -> bool {
        Path::exists(&self.volume_dir(&id_in_pool(pod)))
    }
}
