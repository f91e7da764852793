//! The `CSIDriver` object: what Kubernetes is to do around the driver's calls.

use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec};

use super::View;

pub(super) fn csi_driver(view: &View<'_>) -> CSIDriver {
    CSIDriver {
        metadata: view.cluster_meta(&view.driver),
        spec: CSIDriverSpec {
            attach_required: Some(view.attach),
            fs_group_policy: Some("File".to_owned()),
            // Only so does the driver learn that a volume is a pod's own.
            pod_info_on_mount: Some(true),
            requires_republish: Some(false),
            se_linux_mount: Some(false),
            storage_capacity: Some(true),
            volume_lifecycle_modes: Some(vec!["Persistent".to_owned(), "Ephemeral".to_owned()]),
            ..CSIDriverSpec::default()
        },
    }
}
