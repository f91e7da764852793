//! The calls of the driver, with their secrets.

use std::collections::HashMap;

use dunnage_cluster::Error;
use dunnage_crds::snapshot::VolumeSnapshotContent;
use dunnage_csi::v1::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest, Snapshot,
};
use tonic::Status;

use super::Context;
use super::plan::Look;
use crate::provisioner::secrets::SecretRef;
use crate::runtime::rpc_error;
use crate::secret::{self, Place};
use crate::snapshot::params::{self, Facts, Purpose};

type Secrets = HashMap<String, String>;

/// Why a content is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("VolumeSnapshotClass {0:?} does not exist")]
    NoClass(String),
    #[error(transparent)]
    Parameters(#[from] params::Invalid),
    #[error(transparent)]
    Secret(#[from] secret::Error),
    #[error("driver {driver} has no snapshot {handle:?}")]
    NoSnapshot { driver: String, handle: String },
    #[error(transparent)]
    Api(#[from] Error),
    #[error("{}", rpc_error(.0))]
    Driver(Status),
}

impl Context {
    /// The content of a secret, read now and kept by nobody.
    pub(super) async fn secrets(&self, secret: Option<SecretRef>) -> Result<Secrets, Failure> {
        let place = secret.as_ref().map(|SecretRef { name, namespace }| Place { namespace, name });
        Ok(secret::read(&self.client, place).await?)
    }

    pub(super) async fn create(&self, request: CreateSnapshotRequest) -> Result<Snapshot, Status> {
        let method = "/csi.v1.Controller/CreateSnapshot";
        let call = self.driver.controller(method, self.timeout, request, async |mut client, request| {
            client.create_snapshot(request).await
        });
        // Without it the driver breaks its promise, and whether there is a snapshot is not known.
        call.await?.snapshot.ok_or_else(|| Status::unavailable("the driver's answer has no snapshot"))
    }

    pub(super) async fn delete(&self, handle: &str, secrets: Secrets) -> Result<(), Failure> {
        let method = "/csi.v1.Controller/DeleteSnapshot";
        let request = DeleteSnapshotRequest { snapshot_id: handle.to_owned(), secrets };
        let call = self.driver.controller(method, self.timeout, request, async |mut client, request| {
            client.delete_snapshot(request).await
        });
        call.await.map(drop).map_err(Failure::Driver)
    }

    /// Looks at a snapshot that exists already.
    pub(super) async fn look(
        &self,
        content: &VolumeSnapshotContent,
        handle: &str,
    ) -> Result<Snapshot, Failure> {
        let missing =
            || Failure::NoSnapshot { driver: self.driver.name().to_owned(), handle: handle.to_owned() };
        match self.rules.look {
            Look::No => {
                Ok(Snapshot { snapshot_id: handle.to_owned(), ready_to_use: true, ..Snapshot::default() })
            }
            Look::List => {
                let method = "/csi.v1.Controller/ListSnapshots";
                let secrets = self.secrets(self.list_secret(content)?).await?;
                let snapshot_id = handle.to_owned();
                let request =
                    ListSnapshotsRequest { snapshot_id, secrets, ..ListSnapshotsRequest::default() };
                let call =
                    self.driver.controller(method, self.timeout, request, async |mut client, request| {
                        client.list_snapshots(request).await
                    });
                let answer = call.await.map_err(Failure::Driver)?;
                let found = answer.entries.into_iter().filter_map(|entry| entry.snapshot);
                found.into_iter().find(|snapshot| snapshot.snapshot_id == handle).ok_or_else(missing)
            }
            Look::Get => {
                let method = "/csi.v1.Controller/GetSnapshot";
                let secrets = self.secrets(self.list_secret(content)?).await?;
                let request = GetSnapshotRequest { snapshot_id: handle.to_owned(), secrets };
                let call =
                    self.driver.controller(method, self.timeout, request, async |mut client, request| {
                        client.get_snapshot(request).await
                    });
                call.await.map_err(Failure::Driver)?.snapshot.ok_or_else(missing)
            }
        }
    }

    /// The secret that the content's class has for looking at snapshots. A content made by hand need have no class.
    fn list_secret(&self, content: &VolumeSnapshotContent) -> Result<Option<SecretRef>, Failure> {
        let class = content.spec.volume_snapshot_class_name.as_deref();
        let Some(class) = class.and_then(|class| self.classes.named(class)) else { return Ok(None) };
        let of = &content.spec.volume_snapshot_ref;
        let facts = Facts {
            content: content.metadata.name.as_deref().unwrap_or_default(),
            snapshot: of.name.as_deref().unwrap_or_default(),
            namespace: of.namespace.as_deref().unwrap_or_default(),
        };
        Ok(params::secret(&class.parameters.clone().unwrap_or_default(), Purpose::List, &facts)?)
    }
}
