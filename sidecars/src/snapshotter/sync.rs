//! Working one VolumeSnapshotContent.

use std::sync::Arc;

use dunnage_cluster::error::chain;
use dunnage_cluster::events::Kind;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, finalizer};
use dunnage_crds::snapshot::{VolumeSnapshotContent, VolumeSnapshotContentStatus};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::Value;
use tracing::{debug, info, warn};

use super::Context;
use super::calls::Failure;
use super::plan::{self, Step};
use crate::snapshot::CONTENT_FINALIZER;

/// Steps in a row: more is a sign that somebody works against us.
const STEPS: usize = 6;

/// How a step ended.
enum Done {
    /// The next step is planned for this.
    Next(Box<VolumeSnapshotContent>),
    /// As it should be.
    Nothing,
    /// The driver is at it: it is asked again.
    Again,
}

/// A step that failed.
struct Failed {
    failure: Failure,
    told: Told,
}

/// Who hears of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// An event with this reason, and the status.
    Status(&'static str),
    /// An event with this reason: it is about a content that is to go.
    Event(&'static str),
    /// The log: it will heal by itself.
    Log,
}

/// Brings the content of this name to where it should be.
pub(super) async fn content(worker: Arc<Context>, name: String) -> Outcome {
    let Some(content) = worker.watched.named(&name) else { return Outcome::Done };
    let mut content = (*content).clone();
    if content.spec.driver != worker.driver.name() {
        return Outcome::Done;
    }
    for _ in 0..STEPS {
        match Box::pin(worker.step(&content)).await {
            Ok(Done::Nothing) => return Outcome::Done,
            Ok(Done::Again) => return Outcome::Retry,
            Ok(Done::Next(next)) => content = *next,
            Err(Failed { failure: Failure::Api(error), .. }) if error.is_conflict() => {
                // The cache is behind: what there is now is planned for.
                match worker.contents.get_opt(&name).await.map_err(Error::api(format!("get content {name}")))
                {
                    Ok(Some(fresh)) => content = fresh,
                    Ok(None) => return Outcome::Done,
                    Err(error) => {
                        warn!(content = name, error = chain(&error), "trying again later");
                        return Outcome::Retry;
                    }
                }
            }
            Err(failed) => return worker.tell(&content, &failed).await,
        }
    }
    debug!(content = name, "the object keeps changing, trying again");
    Outcome::Retry
}

impl Context {
    async fn step(&self, content: &VolumeSnapshotContent) -> Result<Done, Failed> {
        match plan::step(content) {
            Step::Nothing => Ok(Done::Nothing),
            Step::Unmark => {
                let patched = self.patch(content, plan::unmark()).await;
                patched.map(|next| Done::Next(Box::new(next))).map_err(|error| quiet(error.into()))
            }
            Step::Delete { .. } | Step::LetGo => self.end(content).await,
            Step::Create { volume } => self.take(content, volume).await,
            Step::Look { handle } => self.check(content, handle).await.map_err(|failure| Failed {
                failure,
                told: Told::Status("SnapshotContentCheckandUpdateFailed"),
            }),
        }
    }

    /// CreateSnapshot, between its mark and the note of its answer.
    async fn take(&self, content: &VolumeSnapshotContent, volume: &str) -> Result<Done, Failed> {
        let failed = |failure: Failure| Failed { failure, told: Told::Status("SnapshotCreationFailed") };
        // What can be seen to fail is not begun.
        let class = content.spec.volume_snapshot_class_name.clone().unwrap_or_default();
        let found = self.classes.named(&class).ok_or_else(|| failed(Failure::NoClass(class)))?;
        let parameters = found.parameters.clone().unwrap_or_default();
        let mut request = plan::request(content, volume, &parameters, &self.rules)
            .map_err(|invalid| failed(invalid.into()))?;
        request.secrets = self.secrets(plan::secret(content)).await.map_err(failed)?;
        if plan::needs_mark(content) {
            let marked =
                self.patch(content, plan::mark(content)).await.map_err(|error| failed(error.into()))?;
            // Perhaps it is to go by now, and there is nothing to take.
            return Ok(Done::Next(Box::new(marked)));
        }
        let name = content.metadata.name.as_deref().unwrap_or_default();
        match self.create(request).await {
            Ok(snapshot) => {
                let wanted = plan::found(content, &snapshot, Timestamp::now());
                let noted = self.note(content, &wanted).await.map_err(|error| failed(error.into()))?;
                let noted = noted.as_ref().unwrap_or(content);
                // Only now: the id is noted, and by it the snapshot can be deleted.
                let free = self.unmark(noted).await.map_err(|error| failed(error.into()))?;
                if snapshot.ready_to_use {
                    info!(content = name, handle = snapshot.snapshot_id, "taken");
                    return Ok(Done::Next(Box::new(free)));
                }
                info!(content = name, handle = snapshot.snapshot_id, "taken, but not ready yet");
                let going = matches!(plan::step(&free), Step::Delete { .. } | Step::LetGo);
                Ok(if going { Done::Next(Box::new(free)) } else { Done::Again })
            }
            Err(status) => {
                if plan::is_final(&status) {
                    self.unmark(content).await.map_err(|error| failed(error.into()))?;
                }
                Err(failed(Failure::Driver(status)))
            }
        }
    }

    async fn unmark(&self, content: &VolumeSnapshotContent) -> Result<VolumeSnapshotContent, Error> {
        if crate::snapshot::is_marked(&content.metadata, crate::snapshot::BEING_CREATED) {
            self.patch(content, plan::unmark()).await
        } else {
            Ok(content.clone())
        }
    }

    async fn check(&self, content: &VolumeSnapshotContent, handle: &str) -> Result<Done, Failure> {
        let snapshot = self.look(content, handle).await?;
        self.note(content, &plan::found(content, &snapshot, Timestamp::now())).await?;
        Ok(if snapshot.ready_to_use { Done::Nothing } else { Done::Again })
    }

    /// The end of a content. What is at stake is data: the cache may be behind.
    async fn end(&self, content: &VolumeSnapshotContent) -> Result<Done, Failed> {
        let name = content.metadata.name.as_deref().unwrap_or_default();
        let failed = |failure: Failure| Failed { failure, told: Told::Event("SnapshotDeleteError") };
        let fresh = self.contents.get_opt(name).await.map_err(Error::api(format!("get content {name}")));
        let Some(fresh) = fresh.map_err(|error| quiet(error.into()))? else { return Ok(Done::Nothing) };
        match plan::step(&fresh) {
            Step::Delete { handle } => {
                let secrets = self.secrets(plan::secret(&fresh)).await.map_err(failed)?;
                self.delete(handle, secrets).await.map_err(failed)?;
                info!(content = name, handle, "deleted");
                let noted = self.note(&fresh, &plan::gone(&fresh)).await.map_err(|e| quiet(e.into()))?;
                Ok(Done::Next(Box::new(noted.unwrap_or(fresh))))
            }
            Step::LetGo => match finalizer::remove_from(&self.contents, &fresh, CONTENT_FINALIZER).await {
                Err(error) if !error.is_not_found() => Err(quiet(error.into())),
                _ => {
                    info!(content = name, "let go");
                    Ok(Done::Nothing)
                }
            },
            _ => Ok(Done::Next(Box::new(fresh))),
        }
    }

    /// Tells of a failed step.
    async fn tell(&self, content: &VolumeSnapshotContent, failed: &Failed) -> Outcome {
        let name = content.metadata.name.as_deref().unwrap_or_default();
        let message = chain(&failed.failure);
        warn!(content = name, told = ?failed.told, error = message, "trying again later");
        if let Told::Status(reason) | Told::Event(reason) = failed.told {
            self.events.tell(content, Kind::Warning, reason, message.clone());
        }
        if let Told::Status(_) = failed.told {
            let wanted = plan::failed(content, &message, Timestamp::now());
            if let Err(error) = self.note(content, &wanted).await
                && !error.is_not_found()
            {
                warn!(content = name, error = chain(&error), "cannot write the error into the status");
            }
        }
        Outcome::Retry
    }

    /// Writes a status, unless it is so already.
    async fn note(
        &self,
        content: &VolumeSnapshotContent,
        wanted: &VolumeSnapshotContentStatus,
    ) -> Result<Option<VolumeSnapshotContent>, Error> {
        let Some(patch) = plan::patch(content, wanted) else { return Ok(None) };
        let name = content.metadata.name.as_deref().unwrap_or_default();
        let params = PatchParams::default();
        let patched = self.contents.patch_status(name, &params, &Patch::Merge(patch)).await;
        patched.map(Some).map_err(Error::api(format!("patch the status of content {name}")))
    }

    async fn patch(
        &self,
        content: &VolumeSnapshotContent,
        patch: Value,
    ) -> Result<VolumeSnapshotContent, Error> {
        let name = content.metadata.name.as_deref().unwrap_or_default();
        let patched = self.contents.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map_err(Error::api(format!("patch content {name}")))
    }
}

/// A failure of the API alone, which heals by itself.
fn quiet(failure: Failure) -> Failed {
    Failed { failure, told: Told::Log }
}
