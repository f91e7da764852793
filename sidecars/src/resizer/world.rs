//! What is outside of this process: the API server and the driver. The steps are written against the trait, so that a
//! test can play every answer, and a kill between any two.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dunnage_cluster::cache::Cache;
use dunnage_cluster::events::{Kind, Recorder};
use dunnage_cluster::{Error, Key};
use dunnage_csi::v1;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tonic::Status;

use crate::claims;
use crate::runtime::Driver;
use crate::secret::{self, Place};

/// Pods in one answer of the API server.
const PAGE: u32 = 500;

pub(super) trait World: Send + Sync + 'static {
    /// The claim as it is now.
    fn claim(&self, key: &Key) -> impl Future<Output = Result<Option<PersistentVolumeClaim>, Error>> + Send;

    /// The volume's object as it is now.
    fn volume(&self, name: &str) -> impl Future<Output = Result<Option<PersistentVolume>, Error>> + Send;

    fn patch_claim(
        &self,
        key: &Key,
        patch: Value,
    ) -> impl Future<Output = Result<PersistentVolumeClaim, Error>> + Send;

    fn patch_volume(
        &self,
        name: &str,
        patch: Value,
    ) -> impl Future<Output = Result<PersistentVolume, Error>> + Send;

    /// A pod that uses the claim and has not ended.
    fn user(&self, key: &Key) -> impl Future<Output = Result<Option<String>, Error>> + Send;

    fn class(&self, name: &str) -> Option<Arc<VolumeAttributesClass>>;

    fn secret(
        &self,
        place: Option<Place<'_>>,
    ) -> impl Future<Output = Result<HashMap<String, String>, secret::Error>> + Send;

    fn expand(
        &self,
        request: v1::ControllerExpandVolumeRequest,
    ) -> impl Future<Output = Result<v1::ControllerExpandVolumeResponse, Status>> + Send;

    fn modify(
        &self,
        request: v1::ControllerModifyVolumeRequest,
    ) -> impl Future<Output = Result<v1::ControllerModifyVolumeResponse, Status>> + Send;

    fn tell(&self, claim: &PersistentVolumeClaim, kind: Kind, reason: &'static str, message: String);
}

/// The real one.
pub(super) struct Live {
    pub(super) client: Client,
    pub(super) driver: Driver,
    pub(super) timeout: Duration,
    pub(super) events: Recorder,
    pub(super) classes: Cache<VolumeAttributesClass>,
}

impl Live {
    fn claims(&self, key: &Key) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }
}

async fn get<K>(api: &Api<K>, name: &str, what: &str) -> Result<Option<K>, Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    api.get_opt(name).await.map_err(Error::api(format!("get {what}")))
}

impl World for Live {
    async fn claim(&self, key: &Key) -> Result<Option<PersistentVolumeClaim>, Error> {
        get(&self.claims(key), &key.name, &format!("claim {key}")).await
    }

    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, Error> {
        get(&self.volumes(), name, &format!("volume {name}")).await
    }

    async fn patch_claim(&self, key: &Key, patch: Value) -> Result<PersistentVolumeClaim, Error> {
        let parameters = PatchParams::default();
        let patched = self.claims(key).patch_status(&key.name, &parameters, &Patch::Strategic(patch)).await;
        patched.map_err(Error::api(format!("patch the status of claim {key}")))
    }

    async fn patch_volume(&self, name: &str, patch: Value) -> Result<PersistentVolume, Error> {
        let patched = self.volumes().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map_err(Error::api(format!("patch volume {name}")))
    }

    /// Read when it is needed: a watch on all pods would cost far more than growing volumes is worth.
    async fn user(&self, key: &Key) -> Result<Option<String>, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut list =
            ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed").limit(PAGE);
        loop {
            let page = api.list(&list).await.map_err(Error::api(format!("list the pods of claim {key}")))?;
            if let Some(pod) = page.items.iter().find(|pod| uses(pod, &key.name)) {
                return Ok(Some(pod.metadata.name.clone().unwrap_or_default()));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => list.continue_token = Some(token),
                None => return Ok(None),
            }
        }
    }

    fn class(&self, name: &str) -> Option<Arc<VolumeAttributesClass>> {
        self.classes.named(name)
    }

    async fn secret(&self, place: Option<Place<'_>>) -> Result<HashMap<String, String>, secret::Error> {
        secret::read(&self.client, place).await
    }

    async fn expand(
        &self,
        request: v1::ControllerExpandVolumeRequest,
    ) -> Result<v1::ControllerExpandVolumeResponse, Status> {
        let method = "/csi.v1.Controller/ControllerExpandVolume";
        let call = self.driver.controller(method, self.timeout, request, async |mut client, request| {
            client.controller_expand_volume(request).await
        });
        call.await
    }

    async fn modify(
        &self,
        request: v1::ControllerModifyVolumeRequest,
    ) -> Result<v1::ControllerModifyVolumeResponse, Status> {
        let method = "/csi.v1.Controller/ControllerModifyVolume";
        let call = self.driver.controller(method, self.timeout, request, async |mut client, request| {
            client.controller_modify_volume(request).await
        });
        call.await
    }

    fn tell(&self, claim: &PersistentVolumeClaim, kind: Kind, reason: &'static str, message: String) {
        self.events.tell_of(claims::reference(claim), kind, reason, message);
    }
}

/// Whether a pod has the claim among its volumes.
fn uses(pod: &Pod, claim: &str) -> bool {
    claims::of_pod(pod).any(|found| found == claim)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_uses_a_claim_by_name_or_as_its_own() {
        for (volume, used) in [
            (json!({"name": "v", "persistentVolumeClaim": {"claimName": "pod-v"}}), true),
            (json!({"name": "v", "persistentVolumeClaim": {"claimName": "other"}}), false),
            (json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}), true),
            (json!({"name": "w", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}), false),
            (json!({"name": "v", "emptyDir": {}}), false),
        ] {
            let pod = json!({"metadata": {"name": "pod"}, "spec": {"containers": [], "volumes": [volume]}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            assert_eq!(uses(&pod, "pod-v"), used, "{volume}");
        }
    }
}
