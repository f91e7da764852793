//! A claim grows under its pod.

use dunnage_tests_system::cluster::{apply, eventually, get, kubectl};
use dunnage_tests_system::disks::Disks;
use dunnage_tests_system::manifest::{backend_with, claim, pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_ready, word};

/// A pod cannot write more than its volume's size, and after the claim has grown it can, without having been restarted.
fn grows(name: &str, manifest: &str, [from, to]: [&str; 2], mebibytes: u32) {
    apply(manifest);
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, from));
    apply(&pod(&space.0, "app", "data", "echo kept > /data/file; sync", None));
    space.wait_pod("app");
    let write = format!("dd if=/dev/zero of=/data/large bs=1M count={mebibytes} && sync");
    let refusal = space.exec("app", &write).expect_err("more than the volume's size");
    assert!(refusal.contains("No space left") || refusal.contains("quota exceeded"), "{refusal}");
    space.exec("app", "rm /data/large && sync").expect("a file is removed");

    let patch = format!("{{\"spec\": {{\"resources\": {{\"requests\": {{\"storage\": \"{to}\"}}}}}}}}");
    kubectl(&["patch", "pvc", "data", "-n", &space.0, "-p", &patch]);
    eventually("the claim to have grown", || {
        let status = get(&["pvc", "data", "-n", &space.0])["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let resizing = conditions.iter().any(|condition| word(&condition["type"]).contains("Resiz"));
        if status["capacity"]["storage"] == to && !resizing {
            Ok(())
        } else {
            Err(format!("{status}\n{}", space.events("data").join("\n")))
        }
    });
    space.exec("app", &write).expect("there is room now");
    assert_eq!(space.exec("app", "cat /data/file").as_deref(), Ok("kept"));
    let containers = get(&["pod", "app", "-n", &space.0])["status"]["containerStatuses"].clone();
    assert_eq!(containers[0]["restartCount"], 0, "{containers}");

    space.remove();
    remove_backend(name);
}

#[test]
fn a_loop_file_claim_grows_while_its_pod_runs() {
    let name = "grows-xfs";
    let manifest = backend_with(name, "LoopFile", "path: /var/lib/dunnage/grows-xfs, fsType: xfs", "");
    grows(name, &manifest, ["320Mi", "640Mi"], 400);
}

#[test]
fn a_btrfs_claim_grows_while_its_pod_runs() {
    let (name, path) = ("grows-btrfs", "/var/lib/dunnage/grows-btrfs");
    let disks = Disks::btrfs(path, name, "1G");
    let manifest = backend_with(name, "Btrfs", &format!("path: {path}, requireMountPoint: true"), "");
    grows(name, &manifest, ["64Mi", "256Mi"], 100);
    disks.remove();
}
