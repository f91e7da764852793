//! What is watched, which changes matter, and which fields are kept.

use std::sync::Arc;
use std::time::Duration;

use dunnage_cluster::Key;
use dunnage_cluster::cache::{Builder, Cache, Change};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::facts::{self, RESIZER, SIZE_BEFORE, State};
use super::memory::Memory;
use super::{Abilities, Queues};

/// What the watches are for.
pub(super) struct Setup<'a> {
    pub(super) client: &'a Client,
    pub(super) driver: &'a str,
    pub(super) abilities: Abilities,
    pub(super) resync: Duration,
    /// What is remembered of claims, to be forgotten with them.
    pub(super) memories: [Arc<Memory>; 2],
}

/// Claims and volumes as far as they tell which claims need a look.
pub(super) struct Watched {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

/// What the caches say of a claim.
pub(super) enum Glance {
    Ours(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>),
    /// Not bound, not there, or another driver's.
    Others,
    NoVolumeYet(Arc<PersistentVolumeClaim>),
}

impl Watched {
    pub(super) fn glance(&self, key: &Key, driver: &str) -> Glance {
        let Some(claim) = self.claims.get(key) else { return Glance::Others };
        let Some(name) = facts::volume_name(&claim) else { return Glance::Others };
        match self.volumes.named(name) {
            None => Glance::NoVolumeYet(claim),
            Some(volume) if facts::is_pair(&claim, &volume, driver) => Glance::Ours(claim, volume),
            Some(_) => Glance::Others,
        }
    }
}

/// Begins the watches and waits for their first lists; none when asked to stop meanwhile.
pub(super) async fn start(
    setup: &Setup<'_>,
    queues: &Queues,
    stop: &CancellationToken,
) -> Option<(Watched, Cache<VolumeAttributesClass>)> {
    let driver = setup.driver.to_owned();
    let volumes = Builder::<PersistentVolume>::new(Api::all(setup.client.clone()))
        .trim(move |volume| trim_volume(volume, &driver))
        .start(stop);
    let mut claims = Builder::<PersistentVolumeClaim>::new(Api::all(setup.client.clone()))
        .resync(setup.resync)
        .trim(trim_claim);
    let by_class = claims.index(wanted_class);
    claims.listen({
        let (queues, memories, abilities) = (queues.clone(), setup.memories.clone(), setup.abilities);
        move |change| {
            let key = Key::of(change.object().as_ref());
            if let Change::Deleted(claim) = change {
                let uid = claim.metadata.uid.as_deref().unwrap_or_default();
                for memory in &memories {
                    memory.forget(uid);
                }
                queues.resize.forget(&key);
                queues.modify.forget(&key);
                return;
            }
            if abilities.grow.is_some() && may_grow(change) {
                queues.resize.add(key.clone());
            }
            if abilities.modify && may_change(change) {
                queues.modify.add(key);
            }
        }
    });
    let mut classes = Builder::<VolumeAttributesClass>::new(Api::all(setup.client.clone()));
    classes.listen({
        let queue = queues.modify.clone();
        move |change| {
            let name = change.object().metadata.name.as_deref().unwrap_or_default();
            if let Change::Applied { .. } = change {
                by_class.get(name).iter().for_each(|claim| queue.add(Key::of(claim.as_ref())));
            }
        }
    });
    volumes.ready(stop).await.ok()?;
    // Not watched where the API server may not have them.
    let classes = if setup.abilities.modify {
        let classes = classes.start(stop);
        classes.ready(stop).await.ok()?;
        classes
    } else {
        classes.handle()
    };
    let claims = claims.start(stop);
    claims.ready(stop).await.ok()?;
    Some((Watched { claims, volumes }, classes))
}

/// The classes whose coming into being matters to a claim.
fn wanted_class(claim: &PersistentVolumeClaim) -> Vec<String> {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    let attempt = claim.status.as_ref().and_then(|status| status.modify_volume_status.as_ref());
    let recorded = attempt.and_then(|attempt| attempt.target_volume_attributes_class_name.clone());
    let mut names: Vec<String> = wanted.into_iter().chain(recorded).collect();
    names.dedup();
    names
}

/// Whether a claim may need to grow since this change. What we write ourselves before and after a failed call is none:
/// it would get around the claim's back-off.
fn may_grow(change: &Change<PersistentVolumeClaim>) -> bool {
    let Change::Applied { old: Some(old), new } = change else { return true };
    let note = |claim: &PersistentVolumeClaim| {
        claim.metadata.annotations.as_ref().and_then(|notes| notes.get(RESIZER)).cloned()
    };
    let state = State::of(new);
    let ours = matches!(state, State::ControllerInProgress | State::ControllerInfeasible);
    facts::volume_name(old) != facts::volume_name(new)
        || facts::requested(old) != facts::requested(new)
        || facts::actual(old) != facts::actual(new)
        || note(old) != note(new)
        || State::of(old) != state && !ours
}

/// Whether a claim may need another class since this change; as for growing.
fn may_change(change: &Change<PersistentVolumeClaim>) -> bool {
    let Change::Applied { old: Some(old), new } = change else { return true };
    let wanted = |claim: &PersistentVolumeClaim| {
        claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone())
    };
    let current = |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().and_then(|status| status.current_volume_attributes_class_name.clone())
    };
    facts::volume_name(old) != facts::volume_name(new)
        || wanted(old) != wanted(new)
        || current(old) != current(new)
}

