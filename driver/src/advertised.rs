//! What the plugin and its controller services can do: the same at the router and at each agent.

use dunnage_csi::v1::controller_service_capability::rpc::Type;
use dunnage_csi::v1::controller_service_capability::{self, Rpc};
use dunnage_csi::v1::plugin_capability::{self, Service, VolumeExpansion, service, volume_expansion};
use dunnage_csi::v1::{
    ControllerServiceCapability, GroupControllerGetCapabilitiesResponse, GroupControllerServiceCapability,
    PluginCapability, group_controller_service_capability as group,
};

/// The capabilities of the plugin as a whole.
pub(crate) fn plugin() -> Vec<PluginCapability> {
    let service = |kind: service::Type| plugin_capability::Type::Service(Service { r#type: kind.into() });
    let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
    [
        service(service::Type::ControllerService),
        service(service::Type::VolumeAccessibilityConstraints),
        service(service::Type::GroupControllerService),
        plugin_capability::Type::VolumeExpansion(online),
    ]
    .into_iter()
    .map(|kind| PluginCapability { r#type: Some(kind) })
    .collect()
}

/// The capabilities with or without attach, and with or without anything of a volume that can be modified. No
/// `LIST_VOLUMES_PUBLISHED_NODES`: node-local volumes have no use for it. The youngest comes last: a caller that does not
/// know it has seen the others then.
pub(crate) fn controller(attach: bool, modify: bool) -> Vec<ControllerServiceCapability> {
    let always = [
        Type::CreateDeleteVolume,
        Type::ListVolumes,
        Type::GetCapacity,
        Type::SingleNodeMultiWriter,
        Type::ExpandVolume,
        Type::CreateDeleteSnapshot,
        Type::ListSnapshots,
        Type::CloneVolume,
    ];
    let capability = |rpc: Type| ControllerServiceCapability {
        r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: rpc.into() })),
    };
    let some = [attach.then_some(Type::PublishUnpublishVolume), modify.then_some(Type::ModifyVolume)];
    let youngest = [Type::GetSnapshot];
    always.into_iter().chain(some.into_iter().flatten()).chain(youngest).map(capability).collect()
}

/// The capabilities of the group controller service.
pub(crate) fn group_controller() -> GroupControllerGetCapabilitiesResponse {
    let rpc = group::Rpc { r#type: group::rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() };
    let capability = GroupControllerServiceCapability { r#type: Some(group::Type::Rpc(rpc)) };
    GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] }
}
