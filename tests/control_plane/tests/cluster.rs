//! What operator and sidecars share, against a real API server: election, caches, finalizers and events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use dunnage_cluster::cache::{Builder, Change};
use dunnage_cluster::events::{Kind, Recorder};
use dunnage_cluster::leader::{self, Config, Status};
use dunnage_cluster::{Category, Error, Key, finalizer};
use dunnage_harness::{ControlPlane, eventually, wait_for};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(30);

fn election(identity: &str) -> Config {
    Config {
        lease_duration: Duration::from_secs(6),
        renew_deadline: Duration::from_secs(4),
        retry_period: Duration::from_millis(500),
        labels: BTreeMap::from([("team".to_owned(), "storage".to_owned())]),
        ..Config::new("default", "lock", identity)
    }
}

/// Runs for office with work that lasts until it is told to end.
async fn candidate(client: Client, identity: &str, stop: CancellationToken) -> Result<(), Error> {
    let work = async |leading: CancellationToken| {
        leading.cancelled().await;
        Ok::<(), Error>(())
    };
    let work = move |token| Box::pin(async move { work(token).await });
    leader::run(client, election(identity), Status::default(), stop, work).await?
}

#[tokio::test]
async fn the_lease_passes_at_once_when_it_is_released_and_a_thief_ends_the_leader() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let holder = |name: &'static str| {
        move |lease: Option<&Lease>| {
            lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref()) == Some(name)
        }
    };
    let first_stop = CancellationToken::new();
    let first = tokio::spawn(candidate(client.clone(), "first", first_stop.clone()));
    wait_for(&leases, "lock", "held by the first", SOON, holder("first")).await;
    let second = tokio::spawn(candidate(client.clone(), "second", CancellationToken::new()));

    // Longer than the lease lasts: the first must be renewing it.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(
        holder("first")(leases.get_opt("lock").await?.as_ref()),
        "the second has taken a live leader's lease"
    );
    // A write that the first has not heard of, as a renewal cut short by the stop is one, is in nobody's way.
    let unheard = json!({"metadata": {"annotations": {"unheard": "yes"}}});
    leases.patch("lock", &PatchParams::default(), &Patch::Merge(unheard)).await?;
    first_stop.cancel();
    first.await?.context("a stop is no error")?;
    let lease =
        wait_for(&leases, "lock", "held by the second", Duration::from_secs(3), holder("second")).await;
    let lease = lease.context("no lease")?;
    let record = lease.spec.clone().context("no record")?;
    assert_eq!((record.lease_duration_seconds, record.lease_transitions), (Some(6), Some(1)));
    assert_eq!(lease.metadata.labels.unwrap_or_default().get("team").map(String::as_str), Some("storage"));

    let theft = json!({"spec": {"holderIdentity": "thief"}});
    leases.patch("lock", &PatchParams::default(), &Patch::Merge(theft)).await?;
    let lost = tokio::time::timeout(SOON, second).await??;
    assert!(matches!(lost, Err(Error::LeaseLost { .. })), "{lost:?}");
    Ok(())
}

#[tokio::test]
async fn a_leader_without_an_api_server_gives_up_before_others_may_begin() -> Result<()> {
    let mut control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let leading = tokio::spawn(candidate(client, "first", CancellationToken::new()));
    wait_for(&leases, "lock", "held", SOON, |lease| lease.is_some()).await;
    control_plane.stop_api_server();
    let lost = tokio::time::timeout(Duration::from_secs(6), leading).await.context("still leading")??;
    assert!(matches!(lost, Err(Error::LeaseLost { .. })), "{lost:?}");
    Ok(())
}

fn map(name: &str, colour: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([("watched".to_owned(), "yes".to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("colour".to_owned(), colour.to_owned())])),
        ..ConfigMap::default()
    }
}

