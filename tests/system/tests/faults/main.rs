//! Things that die at a bad moment: pods keep or regain their volumes, nothing is mounted twice, nothing leaks.

use std::thread::sleep;
use std::time::Duration;

use dunnage_tests_system::cluster::{Node, apply, eventually, get, kubectl, list, without_api_server};
use dunnage_tests_system::manifest::{backend, claim, pod, stateful};
use dunnage_tests_system::storage::{Namespace, remove_backend, volume_directory, wait_ready, word};

fn selector(name: &str, component: &str) -> String {
    format!("-l=dunnage.dev/backend={name},dunnage.dev/component={component}")
}

/// The pod of a backend's component on a node.
fn pod_on(name: &str, component: &str, node: &Node) -> Option<(String, String)> {
    list(&["pods", "-A", &selector(name, component)])
        .iter()
        .find(|pod| {
            pod["spec"]["nodeName"] == node.0.as_str() && pod["metadata"]["deletionTimestamp"].is_null()
        })
        .map(|pod| {
            (word(&pod["metadata"]["namespace"]).to_owned(), word(&pod["metadata"]["name"]).to_owned())
        })
}

/// The id of the volume of a PV.
fn handle(volume: &serde_json::Value) -> String {
    word(&volume["spec"]["csi"]["volumeHandle"]).to_owned()
}

/// The node of the controller pod whose provisioner leads.
fn leader(name: &str) -> Node {
    eventually("a provisioner to lead", || {
        let lease = get(&["lease", &format!("{name}-csi-dunnage-dev"), "-n", "dunnage-system"]);
        let holder = word(&lease["spec"]["holderIdentity"]).to_owned();
        let pods = list(&["pods", "-n", "dunnage-system", &selector(name, "controller")]);
        let pod = pods.iter().find(|pod| holder.starts_with(word(&pod["metadata"]["name"])));
        pod.map(|pod| Node(word(&pod["spec"]["nodeName"]).to_owned())).ok_or_else(|| lease.to_string())
    })
}

/// How often the volume of a PV is mounted below kubelet's directory on the node.
fn mounts(node: &Node, volume: &str) -> usize {
    node.shell("cat /proc/self/mountinfo")
        .lines()
        .filter(|line| line.contains(volume) && line.contains("/mount "))
        .count()
}

#[test]
fn a_mounted_volume_outlives_its_driver_and_kubelet() {
    let (name, pool) = ("outlives", "/var/lib/dunnage/outlives");
    apply(&backend(name, "LoopFile", pool, ""));
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "data", name, "64Mi"));
    apply(&pod(&space.0, "app", "data", "echo kept > /data/file", None));
    let node = space.wait_pod("app");
    let bound = space.wait_bound("data");
    let (volume, handle) = (word(&bound["metadata"]["name"]).to_owned(), handle(&bound));
    let mounted = mounts(&node, &volume);
    assert!(mounted >= 1);

    let (namespace, plugin) = pod_on(name, "node", &node).expect("a plugin");
    kubectl(&["delete", "pod", &plugin, "-n", &namespace, "--force", "--grace-period=0"]);
    node.restart_kubelet();
    wait_ready(name);
    eventually("the application to answer", || {
        space.exec("app", "cat /data/file && echo more >> /data/file")
    });
    assert_eq!(mounts(&node, &volume), mounted, "nothing is mounted twice");
    assert_eq!(node.loop_devices(&handle).len(), 1);

    kubectl(&["delete", "pod", "app", "-n", &space.0]);
    eventually("the loop device to go with its pod", || {
        let devices = node.loop_devices(&handle);
        if devices.is_empty() { Ok(()) } else { Err(devices.join("\n")) }
    });
    space.remove();
    remove_backend(name);
}

#[test]
fn a_plugin_killed_again_and_again_while_pods_start_leaves_no_half_mount() {
    let (name, pool) = ("killed", "/var/lib/dunnage/killed");
    apply(&backend(name, "LoopFile", pool, ""));
    wait_ready(name);
    let space = Namespace::new(name);
    let node = Node("n1".to_owned());
    let pods: Vec<String> = (0..4).map(|index| format!("app-{index}")).collect();
    for name_of_pod in &pods {
        apply(&claim(&space.0, name_of_pod, name, "32Mi"));
        apply(&pod(&space.0, name_of_pod, name_of_pod, "echo kept > /data/file", Some(&node.0)));
    }
    for _ in 0..3 {
        if let Some((namespace, plugin)) = pod_on(name, "node", &node) {
            kubectl(&["delete", "pod", &plugin, "-n", &namespace, "--force", "--grace-period=0"]);
        }
        sleep(Duration::from_secs(2));
    }
    for name_of_pod in &pods {
        assert_eq!(space.wait_pod(name_of_pod), node);
        assert_eq!(space.exec(name_of_pod, "cat /data/file").as_deref(), Ok("kept"));
    }
    let pool_id = handle(&space.wait_bound(&pods[0])).split('-').next().expect("a pool id").to_owned();
    assert_eq!(node.loop_devices(&pool_id).len(), pods.len());
    space.remove();
    eventually("no loop device to be left", || {
        let devices = node.loop_devices(&pool_id);
        if devices.is_empty() { Ok(()) } else { Err(devices.join("\n")) }
    });
    remove_backend(name);
}

