//! The definitions of the three kinds, as `dunnage crd snapshot` prints them.

use kube::CustomResourceExt as _;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use crate::manifest;

/// Where the community has approved the API. The API server wants it said for a group of Kubernetes.
const APPROVAL: &str = "https://github.com/kubernetes-csi/external-snapshotter/pull/955";

/// The definitions, in the order in which they are printed.
pub fn definitions() -> [Value; 3] {
    let snapshot = serde_json::to_value(VolumeSnapshot::crd());
    let content = serde_json::to_value(VolumeSnapshotContent::crd());
    let known = "a definition is JSON: the API server knows nothing else";
    let mut all = [class(), content.expect(known), snapshot.expect(known)];
    for definition in &mut all {
        definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": APPROVAL});
        manifest::flow(definition);
        not_nullable(definition);
    }
    all
}

/// A field is there or it is not, as other programs expect; the rules ask for just that.
fn not_nullable(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| !(name == "nullable" && field.is_boolean()));
            fields.values_mut().for_each(not_nullable);
        }
        Value::Array(items) => items.iter_mut().for_each(not_nullable),
        _ => {}
    }
}

/// The definitions as YAML.
///
/// # Errors
///
/// When a definition has a value that YAML cannot hold; a test proves that these have none.
pub fn snapshot_crds_yaml() -> Result<String, serde_saphyr::ser::Error> {
    let mut text = manifest::HEADER.to_owned();
    for (number, definition) in definitions().iter().enumerate() {
        if number > 0 {
            text.push_str("---\n");
        }
        text.push_str(&serde_saphyr::to_string(definition)?);
    }
    Ok(text)
}

/// By hand, for kube's derive knows only kinds with a spec. The schema is made as the derive makes it.
fn class() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let generator = settings
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator();
    let mut schema = generator.into_root_schema_for::<VolumeSnapshotClass>().to_value();
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("title");
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "volumesnapshotclasses.snapshot.storage.k8s.io"},
        "spec": {
            "group": super::SNAPSHOT_GROUP,
            "names": {
                "kind": "VolumeSnapshotClass",
                "plural": "volumesnapshotclasses",
                "singular": "volumesnapshotclass",
                "shortNames": ["vsclass", "vsclasses"],
            },
            "scope": "Cluster",
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "additionalPrinterColumns": [
                    {"name": "Driver", "type": "string", "jsonPath": ".driver"},
                    {
                        "name": "DeletionPolicy",
                        "type": "string",
                        "jsonPath": ".deletionPolicy",
                        "description": "Whether snapshots of the class go with their VolumeSnapshots.",
                    },
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}