#[tokio::test]
async fn a_cache_follows_the_server_through_changes_and_its_restart() -> Result<()> {
    let mut control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.create(&PostParams::default(), &map("a", "red")).await?;
    maps.create(&PostParams::default(), &map("b", "red")).await?;

    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    let mut builder = Builder::<ConfigMap>::new(Api::namespaced(client, "default")).labels("watched=yes");
    let by_colour =
        builder.index(|map| map.data.iter().flatten().map(|(_, colour)| colour.clone()).collect());
    builder.listen(move |change| {
        if let Change::Deleted(map) = change {
            log.lock().expect("lock").extend(map.metadata.name.clone());
        }
    });
    let stop = CancellationToken::new();
    let cache = builder.start(&stop);
    cache.ready(&stop).await?;
    assert_eq!((cache.len(), by_colour.get("red").len()), (2, 2));

    let repaint = json!({"data": {"colour": "blue"}});
    maps.patch("a", &PatchParams::default(), &Patch::Merge(repaint)).await?;
    maps.delete("b", &DeleteParams::default()).await?;
    let seen = async |blue: usize, red: usize| {
        let found = (by_colour.get("blue").len(), by_colour.get("red").len());
        if found == (blue, red) { Ok(()) } else { Err(format!("{found:?}")) }
    };
    eventually("the changes are seen", SOON, async || seen(1, 0).await).await;
    assert_eq!(*heard.lock().expect("lock"), ["b"]);
    let kept = cache.get(&Key::namespaced("default", "a")).context("a")?;
    assert_eq!(kept.metadata.managed_fields, None);

    control_plane.stop_api_server();
    control_plane.start_api_server().await?;
    maps.create(&PostParams::default(), &map("c", "blue")).await?;
    eventually("the watch is back", Duration::from_secs(60), async || seen(2, 0).await).await;
    stop.cancel();
    Ok(())
}

#[tokio::test]
async fn a_stale_finalizer_patch_is_a_conflict_and_a_fresh_one_works() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let maps: Api<ConfigMap> = Api::namespaced(control_plane.client().await?, "default");
    let fresh = maps.create(&PostParams::default(), &map("a", "red")).await?;
    let one = finalizer::add_to(&maps, &fresh, "dunnage.dev/one").await?.context("added")?;
    let stale = finalizer::add_to(&maps, &fresh, "dunnage.dev/two").await.expect_err("stale");
    assert_eq!(stale.category(), Category::Conflict, "{stale:?}");
    let two = finalizer::add_to(&maps, &one, "dunnage.dev/two").await?.context("added")?;
    assert_eq!(two.metadata.finalizers.clone().unwrap_or_default(), ["dunnage.dev/one", "dunnage.dev/two"]);
    let left = finalizer::remove_from(&maps, &two, "dunnage.dev/one").await?.context("removed")?;
    let stale = finalizer::remove_from(&maps, &two, "dunnage.dev/two").await.expect_err("the list has moved");
    assert_eq!(stale.category(), Category::Conflict, "{stale:?}");
    finalizer::remove_from(&maps, &left, "dunnage.dev/two").await?.context("removed")?;
    maps.delete("a", &DeleteParams::default()).await?;
    let gone = finalizer::remove_from(&maps, &left, "dunnage.dev/two").await.expect_err("gone");
    assert!(gone.is_not_found(), "{gone:?}");
    Ok(())
}

#[tokio::test]
async fn an_event_told_again_is_counted() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let object = maps.create(&PostParams::default(), &map("a", "red")).await?;
    let stop = CancellationToken::new();
    let recorder = Recorder::start(client.clone(), "test", "pod-0", &stop);
    for _ in 0..3 {
        recorder.tell(&object, Kind::Warning, "NoRoom", "the pool is full");
    }
    let events: Api<Event> = Api::namespaced(client, "default");
    let about = ListParams::default().fields("involvedObject.name=a");
    let event = eventually("the event counts three", SOON, async || {
        let found = events.list(&about).await.map_err(|error| error.to_string())?.items;
        match &found[..] {
            [event] if event.count == Some(3) => Ok(event.clone()),
            _ => Err(format!("{found:?}")),
        }
    })
    .await;
    assert_eq!((event.reason.as_deref(), event.type_.as_deref()), (Some("NoRoom"), Some("Warning")));
    assert_eq!(event.involved_object.uid, object.metadata.uid);
    stop.cancel();
    Ok(())
}
