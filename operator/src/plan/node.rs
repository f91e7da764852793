//! The node plugin: the driver that does the work, and the registrar that tells the kubelet of it.

use dunnage_crds::{LabelRequirement, UpdateStrategy, defaults};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
    PodTemplateSpec, Toleration,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::View;
use super::container::{AGENT_PORT, DRIVER_HTTP, REGISTRAR_HTTP, Role, container_port};
use super::meta::{Component, DAEMON_SET};
use super::volumes::{
    Propagation, REGISTRATION_DIR, SOCKET, SOCKET_DIR, TLS, TLS_DIR, host_dir, mount, mount_host,
    mount_read_only, secret,
};

const KUBELET: &str = "kubelet";
const POOL: &str = "pool";
const DEVICES: &str = "devices";
const REGISTRATION: &str = "registration";

/// One DaemonSet a kubelet directory. The first takes all nodes that no other takes, so that a node that joins
/// changes nothing for those that are there.
pub(super) fn daemon_sets(view: &View<'_>, kubelet_dirs: &[String]) -> Vec<DaemonSet> {
    let elsewhere = |main: &str| -> Vec<&str> {
        let hosts = view.observed.hosts.iter();
        let others =
            hosts.filter(|host| host.kubelet_dir != main && kubelet_dirs.contains(&host.kubelet_dir));
        others.map(|host| host.name.as_str()).collect()
    };
    let sets = kubelet_dirs.iter().enumerate().map(|(index, dir)| {
        if index == 0 {
            let others = if kubelet_dirs.len() > 1 { elsewhere(dir) } else { Vec::new() };
            daemon_set(view, &view.names.node, dir, &Hosts::AllBut(others))
        } else {
            let hosts = view.observed.hosts.iter().filter(|host| &host.kubelet_dir == dir);
            let only = hosts.map(|host| host.name.as_str()).collect();
            daemon_set(view, &view.names.further_node(dir), dir, &Hosts::Only(only))
        }
    });
    sets.collect()
}

/// The nodes of a DaemonSet, among those that the backend selects.
enum Hosts<'a> {
    AllBut(Vec<&'a str>),
    Only(Vec<&'a str>),
}

fn daemon_set(view: &View<'_>, name: &str, kubelet_dir: &str, hosts: &Hosts<'_>) -> DaemonSet {
    let mut selector = view.pod_selector(Component::Node);
    let mut labels = view.pod_labels(Component::Node);
    for labels in [selector.match_labels.get_or_insert_default(), &mut labels] {
        labels.insert(DAEMON_SET.to_owned(), name.to_owned());
    }
    DaemonSet {
        metadata: view.meta(name, Component::Node),
        spec: Some(DaemonSetSpec {
            selector,
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(pod(view, kubelet_dir, hosts)),
            },
            update_strategy: Some(update_strategy(view)),
            ..DaemonSetSpec::default()
        }),
        status: None,
    }
}

fn pod(view: &View<'_>, kubelet_dir: &str, hosts: &Hosts<'_>) -> PodSpec {
    let tolerations = view.backend.spec.nodes.as_ref().and_then(|nodes| nodes.tolerations.clone());
    PodSpec {
        affinity: affinity(view, hosts),
        automount_service_account_token: Some(false),
        containers: vec![driver(view, kubelet_dir), registrar(view, kubelet_dir)],
        image_pull_secrets: view.pull_secrets(),
        priority_class_name: Some("system-node-critical".to_owned()),
        service_account_name: Some(view.names.node.clone()),
        tolerations: Some(tolerations.unwrap_or_else(|| {
            vec![Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }]
        })),
        volumes: Some(vec![
            host_dir(SOCKET, &plugin_dir(view, kubelet_dir), true),
            host_dir(REGISTRATION, &format!("{kubelet_dir}/plugins_registry"), true),
            host_dir(KUBELET, kubelet_dir, false),
            host_dir(POOL, view.path, true),
            host_dir(DEVICES, "/dev", false),
            secret(TLS, &view.names.agent_tls, 0o400),
        ]),
        ..PodSpec::default()
    }
}

