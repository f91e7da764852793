//! The main job for each engine: a claim, a pod that writes, the data after the pod, and nothing left at the end.

use dunnage_tests_system::cluster::{apply, eventually, get, kubectl, list, try_kubectl};
use dunnage_tests_system::manifest::{backend, backend_with, claim, pod};
use dunnage_tests_system::storage::{Namespace, remove_backend, volume_directory, wait_ready, word};

/// One engine's way through the main job.
fn main_job(name: &str, kind: &str, manifest: &str, pool: &str, file_system: Option<&str>) {
    apply(manifest);
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, "320Mi"));
    apply(&pod(&space.0, "first", "data", "echo kept > /data/file; sync", None));
    let node = space.wait_pod("first");
    let volume = space.wait_bound("data");
    let directory = volume_directory(pool, &volume);
    assert!(
        node.try_shell(&format!("test -e {directory}/volume.json")).is_ok(),
        "{kind}: {directory} on {node:?}"
    );
    if let Some(expected) = file_system {
        let mounts = space.exec("first", "grep ' /data ' /proc/mounts").expect("the mount is seen");
        assert!(mounts.contains(&format!(" {expected} ")), "{mounts}");
        let size = space.exec("first", "df -k /data | tail -1 | awk '{print $2}'").expect("df");
        let kibibytes: u64 = size.parse().expect("a number");
        assert!((200_000..=327_680).contains(&kibibytes), "a limit of 320 MiB shows as {kibibytes} KiB");
    }

    kubectl(&["delete", "pod", "first", "-n", &space.0]);
    apply(&pod(&space.0, "second", "data", "cat /data/file", None));
    assert_eq!(space.wait_pod("second"), node, "a pod goes to its volume");
    assert_eq!(space.exec("second", "cat /data/file").as_deref(), Ok("kept"));

    apply(&pod(&space.0, "elsewhere", "data", "true", Some(&node.other().0)));
    let refusal = space.wait_event("elsewhere", &["FailedScheduling"]);
    assert!(
        refusal.contains("node affinity") || refusal.contains("didn't match PersistentVolume"),
        "{refusal}"
    );

    space.remove();
    eventually("the volume to be gone from the disk", || {
        match node.try_shell(&format!("test -e {directory}")) {
            Ok(_) => Err(format!("{directory} is still there")),
            Err(_) => Ok(()),
        }
    });
    assert_eq!(node.loop_devices(word(&volume["spec"]["csi"]["volumeHandle"])), Vec::<String>::new());
    remove_backend(name);
    nothing_is_left_of(name);
}

/// Nothing in the cluster names the backend any more.
fn nothing_is_left_of(name: &str) {
    let selector = format!("-l=dunnage.dev/backend={name}");
    let kinds = "statefulsets,daemonsets,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,\
                 roles,rolebindings,clusterrolebindings,csidrivers,storageclasses,leases,csistoragecapacities,pods";
    eventually(&format!("nothing to be left of {name}"), || {
        let left = try_kubectl(&["get", kinds, "-A", &selector, "-o", "name"])?;
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    let driver = format!("{name}.csi.dunnage.dev");
    for lease in list(&["leases", "-A"]) {
        assert!(!word(&lease["metadata"]["name"]).contains(&format!("{name}-csi-dunnage-dev")), "{lease}");
    }
    for node in list(&["nodes"]) {
        assert!(!node["metadata"]["labels"].to_string().contains(&driver), "a label is left: {node}");
    }
    eventually("kubelet to forget the driver", || {
        let nodes = get(&["csinodes"]).to_string();
        if nodes.contains(&format!("\"{driver}\"")) { Err(nodes) } else { Ok(()) }
    });
}

#[test]
fn a_directory_claim_is_bound_keeps_its_data_and_leaves_nothing() {
    let pool = "/var/lib/dunnage/main-directory";
    let name = "main-directory";
    main_job(name, "Directory", &backend(name, "Directory", pool, ""), pool, None);
}

#[test]
fn a_loop_file_claim_with_ext4_is_bound_keeps_its_data_and_leaves_nothing() {
    let pool = "/var/lib/dunnage/main-ext4";
    let name = "main-ext4";
    main_job(name, "LoopFile", &backend(name, "LoopFile", pool, ""), pool, Some("ext4"));
}

#[test]
fn a_loop_file_claim_with_xfs_is_bound_keeps_its_data_and_leaves_nothing() {
    let pool = "/var/lib/dunnage/main-xfs";
    let name = "main-xfs";
    let manifest = backend_with(name, "LoopFile", &format!("path: {pool}, fsType: xfs"), "");
    main_job(name, "LoopFile", &manifest, pool, Some("xfs"));
}

#[test]
fn with_attach_required_the_volume_is_attached_before_it_is_staged() {
    let (name, pool) = ("main-attach", "/var/lib/dunnage/main-attach");
    apply(&backend(name, "Directory", pool, "attach: Required"));
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, "16Mi"));
    apply(&pod(&space.0, "first", "data", "echo kept > /data/file", None));
    let node = space.wait_pod("first");
    let volume = space.wait_bound("data");
    let attachments: Vec<_> = list(&["volumeattachments"])
        .into_iter()
        .filter(|attachment| {
            attachment["spec"]["source"]["persistentVolumeName"] == volume["metadata"]["name"]
        })
        .collect();
    assert_eq!(attachments.len(), 1, "{attachments:?}");
    assert_eq!(attachments[0]["status"]["attached"], true);
    assert_eq!(attachments[0]["spec"]["nodeName"], node.0.as_str());
    space.remove();
    remove_backend(name);
    nothing_is_left_of(name);
}
