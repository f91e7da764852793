//! Making the content by which a snapshot is taken.

use dunnage_cluster::events::Kind;
use dunnage_cluster::{Category, Error, Key};
use dunnage_crds::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::{Api, Resource as _};
use tracing::info;

use super::Context;
use super::plan::{self, Source, problem};
use super::sync::Failure;
use crate::snapshot::{CLAIM_FINALIZER, is_deleting};
use crate::untyped;
use dunnage_cluster::finalizer;

impl Context {
    /// The claim of a snapshot and its volume, read now.
    pub(super) async fn volume_of(
        &self,
        snapshot: &VolumeSnapshot,
    ) -> Result<(PersistentVolumeClaim, PersistentVolume), Failure> {
        let key = Key::of(snapshot);
        let Source::Claim(name) = plan::source(snapshot)? else {
            return Err(problem("SnapshotValidationError", "the snapshot has no claim").into());
        };
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        let claim = claims.get_opt(name).await;
        let claim = claim.map_err(Error::api(format!("get claim {}/{name}", key.namespace)))?;
        let missing = || problem("SnapshotPVCSourceMissing", format!("claim {name} does not exist"));
        let claim = claim.ok_or_else(missing)?;
        let volume = plan::make::volume_name(&claim)?.to_owned();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = volumes.get_opt(&volume).await;
        let found = found.map_err(Error::api(format!("get PersistentVolume {volume}")))?;
        let lost =
            || problem("SnapshotContentCreationFailed", format!("PersistentVolume {volume} does not exist"));
        let found = found.ok_or_else(lost)?;
        plan::make::csi(&claim, &found)?;
        Ok((claim, found))
    }

    /// Makes the content for a snapshot that has none.
    pub(super) async fn take(&self, snapshot: &VolumeSnapshot) -> Result<VolumeSnapshotContent, Failure> {
        let key = Key::of(snapshot);
        let class = snapshot.spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
        let no_class =
            || problem("GetSnapshotClassFailed", format!("VolumeSnapshotClass {class:?} does not exist"));
        let class = self.watched.classes.named(class).ok_or_else(no_class)?;
        let (claim, volume) = self.volume_of(snapshot).await?;
        let content = plan::make::content(&plan::make::Inputs {
            snapshot,
            class: &class,
            claim: &claim,
            volume: &volume,
            keep_mode: self.keep_mode,
        })?;
        self.hold_claim(&claim).await?;
        let name = content.metadata.name.clone().unwrap_or_default();
        let made = match self.contents.create(&PostParams::default(), &content).await {
            Ok(made) => made,
            Err(error) => {
                let error = Error::api(format!("create content {name}"))(error);
                if error.category() != Category::AlreadyExists {
                    return Err(problem(
                        "CreateSnapshotContentFailed",
                        dunnage_cluster::error::chain(&error),
                    )
                    .into());
                }
                // Made by a process that was ended before it saw so, or by somebody else.
                let found =
                    self.contents.get(&name).await.map_err(Error::api(format!("get content {name}")))?;
                if !plan::is_of(&found, snapshot) {
                    let message = format!("VolumeSnapshotContent {name} is bound to another VolumeSnapshot");
                    return Err(problem("SnapshotContentMisbound", message).into());
                }
                found
            }
        };
        info!(snapshot = %key, content = name, driver = class.driver, "the driver is to take a snapshot");
        let message = format!("Waiting for snapshot {key} to be taken by driver {}", class.driver);
        self.events.tell(snapshot, Kind::Normal, "CreatingSnapshot", message);
        Ok(made)
    }

    /// Keeps the claim, so that its volume is there until the snapshot is taken.
    async fn hold_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
        if finalizer::has(&claim.metadata, CLAIM_FINALIZER) {
            return Ok(());
        }
        let key = Key::of(claim);
        if is_deleting(&claim.metadata) {
            let message = format!("claim {} is being deleted", key.name);
            return Err(problem("SnapshotContentCreationFailed", message).into());
        }
        let path = PersistentVolumeClaim::url_path(&(), Some(&key.namespace));
        let change = untyped::change(&self.client, &path, &key.name, |object| {
            untyped::add_finalizer(object, CLAIM_FINALIZER)
        });
        Ok(change.await?)
    }
}
