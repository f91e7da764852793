//! The patches of claims and volumes: pure. Those of claims are strategic, so that a condition of somebody else's is
//! left as it is, and carry the version that they were made for, so that nothing unseen is written over.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::facts::{
    self, CONTROLLER_ERROR, CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE, FILE_SYSTEM_PENDING,
    NO_NODE_EXPANSION, NODE_ERROR, NODE_PENDING, RESIZING, SIZE_BEFORE, State,
};
use crate::quantity;

/// A condition that is to be there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told<'a> {
    pub(super) kind: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

impl<'a> Told<'a> {
    pub(super) fn plain(kind: &'a str) -> Self {
        Self { kind, ..Self::default() }
    }
}

/// The changes of a claim's conditions: what is there already keeps its time.
pub(super) fn conditions(
    claim: &PersistentVolumeClaim,
    add: &[Told<'_>],
    drop: &[&str],
    now: jiff::Timestamp,
) -> Vec<Value> {
    let has = |told: &Told<'_>| {
        let all = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
        all.into_iter().any(|found| {
            found.type_ == told.kind
                && found.status == "True"
                && found.reason.as_deref().unwrap_or_default() == told.reason
                && found.message.as_deref().unwrap_or_default() == told.message
        })
    };
    let second = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    let added = add.iter().filter(|told| !has(told)).map(|told| {
        json!({
            "type": told.kind, "status": "True", "lastTransitionTime": second,
            "reason": told.reason, "message": told.message,
        })
    });
    let dropped = drop.iter().filter(|kind| facts::mentions(claim, kind));
    added.chain(dropped.map(|kind| json!({"$patch": "delete", "type": kind}))).collect()
}

/// A patch of a claim's status, for the claim as it was read; none when it changes nothing.
pub(super) fn of_claim(
    claim: &PersistentVolumeClaim,
    annotations: &Value,
    conditions: Vec<Value>,
    mut status: Map<String, Value>,
) -> Option<Value> {
    if !conditions.is_empty() {
        status.insert("conditions".to_owned(), Value::Array(conditions));
    }
    let mut metadata = version(&claim.metadata);
    if !annotations.is_null() {
        metadata.insert("annotations".to_owned(), annotations.clone());
    }
    let changes = !status.is_empty() || !annotations.is_null();
    changes.then(|| json!({"metadata": metadata, "status": status}))
}

/// The uid is there so that a claim of the same name that came later is never meant.
fn version(meta: &ObjectMeta) -> Map<String, Value> {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), json!(meta.resource_version));
    metadata.insert("uid".to_owned(), json!(meta.uid));
    metadata
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Written before the driver is called: what it is asked for, and that the end is not known; none when the status
/// says so already.
pub(super) fn begin(claim: &PersistentVolumeClaim, target: i64, now: jiff::Timestamp) -> Option<Value> {
    let allocated =
        claim.status.as_ref().and_then(|status| facts::storage(status.allocated_resources.as_ref()));
    let mut status = Map::new();
    // An error that is told would be taken for the end of the call which is about to begin.
    let mut drop = vec![CONTROLLER_ERROR];
    if allocated != Some(target) {
        status.insert("allocatedResources".to_owned(), json!({"storage": quantity::format(target)}));
        drop.extend([FILE_SYSTEM_PENDING, NODE_ERROR]);
    }
    if State::of(claim) != State::ControllerInProgress {
        status.insert("allocatedResourceStatuses".to_owned(), json!({"storage": CONTROLLER_IN_PROGRESS}));
    }
    let noted = annotation(&claim.metadata, NO_NODE_EXPANSION).is_some();
    let annotations = if noted { json!({NO_NODE_EXPANSION: null}) } else { Value::Null };
    let conditions = conditions(claim, &[Told::plain(RESIZING)], &drop, now);
    of_claim(claim, &annotations, conditions, status)
}

/// The volume has grown, and a node has to do its part.
pub(super) fn node_pending(claim: &PersistentVolumeClaim, now: jiff::Timestamp) -> Option<Value> {
    let mut status = Map::new();
    if State::of(claim) != State::NodePending {
        status.insert("allocatedResourceStatuses".to_owned(), json!({"storage": NODE_PENDING}));
    }
    let message = "Waiting for a node to grow the file system of the volume.";
    let told = Told { message, ..Told::plain(FILE_SYSTEM_PENDING) };
    of_claim(claim, &Value::Null, conditions(claim, &[told], &[], now), status)
}

