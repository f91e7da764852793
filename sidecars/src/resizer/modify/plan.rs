//! Which `VolumeAttributesClass` a claim is to have: pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Map, Value, json};

use crate::resizer::facts::{has_condition, mentions};
use crate::resizer::patches::{self, Told};
use crate::secret::{self, Place};

pub(in crate::resizer) const MODIFYING: &str = "ModifyingVolume";
pub(in crate::resizer) const MODIFY_ERROR: &str = "ModifyVolumeError";
const SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
const SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";

/// How far a change of the class has come, as the claim's status says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::resizer) enum State {
    Pending,
    InProgress,
    Infeasible,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::InProgress => "InProgress",
            Self::Infeasible => "Infeasible",
        }
    }
}

/// The classes of a claim; empty is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classes<'a> {
    pub(super) wanted: &'a str,
    pub(super) current: &'a str,
    pub(super) attempt: Option<(&'a str, State)>,
    /// The condition of an attempt is there.
    pub(super) modifying: bool,
}

impl<'a> Classes<'a> {
    pub(super) fn of(claim: &'a PersistentVolumeClaim) -> Self {
        let status = claim.status.as_ref();
        let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
        let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
        let attempt = status.and_then(|status| status.modify_volume_status.as_ref()).map(|attempt| {
            let state = match attempt.status.as_str() {
                "Pending" => State::Pending,
                "Infeasible" => State::Infeasible,
                // A word of a later time is best taken for one that may be at work.
                _ => State::InProgress,
            };
            (attempt.target_volume_attributes_class_name.as_deref().unwrap_or_default(), state)
        });
        let modifying = has_condition(claim, MODIFYING) || mentions(claim, MODIFYING);
        Self { wanted: wanted.unwrap_or_default(), current: current.unwrap_or_default(), attempt, modifying }
    }
}

/// What a claim needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    Nothing,
    /// Nobody wants another class any more, and nothing was begun.
    Cancel,
    /// The driver is asked for this class.
    Modify(&'a str),
}

/// `ended`: the last call is known to have changed nothing.
pub(super) fn step<'a>(classes: &Classes<'a>, ended: bool) -> Step<'a> {
    let &Classes { wanted, current, attempt, modifying } = classes;
    match attempt {
        None if wanted == current => Step::Nothing,
        // An attempt whose end is not known has to be finished before another class is tried.
        Some((target, State::InProgress)) if !ended || wanted.is_empty() => Step::Modify(target),
        _ if wanted.is_empty() && modifying => Step::Cancel,
        _ if wanted.is_empty() => Step::Nothing,
        _ => Step::Modify(wanted),
    }
}

/// Whether a look at the claim is worth its requests.
pub(in crate::resizer) fn is_due(claim: &PersistentVolumeClaim) -> bool {
    let classes = Classes::of(claim);
    step(&classes, false) != Step::Nothing
}

