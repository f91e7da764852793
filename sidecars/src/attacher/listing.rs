//! Comparing the attachments with what the driver itself says is published.

use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;

use dunnage_csi::v1::list_volumes_response::Entry;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::plan::{self, Fallback, Invalid};
use super::source::Volume;
use super::{Args, Context, Watched};

/// On which nodes each volume is published.
type Published = HashMap<String, HashSet<String>>;

/// Compares every `--reconcile-sync` until `stop`.
pub(super) async fn run(context: &Context, watched: &Watched, args: &Args, stop: &CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(args.reconcile_sync) => {}
        }
        let mut published = Published::new();
        let listed =
            context.driver.list_volumes(context.timeout, args.max_entries, |page| add(&mut published, page));
        match listed.await {
            Ok(()) => compare(context, watched, &published),
            Err(status) => {
                warn!(code = ?status.code(), error = status.message(), "cannot list what is published");
            }
        }
    }
}

fn add(published: &mut Published, entries: Vec<Entry>) {
    for entry in entries {
        let nodes = entry.status.map(|status| status.published_node_ids).unwrap_or_default();
        if let Some(volume) = entry.volume {
            published.entry(volume.volume_id).or_default().extend(nodes);
        }
    }
}

fn compare(context: &Context, watched: &Watched, published: &Published) {
    for attachment in watched.attachments.all() {
        if attachment.spec.attacher != context.rules.driver {
            continue;
        }
        // What cannot be told is left to the attachment's own work, which says why.
        let Ok((volume, node)) = place(context, watched, &attachment) else { continue };
        if differs(&attachment, published, &volume, &node) {
            let name = super::name(&attachment.metadata);
            info!(attachment = name, volume, node, "the driver says other than the status, calling it");
            context.forced.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
            context.attachment_queue.add(name);
        }
    }
}

fn place(
    context: &Context,
    watched: &Watched,
    attachment: &VolumeAttachment,
) -> Result<(String, String), Invalid> {
    let node = watched.nodes.named(&attachment.spec.node_name);
    let node = plan::node_id(attachment, node.as_deref(), &context.rules, Fallback::Noted)?;
    let volume = Volume::of(attachment, &watched.volumes)?;
    Ok((plan::csi(volume.spec()?, &context.rules)?.volume_handle.clone(), node))
}

fn differs(attachment: &VolumeAttachment, published: &Published, volume: &str, node: &str) -> bool {
    let listed = published.get(volume).is_some_and(|nodes| nodes.contains(node));
    listed != attachment.status.as_ref().is_some_and(|status| status.attached)
}

#[cfg(test)]
mod tests {
    use dunnage_csi::v1;
    use serde_json::json;

    use super::super::plan::tests::attachment;
    use super::*;

    fn entry(volume: &str, nodes: &[&str]) -> Entry {
        Entry {
            volume: Some(v1::Volume { volume_id: volume.to_owned(), ..v1::Volume::default() }),
            status: Some(v1::list_volumes_response::VolumeStatus {
                published_node_ids: nodes.iter().map(ToString::to_string).collect(),
                volume_condition: None,
            }),
        }
    }

    #[test]
    fn an_attachment_differs_when_status_and_driver_disagree() {
        let mut published = Published::new();
        add(&mut published, vec![entry("v", &["a"]), entry("w", &[])]);
        add(&mut published, vec![entry("v", &["b"]), Entry::default()]);
        for (volume, node, attached, expected) in [
            ("v", "a", Some(true), false),
            ("v", "b", Some(true), false),
            ("v", "c", Some(true), true),
            ("v", "a", Some(false), true),
            ("v", "a", None, true),
            ("w", "a", Some(true), true),
            ("w", "a", None, false),
            ("unknown", "a", Some(true), true),
            ("unknown", "a", Some(false), false),
        ] {
            let attachment = attachment(json!({}), attached);
            assert_eq!(
                differs(&attachment, &published, volume, node),
                expected,
                "{volume} {node} {attached:?}"
            );
        }
    }
}
