//! Snapshots, claims made from them, and clones.

use dunnage_tests_system::cluster::{apply, eventually, get, kubectl};
use dunnage_tests_system::disks::Disks;
use dunnage_tests_system::manifest::{backend, backend_with, claim, claim_from, pod, snapshot};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_ready};

const SUM: &str = "sha256sum /data/file";

/// A claim made from a snapshot has the data of then, on the other node too, a clone those of now.
fn copies(name: &str, pool: &str, manifest: &str) {
    let size = "320Mi";
    apply(manifest);
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, size));
    let write = "head -c 3000000 /dev/urandom > /data/file; sync";
    apply(&pod(&space.0, "app", "data", write, None));
    let node = space.wait_pod("app");
    let then = space.exec("app", SUM).expect("a file");

    // While the pod runs.
    apply(&snapshot(&space.0, "then", name, "data"));
    eventually("the snapshot to be ready", || {
        let status = get(&["volumesnapshot", "then", "-n", &space.0])["status"].clone();
        if status["readyToUse"] == true { Ok(()) } else { Err(status.to_string()) }
    });
    space.exec("app", write).expect("the file is written anew");
    let now = space.exec("app", SUM).expect("a file");
    assert_ne!(then, now);

    let target = node.other();
    apply(&claim_from(&space.0, "restored", name, size, "snapshot.storage.k8s.io/VolumeSnapshot/then"));
    apply(&pod(&space.0, "restored", "restored", "true", Some(&target.0)));
    apply(&claim_from(&space.0, "cloned", name, size, "PersistentVolumeClaim/data"));
    apply(&pod(&space.0, "cloned", "cloned", "true", Some(&node.0)));
    for (reader, expected) in [("restored", &then), ("cloned", &now)] {
        space.wait_pod(reader);
        assert_eq!(space.exec(reader, SUM).as_ref(), Ok(expected), "{reader}");
    }
    space.exec("restored", "echo other > /data/file; sync").expect("a copy can be written to");
    assert_eq!(space.exec("app", SUM), Ok(now), "the original has nothing of it");

    kubectl(&["delete", "volumesnapshot", "then", "-n", &space.0, "--timeout=180s"]);
    eventually("the snapshot to be gone from the disk", || {
        let left = node.shell(&format!("ls -A {pool}/snapshots"));
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    space.remove();
    remove_backend(name);
}

#[test]
fn a_directory_is_restored_on_another_node_and_cloned() {
    let (name, pool) = ("copies-directory", "/var/lib/dunnage/copies-directory");
    copies(name, pool, &backend(name, "Directory", pool, ""));
}

#[test]
fn a_mounted_loop_file_is_restored_on_another_node_and_cloned() {
    let (name, pool) = ("copies-xfs", "/var/lib/dunnage/copies-xfs");
    let manifest = backend_with(name, "LoopFile", &format!("path: {pool}, fsType: xfs"), "");
    copies(name, pool, &manifest);
}

#[test]
fn a_subvolume_is_restored_on_another_node_and_cloned() {
    let (name, pool) = ("copies-btrfs", "/var/lib/dunnage/copies-btrfs");
    let disks = Disks::btrfs(pool, name, "2G");
    let manifest = backend_with(name, "Btrfs", &format!("path: {pool}, requireMountPoint: true"), "");
    copies(name, pool, &manifest);
    disks.remove();
}
