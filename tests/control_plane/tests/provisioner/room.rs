//! Pools with and without room, and what the scheduler is told of them.

use kube::ResourceExt as _;
use serde_json::json;

use crate::csi::Abilities;
use crate::world::World;

const GIB: i64 = 1 << 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_room_goes_back_to_the_scheduler() {
    let abilities = Abilities { topology: true, capacity: true, ..Abilities::default() };
    let world = World::start("exhausted", abilities, &["--strict-topology", "--enable-capacity"]).await;
    world.driver.state().room = [("p1".to_owned(), 10 * GIB), ("p2".to_owned(), 10 * GIB)].into();
    world.class("exhausted", "WaitForFirstConsumer", json!({})).await;
    world.node("exhausted-1", "p1").await;
    world.node("exhausted-2", "p2").await;
    world.room_is("exhausted", &[("p1", "10Gi"), ("p2", "10Gi")]).await;
    world.driver.state().room.insert("p1".to_owned(), GIB / 2);
    world.claim("data", "exhausted", Some("exhausted-1")).await;
    world.handed_back("data").await;
    // The scheduler knows already why.
    assert_eq!(world.room("exhausted").await[0].1, "512Mi");
    let message = world.event("data", "ProvisioningFailed").await;
    assert!(message.contains("has 536870912 bytes free"), "{message}");
    world.choose("data", "exhausted-2").await;
    world.bound("data").await;
    world.room_is("exhausted", &[("p1", "512Mi"), ("p2", "9Gi")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_topology_a_claim_waits_and_is_served_when_room_is_freed() {
    let abilities = Abilities { capacity: true, ..Abilities::default() };
    let flags = ["--enable-capacity", "--retry-interval-start=2m", "--retry-interval-max=5m"];
    let world = World::start("full", abilities, &flags).await;
    world.driver.state().room = [(String::new(), GIB)].into();
    world.class("full", "Immediate", json!({})).await;
    world.claim("first", "full", None).await;
    world.bound("first").await;
    world.claim("second", "full", None).await;
    world.event("second", "ProvisioningFailed").await;
    world.delete_claim("first").await;
    // Long before its back-off is over.
    world.bound("second").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn published_room_follows_volumes_classes_and_nodes() {
    let abilities = Abilities { topology: true, capacity: true, ..Abilities::default() };
    let flags = ["--strict-topology", "--enable-capacity"];
    let mut world = World::start("published", abilities, &flags).await;
    world.driver.state().room = [("p1".to_owned(), 3 * GIB)].into();
    world.class("published", "WaitForFirstConsumer", json!({})).await;
    world.node("published-1", "p1").await;
    world.room_is("published", &[("p1", "3Gi")]).await;
    let name = world.claim("data", "published", Some("published-1")).await;
    assert_eq!(world.bound("data").await.name_any(), name);
    world.room_is("published", &[("p1", "2Gi")]).await;
    world.class("published-too", "WaitForFirstConsumer", json!({})).await;
    world.room_is("published-too", &[("p1", "2Gi")]).await;
    world.class("published-now", "Immediate", json!({})).await;
    world.delete_claim("data").await;
    world.room_is("published", &[("p1", "3Gi")]).await;
    world.room_is("published-too", &[("p1", "3Gi")]).await;
    assert!(world.room("published-now").await.is_empty());
    // Another leader takes the objects over instead of making new ones.
    world.kill();
    world.delete_class("published-too").await;
    world.begin();
    world.room_is("published-too", &[]).await;
    world.room_is("published", &[("p1", "3Gi")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_node_is_gone_goes_back_to_the_scheduler() {
    let abilities = Abilities { topology: true, ..Abilities::default() };
    let world = World::start("nodeless", abilities, &["--strict-topology"]).await;
    world.class("nodeless", "WaitForFirstConsumer", json!({})).await;
    world.claim("data", "nodeless", Some("nodeless-gone")).await;
    world.handed_back("data").await;
    world.node("nodeless-1", "p1").await;
    world.choose("data", "nodeless-1").await;
    world.bound("data").await;
    assert_eq!(world.driver.state().creates.len(), 1);
}
