//! What to do with an attachment: pure.

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};

use dunnage_cluster::finalizer::has;

use crate::access;
use crate::secret;

/// Keeps the driver's id of the node for the time when the node is gone.
pub(super) const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// How attachments are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handling {
    /// The driver has nothing to attach: all is attached at once.
    Trivial,
    /// By calls of the driver, which may also list what is published.
    Calls { listed: bool },
}

/// What holds for all attachments of a process.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) driver: String,
    pub(super) finalizer: String,
    /// The driver honours read-only.
    pub(super) read_only: bool,
    pub(super) access: access::Rules,
    /// Whether errors carry the gRPC code.
    pub(super) error_codes: bool,
}

/// The finalizer of `driver` on volumes and attachments.
pub(super) fn finalizer(driver: &str) -> String {
    let name: String = driver.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("external-attacher/{name}")
}

/// What an attachment needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Say that it is attached, without a call.
    Confirm,
    Attach,
    Detach,
}

/// `forced`: the driver's own list says other than the status.
pub(super) fn step(attachment: &VolumeAttachment, rules: &Rules, handling: Handling, forced: bool) -> Step {
    if attachment.spec.attacher != rules.driver {
        return Step::Nothing;
    }
    let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
    if handling == Handling::Trivial {
        return if attached { Step::Nothing } else { Step::Confirm };
    }
    let deleting = attachment.metadata.deletion_timestamp.is_some();
    match deleting {
        false if attached && !forced => Step::Nothing,
        false => Step::Attach,
        true if !has(&attachment.metadata, &rules.finalizer) && !forced => Step::Nothing,
        true => Step::Detach,
    }
}

/// An object that nobody can attach as it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    #[error("neither persistentVolumeName nor inlineVolumeSpec is given, or both are")]
    Source,
    #[error("PersistentVolume {0:?} is not there")]
    NoVolume(String),
    #[error("PersistentVolume {0:?} is marked for deletion")]
    Deleting(String),
    #[error("the volume is no CSI volume")]
    NotCsi,
    #[error("the volume is of driver {0:?}")]
    OtherDriver(String),
    #[error(
        "node {node:?} has no CSINode entry for driver {driver:?}: is the driver's node plugin running there?"
    )]
    NoNode { node: String, driver: String },
}

/// The CSI part of a volume of our driver.
pub(super) fn csi<'a>(
    spec: &'a PersistentVolumeSpec,
    rules: &Rules,
) -> Result<&'a CSIPersistentVolumeSource, Invalid> {
    let csi = spec.csi.as_ref().ok_or(Invalid::NotCsi)?;
    if csi.driver == rules.driver { Ok(csi) } else { Err(Invalid::OtherDriver(csi.driver.clone())) }
}

/// Where the secret for publishing is, if the volume names one.
pub(super) fn secret(csi: &CSIPersistentVolumeSource) -> Result<Option<secret::Place<'_>>, secret::Invalid> {
    secret::place("controllerPublishSecretRef", csi.controller_publish_secret_ref.as_ref())
}

/// Whether the driver's id of a node may come from the attachment's note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// To attach: a node plugin must be there.
    No,
    /// To detach: the node may be gone.
    Noted,
}

