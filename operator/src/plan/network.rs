//! Who may speak to the agents: the router, the operator and each other, and for metrics anybody.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::View;
use super::container::{AGENT_PORT, DRIVER_HTTP, REGISTRAR_HTTP};
use super::meta::Component;

pub(super) fn agents(view: &View<'_>) -> NetworkPolicy {
    let controllers = NetworkPolicyPeer {
        pod_selector: Some(view.pod_selector(Component::Controller)),
        ..NetworkPolicyPeer::default()
    };
    // They copy data from one node to another.
    let agents = NetworkPolicyPeer {
        pod_selector: Some(view.pod_selector(Component::Node)),
        ..NetworkPolicyPeer::default()
    };
    let operators = NetworkPolicyPeer {
        namespace_selector: Some(equal("kubernetes.io/metadata.name", view.operator_namespace)),
        pod_selector: Some(equal("app.kubernetes.io/component", "operator")),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata: view.meta(&view.names.node, Component::Node),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(view.pod_selector(Component::Node)),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule {
                    from: Some(vec![controllers, agents, operators]),
                    ports: Some(vec![port(AGENT_PORT)]),
                },
                NetworkPolicyIngressRule {
                    from: None,
                    ports: Some(vec![port(DRIVER_HTTP), port(REGISTRAR_HTTP)]),
                },
            ]),
            egress: None,
        }),
    }
}

fn equal(label: &str, value: &str) -> LabelSelector {
    LabelSelector {
        match_labels: Some([(label.to_owned(), value.to_owned())].into()),
        ..LabelSelector::default()
    }
}

fn port(number: i32) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(number)),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    }
}
