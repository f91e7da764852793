//! Writes to claims and snapshots, which roles may only replace as a whole: fresh, and as untyped JSON, so that no
//! field is dropped that this program does not know.

use dunnage_cluster::Error;
use kube::Client;
use kube::api::{GetParams, PostParams};
use kube::core::Request;
use serde_json::Value;

/// How often a write is tried when others write at the same time.
const TRIES: usize = 5;

/// Reads the object `name` under `path`, changes it, and writes it back. `edit` says whether there is anything to write.
/// An object that is gone needs no change.
pub(crate) async fn change(
    client: &Client,
    path: &str,
    name: &str,
    edit: impl Fn(&mut Value) -> bool,
) -> Result<(), Error> {
    let request = |built: Result<_, kube::core::request::Error>| built.map_err(kube::Error::BuildRequest);
    for tried in 1.. {
        let get = request(Request::new(path).get(name, &GetParams::default()));
        let get = get.map_err(Error::api(format!("get {path}/{name}")))?;
        let read: Result<Value, Error> =
            client.request(get).await.map_err(Error::api(format!("get {path}/{name}")));
        let mut object = match read {
            Ok(object) => object,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        if !edit(&mut object) {
            return Ok(());
        }
        let put = request(Request::new(path).replace(
            name,
            &PostParams::default(),
            object.to_string().into_bytes(),
        ));
        let put = put.map_err(Error::api(format!("update {path}/{name}")))?;
        let written: Result<Value, Error> =
            client.request(put).await.map_err(Error::api(format!("update {path}/{name}")));
        match written {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.is_conflict() && tried < TRIES => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Adds a finalizer; false when it is there.
pub(crate) fn add_finalizer(object: &mut Value, finalizer: &str) -> bool {
    let finalizers = &mut object["metadata"]["finalizers"];
    match finalizers {
        Value::Array(list) if list.iter().any(|found| found == finalizer) => false,
        Value::Array(list) => {
            list.push(finalizer.into());
            true
        }
        other => {
            *other = Value::Array(vec![finalizer.into()]);
            true
        }
    }
}

/// Removes a finalizer; false when it is not there.
pub(crate) fn remove_finalizer(object: &mut Value, finalizer: &str) -> bool {
    let Some(Value::Array(list)) = object.pointer_mut("/metadata/finalizers") else { return false };
    let before = list.len();
    list.retain(|found| found != finalizer);
    list.len() != before
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_finalizer_is_added_and_removed_once_and_nothing_else_changes() {
        for start in [json!({"metadata": {"new": 1}}), json!({"metadata": {"finalizers": ["x"], "new": 1}})] {
            let mut object = start.clone();
            assert!(add_finalizer(&mut object, "ours"));
            assert!(!add_finalizer(&mut object, "ours"));
            assert!(remove_finalizer(&mut object, "ours"));
            assert!(!remove_finalizer(&mut object, "ours"));
            assert_eq!(object["metadata"]["new"], 1);
            let left = start["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            assert_eq!(object["metadata"]["finalizers"], json!(left));
        }
        assert!(!remove_finalizer(&mut json!({}), "ours"));
    }
}