/// Drops what tells nothing of sizes and classes.
fn trim_claim(claim: &mut PersistentVolumeClaim) {
    keep(&mut claim.metadata, RESIZER);
    claim.spec = claim.spec.take().map(|spec| PersistentVolumeClaimSpec {
        resources: spec.resources,
        volume_attributes_class_name: spec.volume_attributes_class_name,
        volume_name: spec.volume_name,
        ..PersistentVolumeClaimSpec::default()
    });
    if let Some(status) = &mut claim.status {
        status.access_modes = None;
        for condition in status.conditions.iter_mut().flatten() {
            condition.message = None;
        }
    }
}

/// Drops what tells nothing of whose volume it is and how large.
fn trim_volume(volume: &mut PersistentVolume, driver: &str) {
    keep(&mut volume.metadata, SIZE_BEFORE);
    volume.status = None;
    volume.spec = volume.spec.take().map(|spec| PersistentVolumeSpec {
        capacity: spec.capacity,
        claim_ref: spec.claim_ref,
        csi: spec.csi.filter(|csi| csi.driver == driver).map(|csi| CSIPersistentVolumeSource {
            driver: csi.driver,
            ..CSIPersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    });
}

fn keep(meta: &mut ObjectMeta, annotation: &str) {
    meta.labels = None;
    meta.owner_references = None;
    meta.finalizers = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| key == annotation);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(change: impl FnOnce(&mut Value)) -> Arc<PersistentVolumeClaim> {
        let mut claim = json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "labels": {"a": "b"}, "annotations": {"x": "y"}},
            "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"}},
        });
        change(&mut claim);
        Arc::new(serde_json::from_value(claim).expect("a claim"))
    }

    #[test]
    fn a_claim_is_looked_at_for_what_others_change_and_not_for_our_own_writes() {
        let old = claim(|_| ());
        let state = |word: &'static str| {
            claim(move |claim| claim["status"]["allocatedResourceStatuses"]["storage"] = json!(word))
        };
        for (new, grow, change) in [
            (claim(|claim| claim["spec"]["resources"]["requests"]["storage"] = json!("3Gi")), true, false),
            (claim(|claim| claim["spec"]["resources"]["requests"]["storage"] = json!("1.5Gi")), true, false),
            (claim(|claim| claim["status"]["capacity"]["storage"] = json!("2Gi")), true, false),
            (claim(|claim| claim["metadata"]["annotations"][RESIZER] = json!("d")), true, false),
            (claim(|claim| claim["status"]["phase"] = json!("Lost")), true, true),
            (claim(|claim| claim["status"]["allocatedResourceStatuses"] = json!({})), true, false),
            (state("NodeResizeInfeasible"), true, false),
            (state("ControllerResizeInProgress"), false, false),
            (state("ControllerResizeInfeasible"), false, false),
            (claim(|claim| claim["spec"]["volumeAttributesClassName"] = json!("gold")), false, true),
            (claim(|claim| claim["status"]["currentVolumeAttributesClassName"] = json!("gold")), false, true),
            (
                claim(|claim| claim["status"]["modifyVolumeStatus"] = json!({"status": "InProgress"})),
                false,
                false,
            ),
            (claim(|claim| claim["metadata"]["labels"] = json!({})), false, false),
        ] {
            let applied = Change::Applied { old: Some(Arc::clone(&old)), new };
            assert_eq!((may_grow(&applied), may_change(&applied)), (grow, change), "{applied:?}");
        }
        for change in [Change::Applied { old: None, new: Arc::clone(&old) }, Change::Resync(old)] {
            assert!(may_grow(&change) && may_change(&change));
        }
    }

    #[test]
    fn the_caches_keep_what_the_glance_needs() {
        let mut kept = claim(|_| ()).as_ref().clone();
        trim_claim(&mut kept);
        assert!(facts::wants_more(&kept) && facts::volume_name(&kept) == Some("pv"));
        assert_eq!(kept.metadata.annotations.as_ref().map(std::collections::BTreeMap::len), Some(0));
        let volume = |driver: &str| -> PersistentVolume {
            let spec = json!({
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": "ns", "name": "c", "uid": "u"},
                "csi": {"driver": driver, "volumeHandle": "h"},
            });
            serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("a volume")
        };
        let (mut ours, mut others) = (volume("d"), volume("other"));
        trim_volume(&mut ours, "d");
        trim_volume(&mut others, "d");
        assert!(facts::is_pair(&kept, &ours, "d") && !facts::is_pair(&kept, &others, "d"));
    }

    #[test]
    fn a_claim_waits_for_the_class_that_it_wants_and_the_one_that_was_begun() {
        let found = claim(|claim| {
            claim["spec"]["volumeAttributesClassName"] = json!("gold");
            claim["status"]["modifyVolumeStatus"] =
                json!({"status": "InProgress", "targetVolumeAttributesClassName": "silver"});
        });
        assert_eq!(wanted_class(&found), ["gold", "silver"]);
        assert_eq!(wanted_class(&claim(|_| ())), Vec::<String>::new());
    }
}
