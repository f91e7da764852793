//! Writes planned objects, and only those that differ from what was written last.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunnage_cluster::apply::{Writer, apply, dynamic};
use dunnage_cluster::error::Category;
use dunnage_cluster::{Error, Key};
use dunnage_crds::FIELD_MANAGER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, PostParams, TypeMeta,
};
use kube::{Client, ResourceExt};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::info;

use crate::plan::{Immutable, ObjectKey, Plan, Planned};
use crate::world::{BACKEND, World};

/// What is not watched is written again after this time, in case somebody changed it.
const REFRESH: Duration = Duration::from_secs(600);
/// How the operator writes.
pub const WRITER: Writer = Writer { manager: FIELD_MANAGER, force: true };

/// The kinds of a plan: group, version, kind, whether it has a namespace. Workloads come first, rights last.
pub const KINDS: [(&str, &str, &str, bool); 11] = [
    ("storage.k8s.io", "v1", "StorageClass", false),
    ("snapshot.storage.k8s.io", "v1", SNAPSHOT_CLASS, false),
    ("apps", "v1", "StatefulSet", true),
    ("apps", "v1", "DaemonSet", true),
    ("policy", "v1", "PodDisruptionBudget", true),
    ("networking.k8s.io", "v1", "NetworkPolicy", true),
    ("storage.k8s.io", "v1", "CSIDriver", false),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", false),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", true),
    ("rbac.authorization.k8s.io", "v1", "Role", true),
    ("", "v1", "ServiceAccount", true),
];

/// The only kind of a plan that a cluster need not have.
const SNAPSHOT_CLASS: &str = "VolumeSnapshotClass";

/// A plan that could not be written as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{}", text.join("; "))]
    Immutable { text: Vec<String> },
    #[error(transparent)]
    Cluster(#[from] Error),
}

struct Written {
    digest: Vec<u8>,
    version: Option<String>,
    at: Instant,
}

/// Remembers what this process wrote; forgetting only costs a write.
pub struct Applier {
    client: Client,
    written: Mutex<HashMap<(String, ObjectKey), Written>>,
    pruned: Mutex<HashMap<String, (Vec<ObjectKey>, Instant)>>,
}

impl Applier {
    pub fn new(client: Client) -> Self {
        Self { client, written: Mutex::default(), pruned: Mutex::default() }
    }

    /// Writes what differs and removes what is no longer planned. `in_use` is asked before the driver object is made
    /// anew.
    pub async fn apply(
        &self,
        backend: &str,
        namespace: &str,
        plan: &Plan,
        world: &World,
        in_use: &(dyn AsyncInUse + Sync),
    ) -> Result<(), Failure> {
        let mut stuck = Vec::new();
        for planned in &plan.objects {
            let key = planned.key();
            let digest = digest(&planned.object);
            let memory = (backend.to_owned(), key.clone());
            if self.is_written(&memory, &digest, world) {
                continue;
            }
            match self.write(planned, &key, in_use).await? {
                Outcome::Written(object) => {
                    let version = version(&key, &object);
                    self.written().insert(memory, Written { digest, version, at: Instant::now() });
                }
                Outcome::Refused(text) => stuck.push(text),
            }
        }
        self.prune(backend, namespace, plan).await?;
        if stuck.is_empty() { Ok(()) } else { Err(Failure::Immutable { text: stuck }) }
    }

    /// Forgets a backend that is gone.
    pub fn forget(&self, backend: &str) {
        self.written().retain(|(owner, _), _| owner != backend);
        self.pruned().remove(backend);
    }

    fn is_written(&self, memory: &(String, ObjectKey), digest: &[u8], world: &World) -> bool {
        let written = self.written();
        let Some(last) = written.get(memory) else { return false };
        let now = match memory.1.kind.as_str() {
            "DaemonSet" => world.daemon_sets.get(&cache_key(&memory.1)).map(|set| generation(&set.metadata)),
            "StatefulSet" => {
                world.stateful_sets.get(&cache_key(&memory.1)).map(|set| generation(&set.metadata))
            }
            "StorageClass" => world.classes.named(&memory.1.name).and_then(|class| class.resource_version()),
            "CSIDriver" => world.drivers.named(&memory.1.name).and_then(|driver| driver.resource_version()),
            _ if last.at.elapsed() < REFRESH => last.version.clone(),
            _ => return false,
        };
        last.digest == digest && last.version == now
    }

