//! Carries out what is decided about pools: the record first, then the agents.

use std::collections::BTreeMap;

use dunnage_cluster::Error;
use dunnage_cluster::apply::apply;
use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_crds::{defaults, pools as record};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tracing::{info, warn};

use super::{Context, PassError, Subject};
use crate::agents::Agent;
use crate::apply::WRITER;
use crate::plan::meta::labels;
use crate::pools::{Decision, Entry, Inputs, NEW_POOL, Phase, Problem, Record, Wishes, decide};
use crate::removal::Uses;
use crate::status::Rejected;
use crate::views;

/// What came of it.
#[derive(Default)]
pub(super) struct Pools {
    pub(super) problems: BTreeMap<String, Problem>,
    /// Something was begun that the next pass goes on with.
    pub(super) again: bool,
}

pub(super) async fn pass(context: &Context, subject: &Subject) -> Result<Pools, PassError> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &subject.namespace);
    let name = record::name(&subject.name);
    let stored = api.get_opt(&name).await.map_err(Error::api(format!("get ConfigMap {name}")))?;
    let known = stored.as_ref().map(record::read).transpose()?.unwrap_or_default();

    let agents = context.agents.of(&subject.name);
    let described = agents
        .iter()
        .filter_map(|(node, agent)| Some((node.clone(), agent.facts()?.pool.clone())))
        .collect::<BTreeMap<_, _>>();
    let nodes = context.world.nodes.all();
    let decision = decide(&Inputs {
        record: &known,
        agents: &described,
        nodes: &views::node_facts(nodes.iter().map(|node| -> &Node { node }), &subject.topology_key),
        wishes: &Wishes::parse(subject.backend.annotations()),
        topology_key: &subject.topology_key,
        now: Timestamp::now(),
    });

    let new = with_starts(&decision, &nodes, subject);
    let changed = new != known;
    if changed && !write(&api, subject, name, stored.as_ref(), &new).await? {
        return Ok(Pools::default());
    }
    for note in &decision.notes {
        let kind = if note.warning { Kind::Warning } else { Kind::Normal };
        context.events.tell(&*subject.backend, kind, note.reason, note.message.clone());
    }
    act(context, subject, &decision).await?;
    let problems = decision
        .problems
        .into_iter()
        .map(|(node, problem)| {
            let message = problem.message.replace("sb/BACKEND", &format!("sb/{}", subject.name));
            (node, Problem { message, ..problem })
        })
        .collect();
    Ok(Pools { problems, again: changed || !decision.inits.is_empty() })
}

/// The decided record, with a fresh id for each node that starts a pool.
fn with_starts(decision: &Decision, nodes: &[std::sync::Arc<Node>], subject: &Subject) -> Record {
    let mut record = decision.record.clone();
    let path = defaults::pool(&subject.backend.spec).map(|(path, _)| path.to_owned()).unwrap_or_default();
    let now = Timestamp::now();
    for node in &decision.starts {
        let object = nodes.iter().find(|object| object.name_any() == *node);
        let entry = Entry {
            node: node.clone(),
            node_uid: object.and_then(|object| object.uid()).unwrap_or_default(),
            path: path.clone(),
            phase: Phase::Pending,
            first_seen: now,
            last_seen: now,
            node_gone: None,
        };
        record.insert(fresh_id(), entry);
    }
    record
}

fn fresh_id() -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("Linux has random numbers since 5.8 and long before");
    hex::encode(bytes)
}

/// Whether there is a namespace to write to.
async fn write(
    api: &Api<ConfigMap>,
    subject: &Subject,
    name: String,
    stored: Option<&ConfigMap>,
    record: &Record,
) -> Result<bool, Error> {
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(labels(&subject.name)),
            // Never over somebody else's write.
            resource_version: stored.and_then(ResourceExt::resource_version),
            ..ObjectMeta::default()
        },
        data: Some(record::write(record)),
        ..ConfigMap::default()
    };
    match apply(api, &map, WRITER).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

async fn act(context: &Context, subject: &Subject, decision: &Decision) -> Result<(), Error> {
    let uid = subject.backend.uid().unwrap_or_default();
    for (node, pool) in &decision.inits {
        info!(node, pool, "asking the agent to make its pool");
        // A refusal shows up in what the agent describes next.
        if let Err(error) = context.agents.init_pool(&subject.name, node, pool, &uid).await {
            warn!(node, pool, error = chain(&error), "the pool is not made yet");
        }
    }
    for fence in &decision.fences {
        let asked = context.agents.fence(&subject.name, &fence.node, fence.fenced, &fence.reason).await;
        match asked {
            Ok(()) => info!(node = fence.node, fenced = fence.fenced, reason = fence.reason, "fence changed"),
            Err(error) => warn!(node = fence.node, error = chain(&error), "the fence is not changed yet"),
        }
    }
    for node in &decision.stale_labels {
        set_label(context, &subject.topology_key, node, None).await?;
        let message = format!("took the label of the node's former pool off node {node}");
        context.events.tell(&*subject.backend, Kind::Normal, "TopologyLabelCleared", message);
    }
    for (node, pool) in &decision.missing_labels {
        set_label(context, &subject.topology_key, node, Some(pool)).await?;
        info!(node, pool, "labelled the node with its pool");
    }
    fulfil(context, subject, decision).await
}