#[test]
fn a_node_that_lost_power_comes_back_with_its_volumes_while_the_other_goes_on_provisioning() {
    let (name, pool) = ("power", "/var/lib/dunnage/power");
    apply(&backend(name, "LoopFile", pool, ""));
    wait_ready(name);
    let space = Namespace::new(name);
    let leader = leader(name);
    apply(&claim(&space.0, "data", name, "64Mi"));
    apply(&pod(&space.0, "first", "data", "true", Some(&leader.0)));
    space.wait_pod("first");
    kubectl(&["delete", "pod", "first", "-n", &space.0]);
    apply(&stateful(&space.0, "app", "data", "echo boot >> /data/file; sync"));
    let node = space.wait_pod("app-0");
    assert_eq!(node, leader, "the volume is there");
    let handle = handle(&space.wait_bound("data"));

    node.power_off();
    node.wait_away();
    let other = node.other();
    apply(&claim(&space.0, "meanwhile", name, "64Mi"));
    apply(&pod(&space.0, "meanwhile", "meanwhile", "true", Some(&other.0)));
    assert_eq!(space.wait_pod("meanwhile"), other, "one controller replica is enough");

    node.power_on();
    eventually("the application to be back on its data", || {
        let lines = space.exec("app-0", "cat /data/file")?;
        if lines.lines().count() >= 2 { Ok(()) } else { Err(lines) }
    });
    assert_eq!(node.loop_devices(&handle).len(), 1);
    space.remove();
    wait_ready(name);
    remove_backend(name);
}

#[test]
fn the_operator_killed_while_backends_come_makes_nothing_twice() {
    let names = ["killed-a", "killed-b", "killed-c"];
    for name in names {
        apply(&backend(name, "Directory", &format!("/var/lib/dunnage/{name}"), ""));
        let operators = list(&["pods", "-n", "dunnage-system", "-l=app.kubernetes.io/component=operator"]);
        assert!(!operators.is_empty(), "the operator's pod carries its label");
        for operator in operators {
            let operator = word(&operator["metadata"]["name"]).to_owned();
            kubectl(&["delete", "pod", &operator, "-n", "dunnage-system", "--force", "--grace-period=0"]);
        }
    }
    for name in names {
        wait_ready(name);
        let record = get(&["configmap", &format!("dunnage-{name}-pools"), "-n", "dunnage-system"]);
        let pools = record["data"].as_object().map_or(0, serde_json::Map::len);
        assert_eq!(pools, 2, "one pool a node: {record}");
        remove_backend(name);
    }
}

#[test]
fn an_api_server_that_is_away_for_a_minute_stops_no_pod_and_makes_nothing_twice() {
    let (name, pool) = ("outage", "/var/lib/dunnage/outage");
    apply(&backend(name, "Directory", pool, ""));
    wait_ready(name);
    let space = Namespace::new(name);
    apply(&claim(&space.0, "log", name, "8Mi"));
    apply(&pod(&space.0, "log", "log", "(while :; do echo line >> /data/log; sleep 1; done) & true", None));
    let node = space.wait_pod("log");
    let log = format!("{}/data/log", volume_directory(pool, &space.wait_bound("log")));
    let lines = || node.shell(&format!("wc -l < {log}")).parse::<u32>().expect("a number of lines");

    // In the midst of being provisioned when the API server goes.
    let pods: Vec<String> = (0..6).map(|index| format!("app-{index}")).collect();
    for pod_name in &pods {
        apply(&claim(&space.0, pod_name, name, "8Mi"));
        apply(&pod(&space.0, pod_name, pod_name, "true", None));
    }
    without_api_server(|| {
        let before = lines();
        sleep(Duration::from_secs(60));
        assert!(lines() > before + 30, "the pod went on writing");
    });

    for pod_name in &pods {
        space.wait_pod(pod_name);
    }
    let volumes: Vec<String> = pods.iter().map(|pod_name| handle(&space.wait_bound(pod_name))).collect();
    let on_disk: Vec<String> = Node::both()
        .iter()
        .flat_map(|node| {
            let listed = node.shell(&format!("ls {pool}/volumes"));
            listed.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(on_disk.len(), volumes.len() + 1, "{on_disk:?}");
    assert!(volumes.iter().all(|volume| on_disk.contains(volume)), "{volumes:?} {on_disk:?}");
    wait_ready(name);
    space.remove();
    remove_backend(name);
}