    async fn write(
        &self,
        planned: &Planned,
        key: &ObjectKey,
        in_use: &(dyn AsyncInUse + Sync),
    ) -> Result<Outcome, Error> {
        let object = &planned.object;
        let resource = resource(object.types.as_ref());
        let api = dynamic(&self.client, &resource, key.namespace.as_deref());
        let refusal = match apply(&api, object, WRITER).await {
            Ok(stored) => return Ok(Outcome::Written(Box::new(stored))),
            Err(error) if error.category() == Category::Invalid => error,
            Err(error) => return Err(error),
        };
        // A valid object of this name that "exists already" cannot be changed in place; an invalid one is our mistake.
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        match api.create(&dry, object).await {
            Err(error) if dunnage_cluster::error::category(&error) == Category::AlreadyExists => {}
            _ => return Err(refusal),
        }
        let name = format!("{} {}", key.kind, key.name);
        let wait = match planned.immutable {
            Immutable::Report => {
                Some("delete it, and it is made anew; existing volumes keep what they have".to_owned())
            }
            Immutable::RecreateWhenUnused => in_use
                .in_use()
                .await?
                .map(|who| format!("it is made anew as soon as no pod uses a volume of it; now {who} does")),
            Immutable::Recreate => None,
        };
        if let Some(wait) = wait {
            return Ok(Outcome::Refused(format!(
                "{name} has fields that cannot be changed in place: {wait}"
            )));
        }
        info!(
            kind = key.kind,
            name = key.name,
            "making the object anew, its fields cannot be changed in place"
        );
        // The pods of a set stay and are taken over by the new one. The garbage collector orphans them first, so the apply
        // below may come too early: the next pass makes up for it. Elsewhere that detour would only delay.
        let params =
            if key.kind == "StatefulSet" { DeleteParams::orphan() } else { DeleteParams::background() };
        let delete = api.delete(&key.name, &params).await.map(drop);
        ignore_missing(delete, || format!("delete {name}"))?;
        Ok(Outcome::Written(Box::new(apply(&api, object, WRITER).await?)))
    }

    async fn prune(&self, backend: &str, namespace: &str, plan: &Plan) -> Result<(), Error> {
        let mut wanted: Vec<ObjectKey> = plan.objects.iter().map(Planned::key).collect();
        wanted.sort();
        let done =
            self.pruned().get(backend).is_some_and(|(last, at)| *last == wanted && at.elapsed() < REFRESH);
        if done {
            return Ok(());
        }
        let existing = self.existing(backend, namespace).await?;
        for key in plan.stale(existing) {
            info!(backend, kind = key.kind, name = key.name, "removing what is no longer planned");
            self.delete(&key).await?;
        }
        self.pruned().insert(backend.to_owned(), (wanted, Instant::now()));
        Ok(())
    }

    /// All objects of a plan's kinds that carry the backend's label, but for copies that others made of one.
    pub async fn existing(&self, backend: &str, namespace: &str) -> Result<Vec<ObjectKey>, Error> {
        let mut found = Vec::new();
        let params = ListParams::default().labels(&format!("{BACKEND}={backend}"));
        for (group, version, kind, namespaced) in KINDS {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api = dynamic(&self.client, &resource, namespaced.then_some(namespace));
            let listed = api.list_metadata(&params).await.map_err(Error::api(format!("list {kind} objects")));
            let list = match listed {
                Err(error) if kind == SNAPSHOT_CLASS && error.is_not_found() => continue,
                listed => listed?,
            };
            let ours = list.items.into_iter().filter(|object| is_ours(&object.metadata));
            found.extend(ours.map(|object| ObjectKey {
                kind: kind.to_owned(),
                namespace: object.metadata.namespace.clone(),
                name: object.name_any(),
            }));
        }
        Ok(found)
    }