/// The driver's id of the attachment's node.
pub(super) fn node_id(
    attachment: &VolumeAttachment,
    node: Option<&CSINode>,
    rules: &Rules,
    fallback: Fallback,
) -> Result<String, Invalid> {
    let registered = node.and_then(|node| node.spec.drivers.iter().find(|found| found.name == rules.driver));
    let noted = attachment.metadata.annotations.as_ref().and_then(|notes| notes.get(NODE_ID));
    registered
        .map(|found| &found.node_id)
        .or(noted.filter(|_| fallback == Fallback::Noted))
        .cloned()
        .ok_or_else(|| Invalid::NoNode {
            node: attachment.spec.node_name.clone(),
            driver: rules.driver.clone(),
        })
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in crate::attacher) fn rules() -> Rules {
        Rules {
            driver: "test.csi.dunnage.dev".to_owned(),
            finalizer: finalizer("test.csi.dunnage.dev"),
            read_only: false,
            access: access::Rules::default(),
            error_codes: true,
        }
    }

    pub(in crate::attacher) fn attachment(metadata: Value, attached: Option<bool>) -> VolumeAttachment {
        serde_json::from_value(json!({
            "metadata": metadata,
            "spec": {"attacher": "test.csi.dunnage.dev", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
            "status": attached.map(|attached| json!({"attached": attached})),
        }))
        .expect("an attachment")
    }

    #[test]
    fn the_finalizer_has_the_drivers_name_without_what_a_finalizer_may_not_have() {
        assert_eq!(finalizer("hostpath.csi.k8s.io"), "external-attacher/hostpath-csi-k8s-io");
    }

    #[test]
    fn an_attachment_is_attached_once_and_detached_while_our_finalizer_is_there() {
        let ours = json!({"finalizers": ["external-attacher/test-csi-dunnage-dev"]});
        let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let deleting_ours = json!({"deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["external-attacher/test-csi-dunnage-dev"]});
        let calls = Handling::Calls { listed: false };
        for (metadata, attached, forced, expected) in [
            (json!({}), None, false, Step::Attach),
            (json!({}), Some(false), false, Step::Attach),
            (ours.clone(), Some(true), false, Step::Nothing),
            (ours, Some(true), true, Step::Attach),
            (deleting.clone(), None, false, Step::Nothing),
            (deleting.clone(), Some(true), false, Step::Nothing),
            (deleting, None, true, Step::Detach),
            (deleting_ours.clone(), Some(true), false, Step::Detach),
            (deleting_ours, Some(false), false, Step::Detach),
        ] {
            let attachment = attachment(metadata, attached);
            assert_eq!(step(&attachment, &rules(), calls, forced), expected, "{attachment:?} {forced}");
        }
    }

    #[test]
    fn the_trivial_way_only_confirms() {
        for (attached, expected) in
            [(None, Step::Confirm), (Some(false), Step::Confirm), (Some(true), Step::Nothing)]
        {
            assert_eq!(step(&attachment(json!({}), attached), &rules(), Handling::Trivial, false), expected);
        }
    }

    #[test]
    fn other_drivers_attachments_are_not_touched() {
        let mut other = attachment(json!({}), None);
        other.spec.attacher = "other".to_owned();
        for handling in [Handling::Trivial, Handling::Calls { listed: true }] {
            assert_eq!(step(&other, &rules(), handling, true), Step::Nothing);
        }
    }

    #[test]
    fn the_noted_node_id_counts_only_for_detaching_without_an_entry() {
        let noted = attachment(json!({"annotations": {NODE_ID: "old-id"}}), None);
        let plain = attachment(json!({}), None);
        let drivers =
            json!([{"name": "other", "nodeID": "x"}, {"name": "test.csi.dunnage.dev", "nodeID": "id"}]);
        let node: CSINode =
            serde_json::from_value(json!({"metadata": {}, "spec": {"drivers": drivers}})).expect("node");
        let empty: CSINode =
            serde_json::from_value(json!({"metadata": {}, "spec": {"drivers": []}})).expect("node");
        for (attachment, node, fallback, expected) in [
            (&noted, Some(&node), Fallback::No, Some("id")),
            (&noted, Some(&node), Fallback::Noted, Some("id")),
            (&noted, Some(&empty), Fallback::Noted, Some("old-id")),
            (&noted, None, Fallback::Noted, Some("old-id")),
            (&noted, None, Fallback::No, None),
            (&plain, Some(&empty), Fallback::Noted, None),
        ] {
            let found = node_id(attachment, node, &rules(), fallback);
            assert_eq!(found.ok().as_deref(), expected, "{attachment:?} {node:?} {fallback:?}");
        }
    }

    #[test]
    fn only_volumes_of_our_driver_are_published() {
        let spec =
            |csi: Value| serde_json::from_value::<PersistentVolumeSpec>(json!({"csi": csi})).expect("spec");
        let ours = json!({"driver": "test.csi.dunnage.dev", "volumeHandle": "h"});
        assert_eq!(csi(&spec(ours), &rules()).map(|csi| csi.volume_handle.clone()), Ok("h".to_owned()));
        let other = json!({"driver": "other", "volumeHandle": "h"});
        assert_eq!(csi(&spec(other), &rules()).err(), Some(Invalid::OtherDriver("other".to_owned())));
        assert_eq!(csi(&PersistentVolumeSpec::default(), &rules()).err(), Some(Invalid::NotCsi));
    }
}
