//! Bad input is refused where it is given, by name and with the remedy, and correcting it works.

use std::time::Duration;

use dunnage_tests_system::cluster::{apply, kubectl, stays, try_apply};
use dunnage_tests_system::manifest::{backend, claim, pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_ready};

#[test]
fn the_api_server_refuses_a_backend_that_cannot_work_and_says_what_to_do() {
    for (manifest, words) in [
        (backend("bad", "Directory", "relative/path", ""), ["spec", "absolute"]),
        (backend("bad", "Directory", "/", ""), ["spec", "path"]),
        (backend("bad", "Directory", "/var/lib/kubelet/pool", ""), ["kubelet", "path"]),
        (backend("bad", "Directory", "/srv/../etc", ""), ["spec", "path"]),
        (backend("bad", "Directory", "/srv/pool", "loopFile: {path: /srv/other}"), ["loopFile", "type"]),
        (
            backend("bad", "Directory", "/srv/pool", &format!("driverName: {}.example.com", "x".repeat(46))),
            ["driverName", "54"],
        ),
    ] {
        let refusal = try_apply(&manifest).expect_err(&manifest);
        for word in words {
            assert!(refusal.contains(word), "{word:?} is not in: {refusal}\n{manifest}");
        }
    }
}

#[test]
fn a_wrong_class_is_named_on_the_claim_without_a_storm_and_the_corrected_class_serves_it() {
    let name = "bad-class";
    apply(&backend(name, "Directory", "/var/lib/dunnage/bad-class", ""));
    wait_ready(name);
    let space = Namespace::new(name);
    let class = |parameters: &str| {
        format!(
            "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: hand-made}}\n\
             provisioner: {name}.csi.dunnage.dev\nvolumeBindingMode: WaitForFirstConsumer\nparameters: {{{parameters}}}\n"
        )
    };
    for (parameters, words) in
        [("colour: blue", ["colour", "unknown"]), ("csi.storage.k8s.io/fstype: ntfs", ["ntfs", "Directory"])]
    {
        apply(&class(parameters));
        apply(&claim(&space.0, "data", "hand-made", "8Mi"));
        apply(&pod(&space.0, "app", "data", "true", None));
        let event = space.wait_event("data", &["ProvisioningFailed", words[0]]);
        assert!(event.to_lowercase().contains(&words[1].to_lowercase()), "{words:?}: {event}");
        // Tries come after 1, 2, 4, 8, ... s: eight of them take two minutes.
        stays("a claim that cannot work is not tried in a storm", Duration::from_secs(5), || {
            let tries = space.times_told("data", words[0]);
            if tries <= 8 {
                Ok(())
            } else {
                Err(format!("{tries} tries\n{}", space.events("data").join("\n")))
            }
        });
        kubectl(&["delete", "storageclass", "hand-made"]);
        apply(&class(""));
        space.wait_pod("app");
        kubectl(&["delete", "pod", "app", "-n", &space.0]);
        kubectl(&["delete", "pvc", "data", "-n", &space.0]);
        kubectl(&["delete", "storageclass", "hand-made"]);
    }
    space.remove();
    remove_backend(name);
}

#[test]
fn an_access_mode_that_one_node_cannot_serve_is_refused_by_name() {
    let name = "bad-mode";
    apply(&backend(name, "Directory", "/var/lib/dunnage/bad-mode", ""));
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, "8Mi").replace("ReadWriteOnce", "ReadWriteMany"));
    apply(&pod(&space.0, "app", "data", "true", None));
    space.wait_event("data", &["ProvisioningFailed", "MULTI_NODE_MULTI_WRITER"]);
    space.remove();
    remove_backend(name);
}
