//! A disk that moves to another node takes its volumes along.

use dunnage_tests_system::cluster::{Node, apply, eventually, get, kubectl};
use dunnage_tests_system::manifest::{backend_with, claim, pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_condition};

#[test]
fn a_disk_that_is_put_into_another_node_brings_its_volumes_and_their_pods_there() {
    let (name, path) = ("moves", "/var/lib/dunnage/moves");
    let (from, to) = (Node("n1".to_owned()), Node("n2".to_owned()));
    // Where both nodes see it, as a disk that can be put into either.
    let disk = tempfile::NamedTempFile::new().expect("a disk");
    disk.as_file().set_len(128 << 20).expect("its size");
    let mount = format!("mkdir -p {path} && mount -o loop {} {path}", disk.path().display());
    from.shell(&format!("mkfs.ext4 -q -F {} && {mount}", disk.path().display()));
    to.shell(&format!("mkdir -p {path}"));
    apply(&backend_with(name, "Directory", &format!("path: {path}, requireMountPoint: true"), ""));
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, "8Mi"));
    apply(&pod(&space.0, "app", "data", "echo kept >> /data/file", None));
    assert_eq!(space.wait_pod("app"), from, "the other node has no disk");
    let problem = wait_condition(name, "NodesReady", "False");
    assert!(problem.contains(&to.0), "{problem}");

    kubectl(&["delete", "pod", "app", "-n", &space.0]);
    from.power_off();
    from.wait_away();
    to.shell(&mount);
    apply(&pod(&space.0, "again", "data", "true", None));
    assert_eq!(space.wait_pod("again"), to);
    assert_eq!(space.exec("again", "cat /data/file").as_deref(), Ok("kept"));

    // What was the pool's node no longer says that it has it, so that no pod is sent there.
    from.power_on();
    let driver = format!("{name}.csi.dunnage.dev");
    eventually("the label of the pool to go", || {
        let labels = get(&["node", &from.0])["metadata"]["labels"].to_string();
        if labels.contains(&driver) { Err(labels) } else { Ok(()) }
    });
    apply(&pod(&space.0, "beside", "data", "cat /data/file", None));
    assert_eq!(space.wait_pod("beside"), to, "two pods have the volume on its node");
    assert_eq!(
        space.exec("beside", "echo more >> /data/file && cat /data/file").as_deref(),
        Ok("kept\nmore")
    );
    assert_eq!(space.exec("again", "cat /data/file").as_deref(), Ok("kept\nmore"));
    space.remove();
    remove_backend(name);
    eventually("the disk to be unmounted", || to.try_shell(&format!("umount {path}")));
}
