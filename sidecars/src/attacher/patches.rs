//! The patches of attachments: pure.

use std::collections::HashMap;

use dunnage_cluster::finalizer::has;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Map, Value, json};

use super::plan::{NODE_ID, Rules};

/// Adds our finalizer and the note of the node's id, before the driver is called; none when both are there. It fails
/// when the attachment is not what the cache showed.
pub(super) fn claim(attachment: &VolumeAttachment, rules: &Rules, node_id: &str) -> Option<Value> {
    let meta = &attachment.metadata;
    let noted =
        meta.annotations.as_ref().and_then(|notes| notes.get(NODE_ID)).is_some_and(|id| id == node_id);
    let ours = has(meta, &rules.finalizer);
    if noted && ours {
        return None;
    }
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), json!(meta.resource_version));
    if !noted {
        metadata.insert("annotations".to_owned(), json!({NODE_ID: node_id}));
    }
    if !ours {
        // A merge patch replaces the list, so all of it is sent.
        let all: Vec<&str> =
            meta.finalizers.iter().flatten().map(String::as_str).chain([rules.finalizer.as_str()]).collect();
        metadata.insert("finalizers".to_owned(), json!(all));
    }
    Some(json!({"metadata": metadata}))
}

/// The status of what is attached, with what the driver wants told at staging.
pub(super) fn attached(publish_context: &HashMap<String, String>) -> Value {
    let context = if publish_context.is_empty() { Value::Null } else { json!(publish_context) };
    json!({"status": {"attached": true, "attachmentMetadata": context, "attachError": null}})
}

/// The status of what is detached.
pub(super) fn detached() -> Value {
    json!({"status": {"attached": false, "attachmentMetadata": null, "detachError": null}})
}

/// Which of the two errors of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Attach,
    Detach,
}

/// The status after a failure.
pub(super) fn failed(
    attachment: &VolumeAttachment,
    direction: Direction,
    message: &str,
    code: Option<i32>,
    now: jiff::Timestamp,
) -> Value {
    let mut error = Map::new();
    let second = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    error.insert("time".to_owned(), json!(second));
    error.insert("message".to_owned(), json!(message));
    // Null takes away the code of an earlier error.
    error.insert("errorCode".to_owned(), json!(code));
    let field = match direction {
        Direction::Attach => "attachError",
        Direction::Detach => "detachError",
    };
    // A status must say whether it is attached, also the first one.
    let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
    json!({"status": {"attached": attached, field: error}})
}

/// Whether the status already has this error: then it need not be written again.
pub(super) fn is_told(
    attachment: &VolumeAttachment,
    direction: Direction,
    message: &str,
    code: Option<i32>,
) -> bool {
    let error = attachment.status.as_ref().and_then(|status| match direction {
        Direction::Attach => status.attach_error.as_ref(),
        Direction::Detach => status.detach_error.as_ref(),
    });
    error.is_some_and(|error| error.message.as_deref() == Some(message) && error.error_code == code)
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{attachment, rules};
    use super::*;

    const OURS: &str = "external-attacher/test-csi-dunnage-dev";

    #[test]
    fn a_claim_adds_only_what_is_missing_and_keeps_other_finalizers() {
        let noted = json!({NODE_ID: "id"});
        for (metadata, expected) in [
            (
                json!({"resourceVersion": "7"}),
                Some(json!({"resourceVersion": "7", "annotations": {NODE_ID: "id"}, "finalizers": [OURS]})),
            ),
            (
                json!({"resourceVersion": "7", "finalizers": ["a/b"], "annotations": noted}),
                Some(json!({"resourceVersion": "7", "finalizers": ["a/b", OURS]})),
            ),
            (
                json!({"resourceVersion": "7", "finalizers": [OURS], "annotations": {NODE_ID: "old"}}),
                Some(json!({"resourceVersion": "7", "annotations": {NODE_ID: "id"}})),
            ),
            (json!({"resourceVersion": "7", "finalizers": [OURS], "annotations": noted}), None),
        ] {
            let patch = claim(&attachment(metadata, None), &rules(), "id");
            assert_eq!(patch, expected.map(|metadata| json!({"metadata": metadata})));
        }
    }

    #[test]
    fn success_takes_the_error_away() {
        let context = HashMap::from([("device".to_owned(), "x".to_owned())]);
        let expected =
            json!({"status": {"attached": true, "attachmentMetadata": {"device": "x"}, "attachError": null}});
        assert_eq!(attached(&context), expected);
        assert_eq!(attached(&HashMap::new())["status"]["attachmentMetadata"], Value::Null);
        assert_eq!(detached()["status"]["attached"], json!(false));
    }

    #[test]
    fn a_failure_says_when_and_what_and_keeps_whether_it_is_attached() {
        let now = "2026-01-01T00:00:00.5Z".parse().expect("time");
        for (before, direction, field) in [
            (None, Direction::Attach, "attachError"),
            (Some(true), Direction::Attach, "attachError"),
            (Some(true), Direction::Detach, "detachError"),
        ] {
            let patch = failed(&attachment(json!({}), before), direction, "no room", Some(8), now);
            let error = json!({"time": "2026-01-01T00:00:00Z", "message": "no room", "errorCode": 8});
            assert_eq!(patch, json!({"status": {"attached": before.unwrap_or(false), field: error}}));
        }
    }

    #[test]
    fn the_same_error_is_told_once() {
        let mut attachment = attachment(json!({}), Some(false));
        let error = serde_json::from_value(json!({"message": "m", "errorCode": 8})).expect("error");
        attachment.status.as_mut().expect("status").attach_error = Some(error);
        assert!(is_told(&attachment, Direction::Attach, "m", Some(8)));
        for (direction, message, code) in [
            (Direction::Attach, "other", Some(8)),
            (Direction::Attach, "m", None),
            (Direction::Detach, "m", Some(8)),
        ] {
            assert!(!is_told(&attachment, direction, message, code), "{direction:?} {message} {code:?}");
        }
    }
}
