//! The driver's volumes, and the claims that they belong to.

use dunnage_cluster::cache::{Builder, Cache, Index};
use dunnage_cluster::{Error, Key};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeSpec,
    PersistentVolumeStatus,
};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

/// The bound volumes of one driver.
pub(super) struct Volumes {
    all: Cache<PersistentVolume>,
    by_handle: Index<PersistentVolume>,
    by_claim: Index<PersistentVolume>,
    driver: String,
}

impl Volumes {
    /// Begins to watch.
    pub(super) fn watch(client: &Client, driver: &str, stop: &CancellationToken) -> Self {
        let mut all = Builder::<PersistentVolume>::new(Api::all(client.clone())).trim(trim);
        let own = driver.to_owned();
        let by_handle = all.index(move |volume| handle(volume, &own).into_iter().collect());
        let own = driver.to_owned();
        let by_claim = all.index(move |volume| {
            let claim = handle(volume, &own).and_then(|_| claim(volume));
            claim.map(|claim| key(&claim).to_string()).into_iter().collect()
        });
        Self { all: all.start(stop), by_handle, by_claim, driver: driver.to_owned() }
    }

    pub(super) async fn ready(&self, stop: &CancellationToken) -> Result<(), Error> {
        self.all.ready(stop).await
    }

    /// The handles of all.
    pub(super) fn handles(&self) -> Vec<String> {
        let mut handles: Vec<_> =
            self.all.all().iter().filter_map(|volume| handle(volume, &self.driver)).collect();
        handles.sort_unstable();
        handles.dedup();
        handles
    }

    /// The claims of a volume: with volumes made by hand there can be several.
    pub(super) fn claims_of(&self, handle: &str) -> Vec<ObjectReference> {
        self.by_handle.get(handle).iter().filter_map(|volume| claim(volume)).collect()
    }

    /// The claim of this name, if it has one of the volumes.
    pub(super) fn claim(&self, key: &Key) -> Option<ObjectReference> {
        self.by_claim.get(&key.to_string()).iter().find_map(|volume| claim(volume))
    }
}

/// The handle of a volume that is the driver's and bound.
fn handle(volume: &PersistentVolume, driver: &str) -> Option<String> {
    let phase = volume.status.as_ref()?.phase.as_deref();
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    let ours = csi.driver == driver && !csi.volume_handle.is_empty() && phase == Some("Bound");
    ours.then(|| csi.volume_handle.clone())
}

fn claim(volume: &PersistentVolume) -> Option<ObjectReference> {
    let claim = volume.spec.as_ref()?.claim_ref.clone()?;
    // Of an older version than the claim has by now.
    Some(ObjectReference { resource_version: None, field_path: None, ..claim })
}

fn key(claim: &ObjectReference) -> Key {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    Key::namespaced(part(&claim.namespace), part(&claim.name))
}

/// Drops what is not read.
fn trim(volume: &mut PersistentVolume) {
    volume.metadata.labels = None;
    volume.metadata.annotations = None;
    volume.status = volume
        .status
        .take()
        .map(|status| PersistentVolumeStatus { phase: status.phase, ..PersistentVolumeStatus::default() });
    volume.spec = volume.spec.take().map(|spec| PersistentVolumeSpec {
        csi: spec.csi.map(|csi| CSIPersistentVolumeSource {
            driver: csi.driver,
            volume_handle: csi.volume_handle,
            ..CSIPersistentVolumeSource::default()
        }),
        claim_ref: spec.claim_ref,
        ..PersistentVolumeSpec::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_bound_volumes_of_the_driver_are_watched_over() {
        for (driver, id, phase, expected) in [
            ("ours", "v", "Bound", Some("v")),
            ("other", "v", "Bound", None),
            ("ours", "", "Bound", None),
            ("ours", "v", "Released", None),
        ] {
            let mut volume: PersistentVolume = serde_json::from_value(json!({
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "csi": {"driver": driver, "volumeHandle": id, "volumeAttributes": {"large": "yes"}},
                    "claimRef": {"namespace": "ns", "name": "data", "uid": "u", "resourceVersion": "1"},
                    "capacity": {"storage": "1Gi"},
                },
                "status": {"phase": phase, "message": "m"},
            }))
            .expect("volume");
            trim(&mut volume);
            assert_eq!(handle(&volume, "ours").as_deref(), expected, "{volume:?}");
            assert!(
                volume.metadata.labels.is_none()
                    && volume.spec.as_ref().is_some_and(|s| s.capacity.is_none())
            );
            let claim = claim(&volume).expect("claim");
            assert_eq!((claim.uid.as_deref(), &claim.resource_version), (Some("u"), &None));
            assert_eq!(key(&claim), Key::namespaced("ns", "data"));
        }
    }
}
