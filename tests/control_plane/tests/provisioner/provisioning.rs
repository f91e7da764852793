//! From claims to volumes.

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use serde_json::json;
use tonic::Code;

use crate::csi::{Abilities, Answer};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn an_immediate_claim_is_bound_and_its_volume_deleted_with_it() {
    let mut world = World::start("immediate", Abilities::default(), &["--extra-create-metadata"]).await;
    let parameters = json!({"parameters": {"csi.storage.k8s.io/fstype": "xfs", "kind": "fast"}});
    world.class("immediate", "Immediate", parameters).await;
    let name = world.claim("data", "immediate", None).await;
    let volume = world.bound("data").await;
    assert_eq!(volume.name_any(), name);
    assert!(volume.finalizers().contains(&"external-provisioner.volume.kubernetes.io/finalizer".to_owned()));
    let spec = volume.spec.unwrap();
    let csi = spec.csi.unwrap();
    assert_eq!((csi.fs_type.as_deref(), csi.volume_handle), (Some("xfs"), format!("-{name}")));
    assert_eq!((spec.node_affinity, spec.storage_class_name.as_deref()), (None, Some("immediate")));
    {
        let state = world.driver.state();
        let request = &state.creates[0];
        assert_eq!(request.accessibility_requirements, None);
        assert_eq!(request.parameters["kind"], "fast");
        assert_eq!(request.parameters["csi.storage.k8s.io/pvc/namespace"], "immediate");
        assert_eq!(request.parameters["csi.storage.k8s.io/pv/name"], name);
        assert_eq!(request.parameters.len(), 4);
    }
    assert!(world.event("data", "ProvisioningSucceeded").await.contains(&name));
    world.delete_claim("data").await;
    world.volume_gone(&name).await;
    world
        .driver_shows("no volume is left", |state| state.volumes.is_empty() && state.deletes.len() == 1)
        .await;
    world.journal_has(0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_claim_goes_to_the_chosen_nodes_pool() {
    let abilities = Abilities { topology: true, ..Abilities::default() };
    let world = World::start("delayed", abilities, &["--strict-topology"]).await;
    world.class("delayed", "WaitForFirstConsumer", json!({})).await;
    world.node("delayed-1", "p1").await;
    world.node("delayed-2", "p2").await;
    world.claim("data", "delayed", None).await;
    world.choose("data", "delayed-2").await;
    let volume = world.bound("data").await;
    let affinity = volume.spec.unwrap().node_affinity.unwrap().required.unwrap();
    let expression = affinity.node_selector_terms[0].match_expressions.clone().unwrap().remove(0);
    assert_eq!(expression.key, "topology.delayed.csi.example.io/pool");
    assert_eq!(expression.values.unwrap(), ["p2"]);
    let state = world.driver.state();
    let asked = state.creates[0].accessibility_requirements.clone().unwrap();
    assert_eq!(asked.requisite.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_tried_again_with_the_same_request() {
    let world = World::start("failing", Abilities::default(), &[]).await;
    let codes = [Code::Unavailable, Code::Internal, Code::Aborted, Code::ResourceExhausted];
    world.driver.answer_next(codes.map(Answer::Fail));
    world.class("failing", "Immediate", json!({})).await;
    world.claim("data", "failing", None).await;
    world.bound("data").await;
    let message = world.event("data", "ProvisioningFailed").await;
    assert!(message.contains("as told"), "{message}");
    let state = world.driver.state();
    assert_eq!(state.creates.len(), 5);
    assert!(state.creates.iter().all(|request| *request == state.creates[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_for_a_claim_that_goes_is_finished_and_deleted() {
    let world = World::start("going", Abilities::default(), &[]).await;
    world.driver.answer_next([Code::Unavailable; 3].map(Answer::Fail));
    world.driver.answer_next([Answer::MakeAndFail(Code::Aborted), Answer::Fail(Code::Unavailable)]);
    world.class("going", "Immediate", json!({})).await;
    world.claim("data", "going", None).await;
    world.driver_shows("a first call", |state| !state.creates.is_empty()).await;
    world.delete_claim("data").await;
    world.driver_shows("all is undone", |state| state.creates.len() >= 5 && state.volumes.is_empty()).await;
    world.driver_shows("a deletion", |state| !state.deletes.is_empty()).await;
    world.journal_has(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_owed_after_a_final_error() {
    let world = World::start("final", Abilities::default(), &["--retry-interval-start=2s"]).await;
    world.driver.answer_next([Answer::Fail(Code::Unavailable), Answer::Fail(Code::PermissionDenied)]);
    world.class("final", "Immediate", json!({})).await;
    world.claim("data", "final", None).await;
    world.driver_shows("a first call", |state| !state.creates.is_empty()).await;
    world.delete_claim("data").await;
    world.driver_shows("the call is repeated", |state| state.creates.len() == 2).await;
    world.journal_has(0).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.driver.state().creates.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_class_causes_no_storm_and_correcting_it_works() {
    let world = World::start("invalid", Abilities::default(), &[]).await;
    world.driver.state().invalid_parameter = Some("colour".to_owned());
    world.class("invalid", "Immediate", json!({"parameters": {"colour": "red"}})).await;
    world.claim("data", "invalid", None).await;
    let message = world.event("data", "ProvisioningFailed").await;
    assert!(message.contains("there is no such parameter"), "{message}");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(world.driver.state().creates.len(), 1, "the same invalid request was sent again");
    world.delete_class("invalid").await;
    world.class("invalid", "Immediate", json!({})).await;
    world.bound("data").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_comes_late_and_a_wrong_parameter_of_ours_are_named() {
    let world = World::start("late", Abilities::default(), &[]).await;
    world.class("late", "Immediate", json!({"parameters": {"csi.storage.k8s.io/colour": "red"}})).await;
    world.claim("data", "late", None).await;
    let message = world.event("data", "ProvisioningFailed").await;
    assert!(message.contains("csi.storage.k8s.io/colour") && message.contains("fstype"), "{message}");
    world.delete_class("late").await;
    world.class("late", "Immediate", json!({})).await;
    world.bound("data").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_found_by_template_and_used_for_deletion_too() {
    let world = World::start("secret", Abilities::default(), &[]).await;
    let parameters = json!({"parameters": {
        "csi.storage.k8s.io/provisioner-secret-name": "key-of-${pvc.name}",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
    }});
    world.class("secret", "Immediate", parameters).await;
    world.claim("data", "secret", None).await;
    let message = world.event("data", "ProvisioningFailed").await;
    assert!(message.contains("get secret secret/key-of-data"), "{message}");
    let secret = json!({"metadata": {"name": "key-of-data"}, "stringData": {"user": "u", "password": "p"}});
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "secret");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let name = world.bound("data").await.name_any();
    assert_eq!(world.driver.state().creates[0].secrets["password"], "p");
    world.delete_claim("data").await;
    world.volume_gone(&name).await;
    assert_eq!(world.driver.state().deletes[0].secrets["user"], "u");
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_that_the_driver_cannot_read_are_refused_by_name() {
    let world = World::start("source", Abilities::default(), &[]).await;
    world.class("source", "Immediate", json!({})).await;
    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}});
    world.claim_with("copy", "source", None, source).await;
    let message = world.event("copy", "ProvisioningFailed").await;
    assert!(message.contains("CLONE_VOLUME"), "{message}");
    assert!(world.driver.state().creates.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_protects_its_source_until_that_is_deleted() {
    let world = World::start("clone", Abilities { clone: true, ..Abilities::default() }, &[]).await;
    world.class("clone", "Immediate", json!({})).await;
    let name = world.claim("data", "clone", None).await;
    world.bound("data").await;
    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "data"}});
    world.claim_with("copy", "clone", None, source).await;
    world.bound("copy").await;
    let handle = {
        let state = world.driver.state();
        format!("{:?}", state.creates[1].volume_content_source)
    };
    assert!(handle.contains(&name), "{handle}");
    let source = world.claims().get("data").await.unwrap();
    let finalizer = "provisioner.storage.kubernetes.io/cloning-protection";
    assert!(source.finalizers().contains(&finalizer.to_owned()));
    world.delete_claim("data").await;
    world.volume_gone(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_between_call_and_save_leaks_nothing_when_the_claim_goes_meanwhile() {
    let mut world = World::start("killed", Abilities::default(), &[]).await;
    world.driver.answer_next([Answer::MakeAndHang, Answer::MakeAndHang]);
    world.class("killed", "Immediate", json!({})).await;
    world.claim("gone", "killed", None).await;
    let kept = world.claim("kept", "killed", None).await;
    world.driver_shows("two volumes are made", |state| state.volumes.len() == 2).await;
    world.kill();
    assert_eq!(world.journal().await, 2);
    world.delete_claim("gone").await;
    world.delete_class("killed").await;
    world.begin();
    world
        .driver_shows("only the wanted volume is left", |state| {
            state.volumes.keys().eq([&kept]) && state.deletes.len() == 1
        })
        .await;
    world.class("killed", "Immediate", json!({})).await;
    assert_eq!(world.bound("kept").await.name_any(), kept);
    world.journal_has(0).await;
    // A further start finds nothing to do.
    world.kill();
    world.begin();
    world.claim("later", "killed", None).await;
    world.bound("later").await;
    let state = world.driver.state();
    let names: HashSet<&String> = state.creates.iter().map(|request| &request.name).collect();
    assert_eq!((names.len(), state.volumes.len()), (3, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_claims_at_once_are_bound_and_go_again() {
    let world = World::start("many", Abilities::default(), &[]).await;
    world.class("many", "Immediate", json!({})).await;
    for number in 0..200 {
        world.claim(&format!("data-{number}"), "many", None).await;
    }
    for number in 0..200 {
        world.bound(&format!("data-{number}")).await;
    }
    assert_eq!(world.driver.state().volumes.len(), 200);
    for number in 0..200 {
        world.delete_claim(&format!("data-{number}")).await;
    }
    world.driver_shows("nothing is left", |state| state.volumes.is_empty()).await;
    world.journal_has(0).await;
}
