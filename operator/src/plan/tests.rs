//! Golden tests: the whole plan of typical backends, as it would be applied; and the rules that cut across objects.

use std::path::Path;

use dunnage_crds::StorageBackend;
use serde_json::Value;

use super::facts::{Host, Observed, Snapshots};
use super::*;

fn backend(yaml: &str) -> StorageBackend {
    serde_saphyr::from_str(yaml).expect("a StorageBackend")
}

fn host(name: &str, kubelet_dir: &str) -> Host {
    Host {
        name: name.to_owned(),
        labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        ready: true,
        kubelet_dir: kubelet_dir.to_owned(),
    }
}

fn two_nodes() -> Observed {
    let hosts = ["a", "b"].map(|name| host(name, defaults::KUBELET_DIR)).into();
    Observed { hosts, ..Observed::default() }
}

fn planned(backend: &StorageBackend, observed: &Observed) -> Result<Plan, Invalid> {
    plan(&Inputs {
        backend,
        operator_namespace: "dunnage-system",
        image: "registry.example.com/dunnage:0.1.0",
        observed,
    })
}

fn objects(backend: &StorageBackend, observed: &Observed, kind: &str) -> Vec<Value> {
    let plan = planned(backend, observed).expect("a plan");
    let wanted = plan.objects.iter().filter(|planned| planned.key().kind == kind);
    wanted.map(|planned| serde_json::to_value(&planned.object).expect("JSON")).collect()
}

const DIRECTORY: &str = "
apiVersion: dunnage.dev/v1alpha1
kind: StorageBackend
metadata: {name: local, uid: 6f1c2a34-0000-4000-8000-000000000001}
spec: {type: Directory, directory: {path: /var/lib/dunnage}}
";

const LOOP_FILE: &str = "
apiVersion: dunnage.dev/v1alpha1
kind: StorageBackend
metadata: {name: images, uid: 6f1c2a34-0000-4000-8000-000000000002}
spec: {type: LoopFile, loopFile: {path: /srv/images, requireMountPoint: true, fsType: xfs}}
";

const BTRFS: &str = "
apiVersion: dunnage.dev/v1alpha1
kind: StorageBackend
metadata: {name: subvolumes, uid: 6f1c2a34-0000-4000-8000-000000000005}
spec: {type: Btrfs, btrfs: {path: /srv/subvolumes, requireMountPoint: true, reserve: 10Gi}}
";

const ATTACH: &str = "
apiVersion: dunnage.dev/v1alpha1
kind: StorageBackend
metadata: {name: attached, uid: 6f1c2a34-0000-4000-8000-000000000003}
spec: {type: Directory, directory: {path: /var/lib/dunnage}, attach: Required}
";

const EVERYTHING: &str = "
apiVersion: dunnage.dev/v1alpha1
kind: StorageBackend
metadata: {name: custom, uid: 6f1c2a34-0000-4000-8000-000000000004}
spec:
  type: LoopFile
  loopFile: {path: /srv/images, reserve: 5%, overcommitPercent: 250}
  driverName: csi.example.com
  namespace: storage
  attach: Required
  crossPool: Refuse
  nodes:
    selector:
      matchLabels: {disk: ssd}
      matchExpressions:
      - {key: example.com/retired, operator: DoesNotExist}
      - {key: zone, operator: In, values: [a, b]}
    tolerations:
    - {key: storage, operator: Equal, value: only, effect: NoSchedule}
    kubeletDir: /data/kubelet
  classes:
  - {name: fast, default: Force, parameters: {csi.storage.k8s.io/fstype: xfs}, mountOptions: [noatime]}
  - {name: kept, default: Never, reclaimPolicy: Retain, bindingMode: Immediate}
  - {name: theirs, state: Unmanaged}
  - {name: gone, state: Absent}
  images:
    registry: mirror.example.com:5000/cache
    pullPolicy: IfNotPresent
    pullSecrets: [mirror]
    overrides: {attacher: registry.example.com/other/attacher:1}
  controller:
    replicas: 3
    nodeSelector: {role: infra}
    tolerations: [{key: infra, operator: Exists}]
  tuning:
    workers: 20
    kubeApi: {qps: 50, burst: 100}
    callTimeout: 30s
    leaderElection: {leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 10s}
  logging: {level: debug, format: text}
  resources:
    nodeDriver: {requests: {memory: 64Mi}, limits: {memory: 512Mi}}
    provisioner: {requests: {cpu: 100m, memory: 32Mi}}
  update: {maxUnavailable: 10%}
";