/// The state of an attempt, written before the driver is called, or instead; none when the status says so already.
pub(super) fn attempt(
    claim: &PersistentVolumeClaim,
    target: &str,
    state: State,
    now: jiff::Timestamp,
) -> Option<Value> {
    let add: &[Told<'_>] = if state == State::Pending { &[] } else { &[Told::plain(MODIFYING)] };
    patches::of_claim(
        claim,
        &Value::Null,
        patches::conditions(claim, add, &[], now),
        status(claim, target, state),
    )
}

fn status(claim: &PersistentVolumeClaim, target: &str, state: State) -> Map<String, Value> {
    let mut status = Map::new();
    if Classes::of(claim).attempt != Some((target, state)) {
        let attempt = json!({"targetVolumeAttributesClassName": target, "status": state.as_str()});
        status.insert("modifyVolumeStatus".to_owned(), attempt);
    }
    status
}

/// The driver has refused.
pub(super) fn failed(
    claim: &PersistentVolumeClaim,
    target: &str,
    state: State,
    told: Told<'_>,
    now: jiff::Timestamp,
) -> Option<Value> {
    let conditions = patches::conditions(claim, &[told], &[], now);
    patches::of_claim(claim, &Value::Null, conditions, status(claim, target, state))
}

/// The volume has the class.
pub(super) fn done(claim: &PersistentVolumeClaim, target: &str, now: jiff::Timestamp) -> Option<Value> {
    let classes = Classes::of(claim);
    let mut status = Map::new();
    if classes.current != target {
        status.insert("currentVolumeAttributesClassName".to_owned(), json!(target));
    }
    if classes.attempt.is_some() {
        status.insert("modifyVolumeStatus".to_owned(), Value::Null);
    }
    let conditions = patches::conditions(claim, &[], &[MODIFYING, MODIFY_ERROR], now);
    patches::of_claim(claim, &Value::Null, conditions, status)
}

/// Takes away the condition of an attempt that nobody wants any more.
pub(super) fn cancelled(claim: &PersistentVolumeClaim, now: jiff::Timestamp) -> Option<Value> {
    patches::of_claim(claim, &Value::Null, patches::conditions(claim, &[], &[MODIFYING], now), Map::new())
}

/// The volume's object with its class; none when it has it.
pub(super) fn of_volume(volume: &PersistentVolume, target: &str) -> Option<Value> {
    let spec = volume.spec.as_ref()?;
    let meta = &volume.metadata;
    (spec.volume_attributes_class_name.as_deref() != Some(target)).then(|| {
        json!({
            "metadata": {"resourceVersion": meta.resource_version, "uid": meta.uid},
            "spec": {"volumeAttributesClassName": target},
        })
    })
}

/// Where the secret for modifying is: what was noted when the volume was made, else the one for growing it.
pub(super) fn secret(volume: &PersistentVolume) -> Result<Option<Place<'_>>, secret::Invalid> {
    let note =
        |key| volume.metadata.annotations.as_ref().and_then(|notes| notes.get(key)).map(String::as_str);
    if let (Some(name), Some(namespace)) = (note(SECRET_NAME), note(SECRET_NAMESPACE)) {
        return Ok(Some(Place { namespace, name }));
    }
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    secret::place("controllerExpandSecretRef", csi.and_then(|csi| csi.controller_expand_secret_ref.as_ref()))
}

