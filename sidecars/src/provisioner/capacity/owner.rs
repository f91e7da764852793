//! Who owns the capacity objects, so that they go when the driver is uninstalled.

use dunnage_cluster::Error;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client};

/// An owner that cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum NoOwner {
    #[error("--enable-capacity needs the environment variable {0}")]
    Environment(&'static str),
    #[error("--capacity-ownerref-level={0} is not supported: use -1, 0, 1 or 2")]
    Level(i32),
    #[error("{0} has no controller: use a smaller --capacity-ownerref-level")]
    NoController(String),
    #[error("--capacity-ownerref-level=2 needs a pod of a ReplicaSet; this one's controller is a {0}")]
    Kind(String),
    #[error("the owner of the capacity objects cannot be found")]
    Api(#[from] Error),
}

/// Finds the owner: the pod, or as many controllers up from it as asked for.
pub async fn find(
    client: &Client,
    namespace: &str,
    pod: &str,
    level: i32,
) -> Result<Option<OwnerReference>, NoOwner> {
    if level == -1 {
        return Ok(None);
    }
    if !(0..=2).contains(&level) {
        return Err(NoOwner::Level(level));
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let found = pods.get(pod).await.map_err(Error::api(format!("get pod {namespace}/{pod}")))?;
    if level == 0 {
        let (name, uid) = (pod.to_owned(), found.metadata.uid.unwrap_or_default());
        return Ok(Some(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name,
            uid,
            controller: Some(true),
            ..OwnerReference::default()
        }));
    }
    let first = controller(&found.metadata, &format!("pod {namespace}/{pod}"))?;
    if level == 1 {
        return Ok(Some(first));
    }
    if first.kind != "ReplicaSet" {
        return Err(NoOwner::Kind(first.kind));
    }
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let action = format!("get ReplicaSet {namespace}/{}", first.name);
    let set = sets.get(&first.name).await.map_err(Error::api(action))?;
    controller(&set.metadata, &format!("ReplicaSet {namespace}/{}", first.name)).map(Some)
}

fn controller(metadata: &ObjectMeta, what: &str) -> Result<OwnerReference, NoOwner> {
    let mut owners = metadata.owner_references.iter().flatten();
    let found = owners.find(|owner| owner.controller == Some(true)).cloned();
    let found = found.ok_or_else(|| NoOwner::NoController(what.to_owned()))?;
    // Ours may go while the owner stays.
    Ok(OwnerReference { block_owner_deletion: None, ..found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_controlling_owner_counts() {
        let owner = |name: &str, controller| OwnerReference {
            name: name.into(),
            controller,
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        let owners = vec![owner("other", None), owner("set", Some(true))];
        let metadata = ObjectMeta { owner_references: Some(owners), ..ObjectMeta::default() };
        let found = controller(&metadata, "pod").expect("a controller");
        assert_eq!((found.name.as_str(), found.block_owner_deletion), ("set", None));
        assert!(controller(&ObjectMeta::default(), "pod x").expect_err("none").to_string().contains("pod x"));
    }
}
