//! Asks the driver and writes the objects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dunnage_cluster::Error;
use dunnage_cluster::error::{Category, chain};
use dunnage_cluster::queue::{self, Outcome};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::plan::{self, Item};
use super::{Shared, lock};
use crate::provisioner::driver::describe;

/// A burst of changes in one place is asked about no more often than this.
const SPACING: Duration = Duration::from_millis(250);
/// While space is being freed in the background.
const CLOSELY: Duration = Duration::from_secs(2);

pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let handler = {
        let shared = Arc::clone(&shared);
        move |item: Item| {
            let shared = Arc::clone(&shared);
            async move { work(&shared, item).await }
        }
    };
    let (queue, workers) = (shared.setup.queue.clone(), shared.setup.workers);
    let workers = tokio::spawn(queue::run(queue, workers, stop.clone(), handler));
    let mut poll = tokio::time::interval(shared.setup.poll.max(Duration::from_secs(1)));
    loop {
        let all = tokio::select! {
            () = stop.cancelled() => break,
            _ = poll.tick() => true,
            () = shared.changed.notified() => false,
        };
        look(&shared, all).await;
    }
    // It has been told to stop too.
    if workers.await.is_err() {
        debug!("a capacity worker was cut short");
    }
}

/// Compares what there should be with what there is.
async fn look(shared: &Shared, all: bool) {
    let setup = &shared.setup;
    let nodes = setup.nodes.as_ref().map(|nodes| nodes.all(&setup.driver.name));
    let segments = plan::segments(nodes.is_some(), nodes.as_deref().unwrap_or_default());
    let classes = setup.classes.all();
    let wanted =
        plan::wanted(&setup.driver.name, setup.immediate_too, &segments, classes.iter().map(AsRef::as_ref));
    let objects = setup.objects.all();
    let surplus = plan::surplus(objects.iter().map(AsRef::as_ref), &wanted, &setup.owner);
    let before = std::mem::replace(&mut *lock(&shared.wanted), wanted.clone());
    lock(&shared.items).retain(|item, _| wanted.contains(item));
    lock(&shared.settling).retain(|item, until| wanted.contains(item) && *until > Instant::now());
    setup.metrics.capacity_wanted.set(count(wanted.len()));
    setup.metrics.capacity_obsolete.set(count(surplus.len()));
    for item in wanted {
        if all || !before.contains(&item) {
            setup.queue.add(item);
        }
    }
    remove(shared, surplus).await;
}

async fn remove(shared: &Shared, names: BTreeSet<String>) {
    let api: Api<CSIStorageCapacity> =
        Api::namespaced(shared.setup.client.clone(), &shared.setup.owner.namespace);
    for name in names {
        let deleted = api.delete(&name, &DeleteParams::default()).await;
        match deleted.map_err(Error::api(format!("delete CSIStorageCapacity {name}"))) {
            Err(error) if !error.is_not_found() => {
                warn!(
                    error = chain(&error),
                    "cannot delete a capacity object; tried again with the next look"
                );
            }
            _ => {}
        }
    }
}

async fn work(shared: &Shared, item: Item) -> Outcome {
    if let Some(rest) = rest(shared, &item).await {
        return Outcome::Again(rest);
    }
    if !publish(shared, &item, None).await {
        return Outcome::Retry;
    }
    let settling = lock(&shared.settling).get(&item).is_some_and(|until| *until > Instant::now());
    if settling { Outcome::Again(CLOSELY) } else { Outcome::Done }
}

/// How long to wait before this item may be asked about again.
async fn rest(shared: &Shared, item: &Item) -> Option<Duration> {
    let last = entry(shared, item);
    let asked = last.lock().await.asked?;
    SPACING.checked_sub(asked.elapsed()).filter(|rest| !rest.is_zero())
}

fn entry(shared: &Shared, item: &Item) -> Arc<tokio::sync::Mutex<super::Last>> {
    Arc::clone(lock(&shared.items).entry(item.clone()).or_default())
}

/// Asks the driver and writes the object, unless somebody has begun to since `unless`. Whether the object is right.
pub(super) async fn publish(shared: &Shared, item: &Item, unless: Option<Instant>) -> bool {
    let setup = &shared.setup;
    if !lock(&shared.wanted).contains(item) {
        return true;
    }
    let Some(class) = setup.classes.named(&item.class) else { return true };
    let last = entry(shared, item);
    let mut last = last.lock().await;
    if unless.is_some_and(|since| last.asked.is_some_and(|asked| asked >= since)) {
        return true;
    }
    last.asked = Some(Instant::now());
    let parameters = class.parameters.clone().unwrap_or_default().into_iter().collect();
    let answer = match setup.driver.capacity(&item.segment, parameters).await {
        Ok(answer) => answer,
        Err(status) => {
            warn!(class = item.class, place = ?item.segment, error = describe(&status), "cannot learn the capacity");
            return false;
        }
    };
    let object = plan::object(item, &answer, &setup.owner);
    let found = setup.by_item.get(&item.key());
    let found = found.iter().find(|found| plan::item_of(found, &setup.owner).as_ref() == Some(item));
    // The cache may be behind our own last write.
    let stale = last.published.as_ref().is_none_or(|published| plan::differs(published, &object));
    let written = match found {
        None => create(shared, &object).await,
        Some(found) if stale || plan::differs(found, &object) => {
            let name = found.metadata.name.as_deref().unwrap_or_default();
            patch(shared, name, &object).await
        }
        Some(_) => Ok(()),
    };
    if let Err(error) = written {
        warn!(class = item.class, place = ?item.segment, error = chain(&error), "cannot publish the capacity");
        last.published = None;
        return false;
    }
    let grown = last.bytes.is_some_and(|bytes| bytes < answer.available_capacity);
    last.bytes = Some(answer.available_capacity);
    last.published = Some(object);
    drop(last);
    setup.metrics.capacity_current.set(count(setup.objects.len()));
    if grown {
        (setup.grown)();
    }
    true
}

async fn create(shared: &Shared, object: &CSIStorageCapacity) -> Result<(), Error> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let api: Api<CSIStorageCapacity> =
        Api::namespaced(shared.setup.client.clone(), &shared.setup.owner.namespace);
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(error) => match Error::api(format!("create CSIStorageCapacity {name}"))(error) {
            // The cache has not heard of it yet.
            error if error.category() == Category::AlreadyExists => patch(shared, name, object).await,
            error => Err(error),
        },
    }
}

async fn patch(shared: &Shared, name: &str, object: &CSIStorageCapacity) -> Result<(), Error> {
    let api: Api<CSIStorageCapacity> =
        Api::namespaced(shared.setup.client.clone(), &shared.setup.owner.namespace);
    let change = json!({"capacity": object.capacity, "maximumVolumeSize": object.maximum_volume_size});
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
    patched.map(drop).map_err(Error::api(format!("update CSIStorageCapacity {name}")))
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
