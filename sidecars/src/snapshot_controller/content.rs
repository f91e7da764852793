//! Working one VolumeSnapshotContent.

use std::sync::Arc;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Category, Error, Key, finalizer};
use dunnage_crds::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use tracing::{info, warn};

use super::Context;
use super::plan::content::{Step, step};
use super::plan::is_of;
use crate::snapshot::CONTENT_FINALIZER;

/// Brings the content of this name to where it should be.
pub(super) async fn sync(controller: Arc<Context>, name: String) -> Outcome {
    let Some(content) = controller.watched.contents.named(&name) else { return Outcome::Done };
    let snapshot = key(&content).and_then(|key| controller.watched.snapshots.get(&key));
    let step = match step(&content, snapshot.as_deref()) {
        Ok(step) => step,
        Err(problem) => {
            controller.events.tell(&*content, Kind::Warning, problem.reason, problem.message);
            return Outcome::Done;
        }
    };
    let done = match step {
        Step::Nothing => return Outcome::Done,
        Step::AddFinalizer => {
            finalizer::add_to(&controller.contents, &*content, CONTENT_FINALIZER).await.map(drop)
        }
        Step::Mark => controller.mark(&content).await,
        Step::MarkIfAlone => controller.mark_if_alone(&content).await,
    };
    match done {
        Ok(()) => Outcome::Done,
        Err(error) if error.is_not_found() => Outcome::Done,
        Err(error) => {
            if error.category() != Category::Conflict {
                warn!(content = name, error = chain(&error), "trying again later");
            }
            Outcome::Retry
        }
    }
}

/// The snapshot that a content names.
fn key(content: &VolumeSnapshotContent) -> Option<Key> {
    let of = &content.spec.volume_snapshot_ref;
    Some(Key::namespaced(of.namespace.clone()?, of.name.clone()?))
}

impl Context {
    /// A cache may be behind; what is at stake is data.
    async fn mark_if_alone(&self, content: &VolumeSnapshotContent) -> Result<(), Error> {
        let Some(key) = key(content) else { return Ok(()) };
        let found: Option<VolumeSnapshot> = self
            .snapshots(&key.namespace)
            .get_opt(&key.name)
            .await
            .map_err(Error::api(format!("get snapshot {key}")))?;
        if found.is_some_and(|snapshot| is_of(content, &snapshot)) {
            return Ok(());
        }
        info!(content = content.metadata.name, snapshot = %key, "deleted by hand, its snapshot is gone");
        self.mark(content).await
    }
}
