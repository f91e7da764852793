//! The checks that the API server cannot do, because they depend on the cluster's nodes.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use crate::defaults;
use crate::{BackendType, ClassState, FsType, StorageBackend};

/// The longest path of a unix socket on Linux.
const SOCKET_LIMIT: usize = 107;

/// The `StorageClass` parameter that names a file system.
pub const FS_TYPE_PARAMETER: &str = "csi.storage.k8s.io/fstype";

/// A backend that cannot work in this cluster, with the remedy. It is shown to the user and never retried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The socket that the kubelet opens would have too long a path.
    #[error(
        "driver name {driver:?} has {} characters and may have {limit} with the kubelet's directory {kubelet_dir}: \
         make a StorageBackend with a shorter name or spec.driverName",
        driver.len()
    )]
    DriverNameTooLong {
        /// The driver's name.
        driver: String,
        /// The kubelet's directory.
        kubelet_dir: String,
        /// Characters that the name may have.
        limit: usize,
    },
    /// The pool would share a directory with the kubelet.
    #[error(
        "path {path} lies within or above the kubelet's directory {kubelet_dir}: make a StorageBackend with a path \
         beside it"
    )]
    PathOfTheKubelet {
        /// The pool's path.
        path: String,
        /// The kubelet's directory.
        kubelet_dir: String,
    },
    /// An older backend has the same directory on the same node, or one within or above it.
    #[error(
        "path {path} is, or lies within or above, the path {other_path} of StorageBackend {other} on the same nodes: \
         make a StorageBackend with another path, or let the two select different nodes"
    )]
    PathShared {
        /// The pool's path.
        path: String,
        /// The older backend.
        other: String,
        /// That backend's path.
        other_path: String,
    },
    /// The settings of the type are missing.
    #[error("type {0} needs spec.{1}: set it with a path")]
    MemberMissing(&'static str, &'static str),
    /// A class has a mount option that its volumes do not take.
    #[error("class {class:?}: {reason}")]
    MountOption {
        /// Name of the class.
        class: String,
        /// Which, and what they take.
        reason: String,
    },
    /// A class asks for a file system that the type cannot make.
    #[error("class {class:?} asks for file system {fs_type:?}: {remedy}")]
    FsType {
        /// Name of the class.
        class: String,
        /// What it asks for.
        fs_type: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// Checks a backend against the kubelet directories of the nodes that it selects.
pub fn validate(backend: &StorageBackend, kubelet_dirs: &[String]) -> Result<(), Invalid> {
    let driver = defaults::driver_name(backend);
    let Some((path, _)) = defaults::pool(&backend.spec) else {
        return Err(Invalid::MemberMissing(backend.spec.type_.as_str(), backend.spec.type_.member()));
    };
    for kubelet_dir in kubelet_dirs {
        let limit = driver_name_limit(kubelet_dir);
        if driver.len() > limit {
            return Err(Invalid::DriverNameTooLong { driver, kubelet_dir: kubelet_dir.clone(), limit });
        }
        if within(path, kubelet_dir) || within(kubelet_dir, path) {
            return Err(Invalid::PathOfTheKubelet {
                path: path.to_owned(),
                kubelet_dir: kubelet_dir.clone(),
            });
        }
    }
    file_systems(backend)
}

/// Checks a backend's path against those of older backends that select a node with it, given the labels of each node.
pub fn shares_no_path<'a>(
    backend: &StorageBackend,
    others: impl IntoIterator<Item = &'a StorageBackend>,
    nodes: &[&BTreeMap<String, String>],
) -> Result<(), Invalid> {
    let Some((path, _)) = defaults::pool(&backend.spec) else { return Ok(()) };
    let age =
        |backend: &StorageBackend| (backend.creation_timestamp().map(|time| time.0), backend.name_any());
    let met = |other: &StorageBackend| {
        nodes
            .iter()
            .any(|labels| defaults::selects(&backend.spec, labels) && defaults::selects(&other.spec, labels))
    };
    for other in others {
        let Some((other_path, _)) = defaults::pool(&other.spec) else { continue };
        if age(other) < age(backend) && (within(path, other_path) || within(other_path, path)) && met(other) {
            return Err(Invalid::PathShared {
                path: path.to_owned(),
                other: other.name_any(),
                other_path: other_path.to_owned(),
            });
        }
    }
    Ok(())
}

