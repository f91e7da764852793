//! Volumes that pods have in their own specs, through power cuts and past the end of their pods.

use dunnage_tests_system::cluster::{Node, apply, eventually, get, try_kubectl};
use dunnage_tests_system::manifest::{backend, inline_pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, wait_ready};

/// What is in the pool's directory of volumes.
fn volumes(node: &Node, pool: &str) -> Vec<String> {
    node.shell(&format!("ls -A {pool}/volumes")).lines().map(str::to_owned).collect()
}

fn wait_for_volumes(node: &Node, pool: &str, count: usize) {
    eventually(&format!("{count} volumes in the pool of {node:?}"), || {
        let found = volumes(node, pool);
        if found.len() == count { Ok(()) } else { Err(found.join(" ")) }
    });
}

#[test]
fn an_inline_volume_has_its_size_holds_its_backend_and_goes_with_its_pod() {
    let (name, pool) = ("inline", "/var/lib/dunnage/inline");
    apply(&backend(name, "LoopFile", pool, ""));
    wait_ready(name);
    let driver = format!("{name}.csi.dunnage.dev");
    let space = Namespace::new(name);
    let node = Node("n1".to_owned());
    // Its container begins anew after a power cut, and must not write what it is to find.
    let line = "test -e /data/file || cat /proc/sys/kernel/random/uuid > /data/file; sync";
    apply(&inline_pod(&space.0, "app", &driver, "{size: 64Mi}", line, &node.0));
    assert_eq!(space.wait_pod("app"), node);
    let written = space.exec("app", "cat /data/file").expect("the file is there");
    let size = space.exec("app", "df -k /data | tail -1 | awk '{print $2}'").expect("df");
    let kibibytes: u64 = size.parse().expect("a number");
    assert!((32_000..=65_536).contains(&kibibytes), "64 MiB show as {kibibytes} KiB");
    let found = volumes(&node, pool);
    assert!(found.len() == 1 && found[0].contains("-inline-"), "{found:?}");
    assert_eq!(node.loop_devices(&found[0]).len(), 1);
    // It is no volume of a claim, and none that nobody knows.
    let usage = get(&["storagebackend", name])["status"]["usage"].clone();
    assert_eq!((usage["volumes"].as_i64(), usage["orphans"].as_i64()), (Some(0), Some(0)), "{usage}");

    // The agent tells the operator of the pod, so that the deletion is refused at once.
    eventually("the deletion to be refused because of the pod", || {
        match try_kubectl(&["delete", "storagebackend", name, "--dry-run=server"]) {
            Ok(_) => Err("it was not refused".to_owned()),
            Err(refusal) if refusal.contains(&format!("{}/app", space.0)) => Ok(()),
            Err(other) => Err(other),
        }
    });

    // The node loses its power. The pod is the same afterwards, and so are its data.
    node.power_off();
    node.power_on();
    eventually("the pod's data after the power cut", || {
        let data = space.exec("app", "cat /data/file")?;
        if data == written { Ok(()) } else { Err(format!("{data} in place of {written}")) }
    });

    // While the node is down, the pod is deleted for good. Nothing tells kubelet to end it but its own start.
    node.power_off();
    try_kubectl(&["delete", "pod", "app", "-n", &space.0, "--force", "--grace-period=0"])
        .unwrap_or_else(|error| panic!("{error}"));
    node.power_on();
    wait_for_volumes(&node, pool, 0);
    assert_eq!(node.loop_devices(&found[0]), Vec::<String>::new());

    apply(&inline_pod(&space.0, "wrong", &driver, "{sise: 64Mi}", "true", &node.0));
    let refusal = space.wait_event("wrong", &["FailedMount", "sise"]);
    assert!(refusal.contains("allowed are size"), "{refusal}");
    wait_for_volumes(&node, pool, 0);
    space.remove();
    remove_backend(name);
}
