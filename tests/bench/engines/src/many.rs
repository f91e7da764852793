//! What a driver needs with many volumes in its pool: memory, and time to start.

use std::path::Path;

use dunnage_driver::EngineKind;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::json;

use crate::calls::{capability, milliseconds};
use crate::node::Node;
use crate::pools::{Place, Pool};
use crate::tell;

/// Volumes in the pool.
const STEPS: [usize; 3] = [0, 1_000, 10_000];

/// Fills the pool in steps, and starts the driver anew at each.
pub(crate) async fn volumes(program: &Path, pool: &Pool, place: &Place) -> anyhow::Result<()> {
    let parameters: &[(&str, &str)] = match pool.engine {
        EngineKind::LoopFile => &[("allocation", "sparse")],
        EngineKind::Directory | EngineKind::Btrfs => &[],
    };
    let bytes = if pool.fs_type == "xfs" { 300 << 20 } else { 16 << 20 };
    let capability = capability(pool);
    let mut there = 0;
    for wanted in STEPS {
        eprintln!("{}: a start with {wanted} volumes", pool.name);
        if there < wanted {
            let node = Node::start(program, pool, place).await?;
            let (node_of, capability_of) = (&node, &capability);
            stream::iter(there..wanted)
                .map(|number| async move {
                    node_of.create(&format!("of-many-{number}"), bytes, capability_of, parameters, None).await
                })
                .buffer_unordered(32)
                .try_for_each(|_| async { Ok(()) })
                .await?;
            node.stop().await?;
            there = wanted;
        }
        let node = Node::start(program, pool, place).await?;
        let (anonymous, resident) = node.memory()?;
        tell(json!({
            "of": "many", "pool": pool.name, "volumes": wanted, "start_ms": milliseconds(node.started_in),
            "anon_mib": anonymous, "rss_mib": resident,
        }));
        node.stop().await?;
    }
    Ok(())
}
