//! Working one attachment.

use std::sync::{Arc, PoisonError};

use dunnage_cluster::error::chain;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Error, finalizer};
use dunnage_csi::v1;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use tonic::Status;
use tracing::{debug, info, warn};

use super::patches::{self, Direction};
use super::plan::{self, Fallback, Invalid, Step};
use super::source::Volume;
use super::{Context, Watched};
use crate::runtime::rpc_error;
use crate::{access, secret};

/// Why an attachment is not as it should be.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Access(#[from] access::Invalid),
    #[error(transparent)]
    Secret(#[from] secret::Error),
    #[error(transparent)]
    Api(#[from] Error),
    #[error("{}", rpc_error(.0))]
    Driver(Status),
}

impl Failure {
    /// An object that has changed meanwhile: looked at again, it will do. Nobody need know.
    fn is_stale(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_stale())
    }

    fn code(&self) -> Option<i32> {
        match self {
            Self::Driver(status) => Some(status.code().into()),
            _ => None,
        }
    }
}

/// Brings the attachment `name` to where it should be.
pub(super) async fn attachment(context: Arc<Context>, watched: Arc<Watched>, name: String) -> Outcome {
    let Some(attachment) = watched.attachments.named(&name) else { return Outcome::Done };
    let forced = context.forced.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
    let step = plan::step(&attachment, &context.rules, context.handling, forced);
    let (result, direction) = match step {
        Step::Nothing => return Outcome::Done,
        Step::Confirm => (context.confirm(&attachment).await, Direction::Attach),
        Step::Attach => (context.attach(&watched, &attachment).await, Direction::Attach),
        Step::Detach => (context.detach(&watched, &attachment).await, Direction::Detach),
    };
    let Err(failure) = result else { return Outcome::Done };
    if forced {
        // Not done yet: the next try must not be misled by the status either.
        context.forced.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
    }
    let node = &attachment.spec.node_name;
    if failure.is_stale() {
        debug!(attachment = name, node, error = chain(&failure), "the object has changed, trying again");
    } else {
        warn!(attachment = name, node, ?direction, error = chain(&failure), "trying again later");
        context.tell(&attachment, direction, &failure).await;
    }
    Outcome::Retry
}

impl Context {
    /// A driver without attaching: the attachment is as good as made.
    async fn confirm(&self, attachment: &VolumeAttachment) -> Result<(), Failure> {
        self.patch_status(attachment, patches::attached(&std::collections::HashMap::new())).await?;
        Ok(())
    }

