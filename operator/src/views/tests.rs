use k8s_openapi::api::apps::v1::{StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::{NodeSpec, PodSpec, PodStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;

fn pod(name: &str, node: &str, ready: bool) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod.spec = Some(PodSpec { node_name: Some(node.into()), ..PodSpec::default() });
    let status = json!({
        "podIP": "10.1.0.7",
        "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
    });
    pod.status = Some(serde_json::from_value::<PodStatus>(status).expect("status"));
    pod
}

fn node(name: &str, ready: bool) -> Node {
    let status = json!({
        "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "Unknown" }}]},
    });
    serde_json::from_value(status).expect("node")
}

fn set() -> StatefulSet {
    StatefulSet {
        spec: Some(StatefulSetSpec { replicas: Some(2), ..StatefulSetSpec::default() }),
        status: Some(StatefulSetStatus {
            update_revision: Some("new".into()),
            ..StatefulSetStatus::default()
        }),
        ..StatefulSet::default()
    }
}

fn revision(mut pod: Pod, revision: &str) -> Pod {
    pod.metadata.labels = Some([(REVISION.to_owned(), revision.to_owned())].into());
    pod
}

fn deleted(mut pod: Pod, at: i64) -> Pod {
    pod.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(at).expect("time")));
    pod
}

#[test]
fn a_pod_that_its_set_never_replaces_is_found() {
    let nodes = ready_nodes(&[node("up", true), node("down", false)]);
    let now = Timestamp::from_second(1000).expect("time");
    let cases = vec![
        (revision(pod("p", "up", true), "old"), None),
        (revision(pod("p", "up", false), "new"), None),
        (revision(pod("p", "up", false), "old"), Some(false)),
        (deleted(revision(pod("p", "up", false), "old"), 900), None),
        (revision(pod("p", "gone", true), "new"), Some(true)),
        (revision(pod("p", "down", false), "new"), None),
        (deleted(revision(pod("p", "down", false), "new"), 1100), None),
        (deleted(revision(pod("p", "down", false), "new"), 900), Some(true)),
    ];
    for (pod, wanted) in cases {
        let found = stuck(Some(&set()), [&pod], &nodes, now);
        assert_eq!(found.first().map(|stuck| stuck.force), wanted, "{:?}", pod.metadata);
    }
}

#[test]
fn the_controllers_pods_are_counted_and_the_first_excuse_is_told() {
    let waits = json!({"containerStatuses": [{
        "name": "driver", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }]});
    let mut broken = revision(pod("b", "up", false), "new");
    broken.status = Some(serde_json::from_value(waits).expect("status"));
    let fine = revision(pod("a", "up", true), "old");
    let seen = controller(Some(&set()), [&fine, &broken]);
    assert_eq!((seen.desired, seen.ready, seen.updated), (2, 1, 1));
    assert_eq!(seen.message, "container driver: ImagePullBackOff no such image");
    assert_eq!(controller(None, []).ready, 0);
}

#[test]
fn the_newest_pod_of_a_node_is_its_agent() {
    let age = |mut pod: Pod, second| {
        pod.metadata.creation_timestamp = Some(Time(Timestamp::from_second(second).expect("time")));
        pod
    };
    let pods = [
        deleted(age(pod("old", "a", true), 20), 25),
        age(pod("new", "a", false), 10),
        age(pod("other", "b", true), 10),
    ];
    let found: Vec<(String, String)> = targets(&pods).into_iter().map(|t| (t.node, t.pod_uid)).collect();
    assert_eq!(found, [("a".into(), "uid-new".into()), ("b".into(), "uid-other".into())]);
    let mut starting = pod("x", "c", false);
    starting.status = None;
    assert_eq!(targets([&starting]), []);
}

#[test]
fn a_taint_that_is_not_tolerated_leaves_the_node_out() {
    let mut node = node("a", true);
    let taint = Taint { key: "gpu".into(), effect: "NoSchedule".into(), ..Taint::default() };
    node.spec = Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() });
    let exists = |key: Option<&str>| Toleration {
        key: key.map(Into::into),
        operator: Some("Exists".into()),
        ..Toleration::default()
    };
    assert!(is_tolerated(&node, None), "the default tolerates all");
    for (tolerations, wanted) in [
        (vec![], false),
        (vec![exists(Some("gpu"))], true),
        (vec![exists(None)], true),
        (vec![exists(Some("other"))], false),
        (
            vec![Toleration { key: Some("gpu".into()), value: Some("big".into()), ..Toleration::default() }],
            false,
        ),
    ] {
        assert_eq!(is_tolerated(&node, Some(&tolerations)), wanted, "{tolerations:?}");
    }
}

#[test]
fn a_node_pod_is_updated_when_it_has_its_sets_newest_template() {
    let mut set = DaemonSet::default();
    set.metadata.uid = Some("set".into());
    set.metadata.annotations =
        Some([("deprecated.daemonset.template.generation".to_owned(), "2".to_owned())].into());
    let of = |generation: &str, owner: &str| {
        let meta = json!({
            "labels": {"pod-template-generation": generation},
            "ownerReferences": [
                {"uid": owner, "controller": true, "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x"},
            ],
        });
        Pod { metadata: serde_json::from_value(meta).expect("meta"), ..Pod::default() }
    };
    assert!(is_latest(&of("2", "set"), &[&set]));
    assert!(!is_latest(&of("1", "set"), &[&set]));
    assert!(!is_latest(&of("2", "another"), &[&set]));
}
