//! What is to be done for a VolumeSnapshotContent.

use dunnage_cluster::finalizer;
use dunnage_crds::snapshot::{VolumeSnapshot, VolumeSnapshotContent};

use super::{Problem, is_of, problem};
use crate::snapshot::{BEING_DELETED, CONTENT_FINALIZER, bound_uid, is_deleting, is_marked};

/// The next thing to do for a content.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Step {
    Nothing,
    AddFinalizer,
    /// Its snapshot is being deleted: the driver's side is told so.
    Mark,
    /// It is being deleted, and its snapshot is not to be seen: if there really is none, somebody wants just this.
    MarkIfAlone,
}

/// Plans for a content; `snapshot` is the one that it names. A content is never deleted here: objects that were
/// copied from another cluster must not cost that one's data.
pub(in super::super) fn step(
    content: &VolumeSnapshotContent,
    snapshot: Option<&VolumeSnapshot>,
) -> Result<Step, Problem> {
    let source = &content.spec.source;
    if source.volume_handle.is_some() == source.snapshot_handle.is_some() {
        return Err(problem(
            "ContentValidationError",
            "the source must be either a volumeHandle or a snapshotHandle",
        ));
    }
    if bound_uid(content).is_none() {
        return Ok(Step::Nothing);
    }
    let deleting = is_deleting(&content.metadata);
    if !deleting && !finalizer::has(&content.metadata, CONTENT_FINALIZER) {
        return Ok(Step::AddFinalizer);
    }
    if is_marked(&content.metadata, BEING_DELETED) {
        return Ok(Step::Nothing);
    }
    Ok(match snapshot.filter(|snapshot| is_of(content, snapshot)) {
        Some(snapshot) if is_deleting(&snapshot.metadata) => Step::Mark,
        None if deleting => Step::MarkIfAlone,
        _ => Step::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{content, snapshot};
    use super::*;

    fn kept(content: &mut Value) {
        content["metadata"]["finalizers"] = json!([CONTENT_FINALIZER]);
    }

    fn going(content: &mut Value) {
        kept(content);
        content["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }

    #[test]
    fn a_content_is_kept_marked_or_left_alone() {
        let marked = |content: &mut Value| {
            going(content);
            content["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
        };
        let unbound = |content: &mut Value| content["spec"]["volumeSnapshotRef"]["uid"] = json!(null);
        let alive = snapshot(|_| ());
        let ends = snapshot(|s| s["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        let another = snapshot(|s| s["metadata"]["uid"] = json!("u2"));
        for (content, snapshot, expected) in [
            (content(|_| ()), Some(&alive), Step::AddFinalizer),
            (content(|_| ()), None, Step::AddFinalizer),
            (content(kept), Some(&alive), Step::Nothing),
            (content(kept), Some(&ends), Step::Mark),
            (content(kept), None, Step::Nothing),
            (content(kept), Some(&another), Step::Nothing),
            (content(going), Some(&alive), Step::Nothing),
            (content(going), Some(&ends), Step::Mark),
            (content(going), Some(&another), Step::MarkIfAlone),
            (content(going), None, Step::MarkIfAlone),
            (content(marked), None, Step::Nothing),
            (content(unbound), None, Step::Nothing),
        ] {
            assert_eq!(step(&content, snapshot), Ok(expected), "{content:?} {snapshot:?}");
        }
    }

    #[test]
    fn a_content_of_two_sources_or_none_is_refused() {
        for source in [json!({}), json!({"volumeHandle": "v", "snapshotHandle": "s"})] {
            let content = content(|content| content["spec"]["source"] = source.clone());
            assert_eq!(step(&content, None).expect_err("refused").reason, "ContentValidationError");
        }
    }
}
