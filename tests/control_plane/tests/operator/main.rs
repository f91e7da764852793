//! The operator against a real API server, with nodes that the test plays.

mod agent;
mod world;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use agent::Disk;
use anyhow::{Context, Result, ensure};
use dunnage_csi::agent::pool::State;
use dunnage_harness::{eventually, wait_for};
use dunnage_operator::uninstall::{Mode, UninstallError, uninstall};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use world::{DRIVER, LONG, NAMESPACE, World, directory};

/// A backend with one node that is ready, and its disk.
async fn ready(world: &World, address: Ipv4Addr) -> Result<(Disk, tokio_util::sync::DropGuard)> {
    world.apply_backend("local", directory()).await?;
    let disk = Disk::empty("a");
    let agent = world.add_node("local", &disk, "a", address).await?;
    world.add_controller_pod("local", "a").await?;
    eventually("the pool is made", LONG, async || {
        if disk.pool().state() == State::Ready { Ok(()) } else { Err("not yet") }
    })
    .await;
    world.register("a", &disk.pool().id).await?;
    world.until("local", "Ready", "True").await;
    Ok((disk, agent))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_becomes_ready_and_a_restarted_operator_changes_nothing() -> Result<()> {
    let world = World::start().await?;
    let operator = world.operator("one").await?;
    let (disk, _agent) = ready(&world, Ipv4Addr::new(127, 77, 1, 1)).await?;

    let pool = disk.pool().id;
    assert_eq!(world.recorded("local").await, [pool.as_str()]);
    assert_eq!(disk.calls(), [format!("init {pool}")]);
    let backend = world.backends.get("local").await?;
    let status = backend.status.context("status")?;
    assert_eq!(status.nodes.context("nodes")?.summary, "1/1");
    assert_eq!(status.capacity.context("capacity")?.available, "80.0Gi");

    drop(operator);
    let before = world.versions().await?;
    let _operator = world.operator("two").await?;
    // A wish that needs nothing is taken off: by then a whole pass is over.
    world.annotate("local", "dunnage.dev/new-pool", "a").await?;
    wait_for(&world.backends, "local", "the wish is taken off", LONG, |backend| {
        backend.is_some_and(|backend| backend.metadata.annotations.as_ref().is_none_or(BTreeMap::is_empty))
    })
    .await;
    let unwritten = |lines: Vec<String>| -> Vec<String> {
        lines.into_iter().filter(|line| !line.starts_with("StorageBackend")).collect()
    };
    assert_eq!(unwritten(world.versions().await?), unwritten(before));
    assert_eq!(disk.calls().len(), 1, "{:?}", disk.calls());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_in_use_stays_and_an_unused_one_leaves_nothing() -> Result<()> {
    let world = World::start().await?;
    let _operator = world.operator("one").await?;
    let (disk, _agent) = ready(&world, Ipv4Addr::new(127, 77, 2, 1)).await?;
    world.add_volume("pv-1").await?;
    world.until("local", "Removable", "False").await;

    // Refused at once, with the reason.
    let refused = eventually("the deletion is refused", LONG, async || {
        let params = DeleteParams { dry_run: true, ..DeleteParams::default() };
        match world.backends.delete("local", &params).await {
            Err(error) => Ok(error),
            Ok(_) => Err("the policy does not hold yet"),
        }
    })
    .await;
    assert!(refused.to_string().contains("pv-1"), "{refused}");

    // Without the quick answer, the finalizer holds it.
    dunnage_operator::policy::remove(&world.client).await?;
    eventually("the deletion is taken", LONG, async || {
        world.backends.delete("local", &DeleteParams::default()).await.map(drop)
    })
    .await;
    let blocked = wait_for(&world.backends, "local", "says what it waits for", LONG, |backend| {
        backend.and_then(|backend| backend.status.as_ref()).is_some_and(|status| !status.blocking.is_empty())
    })
    .await;
    let status = blocked.and_then(|backend| backend.status).context("status")?;
    assert_eq!(status.blocking[0].kind, "PersistentVolume");
    let classes: Api<StorageClass> = Api::all(world.client.clone());
    wait_for(&classes, "local", "is removed first", LONG, |class| class.is_none()).await;
    assert!(
        world.left_of("local").await?.contains(&"DaemonSet dunnage-local-node".to_owned()),
        "the plugin stays"
    );
    assert_eq!(disk.pool().state(), State::Ready, "and so does the pool");

    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    remove_volume(&volumes, "pv-1").await?;
    eventually("the empty pool is given up", LONG, async || {
        if disk.pool().state() == State::Empty { Ok(()) } else { Err("not yet") }
    })
    .await;
    world.end_pods("local").await?;
    world.deregister("a").await?;
    world.until_gone("local").await;
    assert_eq!(world.left_of("local").await?, Vec::<String>::new());
    Ok(())
}

/// Without a controller manager, nobody takes the protection off.
async fn remove_volume(volumes: &Api<PersistentVolume>, name: &str) -> Result<()> {
    volumes.delete(name, &DeleteParams::default()).await?;
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    match volumes.patch(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        patched => Ok(patched.map(drop)?),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_elses_driver_and_class_are_refused_until_they_are_given() -> Result<()> {
    let world = World::start().await?;
    let drivers: Api<CSIDriver> = Api::all(world.client.clone());
    world.create(&drivers, json!({"metadata": {"name": DRIVER}, "spec": {"podInfoOnMount": true}})).await?;
    let classes: Api<StorageClass> = Api::all(world.client.clone());
    world
        .create(&classes, json!({"metadata": {"name": "local"}, "provisioner": "example.com/other"}))
        .await?;
    let _operator = world.operator("one").await?;
    world.apply_backend("local", directory()).await?;

    let message = world.until("local", "ConfigAccepted", "False").await;
    assert!(message.contains("dunnage.dev/adopt=true"), "{message}");
    assert_eq!(world.left_of("local").await?.iter().filter(|name| name.contains("Set ")).count(), 0);

    let adopt = Patch::Merge(json!({"metadata": {"annotations": {"dunnage.dev/adopt": "true"}}}));
    drivers.patch(DRIVER, &PatchParams::default(), &adopt).await?;
    let message = eventually("the class is in the way", LONG, async || {
        let message = world.until("local", "ConfigAccepted", "False").await;
        if message.contains("StorageClass local") { Ok(message) } else { Err(message) }
    })
    .await;
    assert!(message.contains("storageclass/local"), "{message}");
    classes.delete("local", &DeleteParams::default()).await?;
    world.until("local", "ConfigAccepted", "True").await;
    assert_eq!(classes.get("local").await?.provisioner, DRIVER);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_backends_on_one_directory_the_younger_waits_until_the_older_is_gone() -> Result<()> {
    let world = World::start().await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    world.create(&nodes, json!({"metadata": {"name": "a"}})).await?;
    let _operator = world.operator("one").await?;
    world.apply_backend("local", directory()).await?;
    world.until("local", "ConfigAccepted", "True").await;
    let nested = json!({"type": "LoopFile", "loopFile": {"path": "/var/lib/dunnage/nested"}});
    world.apply_backend("nested", nested).await?;
    let message = world.until("nested", "ConfigAccepted", "False").await;
    assert!(message.contains("StorageBackend local") && message.contains("/var/lib/dunnage"), "{message}");
    assert_eq!(world.left_of("nested").await?.iter().filter(|name| name.contains("Set ")).count(), 0);

    world.backends.delete("local", &DeleteParams::default()).await?;
    world.until_gone("local").await;
    world.until("nested", "ConfigAccepted", "True").await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_is_no_longer_listed_goes_and_a_copy_that_somebody_made_of_one_stays() -> Result<()> {
    let world = World::start().await?;
    let _operator = world.operator("one").await?;
    let with = |classes: serde_json::Value| {
        let mut spec = directory();
        spec["classes"] = classes;
        spec
    };
    world
        .apply_backend("local", with(json!([{"name": "fast"}, {"name": "safe", "reclaimPolicy": "Retain"}])))
        .await?;
    let classes: Api<StorageClass> = Api::all(world.client.clone());
    for name in ["fast", "safe"] {
        wait_for(&classes, name, "is made", LONG, |class| class.is_some()).await;
    }
    // With its labels alone, as a copy is made with kubectl, and with all of its metadata, as a program makes one.
    let original = classes.get("fast").await?;
    let metadata = ObjectMeta { resource_version: None, annotations: None, ..original.metadata.clone() };
    let labelled = ObjectMeta { labels: original.metadata.labels.clone(), ..ObjectMeta::default() };
    for (name, metadata) in [("mine", labelled), ("mine-too", metadata)] {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..metadata };
        let copy = StorageClass { metadata, ..original.clone() };
        classes.create(&PostParams::default(), &copy).await?;
    }
    world
        .apply_backend(
            "local",
            with(json!([{"name": "fast", "state": "Unmanaged"}, {"name": "safe", "state": "Absent"}])),
        )
        .await?;
    wait_for(&classes, "safe", "is removed", LONG, |class| class.is_none()).await;
    ensure!(classes.get_opt("fast").await?.is_some(), "an unmanaged class is left alone");
    eventually("the deletion is taken", LONG, async || {
        world.backends.delete("local", &DeleteParams::default()).await.map(drop)
    })
    .await;
    world.until_gone("local").await;
    ensure!(classes.get_opt("fast").await?.is_none(), "the backend's own class goes with it");
    for name in ["mine", "mine-too"] {
        ensure!(classes.get_opt(name).await?.is_some(), "what somebody else made is left alone: {name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_not_mounted_gets_no_second_pool_until_a_person_says_so() -> Result<()> {
    let world = World::start().await?;
    let _operator = world.operator("one").await?;
    let (disk, _agent) = ready(&world, Ipv4Addr::new(127, 77, 3, 1)).await?;
    let first = disk.pool();
    disk.change(|pool| {
        pool.set_state(State::Empty);
        pool.id.clear();
    });
    let message = world.until("local", "Ready", "False").await;
    for word in
        [first.id.as_str(), "node a", "/var/lib/dunnage", "kubectl annotate sb/local dunnage.dev/new-pool=a"]
    {
        assert!(message.contains(word), "{word}: {message}");
    }
    disk.change(|pool| *pool = first.clone());
    world.until("local", "Ready", "True").await;
    assert_eq!(disk.calls().len(), 1, "{:?}", disk.calls());

    disk.change(|pool| {
        pool.set_state(State::Empty);
        pool.id.clear();
    });
    world.until("local", "Ready", "False").await;
    world.annotate("local", "dunnage.dev/new-pool", "a").await?;
    eventually("a second pool is made", LONG, async || {
        let pool = disk.pool();
        if pool.state() == State::Ready && pool.id != first.id { Ok(()) } else { Err(format!("{pool:?}")) }
    })
    .await;
    assert_eq!(world.recorded("local").await.len(), 2, "the old one is not forgotten");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_moment_makes_nothing_twice() -> Result<()> {
    let world = World::start().await?;
    world.apply_backend("local", directory()).await?;
    let disk = Disk::empty("a");
    // Lives from a few requests to a few passes: each life dies somewhere else.
    for life in 0..12_u64 {
        let operator = world.operator(&format!("life-{life}")).await?;
        tokio::time::sleep(Duration::from_millis(100 + 130 * life)).await;
        drop(operator);
    }
    let _operator = world.operator("last").await?;
    let _agent = world.add_node("local", &disk, "a", Ipv4Addr::new(127, 77, 4, 1)).await?;
    world.add_controller_pod("local", "a").await?;
    // And from here on with an agent.
    for life in 0..12_u64 {
        let operator = world.operator(&format!("later-{life}")).await?;
        tokio::time::sleep(Duration::from_millis(100 + 130 * life)).await;
        drop(operator);
    }
    let _operator = world.operator("very-last").await?;
    eventually("the pool is made", LONG, async || {
        if disk.pool().state() == State::Ready { Ok(()) } else { Err("not yet") }
    })
    .await;
    let pool = disk.pool().id;
    world.register("a", &pool).await?;
    world.until("local", "Ready", "True").await;
    assert_eq!(world.recorded("local").await, [pool.as_str()]);
    assert!(disk.calls().iter().all(|call| *call == format!("init {pool}")), "{:?}", disk.calls());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstall_refuses_under_volumes_and_works_without_an_operator() -> Result<()> {
    let world = World::start().await?;
    let operator = world.operator("one").await?;
    world.apply_backend("local", directory()).await?;
    world.until("local", "ConfigAccepted", "True").await;
    world.add_volume("pv-1").await?;
    drop(operator);
    let run = async |mode| uninstall(&world.client, NAMESPACE, mode, |line| eprintln!("{line}")).await;

    let check = run(Mode::Check).await.expect_err("a backend exists");
    assert!(matches!(&check, UninstallError::Backends { names } if names == &["local"]), "{check}");
    let refused = run(Mode::Run).await.expect_err("a volume exists");
    assert!(refused.to_string().contains("pv-1"), "{refused}");
    remove_volume(&Api::all(world.client.clone()), "pv-1").await?;

    let before = world.versions().await?;
    run(Mode::DryRun).await?;
    assert_eq!(world.versions().await?, before);
    run(Mode::Run).await?;
    eventually("nothing is left", LONG, async || {
        let left = world.left_of("local").await.map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
    })
    .await;
    run(Mode::Check).await?;
    Ok(())
}