    /// Deletes one object of a plan's kinds.
    pub async fn delete(&self, key: &ObjectKey) -> Result<(), Error> {
        let Some((group, version, kind, _)) = KINDS.into_iter().find(|(_, _, kind, _)| *kind == key.kind)
        else {
            return Ok(());
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = dynamic(&self.client, &resource, key.namespace.as_deref());
        let deleted = api.delete(&key.name, &DeleteParams::background()).await.map(drop);
        ignore_missing(deleted, || format!("delete {kind} {}", key.name))
    }

    fn written(&self) -> MutexGuard<'_, HashMap<(String, ObjectKey), Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pruned(&self) -> MutexGuard<'_, HashMap<String, (Vec<ObjectKey>, Instant)>> {
        self.pruned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Outcome {
    Written(Box<DynamicObject>),
    Refused(String),
}

/// Asks whether a pod uses a volume of the driver, and which.
pub trait AsyncInUse {
    fn in_use(&self) -> futures::future::BoxFuture<'_, Result<Option<String>, Error>>;
}

/// Whether the operator gave the object its label. One that somebody copied from it has the label too, and is theirs: the API
/// server names who made the copy as the manager of every field, also where the copy came with the original's managers.
pub fn is_ours(meta: &ObjectMeta) -> bool {
    let managers = meta.managed_fields.as_deref().unwrap_or_default();
    let label = format!("f:{BACKEND}");
    let gave = |entry: &ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0["f:metadata"]["f:labels"][&label]);
        entry.manager.as_deref() == Some(WRITER.manager) && fields.is_some_and(|field| !field.is_null())
    };
    // Whoever clears the list says nothing about who made the object.
    managers.is_empty() || managers.iter().any(gave)
}

/// A deletion of what is not there has succeeded.
pub fn ignore_missing(result: kube::Result<()>, action: impl FnOnce() -> String) -> Result<(), Error> {
    match result.map_err(|error| Error::api(action())(error)) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn resource(types: Option<&TypeMeta>) -> ApiResource {
    let types = types.cloned().unwrap_or_default();
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind))
}

fn cache_key(key: &ObjectKey) -> Key {
    Key { namespace: key.namespace.clone().unwrap_or_default(), name: key.name.clone() }
}

fn digest(object: &DynamicObject) -> Vec<u8> {
    let bytes = serde_json::to_vec(object).expect("a planned object is JSON");
    Sha256::digest(bytes).to_vec()
}

/// What moves when somebody changes the object, and not when its status does.
fn version(key: &ObjectKey, object: &DynamicObject) -> Option<String> {
    match key.kind.as_str() {
        "DaemonSet" | "StatefulSet" => Some(generation(&object.metadata)),
        _ => object.resource_version(),
    }
}

fn generation(meta: &ObjectMeta) -> String {
    format!("{}/{}", meta.uid.as_deref().unwrap_or_default(), meta.generation.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_copy_of_an_object_is_not_ours() {
        let label = || json!({"f:metadata": {"f:labels": {format!("f:{BACKEND}"): {}}}});
        let mark = || json!({"f:metadata": {"f:annotations": {"f:storageclass.kubernetes.io/is-default-class": {}}}});
        for (managers, ours) in [
            (vec![(FIELD_MANAGER, label())], true),
            (vec![("kubectl", label()), (FIELD_MANAGER, label())], true),
            (vec![("kubectl-create", label())], false),
            // The copy came without the mark, so nobody took that from its first manager.
            (vec![(FIELD_MANAGER, mark()), ("e2e.test", label())], false),
            (vec![], true),
        ] {
            let entries: Vec<_> = managers
                .iter()
                .map(|(manager, fields)| json!({"manager": manager, "fieldsV1": fields}))
                .collect();
            let meta = serde_json::from_value(json!({"managedFields": entries})).expect("metadata");
            assert_eq!(is_ours(&meta), ours, "{managers:?}");
        }
    }
}
