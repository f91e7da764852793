//! Watching for disks that are mounted and unmounted, and doing the engine's work of now and then.

use std::sync::Arc;
use std::time::Duration;

use dunnage_host::mountinfo::Watch;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::node::Driver;
use crate::status::chain;

/// A look without a mount having changed: a marker can appear or go as well.
const LOOK: Duration = Duration::from_secs(10);
/// Kubelet mounts by the dozen; one look for all of them is enough.
const PAUSE: Duration = Duration::from_millis(200);
/// How soon the watching thread sees the stop.
const WAIT: Duration = Duration::from_secs(1);

/// Looks at the pool whenever the mounts change, until `stop`.
pub(super) async fn watch(driver: Driver, stop: CancellationToken) {
    let mounts = Arc::new(Notify::new());
    let (notify, stopped) = (Arc::clone(&mounts), stop.clone());
    std::thread::spawn(move || notice(&notify, &stopped));
    while !stop.is_cancelled() {
        let looking = driver.clone();
        let looked = tokio::task::spawn_blocking(move || {
            if let (_, Some(store)) = looking.0.pool.refresh() {
                looking.engine().tick(&store);
                looking.sweep_copies(&store);
            }
        })
        .await;
        if looked.is_err() {
            warn!("looking at the pool ended in a panic");
        }
        tokio::select! {
            _ = timeout(LOOK, mounts.notified()) => {}
            () = stop.cancelled() => return,
        }
        sleep(PAUSE).await;
    }
}

/// Notes every change of the mounts; without that, the pool is still looked at now and then.
fn notice(changed: &Notify, stop: &CancellationToken) {
    let watching = Watch::open().and_then(|watch| {
        while !stop.is_cancelled() {
            if watch.changed(WAIT)? {
                changed.notify_one();
            }
        }
        Ok(())
    });
    if let Err(error) = watching {
        warn!(error = chain(&error), "cannot watch the mounts");
    }
}
