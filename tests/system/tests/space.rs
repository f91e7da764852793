//! A full pool says so, and serves the waiting claim as soon as there is room; a disk that is away is never replaced.

use dunnage_tests_system::cluster::{Node, apply, eventually, get, kubectl, list};
use dunnage_tests_system::disks::Disks;
use dunnage_tests_system::manifest::{backend_with, claim, pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_condition, wait_ready, word};

#[test]
fn a_claim_that_does_not_fit_is_told_how_much_is_free_and_served_when_there_is_room() {
    let (name, path) = ("full", "/var/lib/dunnage/full");
    let disks = Disks::new(path, name, "200M");
    apply(&backend_with(name, "LoopFile", &format!("path: {path}, requireMountPoint: true"), ""));
    wait_ready(name);
    let space = Namespace::new(name);
    // One big claim a node, so that neither has room for a third.
    for (index, node) in Node::both().iter().enumerate() {
        let (claim_name, pod_name) = (format!("big-{index}"), format!("user-{index}"));
        apply(&claim(&space.0, &claim_name, name, "120Mi"));
        apply(&pod(&space.0, &pod_name, &claim_name, "true", Some(&node.0)));
        space.wait_pod(&pod_name);
    }
    apply(&claim(&space.0, "third", name, "120Mi"));
    apply(&pod(&space.0, "waits", "third", "true", None));
    eventually("somebody to say that there is no room", || {
        let mut told = space.events("third");
        told.extend(space.events("waits"));
        let found = told.iter().any(|event| {
            (event.contains("free") && event.starts_with("ProvisioningFailed"))
                || event.contains("did not have enough free storage")
        });
        if found { Ok(()) } else { Err(told.join("\n")) }
    });
    for capacity in
        list(&["csistoragecapacities", "-A"]).iter().filter(|object| object["storageClassName"] == name)
    {
        let free = word(&capacity["capacity"]);
        assert!(!free.ends_with("Gi"), "capacity objects agree that the pool is full: {free}");
    }

    kubectl(&["delete", "pod", "user-0", "-n", &space.0]);
    kubectl(&["delete", "pvc", "big-0", "-n", &space.0]);
    space.wait_pod("waits");
    space.remove();
    remove_backend(name);
    disks.remove();
}

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
