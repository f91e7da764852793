//! Whether a claim is ours to provision, and when.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::names;

/// What to do about a claim now.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Provision,
    /// Nothing until the claim changes.
    Leave(&'static str),
}

/// A claim that cannot be provisioned as things stand; tried again, for its surroundings may change.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("StorageClass {0:?} does not exist")]
    NoClass(String),
    #[error("claim selectors are not supported: remove spec.selector")]
    Selector,
}

/// The class that a claim names; the old annotation goes before the field.
pub fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, names::STORAGE_CLASS_BETA)
        .or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
        .filter(|name| !name.is_empty())
}

/// The node that the scheduler chose.
pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, names::SELECTED_NODE)
        .or_else(|| annotation(claim, names::SELECTED_NODE_ALPHA))
        .filter(|node| !node.is_empty())
}

/// Whether a controller manager handed this claim to the driver and nothing is bound to it yet.
pub fn is_ours(claim: &PersistentVolumeClaim, driver: &str) -> bool {
    let asked = annotation(claim, names::STORAGE_PROVISIONER)
        .or_else(|| annotation(claim, names::STORAGE_PROVISIONER_BETA));
    let migrated = annotation(claim, names::MIGRATED_TO);
    asked == Some(driver) || (asked.is_some() && migrated == Some(driver))
}

/// Whether a volume is bound to the claim already.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).is_some_and(|name| !name.is_empty())
}

pub fn is_delayed(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// What is known when it is asked what to do for a claim's UID.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// The claim, while it is there.
    pub claim: Option<&'a PersistentVolumeClaim>,
    /// The class that it names, if there is one.
    pub class: Option<&'a StorageClass>,
    /// The name that its volume has or would have.
    pub volume: &'a str,
    /// Whether a PersistentVolume of that name is there for this claim.
    pub saved: bool,
    /// Whether a call to the driver was begun whose end is not known.
    pub owed: bool,
}

/// What to do next for a claim's UID.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Provision,
    /// Nobody waits for the volume any more, but it may be half made: it is finished, so that it can be deleted.
    Resume,
    /// Nothing is owed: whatever was noted can be forgotten.
    Settle,
    Leave(&'static str),
}

/// Chooses; a begun call is followed to its end whatever became of the claim.
pub fn next(standing: &Standing<'_>, driver: &str) -> Result<Next, Refusal> {
    if standing.saved {
        return Ok(Next::Settle);
    }
    let Some(claim) = standing.claim else {
        return Ok(if standing.owed { Next::Resume } else { Next::Settle });
    };
    if standing.owed {
        let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        match bound.unwrap_or_default() {
            "" if claim.metadata.deletion_timestamp.is_some() => return Ok(Next::Resume),
            "" => {}
            // Its PersistentVolume was there, so whoever deleted that has taken care of the volume.
            bound if bound == standing.volume => return Ok(Next::Settle),
            _ => return Ok(Next::Resume),
        }
    }
    Ok(match decide(claim, standing.class, driver)? {
        Verdict::Provision => Next::Provision,
        Verdict::Leave(why) => Next::Leave(why),
    })
}

/// Decides on a claim that exists; `class` is the one it names, if there is one.
pub fn decide(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    driver: &str,
) -> Result<Verdict, Refusal> {
    if is_bound(claim) {
        return Ok(Verdict::Leave("it is bound"));
    }
    if !is_ours(claim, driver) {
        return Ok(Verdict::Leave("it is not for this driver"));
    }
    // Nobody can use it any more: pods refuse a claim that is being deleted.
    if claim.metadata.deletion_timestamp.is_some() {
        return Ok(Verdict::Leave("it is being deleted"));
    }
    let Some(name) = class_name(claim) else { return Ok(Verdict::Leave("it names no StorageClass")) };
    let class = class.ok_or_else(|| Refusal::NoClass(name.to_owned()))?;
    if class.provisioner != driver {
        return Ok(Verdict::Leave("its StorageClass is another driver's"));
    }
    if is_delayed(class) && selected_node(claim).is_none() {
        return Ok(Verdict::Leave("no node is selected yet"));
    }
    if claim.spec.as_ref().is_some_and(|spec| spec.selector.is_some()) {
        return Err(Refusal::Selector);
    }
    Ok(Verdict::Provision)
}

fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DRIVER: &str = "local.csi.example.io";

    fn class(delayed: bool, provisioner: &str) -> StorageClass {
        let mode = if delayed { "WaitForFirstConsumer" } else { "Immediate" };
        StorageClass {
            provisioner: provisioner.into(),
            volume_binding_mode: Some(mode.into()),
            ..StorageClass::default()
        }
    }

    fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"annotations": {names::STORAGE_PROVISIONER: DRIVER}},
            "spec": {"storageClassName": "fast"},
        });
        change(&mut claim);
        serde_json::from_value(claim).expect("a claim")
    }

    #[test]
    fn a_claim_is_provisioned_when_the_controller_manager_says_so() {
        assert_eq!(decide(&claim(|_| ()), Some(&class(false, DRIVER)), DRIVER), Ok(Verdict::Provision));
        let beta = claim(|c| c["metadata"]["annotations"] = json!({names::STORAGE_PROVISIONER_BETA: DRIVER}));
        assert_eq!(decide(&beta, Some(&class(false, DRIVER)), DRIVER), Ok(Verdict::Provision));
        let migrated = claim(|c| {
            c["metadata"]["annotations"] =
                json!({names::STORAGE_PROVISIONER: "kubernetes.io/x", names::MIGRATED_TO: DRIVER});
        });
        assert_eq!(decide(&migrated, Some(&class(false, DRIVER)), DRIVER), Ok(Verdict::Provision));
    }

    #[test]
    fn a_delayed_claim_waits_for_its_node() {
        let delayed = class(true, DRIVER);
        assert!(matches!(decide(&claim(|_| ()), Some(&delayed), DRIVER), Ok(Verdict::Leave(_))));
        for key in [names::SELECTED_NODE, names::SELECTED_NODE_ALPHA] {
            let chosen = claim(|c| c["metadata"]["annotations"][key] = json!("n1"));
            assert_eq!(decide(&chosen, Some(&delayed), DRIVER), Ok(Verdict::Provision), "{key}");
        }
    }

    #[test]
    fn other_claims_are_left_alone() {
        let own = class(false, DRIVER);
        let other = class(false, "other");
        for (claim, class) in [
            (claim(|c| c["spec"]["volumeName"] = json!("pv")), &own),
            (claim(|c| c["metadata"]["annotations"] = json!({})), &own),
            (claim(|c| c["metadata"]["annotations"] = json!({names::MIGRATED_TO: DRIVER})), &own),
            (claim(|c| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")), &own),
            (claim(|c| c["spec"] = json!({})), &own),
            (claim(|_| ()), &other),
        ] {
            assert!(matches!(decide(&claim, Some(class), DRIVER), Ok(Verdict::Leave(_))), "{claim:?}");
        }
    }

    #[test]
    fn a_missing_class_and_a_selector_are_errors_that_may_pass() {
        assert_eq!(decide(&claim(|_| ()), None, DRIVER), Err(Refusal::NoClass("fast".into())));
        let selecting = claim(|c| c["spec"]["selector"] = json!({}));
        assert_eq!(decide(&selecting, Some(&class(false, DRIVER)), DRIVER), Err(Refusal::Selector));
    }

    #[test]
    fn the_old_class_annotation_goes_before_the_field() {
        let both = claim(|c| c["metadata"]["annotations"][names::STORAGE_CLASS_BETA] = json!("old"));
        assert_eq!(class_name(&both), Some("old"));
    }

    #[test]
    fn a_begun_call_is_followed_to_its_end() {
        let own = class(true, DRIVER);
        let chosen = claim(|c| c["metadata"]["annotations"][names::SELECTED_NODE] = json!("n1"));
        let bare = claim(|_| ());
        let deleting = claim(|c| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        let ours = claim(|c| c["spec"]["volumeName"] = json!("pvc-1"));
        let elsewhere = claim(|c| c["spec"]["volumeName"] = json!("by-hand"));
        let leave = |why| Ok(Next::Leave(why));
        for (claim, saved, owed, expected) in [
            (None, false, true, Ok(Next::Resume)),
            (None, false, false, Ok(Next::Settle)),
            (None, true, true, Ok(Next::Settle)),
            (Some(&chosen), false, true, Ok(Next::Provision)),
            (Some(&chosen), true, true, Ok(Next::Settle)),
            (Some(&bare), false, true, leave("no node is selected yet")),
            (Some(&deleting), false, true, Ok(Next::Resume)),
            (Some(&deleting), false, false, leave("it is being deleted")),
            (Some(&ours), false, true, Ok(Next::Settle)),
            (Some(&elsewhere), false, true, Ok(Next::Resume)),
            (Some(&elsewhere), false, false, leave("it is bound")),
        ] {
            let standing = Standing { claim, class: Some(&own), volume: "pvc-1", saved, owed };
            assert_eq!(next(&standing, DRIVER), expected, "{standing:?}");
        }
    }
}