/// Gives a node the driver's topology label, or takes it off.
async fn set_label(context: &Context, key: &str, node: &str, pool: Option<&str>) -> Result<(), Error> {
    let api: Api<Node> = Api::all(context.client.clone());
    let patch = json!({"metadata": {"labels": {key: pool}}});
    let patched = api.patch_metadata(node, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop);
    crate::apply::ignore_missing(patched, || format!("label node {node}"))
}

/// Takes fulfilled wishes out of the annotation, so that they do not hold for the next missing disk.
async fn fulfil(context: &Context, subject: &Subject, decision: &Decision) -> Result<(), Error> {
    if decision.fulfilled.is_empty() {
        return Ok(());
    }
    let wishes = Wishes::parse(subject.backend.annotations()).new_pools;
    let open: Vec<String> = wishes.difference(&decision.fulfilled).cloned().collect();
    let value = if open.is_empty() { json!(null) } else { json!(open.join(",")) };
    let patch = json!({"metadata": {
        "resourceVersion": subject.backend.resource_version(),
        "annotations": {NEW_POOL: value},
    }});
    let api: Api<dunnage_crds::StorageBackend> = Api::all(context.client.clone());
    let name = &subject.name;
    let patched = api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).map_err(Error::api(format!("take a fulfilled wish off {name}")))
}

/// Nodes that the spec no longer selects although their pools have volumes: without the node plugin, pods there could
/// not even unmount.
pub(super) async fn abandoned(
    context: &Context,
    subject: &Subject,
    uses: &Uses,
) -> Result<Option<Rejected>, PassError> {
    let nodes = context.world.nodes.all();
    let left_out = nodes.iter().filter(|node| !defaults::selects(&subject.backend.spec, node.labels()));
    let left_out: Vec<String> = left_out.map(|node| node.name_any()).collect();
    if left_out.is_empty() || uses.volumes.is_empty() && uses.inline_pods.is_empty() {
        return Ok(None);
    }
    let agents = context.agents.of(&subject.name);
    let inline =
        |node: &String| agents.get(node).and_then(Agent::facts).map_or(0, |facts| facts.inline_pods.len());
    let known = read(context, subject).await?;
    let held: Vec<String> = known
        .iter()
        .filter(|(_, entry)| left_out.contains(&entry.node))
        .filter_map(|(pool, entry)| {
            let count =
                uses.volumes.iter().filter(|volume| volume.handle.starts_with(&format!("{pool}-"))).count();
            let inline = inline(&entry.node);
            match (count, inline) {
                (0, 0) => None,
                (_, 0) => Some(format!("node {} has {count} volumes", entry.node)),
                _ => Some(format!(
                    "node {} has {count} volumes and {inline} pods with inline ones",
                    entry.node
                )),
            }
        })
        .collect();
    let message = format!(
        "spec.nodes.selector leaves out nodes with volumes ({}): delete their claims and these pods first, or select \
         the nodes again",
        held.join(", ")
    );
    Ok((!held.is_empty()).then_some(Rejected { reason: dunnage_crds::conditions::reasons::IN_USE, message }))
}

/// The record as it is stored.
pub(super) async fn read(context: &Context, subject: &Subject) -> Result<Record, PassError> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &subject.namespace);
    let name = record::name(&subject.name);
    let stored = api.get_opt(&name).await.map_err(Error::api(format!("get ConfigMap {name}")))?;
    Ok(stored.as_ref().map(record::read).transpose()?.unwrap_or_default())
}

/// Takes pools off the record that their agents have removed.
pub(super) async fn forget(context: &Context, subject: &Subject, pools: &[String]) -> Result<(), PassError> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &subject.namespace);
    let name = record::name(&subject.name);
    let stored = api.get_opt(&name).await.map_err(Error::api(format!("get ConfigMap {name}")))?;
    let Some(stored) = stored else { return Ok(()) };
    let known = record::read(&stored)?;
    let left: Record =
        known.iter().filter(|(pool, _)| !pools.contains(pool)).map(|(p, e)| (p.clone(), e.clone())).collect();
    if left != known {
        write(&api, subject, name, Some(&stored), &left).await?;
    }
    Ok(())
}
