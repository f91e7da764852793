//! One container: its image, environment, probes, resources and rights.

use std::collections::BTreeMap;

use dunnage_crds::{Amounts, ByContainer, Resources};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector, Probe,
    ResourceRequirements, SeccompProfile, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::View;

/// Where an agent serves the router and the operator.
pub(super) const AGENT_PORT: i32 = 9741;
/// Where each container serves health and metrics.
pub(super) const DRIVER_HTTP: i32 = 9742;
pub(super) const REGISTRAR_HTTP: i32 = 9743;
const PROVISIONER_HTTP: i32 = 9744;
const ATTACHER_HTTP: i32 = 9745;
pub(super) const DISCOVERY_HTTP: i32 = 9746;
const RESIZER_HTTP: i32 = 9747;
const SNAPSHOTTER_HTTP: i32 = 9748;

/// The user of everything that needs no rights on its node.
pub(super) const NOBODY: i64 = 65532;

/// The containers of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    NodeDriver,
    Registrar,
    Router,
    AgentDiscovery,
    Provisioner,
    Resizer,
    Snapshotter,
    Attacher,
}

impl Role {
    /// The container's name in its pod.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NodeDriver | Self::Router => "driver",
            Self::Registrar => "registrar",
            Self::AgentDiscovery => "agent-discovery",
            Self::Provisioner => "provisioner",
            Self::Resizer => "resizer",
            Self::Snapshotter => "snapshotter",
            Self::Attacher => "attacher",
        }
    }

    /// The port for health and metrics, and its name.
    pub(super) fn http(self) -> (i32, &'static str) {
        match self {
            Self::NodeDriver | Self::Router => (DRIVER_HTTP, "driver"),
            Self::Registrar => (REGISTRAR_HTTP, "registrar"),
            Self::AgentDiscovery => (DISCOVERY_HTTP, "discovery"),
            Self::Provisioner => (PROVISIONER_HTTP, "provisioner"),
            Self::Resizer => (RESIZER_HTTP, "resizer"),
            Self::Snapshotter => (SNAPSHOTTER_HTTP, "snapshotter"),
            Self::Attacher => (ATTACHER_HTTP, "attacher"),
        }
    }

    /// Whether its readiness counts for the pod. On a node the registrar speaks for both: it is ready once the
    /// kubelet has the driver.
    fn probed_for_readiness(self) -> bool {
        self != Self::NodeDriver
    }

    fn of<T>(self, values: &ByContainer<T>) -> Option<&T> {
        match self {
            Self::NodeDriver => values.node_driver.as_ref(),
            Self::Registrar => values.registrar.as_ref(),
            Self::Router => values.router.as_ref(),
            Self::AgentDiscovery => values.agent_discovery.as_ref(),
            Self::Provisioner => values.provisioner.as_ref(),
            Self::Resizer => values.resizer.as_ref(),
            Self::Snapshotter => values.snapshotter.as_ref(),
            Self::Attacher => values.attacher.as_ref(),
        }
    }

    fn security(self) -> SecurityContext {
        let confined = SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            run_as_user: Some(NOBODY),
            run_as_group: Some(NOBODY),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..SecurityContext::default()
        };
        match self {
            // It mounts, and makes loop devices.
            Self::NodeDriver => SecurityContext {
                privileged: Some(true),
                read_only_root_filesystem: Some(true),
                run_as_user: Some(0),
                run_as_group: Some(0),
                ..SecurityContext::default()
            },
            // The kubelet's directories and the driver's socket belong to root.
            Self::Registrar => SecurityContext {
                run_as_non_root: Some(false),
                run_as_user: Some(0),
                run_as_group: Some(0),
                ..confined
            },
            _ => confined,
        }
    }
}

