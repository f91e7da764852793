//! Working one VolumeSnapshot.

use std::sync::Arc;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Category, Error, Key, finalizer};
use dunnage_crds::snapshot::{VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotStatus};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::Resource as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::{debug, info, warn};

use super::metrics::Operation;
use super::plan::{self, Problem, Source, Step, status};
use super::{Context, watch};
use crate::snapshot::{CLAIM_FINALIZER, is_deleting};
use crate::untyped;

/// Why a snapshot is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Somebody may have to do something: it is told in an event and the status.
    #[error(transparent)]
    Problem(#[from] Problem),
    #[error(transparent)]
    Api(#[from] Error),
}

/// Brings the snapshot of this name to where it should be.
pub(super) async fn snapshot(context: Arc<Context>, key: Key) -> Outcome {
    let Some(snapshot) = context.watched.snapshots.get(&key) else { return Outcome::Done };
    let deleting = is_deleting(&snapshot.metadata);
    let worked =
        if deleting { context.end(&snapshot).await } else { Box::pin(context.keep(&snapshot)).await };
    match worked {
        Ok(outcome) => outcome,
        Err(Failure::Problem(problem)) => {
            warn!(snapshot = %key, reason = problem.reason, problem = problem.message, "trying again later");
            context.events.tell(&*snapshot, Kind::Warning, problem.reason, problem.message.clone());
            if !deleting {
                context.tell(&snapshot, &problem).await;
            }
            Outcome::Retry
        }
        Err(Failure::Api(error)) => {
            if matches!(error.category(), Category::Conflict | Category::NotFound) {
                debug!(snapshot = %key, error = chain(&error), "something has changed, trying again");
            } else {
                warn!(snapshot = %key, error = chain(&error), "trying again later");
            }
            Outcome::Retry
        }
    }
}

impl Context {
    /// A snapshot that is to be, and to be ready.
    async fn keep(&self, snapshot: &VolumeSnapshot) -> Result<Outcome, Failure> {
        if plan::lacks_class(snapshot) {
            self.choose_class(snapshot).await?;
            // The change comes back here.
            return Ok(Outcome::Done);
        }
        if plan::is_ready(snapshot) {
            self.let_claim_go(snapshot, None).await;
        } else {
            self.metrics.begin(snapshot, Operation::Create, "");
            self.metrics.begin(snapshot, Operation::CreateAndReady, "");
        }
        plan::source(snapshot)?;
        let content = self.content_named(&plan::content_name(snapshot), plan::is_bound(snapshot)).await?;
        let kept = self.protect(snapshot, content.as_ref()).await?;
        let snapshot = kept.as_ref().unwrap_or(snapshot);
        match (plan::step(snapshot, content.as_ref())?, content) {
            (Step::Bind, Some(content)) => {
                let bound = self.bind(snapshot, &content).await?;
                self.copy(snapshot, &bound).await?;
            }
            (Step::Copy, Some(content)) => self.copy(snapshot, &content).await?,
            (Step::Create, _) => {
                let content = self.take(snapshot).await?;
                self.copy(snapshot, &content).await?;
            }
            (Step::Nothing | Step::Bind | Step::Copy, _) => {}
        }
        Ok(Outcome::Done)
    }

    /// The content of this name. The caches of snapshots and contents do not keep in step: one that must exist is asked
    /// for when it is not seen.
    pub(super) async fn content_named(
        &self,
        name: &str,
        exists: bool,
    ) -> Result<Option<VolumeSnapshotContent>, Error> {
        match self.watched.contents.named(name) {
            Some(found) => Ok(Some((*found).clone())),
            None if exists => {
                self.contents.get_opt(name).await.map_err(Error::api(format!("get content {name}")))
            }
            None => Ok(None),
        }
    }

    async fn choose_class(&self, snapshot: &VolumeSnapshot) -> Result<(), Failure> {
        let (_, volume) = self.volume_of(snapshot).await?;
        let driver = volume.spec.and_then(|spec| spec.csi).map(|csi| csi.driver).unwrap_or_default();
        let classes = self.watched.classes.all();
        let class = plan::default_class(classes.iter().map(|class| &**class), &driver)?;
        // With the version: whoever names a class at the same time is not overruled.
        let patch = json!({
            "metadata": {"resourceVersion": snapshot.metadata.resource_version},
            "spec": {"volumeSnapshotClassName": class},
        });
        let key = Key::of(snapshot);
        let params = PatchParams::default();
        let patched = self.snapshots(&key.namespace).patch(&key.name, &params, &Patch::Merge(patch)).await;
        patched.map_err(Error::api(format!("choose a class for snapshot {key}")))?;
        info!(snapshot = %key, class, "chose the driver's default class");
        Ok(())
    }

    /// Adds the finalizers that are missing; gives the snapshot's new form.
    async fn protect(
        &self,
        snapshot: &VolumeSnapshot,
        content: Option<&VolumeSnapshotContent>,
    ) -> Result<Option<VolumeSnapshot>, Failure> {
        let api = self.snapshots(&Key::of(snapshot).namespace);
        let mut kept: Option<VolumeSnapshot> = None;
        for name in plan::missing_finalizers(snapshot, content) {
            if let Some(new) = finalizer::add_to(&api, kept.as_ref().unwrap_or(snapshot), name).await? {
                kept = Some(new);
            }
        }
        Ok(kept)
    }

    async fn bind(
        &self,
        snapshot: &VolumeSnapshot,
        content: &VolumeSnapshotContent,
    ) -> Result<VolumeSnapshotContent, Failure> {
        let name = content.metadata.name.as_deref().unwrap_or_default();
        let mut patch = plan::bind(snapshot);
        patch["metadata"] = json!({"resourceVersion": content.metadata.resource_version});
        let patched = self.contents.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        let bound = patched.map_err(Error::api(format!("bind content {name}")))?;
        info!(snapshot = %Key::of(snapshot), content = name, "bound");
        Ok(bound)
    }

    /// Copies the content's status and tells of what is new in it.
    async fn copy(&self, snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Result<(), Failure> {
        let wanted = status::copied(snapshot, content);
        let written = self.write_status(snapshot, &wanted).await;
        if let Err(error) = &written
            && !matches!(error.category(), Category::Conflict | Category::NotFound)
        {
            self.events.tell(snapshot, Kind::Warning, "SnapshotStatusUpdateFailed", chain(error));
        }
        written?;
        let before = snapshot.status.clone().unwrap_or_default();
        let key = Key::of(snapshot);
        let driver = &content.spec.driver;
        if before.creation_time.is_none() && wanted.creation_time.is_some() {
            let message = format!("Snapshot {key} was taken by driver {driver}");
            self.events.tell(snapshot, Kind::Normal, "SnapshotCreated", message);
            self.metrics.end(snapshot, Operation::Create, driver);
        }
        if before.ready_to_use != Some(true) && wanted.ready_to_use == Some(true) {
            info!(snapshot = %key, content = content.metadata.name, "ready");
            let message = format!("Snapshot {key} is ready to use");
            self.events.tell(snapshot, Kind::Normal, "SnapshotReady", message);
            self.metrics.end(snapshot, Operation::CreateAndReady, driver);
        }
        Ok(())
    }

    async fn write_status(
        &self,
        snapshot: &VolumeSnapshot,
        wanted: &VolumeSnapshotStatus,
    ) -> Result<(), Error> {
        let Some(patch) = status::patch(snapshot, wanted) else { return Ok(()) };
        let key = Key::of(snapshot);
        let params = PatchParams::default();
        let patched =
            self.snapshots(&key.namespace).patch_status(&key.name, &params, &Patch::Merge(patch)).await;
        patched.map(drop).map_err(Error::api(format!("patch the status of snapshot {key}")))
    }

    /// Writes a problem into the status.
    async fn tell(&self, snapshot: &VolumeSnapshot, problem: &Problem) {
        let wanted = status::failed(snapshot, &problem.message, Timestamp::now());
        if let Err(error) = self.write_status(snapshot, &wanted).await
            && !error.is_not_found()
        {
            warn!(snapshot = %Key::of(snapshot), error = chain(&error), "cannot write the error into the status");
        }
    }

    /// Takes the finalizer off the claim when no snapshot of it (but `except`, by uid) is to be taken any more. A
    /// failure is tried again at the next look.
    pub(super) async fn let_claim_go(&self, snapshot: &VolumeSnapshot, except: Option<&str>) {
        let Ok(Source::Claim(name)) = plan::source(snapshot) else { return };
        let key = Key::of(snapshot);
        let claim = self.watched.claims.get(&Key::namespaced(&key.namespace, name));
        if !claim.is_some_and(|claim| finalizer::has(&claim.metadata, CLAIM_FINALIZER)) {
            return;
        }
        let snapshots = self.watched.by_claim.get(&watch::of_claim(&key.namespace, name));
        if plan::delete::needs_claim(name, &snapshots, except) {
            return;
        }
        let path = PersistentVolumeClaim::url_path(&(), Some(&key.namespace));
        let change = untyped::change(&self.client, &path, name, |object| {
            untyped::remove_finalizer(object, CLAIM_FINALIZER)
        });
        if let Err(error) = change.await {
            warn!(claim = name, snapshot = %key, error = chain(&error), "cannot take the finalizer off the claim");
            self.events.tell(snapshot, Kind::Warning, "ErrorPVCFinalizer", chain(&error));
        }
    }
}