    async fn attach(&self, watched: &Watched, attachment: &VolumeAttachment) -> Result<(), Failure> {
        let volume = Volume::of(attachment, &watched.volumes)?;
        if let Some(object) = volume.living()? {
            let api: Api<PersistentVolume> = Api::all(self.client.clone());
            // While it is attached the volume's object must stay: it is needed to detach.
            finalizer::add_to(&api, &**object, &self.rules.finalizer).await?;
        }
        let spec = volume.spec()?;
        let csi = plan::csi(spec, &self.rules)?;
        let capability = access::capability(spec, &self.rules.access)?;
        let secrets = secret::read(&self.client, plan::secret(csi).map_err(secret::Error::from)?).await?;
        let node = watched.nodes.named(&attachment.spec.node_name);
        let node_id = plan::node_id(attachment, node.as_deref(), &self.rules, Fallback::No)?;
        // Only now, so that what can never be attached can always be deleted.
        let claimed = match patches::claim(attachment, &self.rules, &node_id) {
            Some(patch) => &self.patch(attachment, patch).await?,
            None => attachment,
        };
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            node_id,
            volume_capability: Some(capability),
            readonly: self.rules.read_only && csi.read_only.unwrap_or(false),
            secrets,
            volume_context: csi.volume_attributes.clone().unwrap_or_default().into_iter().collect(),
        };
        let method = "/csi.v1.Controller/ControllerPublishVolume";
        let answer = self
            .driver
            .controller(method, self.timeout, request, async |mut client, request| {
                client.controller_publish_volume(request).await
            })
            .await
            .map_err(Failure::Driver)?;
        self.patch_status(claimed, patches::attached(&answer.publish_context)).await?;
        info!(volume = csi.volume_handle, node = attachment.spec.node_name, "attached");
        Ok(())
    }

    async fn detach(&self, watched: &Watched, attachment: &VolumeAttachment) -> Result<(), Failure> {
        let volume = Volume::of(attachment, &watched.volumes)?;
        let csi = plan::csi(volume.spec()?, &self.rules)?;
        let secrets = secret::read(&self.client, plan::secret(csi).map_err(secret::Error::from)?).await?;
        let node = watched.nodes.named(&attachment.spec.node_name);
        let node_id = plan::node_id(attachment, node.as_deref(), &self.rules, Fallback::Noted)?;
        let request =
            v1::ControllerUnpublishVolumeRequest { volume_id: csi.volume_handle.clone(), node_id, secrets };
        let method = "/csi.v1.Controller/ControllerUnpublishVolume";
        self.driver
            .controller(method, self.timeout, request, async |mut client, request| {
                client.controller_unpublish_volume(request).await
            })
            .await
            .map_err(Failure::Driver)?;
        info!(volume = csi.volume_handle, node = attachment.spec.node_name, "detached");
        // In this order: a status without the finalizer's removal would have it detached again.
        let gone = finalizer::remove_from(&self.attachments, attachment, &self.rules.finalizer).await;
        match gone {
            Err(error) if error.is_not_found() => return Ok(()),
            gone => gone?,
        };
        match self.patch_status(attachment, patches::detached()).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Writes a failure into the status, unless it says the same already.
    async fn tell(&self, attachment: &VolumeAttachment, direction: Direction, failure: &Failure) {
        let message = chain(failure);
        let code = failure.code().filter(|_| self.rules.error_codes);
        if patches::is_told(attachment, direction, &message, code) {
            return;
        }
        let patch = patches::failed(attachment, direction, &message, code, jiff::Timestamp::now());
        if let Err(error) = self.patch_status(attachment, patch).await
            && !error.is_not_found()
        {
            warn!(
                attachment = attachment.metadata.name,
                error = chain(&error),
                "cannot write the error into the status"
            );
        }
    }

    async fn patch(
        &self,
        attachment: &VolumeAttachment,
        patch: serde_json::Value,
    ) -> Result<VolumeAttachment, Error> {
        let name = attachment.metadata.name.as_deref().unwrap_or_default();
        let patched = self.attachments.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map_err(Error::api(format!("patch attachment {name}")))
    }

    async fn patch_status(
        &self,
        attachment: &VolumeAttachment,
        patch: serde_json::Value,
    ) -> Result<VolumeAttachment, Error> {
        let name = attachment.metadata.name.as_deref().unwrap_or_default();
        let patched =
            self.attachments.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map_err(Error::api(format!("patch the status of attachment {name}")))
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status as Refusal;

    use super::*;

    #[test]
    fn a_failure_of_the_driver_keeps_its_code_and_reads_as_upstreams() {
        let failure = Failure::Driver(Status::resource_exhausted("no room"));
        assert_eq!(failure.to_string(), "rpc error: code = ResourceExhausted desc = no room");
        assert_eq!((failure.code(), failure.is_stale()), (Some(8), false));
        assert_eq!(Failure::from(Invalid::NotCsi).code(), None);
    }

    #[test]
    fn only_a_stale_object_is_tried_again_in_silence() {
        let api = |code, reason| {
            let refusal = Refusal::failure("no", reason).with_code(code).boxed();
            Failure::from(Error::api("patch")(kube::Error::Api(refusal)))
        };
        assert!(api(409, "Conflict").is_stale() && api(404, "NotFound").is_stale());
        assert!(Failure::from(Error::Changed { action: String::new() }).is_stale());
        assert!(!api(403, "Forbidden").is_stale() && !api(422, "Invalid").is_stale());
    }
}
