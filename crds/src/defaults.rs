//! What a spec means where it is silent.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::{BackendType, StorageBackend, StorageBackendSpec, StorageClassSpec};

/// Where kubelets keep their files unless told otherwise.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";

/// The CSI driver's name.
pub fn driver_name(backend: &StorageBackend) -> String {
    backend.spec.driver_name.clone().unwrap_or_else(|| format!("{}.csi.dunnage.dev", backend.name_any()))
}

/// The node label that names a node's pool.
pub fn topology_key(driver_name: &str) -> String {
    format!("topology.{driver_name}/pool")
}

/// The namespace of the backend's pods.
pub fn namespace<'a>(backend: &'a StorageBackend, operators: &'a str) -> &'a str {
    backend.spec.namespace.as_deref().unwrap_or(operators)
}

/// The `StorageClass` objects to see to: those listed, or one of the backend's name.
pub fn classes(backend: &StorageBackend) -> Vec<StorageClassSpec> {
    if backend.spec.classes.is_empty() {
        vec![StorageClassSpec { name: backend.name_any(), ..StorageClassSpec::default() }]
    } else {
        backend.spec.classes.clone()
    }
}

/// The pool's directory on each node and whether it must be a mount point, if the member of the type is there.
pub fn pool(spec: &StorageBackendSpec) -> Option<(&str, bool)> {
    match spec.type_ {
        BackendType::Directory => spec.directory.as_ref().map(|d| (d.path.as_str(), d.require_mount_point)),
        BackendType::LoopFile => spec.loop_file.as_ref().map(|l| (l.path.as_str(), l.require_mount_point)),
        BackendType::Btrfs => spec.btrfs.as_ref().map(|b| (b.path.as_str(), b.require_mount_point)),
    }
}

/// What the pool's volumes leave free, if the backend says so.
pub fn reserve(spec: &StorageBackendSpec) -> Option<&str> {
    match spec.type_ {
        BackendType::Directory => spec.directory.as_ref()?.reserve.as_deref(),
        BackendType::LoopFile => spec.loop_file.as_ref()?.reserve.as_deref(),
        BackendType::Btrfs => spec.btrfs.as_ref()?.reserve.as_deref(),
    }
}

/// Bytes that sparse volumes may promise for each 100 of the pool, if the backend says so.
pub fn overcommit_percent(spec: &StorageBackendSpec) -> Option<u32> {
    match spec.type_ {
        BackendType::Directory | BackendType::Btrfs => None,
        BackendType::LoopFile => spec.loop_file.as_ref()?.overcommit_percent,
    }
}

/// Whether the backend wants a node with these labels.
pub fn selects(spec: &StorageBackendSpec, labels: &BTreeMap<String, String>) -> bool {
    let selector = spec.nodes.as_ref().and_then(|nodes| nodes.selector.as_ref());
    selector.is_none_or(|selector| selector.matches(labels))
}

/// The number of controller pods.
pub fn replicas(spec: &StorageBackendSpec, nodes_in_cluster: usize) -> i32 {
    let asked = spec.controller.as_ref().and_then(|controller| controller.replicas);
    asked.unwrap_or(if nodes_in_cluster == 1 { 1 } else { 2 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Btrfs, ControllerSpec, Directory, LabelSelector, LoopFile, Nodes};

    fn backend() -> StorageBackend {
        StorageBackend::new("local", StorageBackendSpec::default())
    }

    #[test]
    fn a_backend_without_names_is_named_after_itself() {
        let backend = backend();
        assert_eq!(driver_name(&backend), "local.csi.dunnage.dev");
        assert_eq!(namespace(&backend, "dunnage-system"), "dunnage-system");
        assert_eq!(classes(&backend).iter().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["local"]);
    }

    #[test]
    fn names_that_are_given_hold() {
        let mut backend = backend();
        backend.spec.driver_name = Some("csi.example.com".into());
        backend.spec.namespace = Some("storage".into());
        backend.spec.classes = vec![StorageClassSpec { name: "fast".into(), ..StorageClassSpec::default() }];
        assert_eq!(driver_name(&backend), "csi.example.com");
        assert_eq!(namespace(&backend, "dunnage-system"), "storage");
        assert_eq!(classes(&backend).iter().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["fast"]);
    }

    #[test]
    fn the_pool_is_that_of_the_type() {
        let spec = StorageBackendSpec {
            type_: BackendType::LoopFile,
            directory: Some(Directory { path: "/d".into(), ..Directory::default() }),
            loop_file: Some(LoopFile { path: "/l".into(), require_mount_point: true, ..LoopFile::default() }),
            btrfs: Some(Btrfs { path: "/b".into(), require_mount_point: true, ..Btrfs::default() }),
            ..StorageBackendSpec::default()
        };
        assert_eq!(pool(&spec), Some(("/l", true)));
        let of = |type_| StorageBackendSpec { type_, ..spec.clone() };
        assert_eq!(pool(&of(BackendType::Directory)), Some(("/d", false)));
        assert_eq!(pool(&of(BackendType::Btrfs)), Some(("/b", true)));
        assert_eq!(pool(&StorageBackendSpec::default()), None);
    }

    #[test]
    fn what_is_kept_back_and_promised_is_that_of_the_type() {
        let directory = Directory { path: "/d".into(), reserve: Some("5%".into()), ..Directory::default() };
        let loop_file = LoopFile { path: "/l".into(), overcommit_percent: Some(150), ..LoopFile::default() };
        let spec = StorageBackendSpec {
            directory: Some(directory),
            loop_file: Some(loop_file),
            btrfs: Some(Btrfs { path: "/b".into(), reserve: Some("7Gi".into()), ..Btrfs::default() }),
            ..StorageBackendSpec::default()
        };
        assert_eq!((reserve(&spec), overcommit_percent(&spec)), (Some("5%"), None));
        let spec = StorageBackendSpec { type_: BackendType::LoopFile, ..spec };
        assert_eq!((reserve(&spec), overcommit_percent(&spec)), (None, Some(150)));
        let spec = StorageBackendSpec { type_: BackendType::Btrfs, ..spec };
        assert_eq!((reserve(&spec), overcommit_percent(&spec)), (Some("7Gi"), None));
    }

    #[test]
    fn one_controller_is_enough_for_one_node() {
        let asked = |replicas| StorageBackendSpec {
            controller: Some(ControllerSpec { replicas, ..ControllerSpec::default() }),
            ..StorageBackendSpec::default()
        };
        for (replicas_asked, nodes, expected) in [(None, 0, 2), (None, 1, 1), (None, 2, 2), (Some(3), 1, 3)] {
            assert_eq!(
                replicas(&asked(replicas_asked), nodes),
                expected,
                "{replicas_asked:?} on {nodes} nodes"
            );
        }
    }

    #[test]
    fn without_a_selector_every_node_is_meant() {
        let labels: BTreeMap<String, String> = [("disk".to_owned(), "ssd".to_owned())].into();
        assert!(selects(&StorageBackendSpec::default(), &BTreeMap::new()));
        let selector = LabelSelector { match_labels: labels.clone(), ..LabelSelector::default() };
        let spec = StorageBackendSpec {
            nodes: Some(Nodes { selector: Some(selector), ..Nodes::default() }),
            ..StorageBackendSpec::default()
        };
        assert!(selects(&spec, &labels));
        assert!(!selects(&spec, &BTreeMap::new()));
    }
}
