//! The committed definitions are those of the types, and of a size that every client can handle.

use std::path::{Path, PathBuf};

use dunnage_crds::crd_yaml;
use dunnage_crds::snapshot::snapshot_crds_yaml;

/// `kubectl apply` keeps a whole copy in an annotation, which may have 256 KiB; others keep several versions.
const LIMIT: usize = 100_000;

/// Each definition, and where it is committed.
fn copies() -> [(String, PathBuf); 4] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate lies in the workspace");
    let (backend, snapshots) = (crd_yaml().expect("YAML"), snapshot_crds_yaml().expect("YAML"));
    [
        (backend.clone(), root.join("crds/generated/storagebackends.yaml")),
        (backend, root.join("helm/dunnage/files/crd.yaml")),
        (snapshots.clone(), root.join("crds/generated/volumesnapshots.yaml")),
        (snapshots, root.join("helm/dunnage/files/snapshot-crds.yaml")),
    ]
}

#[test]
fn the_committed_definitions_are_those_of_the_types() {
    for (wanted, path) in copies() {
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder to write to");
            std::fs::write(&path, &wanted).expect("a file to write to");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "{} is not what the types say: run UPDATE=1 cargo test -p dunnage-crds and commit it",
            path.display()
        );
    }
}

#[test]
fn the_definition_is_under_100_kb() {
    let size = crd_yaml().expect("YAML").len();
    assert!(size < LIMIT, "{size} bytes");
}

#[test]
fn every_field_is_explained() {
    let mut silent = Vec::new();
    for text in [crd_yaml().expect("YAML"), snapshot_crds_yaml().expect("YAML")] {
        for document in text.split("\n---\n") {
            let definition: serde_json::Value = serde_saphyr::from_str(document).expect("a definition");
            let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let kind = definition["spec"]["names"]["kind"].as_str().expect("a kind");
            unexplained(schema, kind, &mut silent);
        }
    }
    assert!(silent.is_empty(), "kubectl explain has no words for {silent:?}");
}

fn unexplained(schema: &serde_json::Value, path: &str, silent: &mut Vec<String>) {
    if schema["description"].as_str().is_none_or(str::is_empty) {
        silent.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        unexplained(field, &format!("{path}.{name}"), silent);
    }
    for (name, field) in schema["items"]["properties"].as_object().into_iter().flatten() {
        unexplained(field, &format!("{path}[].{name}"), silent);
    }
}
