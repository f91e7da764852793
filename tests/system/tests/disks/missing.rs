//! A disk that is away is never replaced.

use dunnage_tests_system::cluster::{apply, eventually, get, kubectl};
use dunnage_tests_system::disks::Disks;
use dunnage_tests_system::manifest::{backend_with, claim, pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_condition, wait_ready};

#[test]
fn a_disk_that_is_not_mounted_gets_no_second_pool_and_its_volumes_come_back_with_it() {
    let (name, path) = ("away", "/var/lib/dunnage/away");
    let disks = Disks::new(path, name, "128M");
    apply(&backend_with(name, "Directory", &format!("path: {path}"), ""));
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, "8Mi"));
    apply(&pod(&space.0, "app", "data", "echo kept >> /data/file", None));
    let node = space.wait_pod("app");
    let marker = format!("{path}/.dunnage/pool.json");
    let before = node.shell(&format!("cat {marker}"));

    kubectl(&["delete", "pod", "app", "-n", &space.0]);
    node.power_off();
    node.wait_away();
    // The node boots without its disk: the mount was not in its fstab.
    node.power_on();
    assert!(node.try_shell(&format!("mountpoint -q {path}")).is_err(), "a reboot loses the mount");
    let problem = eventually("PoolMissing to name the node", || {
        let object = get(&["storagebackend", name]);
        let problems = object["status"]["nodes"]["problems"].to_string();
        if problems.contains("PoolMissing") && problems.contains(&node.0) {
            Ok(problems)
        } else {
            Err(object["status"].to_string())
        }
    });
    assert!(problem.contains(path), "the path is named: {problem}");
    assert!(node.try_shell(&format!("test -e {marker}")).is_err(), "no second pool was made");
    wait_condition(name, "NodesReady", "False");

    disks.mount(&node);
    apply(&pod(&space.0, "again", "data", "true", None));
    assert_eq!(space.wait_pod("again"), node);
    assert_eq!(space.exec("again", "cat /data/file").as_deref(), Ok("kept"));
    assert_eq!(node.shell(&format!("cat {marker}")), before, "it is the same pool");
    wait_ready(name);
    space.remove();
    remove_backend(name);
    disks.remove();
}
