//! Claims that ask for more.

use dunnage_harness::{eventually, wait_for};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tonic::Code;

use crate::csi::Next;
use crate::world::{CLAIM, SOON, World, conditions};

const SIZE_BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

#[tokio::test]
async fn a_claim_grows_with_upstreams_rights_and_leaves_no_trace() {
    let mut world = World::start("grow", &[]).await;
    world.ask("2Gi").await;
    let claim = world.has_size("2Gi").await;
    assert_eq!(conditions(&claim), Vec::<&str>::new());
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "2Gi");
    assert_eq!(claim["status"]["allocatedResourceStatuses"], json!(null));
    let note = "volume.kubernetes.io/node-expansion-not-required";
    assert_eq!(claim["metadata"]["annotations"][note], "true");
    let capacity = world.volume().await.spec.unwrap().capacity.unwrap();
    assert_eq!(capacity["storage"].0, "2Gi");
    let request = world.driver.state().grown[0].clone();
    assert_eq!(request.volume_id, "handle-of-grow");
    assert_eq!(request.secrets, [("token".to_owned(), "t".to_owned())].into());
    let mode = request.volume_capability.unwrap().access_mode.unwrap().mode();
    assert_eq!(mode.as_str_name(), "SINGLE_NODE_MULTI_WRITER");
    world.is_told("Resizing").await;
    world.is_told("VolumeResizeSuccessful").await;
    assert_eq!(world.driver.asked(), [2], "one call");

    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "default");
    world.stop().await;
    let lease = leases.get(&world.lock()).await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity, Some(String::new()), "released");
}

#[tokio::test]
async fn a_node_ends_what_the_driver_has_begun() {
    let world = World::start("node", &[]).await;
    world.driver.next(Next::ForNode);
    world.ask("2Gi").await;
    let pending = |claim: &serde_json::Value| {
        claim["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizePending"
    };
    let claim = world.claim_is("pending", pending).await;
    assert_eq!(conditions(&claim), ["FileSystemResizePending", "Resizing"]);
    assert_eq!(world.annotation_of_volume(SIZE_BEFORE).await.as_deref(), Some("1Gi"));
    world.is_told("FileSystemResizeRequired").await;
    let done = json!({"capacity": {"storage": "2Gi"}, "conditions": [], "allocatedResourceStatuses": null});
    world.status(done).await;
    eventually("the note of the size before is gone", SOON, async || {
        world.annotation_of_volume(SIZE_BEFORE).await.map_or(Ok(()), Err)
    })
    .await;
    assert_eq!(world.driver.asked(), [2]);
}

#[tokio::test]
async fn an_impossible_size_is_left_for_a_smaller_one() {
    let world = World::start("less", &[]).await;
    world.driver.next(Next::Fail(Code::OutOfRange));
    world.ask("100Gi").await;
    let infeasible = |claim: &serde_json::Value| {
        claim["status"]["allocatedResourceStatuses"]["storage"] == "ControllerResizeInfeasible"
    };
    let claim = world.claim_is("infeasible", infeasible).await;
    assert_eq!(conditions(&claim), ["ControllerResizeError", "Resizing"]);
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "100Gi");
    world.is_told("VolumeResizeFailed").await;
    world.ask("2Gi").await;
    let claim = world.has_size("2Gi").await;
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "2Gi");
    assert_eq!((conditions(&claim), world.driver.asked()), (vec![], vec![100, 2]));
}

#[tokio::test]
async fn a_volume_in_use_grows_when_its_pod_is_gone() {
    let world = World::start("used", &[]).await;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &world.name);
    let pod = json!({"metadata": {"name": "user"}, "spec": {
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": CLAIM}}],
    }});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    world.driver.next(Next::Fail(Code::FailedPrecondition));
    world.ask("2Gi").await;
    world.is_told("VolumeResizeFailed").await;
    let failing = |claim: &serde_json::Value| conditions(claim).contains(&"ControllerResizeError");
    world.claim_is("refused", failing).await;
    pods.delete("user", &DeleteParams::default().grace_period(0)).await.unwrap();
    wait_for(&pods, "user", "gone", SOON, |pod| pod.is_none()).await;
    world.has_size("2Gi").await;
    assert_eq!(world.driver.asked(), [2, 2]);
}

#[tokio::test]
async fn a_kill_during_the_call_is_made_good_and_a_smaller_wish_waits_for_it() {
    let mut world = World::start("kill", &[]).await;
    world.driver.next(Next::Hang);
    world.ask("3Gi").await;
    eventually(
        "the call",
        SOON,
        async || {
            if world.driver.asked() == [3] { Ok(()) } else { Err("none".to_owned()) }
        },
    )
    .await;
    world.kill().await;
    world.ask("2Gi").await;
    world.begin();
    let claim = world.has_size("3Gi").await;
    assert_eq!(world.driver.asked(), [3, 3], "what may have been done is finished");
    assert_eq!(conditions(&claim), Vec::<&str>::new());
}
