//! What the sidecars may do, bound to the controller's account alone.

use dunnage_crds::pools;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::ResourceExt;

use super::View;
use super::facts::Snapshots;
use super::meta::Component;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The cluster roles by sidecar. They come with the operator's installation, so that the operator can bind them
/// without holding, or being able to change, what they grant.
const PROVISIONER: &str = "dunnage-provisioner";
const RESIZER: &str = "dunnage-resizer";
const SNAPSHOTTER: &str = "dunnage-snapshotter";
const ATTACHER: &str = "dunnage-attacher";

/// Binds the cluster role of each sidecar that runs.
pub(super) fn cluster_bindings(view: &View<'_>) -> Vec<ClusterRoleBinding> {
    let mut roles = vec![PROVISIONER, RESIZER];
    if view.observed.snapshots != Snapshots::Absent {
        roles.push(SNAPSHOTTER);
    }
    if view.attach {
        roles.push(ATTACHER);
    }
    let binding = |role: &str| {
        let sidecar = role.trim_start_matches("dunnage-");
        ClusterRoleBinding {
            metadata: view.cluster_meta(&format!("dunnage-{}-{sidecar}", view.backend.name_any())),
            role_ref: role_ref("ClusterRole", role),
            subjects: Some(vec![controller(view)]),
        }
    };
    roles.into_iter().map(binding).collect()
}

/// Leader election, capacity, and the pods: to name the owner of capacity objects and to find the agents. The record of
/// the pools tells the router what is given up.
pub(super) fn role(view: &View<'_>) -> Role {
    Role {
        metadata: view.meta(&view.names.controller, Component::Controller),
        rules: Some(vec![
            rule("coordination.k8s.io", "leases", &["get", "list", "watch", "create", "update", "delete"]),
            rule(
                "storage.k8s.io",
                "csistoragecapacities",
                &["get", "list", "watch", "create", "update", "patch", "delete"],
            ),
            rule("", "pods", &["get", "list", "watch"]),
            PolicyRule {
                resource_names: Some(vec![pools::name(&view.backend.name_any())]),
                ..rule("", "configmaps", &["get", "list", "watch"])
            },
        ]),
    }
}

/// Binds the role.
pub(super) fn role_binding(view: &View<'_>) -> RoleBinding {
    RoleBinding {
        metadata: view.meta(&view.names.controller, Component::Controller),
        role_ref: role_ref("Role", &view.names.controller),
        subjects: Some(vec![controller(view)]),
    }
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: GROUP.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
}

fn controller(view: &View<'_>) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: view.names.controller.clone(),
        namespace: Some(view.namespace.to_owned()),
        ..Subject::default()
    }
}