/// Characters that a driver's name may have so that its registration socket can be opened.
pub fn driver_name_limit(kubelet_dir: &str) -> usize {
    let rest = kubelet_dir.len() + "/plugins_registry/".len() + "-reg.sock".len();
    SOCKET_LIMIT.saturating_sub(rest).min(54)
}

fn within(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn file_systems(backend: &StorageBackend) -> Result<(), Invalid> {
    for class in backend.spec.classes.iter().filter(|class| class.state == ClassState::Managed) {
        let Some(fs_type) = class.parameters.get(FS_TYPE_PARAMETER) else { continue };
        let remedy = match backend.spec.type_ {
            BackendType::Directory => {
                "a Directory volume has the file system of its pool, so take the parameter away"
            }
            BackendType::Btrfs => {
                "a Btrfs volume has the file system of its pool, so take the parameter away"
            }
            BackendType::LoopFile
                if [FsType::Ext4, FsType::Xfs, FsType::Btrfs]
                    .iter()
                    .any(|known| known.as_str() == fs_type) =>
            {
                continue;
            }
            BackendType::LoopFile => "LoopFile has ext4, xfs and btrfs",
        };
        return Err(Invalid::FsType { class: class.name.clone(), fs_type: fs_type.clone(), remedy });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Btrfs, Directory, LabelSelector, LoopFile, Nodes, StorageBackendSpec, StorageClassSpec};

    const MICROK8S: &str = "/var/snap/microk8s/common/var/lib/kubelet";

    fn directory(name: &str, path: &str) -> StorageBackend {
        StorageBackend::new(
            name,
            StorageBackendSpec {
                directory: Some(Directory { path: path.into(), ..Directory::default() }),
                ..StorageBackendSpec::default()
            },
        )
    }

    fn loop_file(fs_type: &str) -> StorageBackend {
        StorageBackend::new(
            "local",
            StorageBackendSpec {
                type_: BackendType::LoopFile,
                loop_file: Some(LoopFile { path: "/srv/pool".into(), ..LoopFile::default() }),
                classes: vec![class(fs_type)],
                ..StorageBackendSpec::default()
            },
        )
    }

    fn class(fs_type: &str) -> StorageClassSpec {
        StorageClassSpec {
            name: "fast".into(),
            parameters: [(FS_TYPE_PARAMETER.to_owned(), fs_type.to_owned())].into(),
            ..StorageClassSpec::default()
        }
    }

    #[test]
    fn the_kubelets_directory_limits_the_drivers_name() {
        for (dir, limit) in
            [(defaults::KUBELET_DIR, 54), ("/var/lib/k0s/kubelet", 54), (MICROK8S, 39), (&"/d".repeat(60), 0)]
        {
            assert_eq!(driver_name_limit(dir), limit, "{dir}");
        }
    }

    #[test]
    fn a_name_that_fits_one_kubelet_may_be_too_long_for_another() {
        let backend = directory("a-name-of-twenty-four-ch", "/var/lib/dunnage");
        assert_eq!(validate(&backend, &[defaults::KUBELET_DIR.to_owned()]), Ok(()));
        let refused = validate(&backend, &[defaults::KUBELET_DIR.to_owned(), MICROK8S.to_owned()]);
        let message = refused.expect_err("40 characters").to_string();
        assert!(message.contains("has 40 characters and may have 39"), "{message}");
        assert!(message.contains("shorter name"), "{message}");
    }

    #[test]
    fn a_pool_beside_the_kubelets_directory_is_fine_and_one_within_or_above_is_not() {
        for (path, fine) in [
            ("/data/kubelet-pool", true),
            ("/data/kubelet", false),
            ("/data/kubelet/pool", false),
            ("/data", false),
            ("/dat", true),
        ] {
            let got = validate(&directory("local", path), &["/data/kubelet".to_owned()]);
            assert_eq!(got.is_ok(), fine, "{path}: {got:?}");
        }
    }

    #[test]
    fn the_settings_of_the_type_are_needed() {
        let empty = StorageBackend::new("local", StorageBackendSpec::default());
        let message = validate(&empty, &[]).expect_err("no member").to_string();
        assert_eq!(message, "type Directory needs spec.directory: set it with a path");
    }

    #[test]
    fn a_class_may_ask_for_the_file_systems_that_the_type_has() {
        for (fs_type, fine) in [("ext4", true), ("xfs", true), ("btrfs", true), ("zfs", false), ("", false)] {
            assert_eq!(validate(&loop_file(fs_type), &[]).is_ok(), fine, "{fs_type:?}");
        }
        let mut backend = directory("local", "/srv/pool");
        backend.spec.classes = vec![class("ext4")];
        assert!(matches!(validate(&backend, &[]), Err(Invalid::FsType { .. })));
        backend.spec.type_ = BackendType::Btrfs;
        backend.spec.btrfs = Some(Btrfs { path: "/srv/pool".into(), ..Btrfs::default() });
        let said = validate(&backend, &[]).expect_err("a file system").to_string();
        assert!(said.contains("a Btrfs volume has the file system of its pool"), "{said}");
        backend.spec.classes[0].state = ClassState::Unmanaged;
        assert_eq!(validate(&backend, &[]), Ok(()));
    }

    #[test]
    fn of_two_backends_on_one_directory_of_a_node_the_younger_is_refused() {
        let made = |name: &str, path: &str, day: u8, disk: Option<&str>| {
            let mut backend = directory(name, path);
            let time = serde_json::from_value(serde_json::json!(format!("2026-01-0{day}T00:00:00Z")));
            backend.metadata.creation_timestamp = Some(time.expect("a time"));
            backend.spec.nodes = disk.map(|disk| Nodes {
                selector: Some(LabelSelector {
                    match_labels: [("disk".to_owned(), disk.to_owned())].into(),
                    ..LabelSelector::default()
                }),
                ..Nodes::default()
            });
            backend
        };
        let labels = |disk: &str| BTreeMap::from([("disk".to_owned(), disk.to_owned())]);
        let (ssd, hdd) = (labels("ssd"), labels("hdd"));
        let nodes = [&ssd, &hdd];
        let old = made("old", "/srv/pool", 1, Some("ssd"));
        let mut subvolumes = made("subvolumes", "/srv/other", 2, None);
        subvolumes.spec.type_ = BackendType::Btrfs;
        subvolumes.spec.btrfs = Some(Btrfs { path: "/srv/pool/nested".into(), ..Btrfs::default() });
        assert!(shares_no_path(&subvolumes, [&old], &nodes).is_err(), "the path of its type counts");
        for (path, day, disk, refused) in [
            ("/srv/pool", 2, None, true),
            ("/srv/pool/nested", 2, Some("ssd"), true),
            ("/srv", 2, Some("ssd"), true),
            ("/srv/pool2", 2, None, false),
            ("/srv/pool", 2, Some("hdd"), false),
            ("/srv/pool", 2, Some("tape"), false),
        ] {
            let young = made("young", path, day, disk);
            let checked = shares_no_path(&young, [&old, &young], &nodes);
            assert_eq!(checked.is_err(), refused, "{path} {disk:?}: {checked:?}");
            assert_eq!(shares_no_path(&old, [&old, &young], &nodes), Ok(()), "the older goes on");
        }
        // Of the same second, the name decides, so that exactly one goes on.
        let twin = made("twin", "/srv/pool", 1, None);
        assert!(shares_no_path(&twin, [&old], &nodes).is_err());
        assert!(shares_no_path(&old, [&twin], &nodes).is_ok());
        let said = shares_no_path(&twin, [&old], &nodes).expect_err("shared").to_string();
        assert!(said.contains("StorageBackend old") && said.contains("/srv/pool"), "{said}");
    }
}
