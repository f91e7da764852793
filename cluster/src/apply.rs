//! Server-side apply of the objects that we own.

use std::fmt::Debug;

use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Key};

/// Who writes, and whether fields of other managers are taken over.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    /// The field manager.
    pub manager: &'static str,
    /// For the operator alone: its plan is the authority for what it makes.
    pub force: bool,
}

impl Writer {
    fn params(self) -> PatchParams {
        PatchParams { force: self.force, ..PatchParams::apply(self.manager) }
    }
}

/// Applies `object`, which must carry `apiVersion`, `kind` and a name. Returns the server's form.
pub async fn apply<K>(api: &Api<K>, object: &K, writer: Writer) -> Result<K, Error>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let key = Key::of(object);
    api.patch(&key.name, &writer.params(), &Patch::Apply(object))
        .await
        .map_err(Error::api(format!("apply {key}")))
}

/// Applies `status` (an object with `apiVersion`, `kind` and `status`) to the status of the object `name`.
pub async fn apply_status<K>(
    api: &Api<K>,
    name: &str,
    status: &serde_json::Value,
    writer: Writer,
) -> Result<K, Error>
where
    K: DeserializeOwned,
{
    api.patch_status(name, &writer.params(), &Patch::Apply(status))
        .await
        .map_err(Error::api(format!("apply the status of {name}")))
}

/// The API for untyped objects of one kind, in `namespace` or cluster-scoped.
pub fn dynamic(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_forcing_writer_takes_over_fields() {
        for force in [false, true] {
            let params = Writer { manager: "dunnage-test", force }.params();
            assert_eq!((params.force, params.field_manager.as_deref()), (force, Some("dunnage-test")));
        }
    }
}
