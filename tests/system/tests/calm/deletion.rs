//! A backend in use is not deleted and nothing of it is lost.

use std::time::Duration;

use dunnage_tests_system::cluster::{apply, condition, eventually, get, kubectl, list, stays, try_kubectl};
use dunnage_tests_system::manifest::{backend, claim, pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_condition, wait_ready};

#[test]
fn a_backend_in_use_is_refused_at_once_and_says_what_holds_it() {
    let name = "held";
    apply(&backend(name, "Directory", "/var/lib/dunnage/held", ""));
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, "8Mi"));
    apply(&pod(&space.0, "app", "data", "echo kept > /data/file", None));
    space.wait_pod("app");
    let reason = wait_condition(name, "Removable", "False");
    assert!(reason.contains('1'), "{reason}");

    eventually("the deletion to be refused at once", || {
        match try_kubectl(&["delete", "storagebackend", name, "--dry-run=server"]) {
            Ok(_) => Err("it was not refused".to_owned()),
            Err(refusal) if refusal.contains("in use") => Ok(()),
            Err(other) => Err(other),
        }
    });
    space.remove();
    remove_backend(name);
}

#[test]
fn a_deletion_that_slipped_in_waits_at_the_finalizer_and_loses_nothing() {
    let name = "slipped";
    apply(&backend(name, "Directory", "/var/lib/dunnage/slipped", ""));
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, "8Mi"));
    apply(&pod(&space.0, "app", "data", "echo kept > /data/file", None));
    space.wait_pod("app");

    // The admission policy is only the quick answer: without it the finalizer must do.
    eventually("the deletion to slip in", || {
        kubectl(&["delete", "validatingadmissionpolicybinding", "dunnage-deletion", "--ignore-not-found"]);
        try_kubectl(&["delete", "storagebackend", name, "--wait=false"])
    });
    eventually("the status to name what blocks", || {
        let object = get(&["storagebackend", name]);
        let blocking = object["status"]["blocking"].as_array().is_some_and(|blocking| !blocking.is_empty());
        let told = condition(&object, "Removable").is_some_and(|removable| removable["status"] == "False");
        if blocking && told { Ok(()) } else { Err(object["status"].to_string()) }
    });
    eventually("no new claims to come: the class is gone", || {
        if get(&["storageclass", name]).is_null() { Ok(()) } else { Err("it is still there".to_owned()) }
    });
    stays("the driver stays while its volume is in use", Duration::from_secs(10), || {
        let nodes =
            list(&["pods", "-A", &format!("-l=dunnage.dev/backend={name},dunnage.dev/component=node")]);
        if nodes.len() == 2 && !get(&["csidriver", &format!("{name}.csi.dunnage.dev")]).is_null() {
            Ok(())
        } else {
            Err(format!("{} node pods are left", nodes.len()))
        }
    });
    assert_eq!(space.exec("app", "cat /data/file").as_deref(), Ok("kept"));
    // The pod can still go and come: the plugin serves what is there.
    kubectl(&["delete", "pod", "app", "-n", &space.0]);
    apply(&pod(&space.0, "again", "data", "cat /data/file", None));
    space.wait_pod("again");
    assert_eq!(space.exec("again", "cat /data/file").as_deref(), Ok("kept"));

    space.remove();
    eventually("the backend to go by itself once nothing uses it", || {
        let object = get(&["storagebackend", name]);
        if object.is_null() { Ok(()) } else { Err(object["status"].to_string()) }
    });
}