#[test]
fn plans_are_those_that_are_recorded() {
    let mixed = Observed {
        hosts: vec![
            host("a", defaults::KUBELET_DIR),
            host("b", "/var/lib/k0s/kubelet"),
            host("c", "/var/lib/k0s/kubelet"),
        ],
        default_classes: vec!["local-path".to_owned()],
        ..Observed::default()
    };
    let with_snapshots = Observed { snapshots: Snapshots::Present, ..two_nodes() };
    let one_node = Observed { hosts: vec![host("a", defaults::KUBELET_DIR)], ..Observed::default() };
    for (name, yaml, observed) in [
        ("directory", DIRECTORY, &two_nodes()),
        ("directory-one-node", DIRECTORY, &one_node),
        ("directory-two-kubelet-directories", DIRECTORY, &mixed),
        ("loop-file", LOOP_FILE, &two_nodes()),
        ("btrfs", BTRFS, &two_nodes()),
        ("attach-required", ATTACH, &two_nodes()),
        ("everything", EVERYTHING, &with_snapshots),
    ] {
        let plan = planned(&backend(yaml), observed).expect("a plan");
        let documents: Vec<String> = plan
            .objects
            .iter()
            .map(|planned| {
                let yaml = serde_saphyr::to_string(&planned.object).expect("YAML");
                format!("# when an immutable field differs: {:?}\n{yaml}", planned.immutable)
            })
            .collect();
        recorded(name, &documents.join("---\n"));
    }
}

fn recorded(name: &str, wanted: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden");
    let path = folder.join(format!("{name}.yaml"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(&folder).expect("a folder to write to");
        std::fs::write(&path, wanted).expect("a file to write to");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} differs from the plan: run UPDATE=1 cargo test -p dunnage-operator and read the difference",
        path.display()
    );
}

#[test]
fn snapshots_are_taken_where_their_kinds_are_and_a_class_of_somebody_elses_stays() {
    for (snapshots, taken, classes) in [
        (Snapshots::Absent, false, 0),
        (Snapshots::Present, true, 1),
        (Snapshots::PresentWithForeignClass, true, 0),
    ] {
        let observed = Observed { snapshots, ..two_nodes() };
        let set = objects(&backend(DIRECTORY), &observed, "StatefulSet").remove(0).to_string();
        assert_eq!(set.contains("snapshotter"), taken, "{snapshots:?}");
        let bound = objects(&backend(DIRECTORY), &observed, "ClusterRoleBinding");
        let bound = bound.iter().any(|binding| binding["roleRef"]["name"] == "dunnage-snapshotter");
        assert_eq!(bound, taken, "{snapshots:?}");
        let found = objects(&backend(DIRECTORY), &observed, "VolumeSnapshotClass");
        assert_eq!(found.len(), classes, "{found:?}");
    }
}

#[test]
fn the_same_inputs_give_the_same_plan() {
    let backend = backend(EVERYTHING);
    assert_eq!(planned(&backend, &two_nodes()), planned(&backend, &two_nodes()));
}

#[test]
fn a_class_with_a_mount_option_that_its_volumes_do_not_take_is_refused_by_name() {
    let class = |fields: &str| format!("{{name: fast, mountOptions: [noatime, {fields}}}");
    let xfs = "parameters: {csi.storage.k8s.io/fstype: xfs}";
    for (base, class, says) in [
        (DIRECTORY, class("nodev]"), None),
        (DIRECTORY, class("data=journal]"), Some("\"data=journal\"")),
        (DIRECTORY, class("suid]"), Some("\"suid\"")),
        (DIRECTORY, class("suid], state: Unmanaged"), None),
        // The backend's file system is xfs.
        (LOOP_FILE, class("allocsize=64k]"), None),
        (LOOP_FILE, class("data=journal]"), Some("not possible with xfs; allowed are defaults, ro")),
        (LOOP_FILE, class("data=journal], parameters: {csi.storage.k8s.io/fstype: ext4}"), None),
        (LOOP_FILE, class(&format!("usrjquota=x], {xfs}")), Some("\"usrjquota=x\"")),
        (LOOP_FILE, class("discard]"), Some("allocation: sparse")),
        (LOOP_FILE, class("discard], parameters: {allocation: sparse}"), None),
    ] {
        let mut backend = backend(base);
        backend.spec.classes = vec![serde_saphyr::from_str(&class).expect("a class")];
        let refused = planned(&backend, &two_nodes()).err().map(|invalid| invalid.to_string());
        assert_eq!(refused.is_some(), says.is_some(), "{class}: {refused:?}");
        let told = refused.unwrap_or_default();
        assert!(told.contains(says.unwrap_or_default()), "{told}");
        assert!(says.is_none() || told.starts_with("class \"fast\": mount option "), "{told}");
    }
}

