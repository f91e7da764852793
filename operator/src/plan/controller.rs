//! The controller plugin: the router, and the sidecars that act on claims and volumes.

use dunnage_crds::{CrossPool, defaults, pools};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Affinity, Container, LocalObjectReference, PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec,
    PodTemplateSpec, Toleration, WeightedPodAffinityTerm,
};
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::View;
use super::container::{AGENT_PORT, DISCOVERY_HTTP, DRIVER_HTTP, NOBODY, Role};
use super::facts::Snapshots;
use super::meta::{Component, selector_text};
use super::volumes::{
    SOCKET, SOCKET_DIR, TLS, TLS_DIR, mount, mount_read_only, mount_token, secret, shared_memory, token,
};

pub(super) fn stateful_set(view: &View<'_>) -> StatefulSet {
    let labels = view.pod_labels(Component::Controller);
    StatefulSet {
        metadata: view.meta(&view.names.controller, Component::Controller),
        spec: Some(StatefulSetSpec {
            replicas: Some(defaults::replicas(&view.backend.spec, view.observed.hosts.len())),
            // Pods are equal and a leader is elected: none needs to wait for another.
            pod_management_policy: Some("Parallel".to_owned()),
            selector: view.pod_selector(Component::Controller),
            service_name: Some(view.names.controller.clone()),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(pod(view)),
            },
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: None,
            }),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

fn pod(view: &View<'_>) -> PodSpec {
    let spec = view.backend.spec.controller.clone().unwrap_or_default();
    let mut containers = vec![router(view), agent_discovery(view), provisioner(view), resizer(view)];
    if view.observed.snapshots != Snapshots::Absent {
        containers.push(snapshotter(view));
    }
    if view.attach {
        containers.push(attacher(view));
    }
    PodSpec {
        affinity: Some(apart(view)),
        automount_service_account_token: Some(false),
        containers,
        image_pull_secrets: view.pull_secrets(),
        node_selector: (!spec.node_selector.is_empty()).then_some(spec.node_selector),
        priority_class_name: Some("system-cluster-critical".to_owned()),
        security_context: Some(PodSecurityContext {
            fs_group: Some(NOBODY),
            ..PodSecurityContext::default()
        }),
        service_account_name: Some(view.names.controller.clone()),
        tolerations: Some(spec.tolerations.unwrap_or_else(control_plane)),
        volumes: Some(vec![shared_memory(SOCKET), secret(TLS, &view.names.router_tls, 0o440), token()]),
        ..PodSpec::default()
    }
}

fn router(view: &View<'_>) -> Container {
    let mut args = vec![
        "driver".to_owned(),
        "--mode=router".to_owned(),
        format!("--endpoint=unix://{SOCKET_DIR}/csi.sock"),
        format!("--driver-name={}", view.driver),
        format!("--engine={}", view.engine.as_str()),
    ];
    if view.attach {
        args.push("--attach".to_owned());
    }
    if view.backend.spec.cross_pool == CrossPool::Refuse {
        args.push("--cross-pool=Refuse".to_owned());
    }
    args.extend([format!("--tls-dir={TLS_DIR}"), http_endpoint(DRIVER_HTTP)]);
    view.container(Role::Router, args, vec![mount(SOCKET, SOCKET_DIR), mount_read_only(TLS, TLS_DIR)])
}

fn agent_discovery(view: &View<'_>) -> Container {
    let args = vec![
        "agent-discovery".to_owned(),
        csi_address(),
        format!("--namespace={}", view.namespace),
        format!("--selector={}", selector_text(&view.backend.name_any(), Component::Node)),
        format!("--pool-record={}", pools::name(&view.backend.name_any())),
        format!("--port={AGENT_PORT}"),
        http_endpoint(DISCOVERY_HTTP),
    ];
    view.container(Role::AgentDiscovery, args, vec![mount(SOCKET, SOCKET_DIR), mount_token()])
}

fn provisioner(view: &View<'_>) -> Container {
    let flags =
        ["--strict-topology", "--extra-create-metadata", "--enable-capacity", "--capacity-ownerref-level=1"];
    sidecar(view, Role::Provisioner, &flags, "worker-threads")
}

/// Every engine grows its volumes, in use or not: none is refused for a pod that uses it, so no pod is looked for.
fn resizer(view: &View<'_>) -> Container {
    sidecar(view, Role::Resizer, &["--handle-volume-inuse-error=false"], "workers")
}

/// Every engine takes snapshots.
fn snapshotter(view: &View<'_>) -> Container {
    sidecar(view, Role::Snapshotter, &[], "worker-threads")
}

fn attacher(view: &View<'_>) -> Container {
    sidecar(view, Role::Attacher, &[], "worker-threads")
}

/// A sidecar that acts while it leads, with flags of its own; `workers` is the one for how much it does at once.
fn sidecar(view: &View<'_>, role: Role, flags: &[&str], workers: &str) -> Container {
    let mut args = vec![
        role.name().to_owned(),
        csi_address(),
        "--leader-election".to_owned(),
        format!("--leader-election-namespace={}", view.namespace),
    ];
    args.extend(flags.iter().copied().map(str::to_owned));
    args.push(http_endpoint(role.http().0));
    args.extend(tuning(view, workers));
    view.container(role, args, vec![mount(SOCKET, SOCKET_DIR), mount_token()])
}

fn csi_address() -> String {
    format!("--csi-address={SOCKET_DIR}/csi.sock")
}

fn http_endpoint(port: i32) -> String {
    format!("--http-endpoint=0.0.0.0:{port}")
}

/// The flags of the sidecars that act; without settings they keep their own defaults.
fn tuning(view: &View<'_>, workers: &str) -> Vec<String> {
    let tuning = view.backend.spec.tuning.clone().unwrap_or_default();
    let mut flags = Vec::new();
    flags.extend(tuning.workers.map(|count| format!("--{workers}={count}")));
    flags.extend(tuning.call_timeout.map(|timeout| format!("--timeout={timeout}")));
    if let Some(limit) = tuning.kube_api {
        flags.extend([format!("--kube-api-qps={}", limit.qps), format!("--kube-api-burst={}", limit.burst)]);
    }
    if let Some(election) = tuning.leader_election {
        flags.extend([
            format!("--leader-election-lease-duration={}", election.lease_duration),
            format!("--leader-election-renew-deadline={}", election.renew_deadline),
            format!("--leader-election-retry-period={}", election.retry_period),
        ]);
    }
    flags
}

/// On different nodes where there are several; a wish only, since a single node must be able to roll.
fn apart(view: &View<'_>) -> Affinity {
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: PodAffinityTerm {
                    label_selector: Some(view.pod_selector(Component::Controller)),
                    topology_key: "kubernetes.io/hostname".to_owned(),
                    ..PodAffinityTerm::default()
                },
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn control_plane() -> Vec<Toleration> {
    let toleration = |key: &str| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    };
    vec![toleration("node-role.kubernetes.io/control-plane"), toleration("node-role.kubernetes.io/master")]
}

impl View<'_> {
    pub(super) fn pull_secrets(&self) -> Option<Vec<LocalObjectReference>> {
        let names = self
            .backend
            .spec
            .images
            .as_ref()
            .map(|images| images.pull_secrets.as_slice())
            .unwrap_or_default();
        let references = names.iter().map(|name| LocalObjectReference { name: name.clone() });
        (!names.is_empty()).then(|| references.collect())
    }
}
