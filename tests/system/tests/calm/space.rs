//! A full pool says so, and serves the waiting claim as soon as there is room.

use dunnage_tests_system::cluster::{Node, apply, eventually, kubectl, list};
use dunnage_tests_system::disks::Disks;
use dunnage_tests_system::manifest::{backend_with, claim, pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_ready, word};

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
