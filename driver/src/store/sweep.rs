//! What a start makes of the entries it finds: pure.

use dunnage_host::dir::Entry;

use crate::id::VolumeId;

/// Names of volumes that are being made begin with this.
pub(crate) const HALF_MADE: &str = ".new-";

/// What to do with the entries of `volumes`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// Finished volumes.
    pub(crate) load: Vec<VolumeId>,
    /// Half-made ones: nobody was ever told of them.
    pub(crate) remove: Vec<String>,
    /// What this program did not put there; it is left alone.
    pub(crate) strange: Vec<String>,
}

/// Sorts the entries.
pub(crate) fn sweep(entries: &[Entry]) -> Sweep {
    let mut sweep = Sweep::default();
    for entry in entries {
        let name = entry.name.to_string_lossy().into_owned();
        // A deep tree whose removal was cut short has its parts beside it, under names that begin alike.
        if name
            .strip_prefix(HALF_MADE)
            .is_some_and(|rest| rest.split('.').next().is_some_and(|id| id.parse::<VolumeId>().is_ok()))
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

    #[test]
    fn volumes_are_loaded_half_made_ones_removed_and_others_left() {
        let id = "0123456789abcdef-0123456789abcdef0123456789abcdef";
        let half = format!(".new-{id}");
        let deep = format!(".new-{id}.deep-3");
        for (name, is_dir, expected) in [
            (id, true, Sweep { load: vec![id.parse().unwrap()], ..Sweep::default() }),
            (id, false, Sweep { strange: vec![id.into()], ..Sweep::default() }),
            (half.as_str(), true, Sweep { remove: vec![half.clone()], ..Sweep::default() }),
            (half.as_str(), false, Sweep { remove: vec![half.clone()], ..Sweep::default() }),
            (deep.as_str(), true, Sweep { remove: vec![deep.clone()], ..Sweep::default() }),
            (".new-other", true, Sweep { strange: vec![".new-other".into()], ..Sweep::default() }),
            ("lost+found", true, Sweep { strange: vec!["lost+found".into()], ..Sweep::default() }),
        ] {
            assert_eq!(sweep(&[Entry { name: name.into(), is_dir }]), expected, "{name}");
        }
    }
}
