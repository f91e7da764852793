//! Snapshots of several volumes at one moment. The file system cannot be frozen for that, for then it would make no snapshots;
//! but what one of its transactions makes is of one moment, and what a program has synced by then is in it.

use std::time::{Duration, Instant};

use dunnage_host::btrfs::{snapshot, snapshot_at_once};
use dunnage_host::dir::Dir;
use tracing::debug;

use super::limits;
use crate::engine::folder::{DATA, data};
use crate::engine::moment;
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::snapshot::{Made, State, Taken};
use crate::store::Volume;

/// How long snapshots are made anew until they are of one transaction. Less than callers wait for an answer.
const TRY_FOR: Duration = Duration::from_secs(20);

/// Copies volumes, of which pods use some. Nobody begins to use another meanwhile.
pub(super) fn copy(group: &[(&Volume, &Dir)], used: &[&VolumeId]) -> Result<Vec<Taken>> {
    let is_used = |volume: &Volume| used.contains(&volume.id());
    let mut changing = Vec::new();
    for (volume, to) in group {
        limits::subvolume(&volume.dir)?;
        let data = data(volume)?;
        if is_used(volume) {
            changing.push((data, *to));
        } else {
            snapshot(&data, to, DATA)?;
        }
    }
    if let [(any, _), ..] = &changing[..] {
        at_one_moment(&changing, any, used)?;
    }
    let taken = |(volume, _): &(&Volume, &Dir)| {
        let source = if is_used(volume) { State::Attached } else { State::AtRest };
        Taken { made: Made::Reflink, source }
    };
    Ok(group.iter().map(taken).collect())
}

/// Makes snapshots of subvolumes that pods write to, as often as it takes.
fn at_one_moment(of: &[(Dir, &Dir)], any: &Dir, used: &[&VolumeId]) -> Result<()> {
    let until = Instant::now() + TRY_FOR;
    let mut attempt = 1;
    loop {
        // What is left to write would keep one of them waiting for longer than another.
        any.sync_filesystem()?;
        if snapshot_at_once(of, DATA)? {
            debug!(attempt, snapshots = of.len(), "snapshots are of one transaction");
            return Ok(());
        }
        for (_, to) in of {
            to.remove_tree(DATA)?;
        }
        if Instant::now() > until {
            return Err(Error::Aborted(format!(
                "{} in use, and in {attempt} attempts btrfs has made no snapshots of all of them at one moment: try again, or \
                 stop the pods of all but one",
                moment::are(used)
            )));
        }
        attempt += 1;
    }
}
