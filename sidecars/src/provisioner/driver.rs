//! The calls that the provisioner makes, and what it needs to know of the driver.

use std::collections::HashMap;
use std::time::Duration;

use dunnage_csi::metadata::UNWANTED;
use dunnage_csi::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, GetCapacityRequest, GetCapacityResponse, Topology, Volume,
};
use tonic::Status;
use tonic::metadata::MetadataValue;

use super::access::SingleNode;
use super::topology::Segment;
use crate::runtime::{self, ControllerCapability, PluginCapability};

/// What the driver says it can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "one answer for each capability that matters here")]
pub struct Can {
    pub create_and_delete: bool,
    pub publish: bool,
    pub tell_capacity: bool,
    pub clone: bool,
    pub snapshot: bool,
    pub modify: bool,
    pub topology: bool,
    pub tell_writers_apart: bool,
}

impl Can {
    fn of(driver: &runtime::Driver) -> Self {
        Self {
            create_and_delete: driver.has(PluginCapability::ControllerService)
                && driver.can(ControllerCapability::CreateDeleteVolume),
            publish: driver.can(ControllerCapability::PublishUnpublishVolume),
            tell_capacity: driver.can(ControllerCapability::GetCapacity),
            clone: driver.can(ControllerCapability::CloneVolume),
            snapshot: driver.can(ControllerCapability::CreateDeleteSnapshot),
            modify: driver.can(ControllerCapability::ModifyVolume),
            topology: driver.has(PluginCapability::VolumeAccessibilityConstraints),
            tell_writers_apart: driver.can(ControllerCapability::SingleNodeMultiWriter),
        }
    }

    pub fn single_node(self) -> SingleNode {
        if self.tell_writers_apart { SingleNode::MultiWriter } else { SingleNode::Plain }
    }
}

/// The driver.
#[derive(Clone)]
pub struct Driver {
    pub name: String,
    pub can: Can,
    connected: runtime::Driver,
    timeout: Duration,
}

impl Driver {
    pub fn new(connected: runtime::Driver, timeout: Duration) -> Self {
        Self { name: connected.name().to_owned(), can: Can::of(&connected), connected, timeout }
    }

    /// `wanted` tells whether anybody waits for the volume still; a driver of ours gives up a copy for nobody.
    pub async fn create_volume(&self, request: CreateVolumeRequest, wanted: bool) -> Result<Volume, Status> {
        let method = "/csi.v1.Controller/CreateVolume";
        let call =
            self.connected.controller(method, self.timeout, request, async |mut client, mut request| {
                if !wanted {
                    request.metadata_mut().insert(UNWANTED, MetadataValue::from_static("true"));
                }
                client.create_volume(request).await
            });
        Ok(call.await?.volume.unwrap_or_default())
    }

    pub async fn delete_volume(&self, id: &str, secrets: HashMap<String, String>) -> Result<(), Status> {
        let method = "/csi.v1.Controller/DeleteVolume";
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), secrets };
        let call = self.connected.controller(method, self.timeout, request, async |mut client, request| {
            client.delete_volume(request).await
        });
        call.await.map(drop)
    }

    pub async fn capacity(
        &self,
        segment: &Segment,
        parameters: HashMap<String, String>,
    ) -> Result<GetCapacityResponse, Status> {
        let method = "/csi.v1.Controller/GetCapacity";
        let segments: HashMap<String, String> = segment.clone().into_iter().collect();
        let accessible_topology = (!segments.is_empty()).then_some(Topology { segments });
        let request = GetCapacityRequest { parameters, accessible_topology, ..GetCapacityRequest::default() };
        let call = self.connected.controller(method, self.timeout, request, async |mut client, request| {
            client.get_capacity(request).await
        });
        call.await
    }
}

/// How an answer of the driver shows to people.
pub fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}
