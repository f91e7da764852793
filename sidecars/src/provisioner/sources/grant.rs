//! Whether a claim may be filled from an object of another namespace: that namespace has to grant it.

use dunnage_cluster::Error;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde::Deserialize;

use super::parse;
use crate::provisioner::context::Context;
use crate::provisioner::provision::Stop;
use crate::provisioner::source::{CLAIM, Invalid, Place, Reference, SNAPSHOT, SNAPSHOT_GROUP};

/// The gate that lets a claim name an object of another namespace at all.
const GATE: &str = "CrossNamespaceVolumeDataSource";

/// A `ReferenceGrant` of the Gateway API, as far as it is read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Grant {
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    from: Vec<From>,
    to: Vec<To>,
}

/// Who may refer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct From {
    group: String,
    kind: String,
    namespace: String,
}

/// To what, in the grant's own namespace; without a name, to all of the kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct To {
    group: String,
    kind: String,
    name: Option<String>,
}

impl Grant {
    /// A grant lets all of `from` refer to all of `to`.
    fn permits(&self, namespace: &str, (group, kind): (&str, &str), name: &str) -> bool {
        let from = |from: &From| from.group.is_empty() && from.kind == CLAIM && from.namespace == namespace;
        let named = |to: &To| to.name.as_deref().is_none_or(|to| to.is_empty() || to == name);
        self.spec.from.iter().any(from)
            && self.spec.to.iter().any(|to| to.group == group && to.kind == kind && named(to))
    }
}

/// Refuses a reference into another namespace that is not granted. Grants are read when they are needed, and not watched:
/// without one the claim is tried again.
pub(super) async fn check(
    context: &Context,
    claim: &PersistentVolumeClaim,
    reference: Reference<'_>,
) -> Result<(), Stop> {
    let (of, Place { namespace, name }) = match reference {
        Reference::Claim(place) => (("", CLAIM), place),
        Reference::Snapshot(place) => ((SNAPSHOT_GROUP, SNAPSHOT), place),
        Reference::None | Reference::Populator(_) => return Ok(()),
    };
    let from = claim.metadata.namespace.as_deref().unwrap_or_default();
    if namespace == from {
        return Ok(());
    }
    if !context.args.standard.feature_gates.enabled(GATE, false) {
        return Err(Stop::early(Invalid::OtherNamespace(namespace.to_owned())));
    }
    let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1beta1", "ReferenceGrant");
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
    let listed = api.list(&ListParams::default()).await;
    let listed = listed.map_err(Error::api(format!("list the ReferenceGrants of namespace {namespace}")));
    let grants = listed.map_err(|error| Stop::api(&error))?.items;
    // One that cannot be read grants nothing.
    let permits = |grant: Grant| grant.permits(from, of, name);
    if grants.iter().any(|grant| parse(grant).is_ok_and(permits)) {
        return Ok(());
    }
    Err(Stop::early(Invalid::NotGranted {
        namespace: namespace.to_owned(),
        from: from.to_owned(),
        kind: of.1,
        name: name.to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_grant_lets_the_claims_of_a_namespace_refer_to_what_it_names() {
        let claims = |namespace: &str| json!({"group": "", "kind": CLAIM, "namespace": namespace});
        let snapshots = |name: Value| json!({"group": SNAPSHOT_GROUP, "kind": SNAPSHOT, "name": name});
        for (from, to, permits) in [
            (json!([claims("shop")]), json!([snapshots(Value::Null)]), true),
            (json!([claims("shop")]), json!([snapshots(json!("nightly"))]), true),
            (
                json!([claims("other"), claims("shop")]),
                json!([snapshots(json!("x")), snapshots(json!(""))]),
                true,
            ),
            (json!([claims("shop")]), json!([snapshots(json!("weekly"))]), false),
            (json!([claims("other")]), json!([snapshots(Value::Null)]), false),
            (json!([claims("shop")]), json!([{"group": "", "kind": CLAIM}]), false),
            (
                json!([{"group": "", "kind": "Pod", "namespace": "shop"}]),
                json!([snapshots(Value::Null)]),
                false,
            ),
            (
                json!([{"group": "x.io", "kind": CLAIM, "namespace": "shop"}]),
                json!([snapshots(Value::Null)]),
                false,
            ),
            (json!([claims("shop")]), json!([]), false),
            (json!([]), json!([snapshots(Value::Null)]), false),
        ] {
            let grant: Grant =
                serde_json::from_value(json!({"spec": {"from": from, "to": to}})).expect("a grant");
            assert_eq!(grant.permits("shop", (SNAPSHOT_GROUP, SNAPSHOT), "nightly"), permits, "{grant:?}");
        }
    }
}