#[test]
fn no_driver_container_has_a_token_and_only_sidecars_of_the_controller_do() {
    for kind in ["StatefulSet", "DaemonSet"] {
        for set in objects(&backend(ATTACH), &two_nodes(), kind) {
            let pod = &set["spec"]["template"]["spec"];
            assert_eq!(pod["automountServiceAccountToken"], false);
            for container in pod["containers"].as_array().expect("containers") {
                let name = container["name"].as_str().expect("a name");
                let mounts = container["volumeMounts"].as_array().expect("mounts");
                let token = mounts.iter().any(|mount| mount["name"] == "token");
                assert_eq!(token, !["driver", "registrar"].contains(&name), "{kind} {name}");
            }
        }
    }
}

#[test]
fn only_the_drivers_on_the_nodes_are_privileged() {
    for kind in ["StatefulSet", "DaemonSet"] {
        for set in objects(&backend(ATTACH), &two_nodes(), kind) {
            for container in set["spec"]["template"]["spec"]["containers"].as_array().expect("containers") {
                let security = &container["securityContext"];
                let privileged = security["privileged"] == true;
                assert_eq!(privileged, kind == "DaemonSet" && container["name"] == "driver", "{container}");
                assert_eq!(security["readOnlyRootFilesystem"], true);
                assert!(privileged || security["capabilities"]["drop"][0] == "ALL", "{container}");
            }
        }
    }
}

#[test]
fn nothing_is_collected_with_the_backend_and_everything_carries_its_name() {
    for planned in planned(&backend(EVERYTHING), &two_nodes()).expect("a plan").objects {
        let key = planned.key();
        assert_eq!(planned.object.metadata.owner_references, None, "{key:?}");
        let labels = planned.object.metadata.labels.expect("labels");
        assert_eq!(labels["dunnage.dev/backend"], "custom", "{key:?}");
        assert_eq!(labels["app.kubernetes.io/managed-by"], "dunnage", "{key:?}");
    }
}

#[test]
fn what_is_not_planned_any_more_is_stale_unless_it_is_left_alone() {
    let plan = planned(&backend(EVERYTHING), &two_nodes()).expect("a plan");
    let class = |name: &str| ObjectKey { kind: "StorageClass".into(), namespace: None, name: name.into() };
    let set = |name: &str| ObjectKey {
        kind: "DaemonSet".into(),
        namespace: Some("storage".into()),
        name: name.into(),
    };
    let existing = [
        class("fast"),
        class("theirs"),
        class("gone"),
        set("dunnage-custom-node"),
        set("dunnage-custom-node-0"),
    ];
    assert_eq!(plan.stale(existing), [class("gone"), set("dunnage-custom-node-0")]);
}

#[test]
fn a_node_that_joins_leaves_the_pods_of_the_others_alone() {
    let backend = backend(DIRECTORY);
    let mut observed = two_nodes();
    let before = objects(&backend, &observed, "DaemonSet");
    observed.hosts.push(host("c", defaults::KUBELET_DIR));
    assert_eq!(objects(&backend, &observed, "DaemonSet"), before);
    observed.hosts.push(host("d", "/var/lib/k0s/kubelet"));
    assert_eq!(objects(&backend, &observed, "DaemonSet").len(), 2);
}

#[test]
fn nodes_that_are_down_do_not_stop_an_update() {
    for (spec, down, expected) in [
        ("", 0, Value::from(1)),
        ("", 2, Value::from(3)),
        (", update: {maxUnavailable: 2}", 1, Value::from(3)),
        (", update: {maxUnavailable: 25%}", 1, Value::from("25%")),
    ] {
        let mut observed = two_nodes();
        for host in observed.hosts.iter_mut().take(down) {
            host.ready = false;
        }
        let backend = backend(&DIRECTORY.replace("dunnage}}", &format!("dunnage}}{spec}}}")));
        let sets = objects(&backend, &observed, "DaemonSet");
        let rolling = &sets[0]["spec"]["updateStrategy"]["rollingUpdate"];
        assert_eq!(rolling["maxUnavailable"], expected, "{spec} with {down} nodes down");
    }
}

#[test]
fn updates_by_hand_have_no_rate() {
    let backend = backend(&DIRECTORY.replace("dunnage}}", "dunnage}, update: {strategy: OnDelete}}"));
    let sets = objects(&backend, &two_nodes(), "DaemonSet");
    assert_eq!(sets[0]["spec"]["updateStrategy"], serde_json::json!({"type": "OnDelete"}));
}

#[test]
fn a_backend_that_cannot_work_here_has_no_plan() {
    let long = backend(&DIRECTORY.replace("name: local", "name: a-name-of-twenty-four-ch"));
    let microk8s = Observed {
        hosts: vec![host("a", "/var/snap/microk8s/common/var/lib/kubelet")],
        ..Observed::default()
    };
    assert!(planned(&long, &two_nodes()).is_ok());
    assert!(matches!(planned(&long, &microk8s), Err(Invalid::DriverNameTooLong { limit: 39, .. })));
}
