//! The custom resource's definition as YAML, as it is committed, put into the chart and printed by `dunnage crd`.

use kube::CustomResourceExt;
use serde_json::Value;

use crate::StorageBackend;

pub(crate) const HEADER: &str =
    "# Generated from the types of crate dunnage-crds: UPDATE=1 cargo test -p dunnage-crds\n";

/// The definition as YAML.
///
/// # Errors
///
/// When the definition has a value that YAML cannot hold; a test proves that this one has none.
pub fn crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    let definition = serde_json::to_value(StorageBackend::crd());
    let mut definition = definition.expect("a definition is JSON: the API server knows nothing else");
    flow(&mut definition);
    serde_saphyr::to_string(&definition).map(|yaml| format!("{HEADER}{yaml}"))
}

/// Makes one line of each description: kubectl breaks lines itself, after those of the source.
pub(crate) fn flow(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name == "description" => *text = text.replace('\n', " "),
                    field => flow(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(flow),
        _ => {}
    }
}
