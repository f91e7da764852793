//! Nodes that have failed, told on the claims whose pods are on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dunnage_cluster::events::{Kind, Recorder};
use dunnage_cluster::{Error, Key};
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use super::volumes::Volumes;
use crate::claims;

/// As long as this a node may be not ready: a restart is no failure.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Ready,
    /// Not ready, but not for long enough.
    Failing,
    Failed,
}

fn health(node: &Node, now: Timestamp) -> Health {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    match ready {
        Some(ready) if ready.status == "True" => Health::Ready,
        Some(ready) => match &ready.last_transition_time {
            Some(since) if now.duration_since(since.0) >= PATIENCE => Health::Failed,
            _ => Health::Failing,
        },
        // A node that has just been made.
        None => Health::Failing,
    }
}

/// What has become of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Failed,
    /// Its object was deleted.
    Gone,
    Recovered,
}

/// The nodes, and which of them were told to have failed.
#[derive(Debug, Default)]
pub(super) struct Known {
    nodes: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Known {
    /// What is to be told. It is said again until it was [told](Self::told).
    pub(super) fn turns(&mut self, nodes: &[Arc<Node>], now: Timestamp) -> Vec<(String, Turn)> {
        let found: BTreeMap<String, Health> =
            nodes.iter().map(|node| (node.name_any(), health(node, now))).collect();
        self.nodes.extend(found.keys().cloned());
        let turn = |node: &String| match (found.get(node), self.failed.contains(node)) {
            (None, _) => Some(Turn::Gone),
            (Some(Health::Failed), false) => Some(Turn::Failed),
            (Some(Health::Ready), true) => Some(Turn::Recovered),
            _ => None,
        };
        self.nodes.iter().filter_map(|node| Some((node.clone(), turn(node)?))).collect()
    }

    pub(super) fn told(&mut self, node: &str, turn: Turn) {
        match turn {
            Turn::Failed => {
                self.failed.insert(node.to_owned());
            }
            Turn::Recovered => {
                self.failed.remove(node);
            }
            Turn::Gone => {
                self.failed.remove(node);
                self.nodes.remove(node);
            }
        }
    }
}

/// Tells it on the claims whose pods are on the node. Pods are asked for now, and never watched.
pub(super) async fn tell(
    client: &Client,
    volumes: &Volumes,
    events: &Recorder,
    node: &str,
    turn: Turn,
) -> Result<(), Error> {
    let pods: Api<Pod> = Api::all(client.clone());
    let on_it = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = pods.list(&on_it).await.map_err(Error::api(format!("list the pods of node {node}")))?;
    for (claim, pods) in by_claim(&pods.items) {
        let Some(claim) = volumes.claim(&claim) else { continue };
        let (kind, reason, message) = words(node, turn, &pods);
        events.tell_of(claim, kind, reason, message);
    }
    Ok(())
}

fn words(node: &str, turn: Turn, pods: &[String]) -> (Kind, &'static str, String) {
    let pods = pods.join(", ");
    match turn {
        Turn::Failed => {
            let minutes = PATIENCE.as_secs() / 60;
            let message = format!("node {node} of pod {pods} has not been ready for {minutes} minutes");
            (Kind::Warning, "NodeFailed", message)
        }
        Turn::Gone => (Kind::Warning, "NodeFailed", format!("node {node} of pod {pods} was deleted")),
        Turn::Recovered => {
            (Kind::Normal, "NodeRecovered", format!("node {node} of pod {pods} is ready again"))
        }
    }
}

/// The names of the pods that use each claim.
fn by_claim(pods: &[Pod]) -> BTreeMap<Key, Vec<String>> {
    let mut found: BTreeMap<Key, Vec<String>> = BTreeMap::new();
    for pod in pods {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        for claim in claims::of_pod(pod) {
            let users = found.entry(Key::namespaced(namespace.clone(), claim)).or_default();
            if !users.contains(&name) {
                users.push(name.clone());
            }
        }
    }
    found
}

/// Drops what is not read.
pub(super) fn trim(node: &mut Node) {
    node.metadata.labels = None;
    node.metadata.annotations = None;
    node.spec = Some(NodeSpec::default());
    node.status = node.status.take().map(|status| NodeStatus {
        conditions: status.conditions.map(|mut conditions| {
            conditions.retain(|condition| condition.type_ == "Ready");
            conditions
        }),
        ..NodeStatus::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).expect("in range")
    }

    /// A node whose readiness changed at this minute.
    fn node(name: &str, ready: &str, minute: i64) -> Arc<Node> {
        let since = at(minute).to_string();
        let mut node: Node = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
            "status": {"conditions": [
                {"type": "DiskPressure", "status": "False"},
                {"type": "Ready", "status": ready, "lastTransitionTime": since},
            ]},
        }))
        .expect("node");
        trim(&mut node);
        Arc::new(node)
    }

    #[test]
    fn a_node_has_failed_when_it_has_not_been_ready_for_long() {
        for (ready, minutes, expected) in [
            ("True", 60, Health::Ready),
            ("False", 4, Health::Failing),
            ("Unknown", 4, Health::Failing),
            ("False", 5, Health::Failed),
            ("Unknown", 60, Health::Failed),
        ] {
            assert_eq!(health(&node("n", ready, 0), at(minutes)), expected, "{ready} {minutes}");
        }
        assert_eq!(health(&Node::default(), at(60)), Health::Failing);
    }

    #[test]
    fn each_turn_of_a_node_is_said_until_it_was_told() {
        let mut known = Known::default();
        let bad = [node("a", "True", 0), node("b", "Unknown", 0)];
        assert_eq!(known.turns(&bad, at(1)), []);
        let failed = [("b".to_owned(), Turn::Failed)];
        assert_eq!(known.turns(&bad, at(6)), failed);
        assert_eq!(known.turns(&bad, at(7)), failed, "it could not be told");
        known.told("b", Turn::Failed);
        assert_eq!(known.turns(&bad, at(8)), []);
        let good = [node("a", "True", 0), node("b", "True", 9)];
        assert_eq!(known.turns(&good, at(9)), [("b".to_owned(), Turn::Recovered)]);
        known.told("b", Turn::Recovered);
        assert_eq!(known.turns(&good, at(10)), []);
        assert_eq!(known.turns(&good[1..], at(11)), [("a".to_owned(), Turn::Gone)]);
        known.told("a", Turn::Gone);
        assert_eq!(known.turns(&good[1..], at(12)), []);
    }

    #[test]
    fn a_claim_has_the_pods_that_use_it() {
        let pod = |name: &str, volumes: Value| -> Pod {
            let pod = json!({
                "metadata": {"namespace": "ns", "name": name},
                "spec": {"containers": [], "volumes": volumes},
            });
            serde_json::from_value(pod).expect("pod")
        };
        let claim = |name: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": name}});
        let pods = [
            pod("one", json!([claim("shared"), claim("shared"), {"name": "tmp", "emptyDir": {}}])),
            pod("two", json!([claim("shared"), {"name": "own", "ephemeral": {}}])),
            Pod::default(),
        ];
        let expected = [("shared", vec!["one", "two"]), ("two-own", vec!["two"])];
        let expected: BTreeMap<_, Vec<_>> = expected
            .into_iter()
            .map(|(claim, pods)| {
                (Key::namespaced("ns", claim), pods.iter().map(ToString::to_string).collect())
            })
            .collect();
        assert_eq!(by_claim(&pods), expected);
    }
}
