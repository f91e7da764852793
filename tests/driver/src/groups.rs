//! Group snapshots of a node's own pool.

use dunnage_csi::v1::group_controller_server::GroupController as _;
use dunnage_csi::v1::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    VolumeGroupSnapshot,
};
use tonic::{Request, Status};

use crate::Lab;

/// A request for a group snapshot of volumes.
pub fn group_request(name: &str, volumes: &[&str]) -> CreateVolumeGroupSnapshotRequest {
    CreateVolumeGroupSnapshotRequest {
        name: name.into(),
        source_volume_ids: volumes.iter().map(|id| (*id).to_owned()).collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    }
}

/// The ids of a group's snapshots, as later requests name them.
pub fn members(group: &VolumeGroupSnapshot) -> Vec<String> {
    group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect()
}

impl Lab {
    pub async fn group(&self, name: &str, volumes: &[&str]) -> Result<VolumeGroupSnapshot, Status> {
        let request = Request::new(group_request(name, volumes));
        let made = self.driver().group_controller().create_volume_group_snapshot(request).await?;
        Ok(made.into_inner().group_snapshot.unwrap())
    }

    pub async fn get_group(&self, id: &str, snapshots: &[String]) -> Result<VolumeGroupSnapshot, Status> {
        let request = GetVolumeGroupSnapshotRequest {
            group_snapshot_id: id.into(),
            snapshot_ids: snapshots.to_vec(),
            ..GetVolumeGroupSnapshotRequest::default()
        };
        let found = self.driver().group_controller().get_volume_group_snapshot(Request::new(request)).await?;
        Ok(found.into_inner().group_snapshot.unwrap())
    }

    pub async fn delete_group(&self, id: &str, snapshots: &[String]) -> Result<(), Status> {
        let request = DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: id.into(),
            snapshot_ids: snapshots.to_vec(),
            ..DeleteVolumeGroupSnapshotRequest::default()
        };
        let service = self.driver().group_controller();
        service.delete_volume_group_snapshot(Request::new(request)).await.map(|_| ())
    }
}
