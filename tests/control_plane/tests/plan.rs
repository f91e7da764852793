//! A real API server takes every object that the operator plans.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use dunnage_harness::{ControlPlane, eventually};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};

#[tokio::test]
async fn every_recorded_plan_is_taken_without_a_field_that_the_api_server_does_not_know() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    for name in ["dunnage-system", "storage"] {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in dunnage_crds::snapshot::definitions() {
        let definition = serde_json::from_value(definition)?;
        definitions.create(&PostParams::default(), &definition).await?;
    }
    eventually("the kinds of snapshots to be served", Duration::from_secs(30), async || {
        let served = client.list_api_group_resources("snapshot.storage.k8s.io/v1").await;
        let served = served.map_err(|error| error.to_string())?.resources;
        let is_there = served.iter().any(|kind| kind.name == "volumesnapshotclasses");
        if is_there { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let params = PatchParams { dry_run: true, ..PatchParams::apply("test").validation_strict() };
    let mut applied = 0;
    for entry in
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../operator/testdata/golden"))?
    {
        let file = entry?.path();
        for document in std::fs::read_to_string(&file)?.split("\n---\n") {
            let object: DynamicObject = serde_saphyr::from_str(document)?;
            let types = object.types.clone().context("a kind")?;
            let kind = GroupVersionKind::try_from(&types)?;
            let resource = ApiResource::from_gvk(&kind);
            let api: Api<DynamicObject> = match object.namespace() {
                Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            let result = api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await;
            result.with_context(|| format!("{} {} of {}", kind.kind, object.name_any(), file.display()))?;
            applied += 1;
        }
    }
    assert!(applied > 50, "only {applied} objects were found");
    Ok(())
}
