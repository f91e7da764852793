//! Everything that is looked up before the driver is called.

use std::collections::{BTreeMap, HashMap};

use dunnage_cluster::Error;
use dunnage_csi::v1::CreateVolumeRequest;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::Api;

use super::{Job, Stop};
use crate::provisioner::context::Context;
use crate::provisioner::journal::state::Entry;
use crate::provisioner::params::{self, SecretKind};
use crate::provisioner::progress::Wait;
use crate::provisioner::secrets::{self, Facts, SecretRef};
use crate::provisioner::source::Source;
use crate::provisioner::topology::{self, Asked, Unknown};
use crate::provisioner::{claim, request, sources};

/// A request, and what the PersistentVolume needs beside the answer.
pub(super) struct Prepared {
    pub(super) request: CreateVolumeRequest,
    pub(super) entry: Entry,
    pub(super) fs_type: String,
    pub(super) secrets: BTreeMap<SecretKind, SecretRef>,
}

/// Looks everything up. What an earlier call was made with is used again, so that the requests are equal.
pub(super) async fn prepare(context: &Context, job: &Job) -> Result<Prepared, Stop> {
    if !context.driver.can.create_and_delete {
        return Err(Stop::early("the driver cannot make volumes: it lacks CREATE_DELETE_VOLUME"));
    }
    let volume = context.volume_name(&job.uid);
    let class_parameters = job.class.parameters.clone().unwrap_or_default();
    let parameters = params::parse(&class_parameters, &context.args.default_fstype).map_err(Stop::early)?;
    let metadata = &job.claim.metadata;
    let no_annotations = BTreeMap::new();
    let facts = Facts {
        volume: &volume,
        claim: metadata.name.as_deref().unwrap_or_default(),
        namespace: metadata.namespace.as_deref().unwrap_or_default(),
        annotations: Some(metadata.annotations.as_ref().unwrap_or(&no_annotations)),
    };
    let mut found = BTreeMap::new();
    for kind in SecretKind::ALL {
        if let Some(secret) = secrets::resolve(&parameters.secrets, kind, &facts).map_err(Stop::early)? {
            found.insert(kind, secret);
        }
    }
    let mut entry = Entry::new(&job.claim, &job.class, &secrets::annotations_used(&parameters.secrets));
    if let Some(owed) = &job.owed {
        entry.source = owed.source.clone();
        entry.topology = owed.topology.clone();
        entry.mutable_parameters = owed.mutable_parameters.clone();
    } else {
        entry.source = sources::resolve(context, &job.claim).await?;
        entry.topology = places(context, job)?;
        entry.mutable_parameters = attributes(context, job).await?;
    }
    let data = match found.get(&SecretKind::Provisioner) {
        Some(secret) => read_secret(context, secret).await.map_err(|error| Stop::api(&error))?,
        None => HashMap::new(),
    };
    let request = request::build(request::Inputs {
        volume: &volume,
        claim: &job.claim,
        class: &job.class,
        parameters: &parameters,
        single_node: context.driver.can.single_node(),
        extra_metadata: context.args.extra_create_metadata,
        topology: entry.topology.as_ref(),
        source: entry.source.as_ref().map(Source::content),
        mutable_parameters: entry.mutable_parameters.clone(),
        secrets: data,
    });
    let request = request.map_err(Stop::early)?;
    Ok(Prepared { request, entry, fs_type: parameters.fs_type, secrets: found })
}

/// Where the volume may be made.
fn places(context: &Context, job: &Job) -> Result<Option<Asked>, Stop> {
    let Some(nodes) = &context.watched.nodes else { return Ok(None) };
    let driver = &context.driver.name;
    let selected = claim::selected_node(&job.claim).filter(|_| claim::is_delayed(&job.class));
    let asked = topology::ask(&topology::Inputs {
        claim: job.claim.metadata.name.as_deref().unwrap_or_default(),
        selected: selected.map(|name| (name, nodes.get(name, driver))),
        allowed: job.class.allowed_topologies.as_deref().unwrap_or_default(),
        strict: context.args.strict_topology,
        immediate: context.args.immediate_topology,
        nodes: &|| nodes.all(driver),
    });
    asked.map_err(|unknown| match unknown {
        Unknown::NodeGone(_) => Stop::HandBack { problem: unknown.to_string() },
        _ => Stop::Early { problem: unknown.to_string(), wait: Some(Wait::Place) },
    })
}

/// The parameters of the `VolumeAttributesClass` that the claim names.
async fn attributes(context: &Context, job: &Job) -> Result<BTreeMap<String, String>, Stop> {
    let name = job.claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(BTreeMap::new()) };
    if !context.args.standard.feature_gates.enabled("VolumeAttributesClass", true) {
        return Ok(BTreeMap::new());
    }
    if !context.driver.can.modify {
        return Err(Stop::early("the driver knows no VolumeAttributesClass: it lacks MODIFY_VOLUME"));
    }
    let api: Api<VolumeAttributesClass> = Api::all(context.client.clone());
    let found = api.get(name).await.map_err(Error::api(format!("get VolumeAttributesClass {name}")));
    let found = found.map_err(|error| Stop::api(&error))?;
    if found.driver_name != context.driver.name {
        let theirs = found.driver_name;
        return Err(Stop::early(format!("VolumeAttributesClass {name:?} is for driver {theirs:?}")));
    }
    Ok(found.parameters.unwrap_or_default())
}

/// The entries of a secret, read live: they are kept no longer than a call takes.
pub(in crate::provisioner) async fn read_secret(
    context: &Context,
    secret: &SecretRef,
) -> Result<HashMap<String, String>, Error> {
    let SecretRef { name, namespace } = secret;
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get(name).await.map_err(Error::api(format!("get secret {namespace}/{name}")))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let data = found.data.unwrap_or_default();
    Ok(data.into_iter().map(|(key, value)| (key, text(value.0))).collect())
}
