//! Claims that ask for another `VolumeAttributesClass`.

use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use serde_json::{Value, json};
use tonic::Code;

use crate::csi::Next;
use crate::world::{World, conditions};

async fn class(world: &World, name: &str) {
    let driver = &world.driver.name;
    let class = json!({"metadata": {"name": name}, "driverName": driver, "parameters": {"iops": name}});
    world.create::<VolumeAttributesClass>(class).await;
}

fn modifying(state: &'static str) -> impl Fn(&Value) -> bool {
    move |claim| claim["status"]["modifyVolumeStatus"]["status"] == state
}

fn current(class: &str) -> impl Fn(&Value) -> bool {
    move |claim| claim["status"]["currentVolumeAttributesClassName"] == class
}

#[tokio::test]
async fn a_class_is_waited_for_and_then_given() {
    let world = World::start("vac-wait", &["--extra-modify-metadata"]).await;
    world.spec(json!({"volumeAttributesClassName": "vac-wait-1"})).await;
    world.claim_is("pending", modifying("Pending")).await;
    world.is_told("VolumeModifyFailed").await;
    class(&world, "vac-wait-1").await;
    let claim = world.claim_is("modified", current("vac-wait-1")).await;
    assert_eq!((conditions(&claim), &claim["status"]["modifyVolumeStatus"]), (vec![], &Value::Null));
    let spec = world.volume().await.spec.unwrap();
    assert_eq!(spec.volume_attributes_class_name.as_deref(), Some("vac-wait-1"));
    let request = world.driver.state().modified[0].clone();
    assert_eq!(request.mutable_parameters["iops"], "vac-wait-1");
    assert_eq!(request.mutable_parameters["csi.storage.k8s.io/pvc/name"], "data");
    assert_eq!(request.secrets, [("token".to_owned(), "t".to_owned())].into());
    world.is_told("VolumeModifySuccessful").await;
}

#[tokio::test]
async fn a_class_that_cannot_be_had_is_left_for_another_while_the_claim_grows() {
    let world = World::start("vac-left", &[]).await;
    class(&world, "vac-left-1").await;
    class(&world, "vac-left-2").await;
    world.driver.next(Next::Fail(Code::InvalidArgument));
    world.spec(json!({"volumeAttributesClassName": "vac-left-1"})).await;
    let claim = world.claim_is("infeasible", modifying("Infeasible")).await;
    assert_eq!(conditions(&claim), ["ModifyVolumeError", "ModifyingVolume"]);
    // Both controllers write the same status.
    let both = json!({
        "volumeAttributesClassName": "vac-left-2", "resources": {"requests": {"storage": "2Gi"}},
    });
    world.spec(both).await;
    world.has_size("2Gi").await;
    let claim = world.claim_is("modified", current("vac-left-2")).await;
    assert_eq!((conditions(&claim), world.driver.asked()), (vec![], vec![2]));
}
