//! Snapshots of a node's own pool, and volumes made from them.

use std::path::{Path, PathBuf};
use std::process::Command;

use dunnage_csi::v1::controller_server::Controller as _;
use dunnage_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use dunnage_csi::v1::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, GetSnapshotRequest,
    ListSnapshotsRequest, Snapshot, Volume, VolumeCapability, VolumeContentSource,
};
use tonic::{Request, Status};

use crate::Lab;

/// A snapshot as the source of a volume.
pub fn from_snapshot(id: &str) -> VolumeContentSource {
    VolumeContentSource { r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id: id.into() })) }
}

/// A volume as the source of another.
pub fn from_volume(id: &str) -> VolumeContentSource {
    VolumeContentSource { r#type: Some(Type::Volume(VolumeSource { volume_id: id.into() })) }
}

/// Freezes (`-f`) or thaws (`-u`) a file system by hand, and tells whether that could be done.
pub fn fsfreeze(option: &str, at: &Path) -> bool {
    Command::new("fsfreeze").arg(option).arg(at).output().unwrap().status.success()
}

/// Runs a script in a directory, and gives back what it wrote.
pub fn shell(script: &str, at: &Path, argument: &Path) -> String {
    let output =
        Command::new("sh").args(["-c", script, "sh"]).arg(argument).current_dir(at).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Lab {
    pub async fn snapshot(&self, name: &str, volume: &str) -> Result<Snapshot, Status> {
        let request = CreateSnapshotRequest {
            name: name.into(),
            source_volume_id: volume.into(),
            ..CreateSnapshotRequest::default()
        };
        let made = self.driver().controller().create_snapshot(Request::new(request)).await?;
        Ok(made.into_inner().snapshot.unwrap())
    }

    pub async fn get_snapshot(&self, id: &str) -> Result<Snapshot, Status> {
        let request = GetSnapshotRequest { snapshot_id: id.into(), ..GetSnapshotRequest::default() };
        let found = self.driver().controller().get_snapshot(Request::new(request)).await?;
        Ok(found.into_inner().snapshot.unwrap())
    }

    pub async fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        let request = DeleteSnapshotRequest { snapshot_id: id.into(), ..DeleteSnapshotRequest::default() };
        self.driver().controller().delete_snapshot(Request::new(request)).await.map(|_| ())
    }

    pub async fn snapshots(&self, request: ListSnapshotsRequest) -> Result<(Vec<Snapshot>, String), Status> {
        let listed = self.driver().controller().list_snapshots(Request::new(request)).await?.into_inner();
        let snapshots = listed.entries.into_iter().map(|entry| entry.snapshot.unwrap());
        Ok((snapshots.collect(), listed.next_token))
    }

    /// Makes a volume from a source.
    pub async fn create_from(
        &self,
        source: VolumeContentSource,
        name: &str,
        bytes: i64,
        capability: VolumeCapability,
    ) -> Result<Volume, Status> {
        let request = CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![capability],
            volume_content_source: Some(source),
            ..CreateVolumeRequest::default()
        };
        let made = self.driver().controller().create_volume(Request::new(request)).await?;
        Ok(made.into_inner().volume.unwrap())
    }

    pub fn snapshot_dir(&self, id: &str) -> PathBuf {
        self.config.pool_path.join("snapshots").join(id)
    }
}
