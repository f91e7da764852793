//! Cluster-wide objects of a planned name that are somebody else's: never taken over unasked.

use dunnage_crds::conditions::reasons;
use kube::{Resource, ResourceExt};

use super::{Context, Subject};
use crate::plan::Plan;
use crate::status::Rejected;
use crate::world::BACKEND;

/// Annotation on a CSIDriver or StorageClass that gives it to the operator.
const ADOPT: &str = "dunnage.dev/adopt";

/// The first planned object that exists and is not this backend's.
pub(super) fn check(context: &Context, subject: &Subject, plan: &Plan) -> Option<Rejected> {
    plan.objects.iter().map(crate::plan::Planned::key).find_map(|key| {
        let owner = match key.kind.as_str() {
            "CSIDriver" => owner(&*context.world.drivers.named(&key.name)?),
            "StorageClass" => owner(&*context.world.classes.named(&key.name)?),
            _ => return None,
        };
        let message = refusal(&key.kind, &key.name, &owner, &subject.name)?;
        Some(Rejected { reason: reasons::FOREIGN_OBJECT, message })
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Backend(String),
    Nobody,
    Foreign,
}

fn owner(object: &impl Resource) -> Owner {
    let adopted = object.annotations().get(ADOPT).is_some_and(|value| value == "true");
    match object.labels().get(BACKEND) {
        Some(backend) => Owner::Backend(backend.clone()),
        None if adopted => Owner::Nobody,
        None => Owner::Foreign,
    }
}

fn refusal(kind: &str, name: &str, owner: &Owner, backend: &str) -> Option<String> {
    let plural = format!("{}/{name}", kind.to_lowercase());
    match owner {
        Owner::Backend(owner) if owner == backend => None,
        Owner::Backend(owner) => Some(format!(
            "{kind} {name} belongs to StorageBackend {owner}: choose another name, or delete that backend"
        )),
        Owner::Nobody => None,
        Owner::Foreign => Some(format!(
            "{kind} {name} exists and is not Dunnage's: choose another name, delete it, or give it to Dunnage with \
             kubectl annotate {plural} {ADOPT}=true"
        )),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::storage::v1::StorageClass;

    use super::*;

    fn class(label: Option<&str>, adopt: Option<&str>) -> StorageClass {
        let mut class = StorageClass::default();
        class.metadata.labels = label.map(|backend| [(BACKEND.to_owned(), backend.to_owned())].into());
        class.metadata.annotations = adopt.map(|value| [(ADOPT.to_owned(), value.to_owned())].into());
        class
    }

    #[test]
    fn only_what_is_ours_or_given_to_us_is_written() {
        for (label, adopt, refused) in [
            (Some("local"), None, None),
            (Some("other"), None, Some("belongs to StorageBackend other")),
            (Some("other"), Some("true"), Some("belongs to StorageBackend other")),
            (None, None, Some("kubectl annotate storageclass/fast dunnage.dev/adopt=true")),
            (None, Some("false"), Some("not Dunnage's")),
            (None, Some("true"), None),
        ] {
            let message = refusal("StorageClass", "fast", &owner(&class(label, adopt)), "local");
            assert_eq!(message.is_some(), refused.is_some(), "{label:?} {adopt:?}");
            assert!(message.unwrap_or_default().contains(refused.unwrap_or_default()));
        }
    }
}