impl View<'_> {
    /// The container of a role, which is the program called with `args`.
    pub(super) fn container(&self, role: Role, args: Vec<String>, mounts: Vec<VolumeMount>) -> Container {
        let (port, port_name) = role.http();
        let images = self.backend.spec.images.as_ref();
        Container {
            name: role.name().to_owned(),
            image: Some(self.image_of(role)),
            image_pull_policy: images
                .and_then(|images| images.pull_policy)
                .map(|policy| policy.as_str().to_owned()),
            args: Some(args),
            env: Some(self.environment()),
            ports: Some(vec![container_port(port_name, port)]),
            liveness_probe: Some(probe(port_name, "/healthz", 6)),
            readiness_probe: role.probed_for_readiness().then(|| probe(port_name, "/readyz", 3)),
            resources: Some(requirements(self.backend.spec.resources.as_ref().and_then(|all| role.of(all)))),
            security_context: Some(role.security()),
            volume_mounts: Some(mounts),
            ..Container::default()
        }
    }

    fn image_of(&self, role: Role) -> String {
        let images = self.backend.spec.images.as_ref();
        if let Some(image) = images.and_then(|images| images.overrides.as_ref()).and_then(|all| role.of(all))
        {
            return image.clone();
        }
        match images.and_then(|images| images.registry.as_deref()) {
            Some(registry) => format!("{registry}/{}", without_registry(self.image)),
            None => self.image.to_owned(),
        }
    }

    fn environment(&self) -> Vec<EnvVar> {
        let logging = self.backend.spec.logging.unwrap_or_default();
        let value = |name: &str, value: &str| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        };
        let field = |name: &str, path: &str| EnvVar {
            name: name.to_owned(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: path.to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
        };
        vec![
            value("DUNNAGE_LOG_LEVEL", logging.level.as_str()),
            value("DUNNAGE_LOG_FORMAT", logging.format.as_str()),
            field("NODE_NAME", "spec.nodeName"),
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("NAMESPACE", "metadata.namespace"),
        ]
    }
}

pub(super) fn container_port(name: &str, port: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(port: &str, path: &str, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(port.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(if path == "/readyz" { 5 } else { 10 }),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// Small requests by default, so that nothing is evicted first, and no limit that could kill in mid-work.
fn requirements(asked: Option<&Resources>) -> ResourceRequirements {
    let amounts = |amounts: &Amounts, cpu: Option<&str>, memory: Option<&str>| {
        let quantity = |text: &str| Quantity(text.to_owned());
        let pairs = [
            ("cpu", amounts.cpu.clone().or_else(|| cpu.map(quantity))),
            ("memory", amounts.memory.clone().or_else(|| memory.map(quantity))),
        ];
        pairs
            .into_iter()
            .filter_map(|(name, amount)| amount.map(|amount| (name.to_owned(), amount)))
            .collect::<BTreeMap<_, _>>()
    };
    let asked = asked.cloned().unwrap_or_default();
    let limits = asked.limits.map(|limits| amounts(&limits, None, None));
    ResourceRequirements {
        requests: Some(amounts(&asked.requests.unwrap_or_default(), Some("10m"), Some("16Mi"))),
        limits: limits.filter(|limits| !limits.is_empty()),
        claims: None,
    }
}

/// An image's name within its registry.
fn without_registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => rest,
        _ => image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_is_taken_off_an_image() {
        for (image, expected) in [
            ("dunnage:1", "dunnage:1"),
            ("team/dunnage:1", "team/dunnage:1"),
            ("registry.example.com/team/dunnage:1", "team/dunnage:1"),
            ("localhost/dunnage:1", "dunnage:1"),
            ("mirror:5000/dunnage@sha256:00", "dunnage@sha256:00"),
        ] {
            assert_eq!(without_registry(image), expected, "{image}");
        }
    }

    #[test]
    fn a_request_that_is_given_replaces_the_default_and_a_limit_is_never_made_up() {
        let asked = Resources {
            requests: Some(Amounts { cpu: None, memory: Some(Quantity("64Mi".into())) }),
            limits: Some(Amounts::default()),
        };
        let got = requirements(Some(&asked));
        let requests = got.requests.expect("requests");
        assert_eq!(requests["cpu"].0, "10m");
        assert_eq!(requests["memory"].0, "64Mi");
        assert_eq!(got.limits, None);
    }
}