/// The volume has grown, and nothing else is to be done.
pub(super) fn done(claim: &PersistentVolumeClaim, size: i64, now: jiff::Timestamp) -> Option<Value> {
    let mut status = Map::new();
    if facts::actual(claim) != Some(size) {
        status.insert("capacity".to_owned(), json!({"storage": quantity::format(size)}));
    }
    if State::of(claim) != State::None {
        status.insert("allocatedResourceStatuses".to_owned(), json!({"storage": null}));
    }
    let noted = annotation(&claim.metadata, NO_NODE_EXPANSION) == Some("true");
    let annotations = if noted { Value::Null } else { json!({NO_NODE_EXPANSION: "true"}) };
    let drop = [RESIZING, FILE_SYSTEM_PENDING, CONTROLLER_ERROR, NODE_ERROR];
    of_claim(claim, &annotations, conditions(claim, &[], &drop, now), status)
}

/// The driver has refused.
pub(super) fn failed(
    claim: &PersistentVolumeClaim,
    told: Told<'_>,
    infeasible: bool,
    now: jiff::Timestamp,
) -> Option<Value> {
    let mut status = Map::new();
    if infeasible && State::of(claim) != State::ControllerInfeasible {
        status.insert("allocatedResourceStatuses".to_owned(), json!({"storage": CONTROLLER_INFEASIBLE}));
    }
    of_claim(claim, &Value::Null, conditions(claim, &[told], &[], now), status)
}

/// The volume's object after it has grown to `size`: its capacity never falls. `before` is the size to note for the
/// time until a node has done its part.
pub(super) fn of_volume(volume: &PersistentVolume, size: i64, before: Option<i64>) -> Option<Value> {
    let capacity = volume.spec.as_ref().and_then(|spec| facts::storage(spec.capacity.as_ref()));
    let mut patch = json!({"metadata": version(&volume.metadata)});
    let grows = capacity.is_none_or(|capacity| capacity < size);
    if grows {
        patch["spec"] = json!({"capacity": {"storage": quantity::format(size)}});
    }
    let note = before.filter(|_| annotation(&volume.metadata, SIZE_BEFORE).is_none());
    if let Some(before) = note {
        patch["metadata"]["annotations"] = json!({SIZE_BEFORE: quantity::format(before)});
    }
    (grows || note.is_some()).then_some(patch)
}

