//! From node pods to the addresses of their agents, and from the record of the pools to what is given up: pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use dunnage_crds::pools;
use dunnage_csi::agent::AgentAddress;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use tracing::warn;

/// The agents of `pods`, one a node, by the node's name. Pods need not be ready: an agent whose pool has yet to be
/// made is one. Of two on a node the newer counts.
pub(super) fn addresses<'a>(pods: impl Iterator<Item = &'a Pod>, port: u16) -> Vec<AgentAddress> {
    let mut newest: BTreeMap<&str, (&Pod, IpAddr)> = BTreeMap::new();
    for pod in pods {
        let Some((node, ip)) = place(pod) else { continue };
        let slot = newest.entry(node).or_insert((pod, ip));
        if age(pod) > age(slot.0) {
            *slot = (pod, ip);
        }
    }
    let agent = |(node, (_, ip)): (&str, (&Pod, IpAddr))| AgentAddress {
        node: node.to_owned(),
        address: SocketAddr::new(ip, port).to_string(),
    };
    newest.into_iter().map(agent).collect()
}

/// The pools that nobody waits for any more; none when the record cannot be read, for that loses nothing.
pub(super) fn given_up(record: &ConfigMap) -> Vec<String> {
    match pools::read(record) {
        Ok(record) => {
            record.into_iter().filter(|(_, entry)| entry.phase.is_given_up()).map(|(pool, _)| pool).collect()
        }
        Err(error) => {
            warn!(%error, "no pool counts as given up");
            Vec::new()
        }
    }
}

/// The node and address of a pod that is alive.
fn place(pod: &Pod) -> Option<(&str, IpAddr)> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    let status = pod.status.as_ref()?;
    let ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    if ended || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some((node, status.pod_ip.as_deref()?.parse().ok()?))
}

/// Later pods are greater; the name decides between pods of the same second.
fn age(pod: &Pod) -> (Option<jiff::Timestamp>, Option<&str>) {
    (pod.metadata.creation_timestamp.as_ref().map(|time| time.0), pod.metadata.name.as_deref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": node, "containers": []},
            "status": status,
        }))
        .expect("a pod")
    }

    fn agents(pods: &[Pod]) -> Vec<(String, String)> {
        addresses(pods.iter(), 9741).into_iter().map(|agent| (agent.node, agent.address)).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(node, address)| ((*node).to_owned(), (*address).to_owned())).collect()
    }

    #[test]
    fn a_pod_with_an_address_is_an_agent_whether_it_is_ready_or_not() {
        let not_ready = json!({"phase": "Running", "podIP": "10.0.0.2",
            "conditions": [{"type": "Ready", "status": "False"}]});
        let pods = [
            pod("b", "node-b", not_ready),
            pod("a", "node-a", json!({"phase": "Running", "podIP": "10.0.0.1"})),
        ];
        assert_eq!(agents(&pods), pairs(&[("node-a", "10.0.0.1:9741"), ("node-b", "10.0.0.2:9741")]));
    }

    #[test]
    fn an_ipv6_address_stands_in_brackets() {
        let pods = [pod("a", "node-a", json!({"phase": "Running", "podIP": "fd00::1"}))];
        assert_eq!(agents(&pods), pairs(&[("node-a", "[fd00::1]:9741")]));
    }

    #[test]
    fn a_pod_that_is_not_there_yet_or_not_any_more_is_no_agent() {
        let mut deleted = pod("a", "node-a", json!({"phase": "Running", "podIP": "10.0.0.1"}));
        deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
        let mut unscheduled = pod("b", "", json!({"phase": "Pending", "podIP": "10.0.0.1"}));
        unscheduled.spec.as_mut().expect("spec").node_name = None;
        for pod in [
            deleted,
            unscheduled,
            pod("c", "node-c", json!({"phase": "Pending"})),
            pod("d", "node-d", json!({"phase": "Failed", "podIP": "10.0.0.1"})),
            pod("e", "node-e", json!({"phase": "Succeeded", "podIP": "10.0.0.1"})),
            pod("f", "node-f", json!({"phase": "Running", "podIP": "nonsense"})),
            pod("g", "node-g", json!(null)),
        ] {
            let name = pod.metadata.name.clone();
            assert_eq!(agents(&[pod]), pairs(&[]), "{name:?}");
        }
    }

    #[test]
    fn of_two_pods_on_a_node_the_newer_counts_in_any_order() {
        let old = pod("z", "node", json!({"phase": "Running", "podIP": "10.0.0.1"}));
        let mut new = pod("a", "node", json!({"phase": "Running", "podIP": "10.0.0.2"}));
        let later = serde_json::from_value(json!("2026-01-01T00:00:01Z")).expect("time");
        new.metadata.creation_timestamp = Some(later);
        for pods in [[old.clone(), new.clone()], [new, old]] {
            assert_eq!(agents(&pods), pairs(&[("node", "10.0.0.2:9741")]));
        }
    }

    #[test]
    fn a_pool_is_given_up_when_its_node_is_gone_or_a_person_said_so_and_never_by_a_broken_record() {
        let entry = |phase: &str| {
            format!(
                r#"{{"node":"n","phase":"{phase}","firstSeen":"2026-01-01T00:00:00Z","lastSeen":"2026-01-01T00:00:00Z"}}"#
            )
        };
        let record = |data: &[(&str, String)]| ConfigMap {
            data: Some(data.iter().map(|(pool, text)| ((*pool).to_owned(), text.clone())).collect()),
            ..ConfigMap::default()
        };
        let mut entries = vec![
            ("a", entry("Active")),
            ("l", entry("Lost")),
            ("p", entry("Pending")),
            ("r", entry("Retired")),
        ];
        assert_eq!(given_up(&record(&entries)), ["l", "r"]);
        entries.push(("x", "{".to_owned()));
        assert_eq!(given_up(&record(&entries)), [""; 0]);
    }
}
