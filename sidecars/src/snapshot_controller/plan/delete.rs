//! The end of a VolumeSnapshot.

use std::sync::Arc;

use dunnage_cluster::finalizer;
use dunnage_crds::snapshot::{DeletionPolicy, VolumeSnapshot, VolumeSnapshotContent};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::{Problem, Source, is_ready, problem, source};
use crate::snapshot::{BEING_DELETED, BOUND_FINALIZER, SOURCE_FINALIZER, is_deleting, is_marked};

/// What to do for a snapshot that is being deleted, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct Steps {
    /// Tell the driver's side that the content may go.
    pub(in super::super) mark: bool,
    /// Delete the content.
    pub(in super::super) delete: bool,
    /// Take these finalizers off.
    pub(in super::super) drop: Vec<&'static str>,
}

/// Plans the end of a snapshot; `content` is its own, `waiting` the claims that are to be filled from it.
pub(in super::super) fn steps(
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
    waiting: &[Arc<PersistentVolumeClaim>],
) -> Result<Steps, Problem> {
    let pending = |claim: &&Arc<PersistentVolumeClaim>| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending")
    };
    if let Some(claim) = waiting.iter().find(pending) {
        let claim = claim.metadata.name.as_deref().unwrap_or_default();
        return Err(problem(
            "SnapshotDeletePending",
            format!("claim {claim} is to be filled from the snapshot: it is deleted afterwards"),
        ));
    }
    let goes_too = content.filter(|content| content.spec.deletion_policy == DeletionPolicy::Delete);
    let mut drop = vec![SOURCE_FINALIZER];
    // Until the snapshot on the storage is gone, something must be there that says so.
    if goes_too.is_none() {
        drop.push(BOUND_FINALIZER);
    }
    drop.retain(|name| finalizer::has(&snapshot.metadata, name));
    Ok(Steps {
        mark: content.is_some_and(|content| !is_marked(&content.metadata, BEING_DELETED)),
        delete: goes_too.is_some_and(|content| !is_deleting(&content.metadata)),
        drop,
    })
}

/// Whether a snapshot of the claim is still to be taken, of those in its namespace that name it. One that is being
/// deleted (`except`, by uid) does not count.
pub(in super::super) fn needs_claim(
    claim: &str,
    snapshots: &[Arc<VolumeSnapshot>],
    except: Option<&str>,
) -> bool {
    let takes = |snapshot: &&Arc<VolumeSnapshot>| {
        source(snapshot) == Ok(Source::Claim(claim))
            && !is_ready(snapshot)
            && (except.is_none() || snapshot.metadata.uid.as_deref() != except)
    };
    snapshots.iter().any(|snapshot| takes(&snapshot))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{content, snapshot};
    use super::*;

    fn claim(phase: &str) -> Arc<PersistentVolumeClaim> {
        let claim = json!({"metadata": {"name": "restored"}, "status": {"phase": phase}});
        Arc::new(serde_json::from_value(claim).expect("claim"))
    }

    fn with(finalizers: &[&str]) -> VolumeSnapshot {
        snapshot(|snapshot| snapshot["metadata"]["finalizers"] = json!(finalizers))
    }

    #[test]
    fn a_snapshot_goes_by_the_policy_of_its_content() {
        let both = [SOURCE_FINALIZER, BOUND_FINALIZER];
        let steps = |mark, delete, drop: &[&'static str]| Steps { mark, delete, drop: drop.to_vec() };
        let retain = |content: &mut Value| content["spec"]["deletionPolicy"] = json!("Retain");
        let marked = |content: &mut Value| content["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
        let going = |content: &mut Value| {
            marked(content);
            content["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        };
        for (snapshot, content, expected) in [
            (with(&both), None, steps(false, false, &both)),
            (with(&[]), None, steps(false, false, &[])),
            (with(&both), Some(content(|_| ())), steps(true, true, &[SOURCE_FINALIZER])),
            (with(&both), Some(content(marked)), steps(false, true, &[SOURCE_FINALIZER])),
            (with(&both), Some(content(going)), steps(false, false, &[SOURCE_FINALIZER])),
            (with(&[BOUND_FINALIZER]), Some(content(going)), steps(false, false, &[])),
            (with(&both), Some(content(retain)), steps(true, false, &both)),
        ] {
            assert_eq!(super::steps(&snapshot, content.as_ref(), &[]), Ok(expected), "{content:?}");
        }
    }

    #[test]
    fn a_restore_under_way_is_waited_for() {
        let snapshot = with(&[SOURCE_FINALIZER]);
        let refused = steps(&snapshot, None, &[claim("Bound"), claim("Pending")]).expect_err("waits");
        assert_eq!(refused.reason, "SnapshotDeletePending");
        assert!(steps(&snapshot, None, &[claim("Bound")]).is_ok());
    }

    #[test]
    fn a_claim_is_kept_for_every_snapshot_of_it_that_is_not_ready() {
        let waiting = Arc::new(snapshot(|_| ()));
        let ready = Arc::new(snapshot(|snapshot| snapshot["status"] = json!({"readyToUse": true})));
        let by_hand = Arc::new(snapshot(|snapshot| {
            snapshot["spec"]["source"] = json!({"volumeSnapshotContentName": "c"});
        }));
        for (snapshots, except, expected) in [
            (vec![Arc::clone(&waiting)], None, true),
            (vec![Arc::clone(&waiting)], Some("u1"), false),
            (vec![Arc::clone(&waiting)], Some("u2"), true),
            (vec![ready, by_hand], None, false),
            (vec![], None, false),
        ] {
            assert_eq!(needs_claim("data", &snapshots, except), expected, "{snapshots:?} {except:?}");
        }
        assert!(!needs_claim("other", &[waiting], None));
    }
}
