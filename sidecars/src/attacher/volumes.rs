//! Taking our finalizer off a volume that is going away, when nothing has it attached any more.

use std::sync::Arc;

use dunnage_cluster::error::chain;
use dunnage_cluster::queue::Outcome;
use dunnage_cluster::{Category, finalizer};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use tracing::{info, warn};

use super::{Context, Watched};

/// Looks after the volume `name`. While an attachment names it, it is left: the attachment's end brings it back here.
pub(super) async fn sync(context: Arc<Context>, watched: Arc<Watched>, name: String) -> Outcome {
    let Some(volume) = watched.volumes.named(&name) else { return Outcome::Done };
    if !may_go(&volume, &context.rules.finalizer, watched.by_volume.contains(&name)) {
        return Outcome::Done;
    }
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    match finalizer::remove_from(&api, &*volume, &context.rules.finalizer).await {
        Ok(_) => {
            info!(volume = name, "the volume is attached nowhere, its object may go");
            Outcome::Done
        }
        Err(error) if error.is_not_found() => Outcome::Done,
        Err(error) => {
            if error.category() != Category::Conflict {
                warn!(volume = name, error = chain(&error), "trying again later");
            }
            Outcome::Retry
        }
    }
}

fn may_go(volume: &PersistentVolume, ours: &str, attached: bool) -> bool {
    volume.metadata.deletion_timestamp.is_some() && finalizer::has(&volume.metadata, ours) && !attached
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_goes_only_when_it_is_deleted_and_attached_nowhere() {
        for (deleted, finalizers, attached, expected) in [
            (true, json!(["ours"]), false, true),
            (true, json!(["ours"]), true, false),
            (false, json!(["ours"]), false, false),
            (true, json!(["other"]), false, false),
            (true, json!(null), false, false),
        ] {
            let volume: PersistentVolume = serde_json::from_value(json!({"metadata": {
                "finalizers": finalizers,
                "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z"),
            }}))
            .expect("volume");
            assert_eq!(may_go(&volume, "ours", attached), expected, "{volume:?} {attached}");
        }
    }
}