/// What the driver is told: the class's parameters, and with `names` whose volume it is.
pub(super) fn parameters(
    of_class: Option<&BTreeMap<String, String>>,
    claim: &PersistentVolumeClaim,
    volume: &str,
    names: bool,
) -> HashMap<String, String> {
    let mut all: HashMap<String, String> = of_class.cloned().unwrap_or_default().into_iter().collect();
    if names {
        let meta = &claim.metadata;
        let pairs = [
            ("csi.storage.k8s.io/pvc/name", meta.name.clone().unwrap_or_default()),
            ("csi.storage.k8s.io/pvc/namespace", meta.namespace.clone().unwrap_or_default()),
            ("csi.storage.k8s.io/pv/name", volume.to_owned()),
        ];
        all.extend(pairs.map(|(key, value)| (key.to_owned(), value)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value, status: Value) -> PersistentVolumeClaim {
        let metadata = json!({"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
            .expect("a claim")
    }

    #[test]
    fn the_step_follows_from_what_is_wanted_and_how_far_the_last_attempt_came() {
        use State::{InProgress, Infeasible, Pending};
        for (wanted, current, attempt, modifying, ended, expected) in [
            ("", "", None, false, false, Step::Nothing),
            ("a", "a", None, false, false, Step::Nothing),
            ("b", "a", None, false, false, Step::Modify("b")),
            ("b", "", None, false, false, Step::Modify("b")),
            ("b", "a", Some(("b", Pending)), false, false, Step::Modify("b")),
            ("c", "a", Some(("b", Pending)), false, false, Step::Modify("c")),
            ("b", "a", Some(("b", InProgress)), true, false, Step::Modify("b")),
            // Not known how the call for b ended: it is finished first.
            ("c", "a", Some(("b", InProgress)), true, false, Step::Modify("b")),
            ("c", "a", Some(("b", InProgress)), true, true, Step::Modify("c")),
            ("a", "a", Some(("b", InProgress)), true, true, Step::Modify("a")),
            ("", "", Some(("b", InProgress)), true, true, Step::Modify("b")),
            ("", "", Some(("b", InProgress)), true, false, Step::Modify("b")),
            ("c", "a", Some(("b", Infeasible)), true, false, Step::Modify("c")),
            ("a", "a", Some(("b", Infeasible)), true, false, Step::Modify("a")),
            ("", "", Some(("b", Infeasible)), true, true, Step::Cancel),
            ("", "", Some(("b", Infeasible)), false, true, Step::Nothing),
            ("", "", Some(("b", Pending)), false, false, Step::Nothing),
        ] {
            let classes = Classes { wanted, current, attempt, modifying };
            assert_eq!(step(&classes, ended), expected, "{classes:?} {ended}");
        }
    }

    #[test]
    fn a_claim_tells_of_its_classes() {
        let found = claim(
            json!({"volumeAttributesClassName": "b"}),
            json!({
                "currentVolumeAttributesClassName": "a",
                "modifyVolumeStatus": {"targetVolumeAttributesClassName": "b", "status": "Infeasible"},
                "conditions": [{"type": MODIFYING, "status": "True"}],
            }),
        );
        let expected =
            Classes { wanted: "b", current: "a", attempt: Some(("b", State::Infeasible)), modifying: true };
        assert_eq!(Classes::of(&found), expected);
        assert!(is_due(&found) && !is_due(&claim(json!({}), json!({}))));
    }

    #[test]
    fn an_attempt_is_recorded_before_it_is_made_and_its_end_takes_all_of_it_away() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let before = claim(json!({"volumeAttributesClassName": "b"}), json!({}));
        let begun = attempt(&before, "b", State::InProgress, now).expect("a patch");
        assert_eq!(
            begun["status"]["modifyVolumeStatus"],
            json!({"targetVolumeAttributesClassName": "b", "status": "InProgress"})
        );
        assert_eq!(begun["status"]["conditions"][0]["type"], MODIFYING);
        assert_eq!(begun["metadata"], json!({"resourceVersion": "7", "uid": "u"}));
        let pending = attempt(&before, "b", State::Pending, now).expect("a patch");
        assert_eq!(pending["status"].get("conditions"), None);

        let after = claim(
            json!({"volumeAttributesClassName": "b"}),
            json!({
                "modifyVolumeStatus": {"targetVolumeAttributesClassName": "b", "status": "InProgress"},
                "conditions": [{"type": MODIFYING, "status": "True", "reason": "", "message": ""},
                    {"type": MODIFY_ERROR, "status": "True"}, {"type": "Resizing", "status": "True"}],
            }),
        );
        assert_eq!(attempt(&after, "b", State::InProgress, now), None);
        let done = done(&after, "b", now).expect("a patch");
        assert_eq!(done["status"]["currentVolumeAttributesClassName"], "b");
        assert_eq!(done["status"]["modifyVolumeStatus"], Value::Null);
        let dropped =
            json!([{"$patch": "delete", "type": MODIFYING}, {"$patch": "delete", "type": MODIFY_ERROR}]);
        assert_eq!(done["status"]["conditions"], dropped);
        let told = Told { kind: MODIFY_ERROR, reason: "InvalidArgument", message: "no" };
        let failed = failed(&after, "b", State::Infeasible, told, now).expect("a patch");
        assert_eq!(failed["status"]["modifyVolumeStatus"]["status"], "Infeasible");
        assert_eq!(failed["status"]["conditions"][0]["reason"], "InvalidArgument");
    }

    #[test]
    fn the_secret_is_the_one_noted_else_the_one_for_growing() {
        let volume = |annotations: Value, reference: Value| -> PersistentVolume {
            let csi = json!({"driver": "d", "volumeHandle": "h", "controllerExpandSecretRef": reference});
            serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": {"csi": csi}}))
                .expect("a volume")
        };
        let noted = json!({SECRET_NAME: "m", SECRET_NAMESPACE: "mns"});
        let growing = json!({"name": "g", "namespace": "gns"});
        let place = |namespace, name| Ok(Some(Place { namespace, name }));
        assert_eq!(secret(&volume(noted.clone(), growing.clone())), place("mns", "m"));
        assert_eq!(secret(&volume(noted, json!(null))), place("mns", "m"));
        assert_eq!(secret(&volume(json!({SECRET_NAME: "m"}), growing)), place("gns", "g"));
        assert_eq!(secret(&volume(json!({}), json!(null))), Ok(None));
    }

    #[test]
    fn the_driver_is_told_names_only_when_that_is_asked_for() {
        let class = BTreeMap::from([("iops".to_owned(), "9".to_owned())]);
        let claim = claim(json!({}), json!({}));
        assert_eq!(
            parameters(Some(&class), &claim, "pv", false),
            [("iops".to_owned(), "9".to_owned())].into()
        );
        let all = parameters(None, &claim, "pv", true);
        assert_eq!(all.len(), 3);
        assert_eq!(all["csi.storage.k8s.io/pvc/namespace"], "ns");
    }
}
