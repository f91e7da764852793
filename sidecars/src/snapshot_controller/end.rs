//! The end of a VolumeSnapshot, and of its content.

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, Key, finalizer};
use dunnage_crds::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use tracing::info;

use super::Context;
use super::metrics::Operation;
use super::plan::{self, delete, problem};
use super::sync::Failure;
use crate::snapshot::BEING_DELETED;

impl Context {
    /// A snapshot that is to go.
    pub(super) async fn end(&self, snapshot: &VolumeSnapshot) -> Result<Outcome, Failure> {
        let key = Key::of(snapshot);
        let content = self.content_of(snapshot).await?;
        let driver = content.as_ref().map(|content| content.spec.driver.as_str()).unwrap_or_default();
        self.metrics.cancel(snapshot, driver);
        self.metrics.begin(snapshot, Operation::Delete, driver);
        let waiting = self.watched.by_snapshot.get(&key.to_string());
        let steps = delete::steps(snapshot, content.as_ref(), &waiting)?;
        if let Some(content) = &content {
            if steps.mark {
                self.mark(content).await?;
            }
            if steps.delete {
                self.delete(snapshot, content).await?;
            }
        }
        self.let_claim_go(snapshot, snapshot.metadata.uid.as_deref()).await;
        let api = self.snapshots(&key.namespace);
        let mut left = snapshot.clone();
        for name in &steps.drop {
            match finalizer::remove_from(&api, &left, name).await {
                Ok(Some(new)) => left = new,
                Ok(None) => {}
                Err(error) if error.is_not_found() => break,
                Err(error) => return Err(error.into()),
            }
        }
        if content.is_none() || !steps.delete && steps.drop.len() > 1 {
            self.metrics.end(snapshot, Operation::Delete, driver);
            info!(snapshot = %key, "let go");
        }
        // The end of the content comes back here.
        Ok(Outcome::Done)
    }

    /// The snapshot's content, if there is one. What the cache has not seen yet must not be left behind: nobody would
    /// delete it.
    async fn content_of(&self, snapshot: &VolumeSnapshot) -> Result<Option<VolumeSnapshotContent>, Failure> {
        let found = self.content_named(&plan::content_name(snapshot), true).await?;
        Ok(found.filter(|content| plan::is_of(content, snapshot)))
    }

    /// Tells the driver's side that the content's snapshot may go.
    pub(super) async fn mark(&self, content: &VolumeSnapshotContent) -> Result<(), Error> {
        let name = content.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}});
        let patched = self.contents.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match patched.map_err(Error::api(format!("mark content {name} as being deleted"))) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    async fn delete(
        &self,
        snapshot: &VolumeSnapshot,
        content: &VolumeSnapshotContent,
    ) -> Result<(), Failure> {
        let name = content.metadata.name.as_deref().unwrap_or_default();
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: content.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.contents.delete(name, &params).await.map_err(Error::api(format!("delete content {name}")))
        {
            Ok(_) => {
                info!(snapshot = %Key::of(snapshot), content = name, "the content goes with its snapshot");
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) if error.is_conflict() => Err(error.into()),
            Err(error) => {
                let refused = problem("SnapshotContentObjectDeleteError", chain(&error));
                self.events.tell(content, Kind::Warning, refused.reason, refused.message.clone());
                Err(refused.into())
            }
        }
    }
}
