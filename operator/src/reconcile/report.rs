//! Computes the status from what is seen, writes it when it differs, and tells of what turned.

use std::collections::BTreeMap;

use dunnage_cluster::Error;
use dunnage_cluster::events::Kind;
use dunnage_crds::{Blocker, StorageBackend};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::{Context, Subject};
use crate::pools::Problem;
use crate::removal::{Uses, blockers};
use crate::status::{self, Inputs, Rejected, status, turns};
use crate::views;

/// What a pass found beside what the caches show.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) rejected: Option<Rejected>,
    pub(super) problems: BTreeMap<String, Problem>,
}

/// What holds the backend.
pub(super) fn holding(subject: &Subject, uses: &Uses) -> Vec<Blocker> {
    let protection = subject.backend.spec.deletion.as_ref().map(|deletion| deletion.protection);
    blockers(uses, protection.unwrap_or_default())
}

pub(super) async fn write(
    context: &Context,
    subject: &Subject,
    uses: &Uses,
    findings: Findings,
) -> Result<(), Error> {
    let backend = &subject.backend;
    let world = &context.world;
    let agents = context.agents.of(&subject.name);
    let nodes = world.nodes.all();
    let csi_nodes = world.csi_nodes.all();
    let csi_nodes: BTreeMap<String, &CSINode> =
        csi_nodes.iter().map(|node| (node.name_any(), &**node)).collect();
    let (node_pods, controller_pods) =
        (world.pods(&subject.name, "node"), world.pods(&subject.name, "controller"));
    let sets = world.daemon_sets(&subject.name);
    let sets: Vec<&DaemonSet> = sets.iter().map(|set| &**set).collect();
    let views = views::node_views(
        backend,
        &subject.topology_key,
        &subject.driver,
        nodes.iter().map(|node| -> &Node { node }),
        &csi_nodes,
        node_pods.iter().map(AsRef::as_ref),
        &sets,
    );
    let set = world.stateful_sets.get(&super::controller_key(subject));
    let controller = views::controller(set.as_deref(), controller_pods.iter().map(AsRef::as_ref));
    let now = Time(jiff::Timestamp::now());
    let new = status(&Inputs {
        last: backend.status.as_ref(),
        generation: backend.metadata.generation,
        driver: &subject.driver,
        topology_key: &subject.topology_key,
        deleting: backend.metadata.deletion_timestamp.is_some(),
        rejected: findings.rejected.as_ref(),
        controller: &controller,
        nodes: &views,
        agents: &agents,
        problems: &findings.problems,
        default_classes: &world.default_classes(),
        uses,
        blockers: &holding(subject, uses),
        version: env!("CARGO_PKG_VERSION"),
        now: &now,
    });
    if backend.status.as_ref() == Some(&new) {
        return Ok(());
    }
    let written = StorageBackend {
        metadata: kube::api::ObjectMeta {
            name: Some(subject.name.clone()),
            resource_version: backend.resource_version(),
            ..kube::api::ObjectMeta::default()
        },
        spec: backend.spec.clone(),
        status: Some(new.clone()),
    };
    let api: Api<StorageBackend> = Api::all(context.client.clone());
    let action = format!("write the status of {}", subject.name);
    let params =
        PostParams { field_manager: Some(dunnage_crds::FIELD_MANAGER.to_owned()), ..PostParams::default() };
    api.replace_status(&subject.name, &params, &written).await.map_err(Error::api(action))?;
    tell(context, subject, &new, &findings.problems);
    Ok(())
}

/// Events follow the write: told once, whatever fails before.
fn tell(
    context: &Context,
    subject: &Subject,
    new: &dunnage_crds::StorageBackendStatus,
    problems: &BTreeMap<String, Problem>,
) {
    let backend = &*subject.backend;
    for turn in turns(backend.status.as_ref(), new) {
        let status::Turn { reason, message, warning } = turn;
        context.events.tell(backend, if warning { Kind::Warning } else { Kind::Normal }, reason, message);
    }
    let before = backend.status.as_ref().and_then(|status| status.nodes.as_ref());
    for (node, problem) in problems {
        let known = before.is_some_and(|nodes| {
            nodes.problems.iter().any(|known| known.node == *node && known.reason == problem.reason)
        });
        if !known {
            context.events.tell(backend, Kind::Warning, problem.reason, problem.message.clone());
        }
    }
}