fn driver(view: &View<'_>, kubelet_dir: &str) -> Container {
    let mut args = vec![
        "driver".to_owned(),
        "--mode=node".to_owned(),
        format!("--endpoint=unix://{SOCKET_DIR}/csi.sock"),
        format!("--driver-name={}", view.driver),
        "--node-id=$(NODE_NAME)".to_owned(),
        format!("--engine={}", view.engine.as_str()),
        format!("--pool-path={}", view.path),
        format!("--backend-uid={}", view.backend.uid().unwrap_or_default()),
    ];
    if view.require_mount_point {
        args.push("--require-mount-point".to_owned());
    }
    if view.attach {
        args.push("--attach".to_owned());
    }
    if let Some(reserve) = defaults::reserve(&view.backend.spec) {
        args.push(format!("--reserve={reserve}"));
    }
    if let Some(percent) = defaults::overcommit_percent(&view.backend.spec) {
        args.push(format!("--overcommit-ratio={}.{:02}", percent / 100, percent % 100));
    }
    args.extend([
        format!("--agent-address=0.0.0.0:{AGENT_PORT}"),
        format!("--tls-dir={TLS_DIR}"),
        format!("--kubelet-dir={kubelet_dir}"),
        format!("--http-endpoint=0.0.0.0:{DRIVER_HTTP}"),
    ]);
    let mounts = vec![
        mount(SOCKET, SOCKET_DIR),
        mount_read_only(TLS, TLS_DIR),
        // The paths are the host's, so that paths in calls and in the kernel's tables need no translation.
        mount_host(KUBELET, kubelet_dir, Propagation::Bidirectional),
        mount_host(POOL, view.path, Propagation::HostToContainer),
        mount(DEVICES, "/dev"),
    ];
    let mut container = view.container(Role::NodeDriver, args, mounts);
    container.ports.get_or_insert_default().push(container_port("agent", AGENT_PORT));
    container
}

fn registrar(view: &View<'_>, kubelet_dir: &str) -> Container {
    let args = vec![
        "registrar".to_owned(),
        format!("--csi-address={SOCKET_DIR}/csi.sock"),
        format!("--kubelet-registration-path={}/csi.sock", plugin_dir(view, kubelet_dir)),
        format!("--plugin-registration-path={REGISTRATION_DIR}"),
        format!("--http-endpoint=0.0.0.0:{REGISTRAR_HTTP}"),
    ];
    let mounts = vec![mount(SOCKET, SOCKET_DIR), mount(REGISTRATION, REGISTRATION_DIR)];
    view.container(Role::Registrar, args, mounts)
}

fn plugin_dir(view: &View<'_>, kubelet_dir: &str) -> String {
    format!("{kubelet_dir}/plugins/{}", view.driver)
}

/// The nodes that the backend selects, cut down to those of this DaemonSet. Terms are alternatives, so each repeats
/// what the backend asks for.
fn affinity(view: &View<'_>, hosts: &Hosts<'_>) -> Option<Affinity> {
    let labels = selected(view);
    let name = |operator: &str, name: &str| NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: operator.to_owned(),
        values: Some(vec![name.to_owned()]),
    };
    let term = |fields: Vec<NodeSelectorRequirement>| NodeSelectorTerm {
        match_expressions: (!labels.is_empty()).then(|| labels.clone()),
        match_fields: (!fields.is_empty()).then_some(fields),
    };
    let terms: Vec<NodeSelectorTerm> = match hosts {
        Hosts::AllBut(others) => vec![term(others.iter().map(|other| name("NotIn", other)).collect())],
        Hosts::Only(hosts) => hosts.iter().map(|host| term(vec![name("In", host)])).collect(),
    };
    let limited = terms.iter().any(|term| term.match_expressions.is_some() || term.match_fields.is_some());
    limited.then(|| Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: terms,
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    })
}

fn selected(view: &View<'_>) -> Vec<NodeSelectorRequirement> {
    let Some(selector) = view.backend.spec.nodes.as_ref().and_then(|nodes| nodes.selector.as_ref()) else {
        return Vec::new();
    };
    let labels = selector.match_labels.iter().map(|(key, value)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(vec![value.clone()]),
    });
    let expressions =
        selector.match_expressions.iter().map(|requirement: &LabelRequirement| NodeSelectorRequirement {
            key: requirement.key.clone(),
            operator: requirement.operator.as_str().to_owned(),
            values: (!requirement.values.is_empty()).then(|| requirement.values.clone()),
        });
    labels.chain(expressions).collect()
}

/// A node that is down cannot be updated and must not stop the others, so it counts on top of what is asked.
fn update_strategy(view: &View<'_>) -> DaemonSetUpdateStrategy {
    let update = view.backend.spec.update.clone().unwrap_or_default();
    if update.strategy == UpdateStrategy::OnDelete {
        return DaemonSetUpdateStrategy { type_: Some("OnDelete".to_owned()), rolling_update: None };
    }
    let spec = &view.backend.spec;
    let down = view.observed.hosts.iter().filter(|host| !host.ready && defaults::selects(spec, &host.labels));
    let max_unavailable = match update.max_unavailable.unwrap_or(IntOrString::Int(1)) {
        IntOrString::Int(asked) => {
            IntOrString::Int(asked.saturating_add(i32::try_from(down.count()).unwrap_or(i32::MAX)))
        }
        share @ IntOrString::String(_) => share,
    };
    DaemonSetUpdateStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDaemonSet {
            max_unavailable: Some(max_unavailable),
            max_surge: None,
        }),
    }
}
