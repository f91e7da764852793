//! What the controller service can do: the same at the router and at each agent.

use dunnage_csi::v1::ControllerServiceCapability;
use dunnage_csi::v1::controller_service_capability::rpc::Type;
use dunnage_csi::v1::controller_service_capability::{self, Rpc};

/// The capabilities with or without attach. No `LIST_VOLUMES_PUBLISHED_NODES`: node-local volumes have no use for it.
pub(crate) fn controller(attach: bool) -> Vec<ControllerServiceCapability> {
    let always = [
        Type::CreateDeleteVolume,
        Type::ListVolumes,
        Type::GetCapacity,
        Type::SingleNodeMultiWriter,
        Type::CreateDeleteSnapshot,
        Type::ListSnapshots,
        Type::CloneVolume,
    ];
    let capability = |rpc: Type| ControllerServiceCapability {
        r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: rpc.into() })),
    };
    always.into_iter().chain(attach.then_some(Type::PublishUnpublishVolume)).map(capability).collect()
}
