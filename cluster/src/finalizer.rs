//! Finalizers, added and removed by JSON patches that fail when the object is not what the cache showed.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PatchParams;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{Category, category};
use crate::{Error, Key};

/// Whether the object has `finalizer`.
pub fn has(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|found| found == finalizer)
}

/// The patch that adds `finalizer`; none when it is there.
pub fn patch_to_add(meta: &ObjectMeta, finalizer: &str) -> Option<Patch> {
    if has(meta, finalizer) {
        return None;
    }
    let operations = match &meta.finalizers {
        None => vec![test(&[], Value::Null), add(&[], json!([finalizer]))],
        Some(list) if list.is_empty() => vec![
            test(&[], json!([])),
            PatchOperation::Replace(ReplaceOperation { path: pointer(&[]), value: json!([finalizer]) }),
        ],
        Some(list) => vec![test(&[], json!(list)), add(&["-"], json!(finalizer))],
    };
    Some(Patch(operations))
}

/// The patch that removes `finalizer`; none when it is not there.
pub fn patch_to_remove(meta: &ObjectMeta, finalizer: &str) -> Option<Patch> {
    let index = meta.finalizers.iter().flatten().position(|found| found == finalizer)?.to_string();
    let remove = RemoveOperation { path: pointer(&[&index]) };
    Some(Patch(vec![test(&[&index], json!(finalizer)), PatchOperation::Remove(remove)]))
}

/// Adds `finalizer` to the object as it is in `object`. Returns the new form, or none when nothing was to do.
pub async fn add_to<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<Option<K>, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    send(api, object, patch_to_add(object.meta(), finalizer), "add a finalizer to").await
}

/// Removes `finalizer` from the object as it is in `object`. Returns the new form, or none when nothing was to do.
pub async fn remove_from<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<Option<K>, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    send(api, object, patch_to_remove(object.meta(), finalizer), "remove a finalizer from").await
}

async fn send<K>(api: &Api<K>, object: &K, patch: Option<Patch>, verb: &str) -> Result<Option<K>, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let Some(patch) = patch else { return Ok(None) };
    json(api, &Key::of(object).name, patch, format!("{verb} {}", Key::of(object))).await.map(Some)
}

/// Sends a JSON patch; a `test` that does not hold is [`Error::Changed`].
pub async fn json<K>(api: &Api<K>, name: &str, patch: Patch, action: String) -> Result<K, Error>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let sent = api.patch(name, &PatchParams::default(), &kube::api::Patch::<Unused>::Json(patch)).await;
    sent.map_err(|error| match category(&error) {
        // The API server answers a failed test with 422.
        Category::Invalid => Error::Changed { action },
        _ => Error::api(action)(error),
    })
}

/// The type parameter that kube's JSON patch does not use.
#[derive(Debug, Serialize)]
enum Unused {}

fn test(tail: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: pointer(tail), value })
}

fn add(tail: &[&str], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer(tail), value })
}

fn pointer(tail: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(["metadata", "finalizers"].into_iter().chain(tail.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "dunnage.dev/in-use";

    fn meta(finalizers: Option<&[&str]>) -> ObjectMeta {
        let finalizers = finalizers.map(|list| list.iter().map(ToString::to_string).collect());
        ObjectMeta { finalizers, ..ObjectMeta::default() }
    }

    #[test]
    fn adding_says_what_it_expects_to_find() {
        let path = "/metadata/finalizers";
        for (found, expected) in [
            (
                None,
                json!([{"op": "test", "path": path, "value": null}, {"op": "add", "path": path, "value": [OURS]}]),
            ),
            (
                Some(&[][..]),
                json!([{"op": "test", "path": path, "value": []}, {"op": "replace", "path": path, "value": [OURS]}]),
            ),
            (
                Some(&["a/b"][..]),
                json!([
                    {"op": "test", "path": path, "value": ["a/b"]},
                    {"op": "add", "path": "/metadata/finalizers/-", "value": OURS}
                ]),
            ),
        ] {
            let made = patch_to_add(&meta(found), OURS).expect("something to do");
            assert_eq!(serde_json::to_value(&made).expect("json"), expected);
        }
    }

    #[test]
    fn removing_tests_the_place_that_it_removes() {
        let made = patch_to_remove(&meta(Some(&["a/b", OURS])), OURS).expect("something to do");
        let path = "/metadata/finalizers/1";
        let expected = json!([{"op": "test", "path": path, "value": OURS}, {"op": "remove", "path": path}]);
        assert_eq!(serde_json::to_value(&made).expect("json"), expected);
    }

    #[test]
    fn what_is_so_already_needs_no_patch() {
        assert_eq!(patch_to_add(&meta(Some(&[OURS])), OURS), None);
        assert_eq!(patch_to_remove(&meta(Some(&["a/b"])), OURS), None);
        assert_eq!(patch_to_remove(&meta(None), OURS), None);
    }

    #[test]
    fn a_stale_removal_fails_instead_of_taking_another_finalizer() {
        let patch = patch_to_remove(&meta(Some(&[OURS, "a/b"])), OURS).expect("something to do");
        let mut now = json!({"metadata": {"finalizers": ["a/b"]}});
        let before = now.clone();
        json_patch::patch(&mut now, &patch).expect_err("the list has moved");
        assert_eq!(now, before);
    }

    #[test]
    fn a_stale_addition_fails_instead_of_doubling_or_overwriting() {
        for (cached, now) in [
            (None, json!({"metadata": {"finalizers": ["a/b"]}})),
            (Some(&["a/b"][..]), json!({"metadata": {"finalizers": ["a/b", OURS]}})),
            (Some(&["a/b"][..]), json!({"metadata": {}})),
        ] {
            let patch = patch_to_add(&meta(cached), OURS).expect("something to do");
            json_patch::patch(&mut now.clone(), &patch).expect_err("the object has changed");
        }
    }
}
