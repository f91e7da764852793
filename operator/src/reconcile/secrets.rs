//! Brings the Secrets with certificates to what is decided about them.

use dunnage_cluster::Error;
use dunnage_cluster::apply::apply;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::{Api, ResourceExt};
use tracing::info;

use super::{Context, Material, PassError, Subject};
use crate::apply::WRITER;
use crate::certs::issue::{IssueError, advance, renew};
use crate::certs::secrets::{authority_name, from_authority, from_leaf, leaf_name, to_authority, to_leaf};
use crate::certs::{Authority, AuthorityStep, Leaf, LeafStep, Party, authority_step, leaf_step, next_look};
use crate::plan::meta::labels;

/// Keys or certificates cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the certificates of backend {backend}; if a Secret was changed by hand, delete it")]
pub struct IssueFailure {
    backend: String,
    source: IssueError,
}

/// Makes and rotates what is due. None while the backend's namespace is missing.
pub(super) async fn ensure(context: &Context, subject: &Subject) -> Result<Option<Material>, PassError> {
    let now = Timestamp::now();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &subject.namespace);
    let failed = |source| IssueFailure { backend: subject.name.clone(), source };

    let mut leaves: Vec<(Party, Option<Secret>)> = Vec::new();
    for party in Party::ALL {
        leaves.push((party, get(&api, &leaf_name(&subject.name, party)).await?));
    }
    let name = authority_name(&subject.name);
    let stored = get(&api, &name).await?;
    let known = stored.as_ref().and_then(to_authority);
    let step = authority_step(known.as_ref(), now);
    let trusted =
        leaves.iter().find_map(|(_, secret)| secret.as_ref().and_then(to_leaf)).map(|leaf| leaf.bundle);
    let authority: Option<Authority> =
        advance(&subject.name, known, step, trusted.as_deref(), now).map_err(failed)?;
    let Some(authority) = authority else { return Ok(None) };
    if step != AuthorityStep::Keep {
        info!(secret = name, ?step, "certificate authority changes");
        let secret = from_authority(metadata(subject, name, stored.as_ref()), &authority);
        if !put(&api, &secret).await? {
            return Ok(None);
        }
    }

    let mut operator = None;
    for (party, stored) in leaves {
        let known = stored.as_ref().and_then(to_leaf);
        let step = leaf_step(known.as_ref(), &authority, now);
        let leaf: Leaf = renew(&subject.name, party, known, step, &authority, now).map_err(failed)?;
        if step != LeafStep::Keep {
            let name = leaf_name(&subject.name, party);
            info!(secret = name, ?step, "certificate changes");
            let secret = from_leaf(metadata(subject, name, stored.as_ref()), &leaf);
            if !put(&api, &secret).await? {
                return Ok(None);
            }
        }
        if party == Party::Operator {
            operator = Some(leaf);
        }
    }
    let look_again = next_look(&authority, now);
    Ok(operator.map(|operator| Material { operator, look_again }))
}

fn metadata(subject: &Subject, name: String, stored: Option<&Secret>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        labels: Some(labels(&subject.name)),
        // A Secret that changed since it was read is not overwritten: another operator may have rotated it.
        resource_version: stored.and_then(ResourceExt::resource_version),
        ..ObjectMeta::default()
    }
}

async fn get(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, Error> {
    api.get_opt(name).await.map_err(Error::api(format!("get Secret {name}")))
}

/// Whether there is a namespace to write to.
async fn put(api: &Api<Secret>, secret: &Secret) -> Result<bool, Error> {
    match apply(api, secret, WRITER).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}
