//! The custom resource's definition as YAML, as it is committed, put into the chart and printed by `dunnage crd`.

use kube::CustomResourceExt;

use crate::StorageBackend;

const HEADER: &str =
    "# Generated from the types of crate dunnage-crds: UPDATE=1 cargo test -p dunnage-crds\n";

/// The definition as YAML.
///
/// # Errors
///
/// When the definition has a value that YAML cannot hold; a test proves that this one has none.
pub fn crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&StorageBackend::crd()).map(|yaml| format!("{HEADER}{yaml}"))
}
