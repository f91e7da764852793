//! The harness itself, against the programs it starts.

use std::time::Duration;

use dunnage_harness::{ControlPlane, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};

#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_has_no_rights_but_those_granted() {
    let control_plane = ControlPlane::start().await.unwrap();
    let client = control_plane.client_for("tests", "nobody").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, "tests");
    let error = maps.list(&ListParams::default()).await.unwrap_err();
    assert!(error.to_string().contains("system:serviceaccount:tests:nobody"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_was_away_has_kept_what_was_written() {
    let mut control_plane = ControlPlane::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(control_plane.client().await.unwrap(), "default");
    let metadata = ObjectMeta { name: Some("kept".into()), ..ObjectMeta::default() };
    maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await.unwrap();
    control_plane.stop_api_server();
    maps.get("kept").await.unwrap_err();
    control_plane.start_api_server().await.unwrap();
    maps.get("kept").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_api_server_answers_after_it_is_resumed() {
    let control_plane = ControlPlane::start().await.unwrap();
    let namespaces: Api<Namespace> = Api::all(control_plane.client().await.unwrap());
    control_plane.pause_api_server().unwrap();
    let listing = tokio::spawn(async move { namespaces.get("default").await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!listing.is_finished());
    control_plane.resume_api_server().unwrap();
    listing.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_manager_ends_deleted_namespaces() {
    let control_plane = ControlPlane::builder().controller_manager().start().await.unwrap();
    let namespaces: Api<Namespace> = Api::all(control_plane.client().await.unwrap());
    let metadata = ObjectMeta { name: Some("short".into()), ..ObjectMeta::default() };
    namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.unwrap();
    namespaces.delete("short", &DeleteParams::default()).await.unwrap();
    eventually("the namespace is gone", Duration::from_secs(60), async || {
        match namespaces.get_opt("short").await {
            Ok(None) => Ok(()),
            Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
}
