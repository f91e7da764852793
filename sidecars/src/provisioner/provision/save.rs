//! Writes to the cluster: the PersistentVolume, and a claim handed back to the scheduler.

use dunnage_cluster::Error;
use dunnage_cluster::error::{Category, chain};
use dunnage_csi::v1::Volume;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, PostParams};
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;

use super::prepare::Prepared;
use super::{Job, is_for};
use crate::provisioner::context::Context;
use crate::provisioner::{names, volume};
use crate::untyped;

/// Saves the volume; the error says why there is no PersistentVolume for it.
pub(super) async fn save(
    context: &Context,
    job: &Job,
    prepared: &Prepared,
    made: &Volume,
) -> Result<(), String> {
    let object = volume::build(&volume::Inputs {
        driver: &context.driver.name,
        identity: &context.identity,
        claim: &job.claim,
        class: &job.class,
        request: &prepared.request,
        volume: made,
        fs_type: &prepared.fs_type,
        secrets: &prepared.secrets,
        publish_read_only: context.args.controller_publish_readonly,
    });
    let name = object.name_any();
    if let Some(twin) = twin(context, &name, made) {
        return Err(format!("the driver's volume {:?} already is PersistentVolume {twin}", made.volume_id));
    }
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let error = match api.create(&PostParams::default(), &object).await {
        Ok(_) => return Ok(()),
        Err(error) => Error::api(format!("create PersistentVolume {name}"))(error),
    };
    if error.category() != Category::AlreadyExists {
        return Err(chain(&error));
    }
    let there = api.get(&name).await.map_err(Error::api(format!("get PersistentVolume {name}")));
    let there = there.map_err(|error| chain(&error))?;
    // An older one on its way out would take the volume with it.
    if there.metadata.deletion_timestamp.is_some() {
        return Err(format!("an older PersistentVolume {name} is still being deleted"));
    }
    let handle = there.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|csi| csi.volume_handle.as_str());
    if !is_for(&there, &job.uid) || handle != Some(made.volume_id.as_str()) {
        return Err(format!("there is another PersistentVolume {name}, for another claim or volume"));
    }
    Ok(())
}

/// Another PersistentVolume for the same volume, such as one made by hand.
pub(super) fn twin(context: &Context, name: &str, made: &Volume) -> Option<String> {
    let all = context.watched.volumes_by_handle.get(&made.volume_id);
    all.into_iter().map(|volume| volume.name_any()).find(|other| other != name)
}

/// Takes the node off that the scheduler chose, so that it chooses again.
pub(super) async fn unselect(context: &Context, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let metadata = &claim.metadata;
    let path = PersistentVolumeClaim::url_path(&(), metadata.namespace.as_deref());
    let node = crate::provisioner::claim::selected_node(claim);
    untyped::change(&context.client, &path, metadata.name.as_deref().unwrap_or_default(), |object| {
        take_node(object, metadata.uid.as_deref(), node)
    })
    .await
}

/// Only from the claim that was worked, and only the node that it was worked with.
fn take_node(object: &mut Value, uid: Option<&str>, node: Option<&str>) -> bool {
    let bound =
        object.pointer("/spec/volumeName").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    if bound || object.pointer("/metadata/uid").and_then(Value::as_str) != uid {
        return false;
    }
    let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") else { return false };
    let mut taken = false;
    for key in [names::SELECTED_NODE, names::SELECTED_NODE_ALPHA] {
        if annotations.get(key).and_then(Value::as_str).is_some_and(|chosen| Some(chosen) == node) {
            annotations.remove(key);
            taken = true;
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_node_that_was_tried_is_taken_off() {
        let claim = json!({
            "metadata": {"uid": "1", "annotations": {names::SELECTED_NODE: "n1", "other": "x"}},
            "spec": {"brandNew": true},
        });
        let mut taken = claim.clone();
        assert!(take_node(&mut taken, Some("1"), Some("n1")));
        assert_eq!(
            taken,
            json!({"metadata": {"uid": "1", "annotations": {"other": "x"}}, "spec": {"brandNew": true}})
        );
        let mut bound = claim.clone();
        bound["spec"]["volumeName"] = json!("pvc-1");
        for (mut claim, uid, node) in
            [(claim.clone(), "2", "n1"), (claim.clone(), "1", "n2"), (bound, "1", "n1"), (taken, "1", "n1")]
        {
            let before = claim.clone();
            assert!(!take_node(&mut claim, Some(uid), Some(node)));
            assert_eq!(claim, before);
        }
    }
}
