//! The annotations, finalizers and attribute names that provisioners have in common.

pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub const STORAGE_PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
pub const STORAGE_CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const SELECTED_NODE_ALPHA: &str = "volume.alpha.kubernetes.io/selected-node";
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
pub const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";

pub const VOLUME_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
pub const CLONE_FINALIZER: &str = "provisioner.storage.kubernetes.io/cloning-protection";
pub const SNAPSHOT_FINALIZER: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
pub const ALLOW_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

pub const IDENTITY_ATTRIBUTE: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// The prefix of StorageClass parameters that are meant for the provisioner and not for the driver.
pub const PARAMETER_PREFIX: &str = "csi.storage.k8s.io/";

/// The name of a claim's volume, for the driver and as a PersistentVolume.
///
/// `uuid_length` below 0 keeps the UID as it is; otherwise its dashes are dropped and it is cut.
pub fn volume_name(prefix: &str, uuid_length: i32, uid: &str) -> String {
    let Ok(length) = usize::try_from(uuid_length) else { return format!("{prefix}-{uid}") };
    let uid: String = uid.chars().filter(|&c| c != '-').take(length).collect();
    format!("{prefix}-{uid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_named_after_its_claims_uid() {
        let uid = "0b2c1d3e-0000-4000-8000-0123456789ab";
        for (length, expected) in [
            (-1, "pvc-0b2c1d3e-0000-4000-8000-0123456789ab"),
            (8, "pvc-0b2c1d3e"),
            (12, "pvc-0b2c1d3e0000"),
            (99, "pvc-0b2c1d3e0000400080000123456789ab"),
        ] {
            assert_eq!(volume_name("pvc", length, uid), expected);
        }
    }
}
