//! What a start makes of the entries it finds: pure.

use std::str::FromStr;

use dunnage_host::dir::Entry;

/// Names of volumes and snapshots that are being made begin with this.
pub(crate) const HALF_MADE: &str = ".new-";

/// What to do with the entries of `volumes` or `snapshots`, which have ids of this kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sweep<Id> {
    /// Finished ones.
    pub(crate) load: Vec<Id>,
    /// Half-made ones: nobody was ever told of them.
    pub(crate) remove: Vec<String>,
    /// What this program did not put there; it is left alone.
    pub(crate) strange: Vec<String>,
}

/// Sorts the entries.
pub(crate) fn sweep<Id: FromStr>(entries: &[Entry]) -> Sweep<Id> {
    let mut sweep = Sweep { load: Vec::new(), remove: Vec::new(), strange: Vec::new() };
    for entry in entries {
        let name = entry.name.to_string_lossy().into_owned();
        // A deep tree whose removal was cut short has its parts beside it, under names that begin alike.
        if name
            .strip_prefix(HALF_MADE)
            .is_some_and(|rest| rest.split('.').next().is_some_and(|id| id.parse::<Id>().is_ok()))
        {
            sweep.remove.push(name);
        } else {
            match name.parse() {
                Ok(id) if entry.is_dir => sweep.load.push(id),
                _ => sweep.strange.push(name),
            }
        }
    }
    sweep
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{SnapshotId, VolumeId};

    fn none<Id>() -> Sweep<Id> {
        Sweep { load: Vec::new(), remove: Vec::new(), strange: Vec::new() }
    }

    #[test]
    fn a_volume_is_no_snapshot_and_a_snapshot_no_volume() {
        let volume = "0123456789abcdef-0123456789abcdef0123456789abcdef";
        let snapshot = "0123456789abcdef-snap-0123456789abcdef0123456789abcdef";
        let half = format!("{HALF_MADE}{snapshot}");
        let entries = [volume, snapshot, half.as_str()].map(|name| Entry { name: name.into(), is_dir: true });
        assert_eq!(
            sweep::<SnapshotId>(&entries),
            Sweep {
                load: vec![snapshot.parse().unwrap()],
                remove: vec![half.clone()],
                strange: vec![volume.into()]
            }
        );
        assert_eq!(
            sweep::<VolumeId>(&entries),
            Sweep { load: vec![volume.parse().unwrap()], strange: vec![snapshot.into(), half], ..none() }
        );
    }

    #[test]
    fn volumes_are_loaded_half_made_ones_removed_and_others_left() {
        let id = "0123456789abcdef-0123456789abcdef0123456789abcdef";
        let half = format!(".new-{id}");
        let deep = format!(".new-{id}.deep-3");
        for (name, is_dir, expected) in [
            (id, true, Sweep { load: vec![id.parse().unwrap()], ..none() }),
            (id, false, Sweep { strange: vec![id.into()], ..none() }),
            (half.as_str(), true, Sweep { remove: vec![half.clone()], ..none() }),
            (half.as_str(), false, Sweep { remove: vec![half.clone()], ..none() }),
            (deep.as_str(), true, Sweep { remove: vec![deep.clone()], ..none() }),
            (".new-other", true, Sweep { strange: vec![".new-other".into()], ..none() }),
            ("lost+found", true, Sweep { strange: vec!["lost+found".into()], ..none() }),
        ] {
            assert_eq!(sweep::<VolumeId>(&[Entry { name: name.into(), is_dir }]), expected, "{name}");
        }
    }
}