/// Takes the note of the size before off a volume.
pub(super) fn forget_size_before(volume: &PersistentVolume) -> Value {
    let mut metadata = version(&volume.metadata);
    metadata.insert("annotations".to_owned(), json!({SIZE_BEFORE: null}));
    json!({"metadata": metadata})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        jiff::Timestamp::from_second(1_800_000_000).expect("in range")
    }

    fn claim(status: Value) -> PersistentVolumeClaim {
        let metadata = json!({"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "status": status})).expect("a claim")
    }

    fn told(kind: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": "", "message": ""})
    }

    fn types(patch: &Value) -> Vec<(String, bool)> {
        let conditions = patch["status"]["conditions"].as_array().into_iter().flatten();
        let of = |condition: &Value| {
            let kind = condition["type"].as_str().expect("type").to_owned();
            (kind, condition.get("$patch").is_none())
        };
        conditions.map(of).collect()
    }

    #[test]
    fn before_a_call_the_status_says_what_is_asked_for_and_no_error_of_before() {
        let first = begin(&claim(json!({})), 2 << 30, now()).expect("a patch");
        assert_eq!(first["metadata"], json!({"resourceVersion": "7", "uid": "u"}));
        assert_eq!(first["status"]["allocatedResources"], json!({"storage": "2Gi"}));
        assert_eq!(
            first["status"]["allocatedResourceStatuses"],
            json!({"storage": "ControllerResizeInProgress"})
        );
        assert_eq!(types(&first), [(RESIZING.to_owned(), true)]);

        // Another size: what was told of the attempt before is over.
        let before = claim(json!({
            "allocatedResources": {"storage": "3Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
            "conditions": [told(RESIZING), told(CONTROLLER_ERROR), told(NODE_ERROR), told("Mine")],
        }));
        let other = begin(&before, 2 << 30, now()).expect("a patch");
        assert_eq!(types(&other), [(CONTROLLER_ERROR.to_owned(), false), (NODE_ERROR.to_owned(), false)]);

        // The same once more: only the error goes, for its call is not the last one any more.
        let same = begin(&before, 3 << 30, now()).expect("a patch");
        assert_eq!(types(&same), [(CONTROLLER_ERROR.to_owned(), false)]);
        assert_eq!(same["status"].get("allocatedResources"), None);

        let already = claim(json!({
            "allocatedResources": {"storage": "3Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
            "conditions": [told(RESIZING)],
        }));
        assert_eq!(begin(&already, 3 << 30, now()), None);
    }

    #[test]
    fn a_claim_that_was_grown_without_a_node_loses_that_note_before_it_grows_again() {
        let mut claim = claim(json!({}));
        claim.metadata.annotations = Some([(NO_NODE_EXPANSION.to_owned(), "true".to_owned())].into());
        let patch = begin(&claim, 1 << 30, now()).expect("a patch");
        assert_eq!(patch["metadata"]["annotations"], json!({NO_NODE_EXPANSION: null}));
    }

    #[test]
    fn what_has_grown_has_the_size_and_no_trace_of_the_attempt_but_what_was_allocated() {
        let all = [RESIZING, FILE_SYSTEM_PENDING, CONTROLLER_ERROR, NODE_ERROR];
        let claim = claim(json!({
            "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
            "conditions": all.map(told),
        }));
        let patch = done(&claim, 2 << 30, now()).expect("a patch");
        assert_eq!(patch["status"]["capacity"], json!({"storage": "2Gi"}));
        assert_eq!(patch["status"]["allocatedResourceStatuses"], json!({"storage": null}));
        assert_eq!(patch["status"].get("allocatedResources"), None);
        assert_eq!(types(&patch), all.map(|kind| (kind.to_owned(), false)));
        assert_eq!(patch["metadata"]["annotations"], json!({NO_NODE_EXPANSION: "true"}));
    }

    #[test]
    fn a_node_is_waited_for_beside_the_condition_that_the_claim_grows() {
        let claim = claim(json!({"conditions": [told(RESIZING)]}));
        let patch = node_pending(&claim, now()).expect("a patch");
        assert_eq!(types(&patch), [(FILE_SYSTEM_PENDING.to_owned(), true)]);
        assert_eq!(patch["status"]["allocatedResourceStatuses"], json!({"storage": "NodeResizePending"}));
    }

    #[test]
    fn an_error_is_told_once_with_its_reason() {
        let error = Told { kind: CONTROLLER_ERROR, reason: "OutOfRange", message: "too large" };
        let first = claim(json!({"allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}));
        let patch = failed(&first, error, true, now()).expect("a patch");
        assert_eq!(patch["status"]["allocatedResourceStatuses"], json!({"storage": CONTROLLER_INFEASIBLE}));
        assert_eq!(patch["status"]["conditions"][0]["message"], "too large");
        let patch = failed(&first, error, false, now()).expect("a patch");
        assert_eq!(patch["status"].get("allocatedResourceStatuses"), None);
        let told = claim(json!({"conditions": [
            {"type": CONTROLLER_ERROR, "status": "True", "reason": "OutOfRange", "message": "too large"},
        ]}));
        assert_eq!(failed(&told, error, false, now()), None);
    }

    #[test]
    fn a_volumes_capacity_never_falls_and_its_size_before_is_noted_once() {
        let volume = |annotations: Value| -> PersistentVolume {
            let metadata =
                json!({"name": "pv", "uid": "u", "resourceVersion": "7", "annotations": annotations});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"capacity": {"storage": "2Gi"}}}))
                .expect("a volume")
        };
        let plain = volume(json!({}));
        assert_eq!(of_volume(&plain, 1 << 30, None), None);
        let grown = of_volume(&plain, 3 << 30, Some(1 << 30)).expect("a patch");
        assert_eq!(grown["spec"], json!({"capacity": {"storage": "3Gi"}}));
        assert_eq!(grown["metadata"]["annotations"], json!({SIZE_BEFORE: "1Gi"}));
        let noted = volume(json!({SIZE_BEFORE: "1Gi"}));
        assert_eq!(of_volume(&noted, 2 << 30, Some(2 << 30)), None);
        assert_eq!(forget_size_before(&noted)["metadata"]["annotations"], json!({SIZE_BEFORE: null}));
    }
}
