//! Hard limits for subvolumes, by the quota groups of btrfs.
//!
//! With full quotas, a volume's limit is that of its subvolume's own group: a further group above it would make every
//! snapshot set the numbers wrong. Subvolumes that a pod makes in its volume are then not counted. With simple quotas, each
//! volume has a group above that of its subvolume, and the kernel puts into it what is made within.
//!
//! All calls go by the directory that the data lie in: in a subvolume that is at its limit, the kernel finds no room for
//! changes of the subvolume itself.

use dunnage_host::btrfs::quota::{self, Counts, Group, Quotas, Usage};
use dunnage_host::btrfs::{exists, subvolume_at};
use dunnage_host::dir::Dir;

use crate::engine::folder::data_in;
use crate::error::{Error, Result};

/// The level of the groups of volumes, out of the way of those that people number from 1.
const LEVEL: u16 = 1000;

/// Subvolumes have ids from here up.
const FIRST_SUBVOLUME: u64 = 256;

/// The group whose limit is the volume's, while the file system keeps quotas.
pub(super) fn group(quotas: Quotas, subvolume: u64) -> Option<Group> {
    match quotas {
        Quotas::Off => None,
        Quotas::Full(_) => Some(Group::of(subvolume)),
        Quotas::Simple => Some(Group::at(LEVEL, subvolume)),
    }
}

/// The subvolume that the data in the directory of a volume are.
pub(super) fn subvolume(dir: &Dir) -> Result<u64> {
    let data = data_in(dir)?;
    subvolume_at(&data)?.ok_or_else(|| {
        Error::Precondition(format!(
            "{} is no btrfs subvolume, as after a copy of the pool's files: copy the data into a new claim",
            data.path().display()
        ))
    })
}

/// Gives a volume its limit, whatever it had before. At once, and durable with the file system.
pub(super) fn set(dir: &Dir, bytes: u64) -> Result<()> {
    let (subvolume, quotas) = (subvolume(dir)?, quota::quotas(dir)?);
    let Some(group) = group(quotas, subvolume) else {
        return Err(Error::Precondition(obstacle(dir)?.unwrap_or_default()));
    };
    if quotas == Quotas::Simple {
        quota::make(dir, group)?;
        quota::join(dir, Group::of(subvolume), group)?;
    }
    // Last: with it, the rest is there as well.
    Ok(quota::limit(dir, group, bytes)?)
}

/// Takes the limit from a volume, or from a snapshot, which with full quotas has that of its volume.
pub(super) fn lift(dir: &Dir) -> Result<()> {
    let Some(subvolume) = subvolume_at(&data_in(dir)?)? else { return Ok(()) };
    let Some(group) = group(quota::quotas(dir)?, subvolume) else { return Ok(()) };
    match quota::limit_of(dir, group)? {
        Some(_) => Ok(quota::lift(dir, group)?),
        None => Ok(()),
    }
}

/// Which limits are to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that are not there, as after quotas were off.
    Missing,
    /// Those that differ from the record, too: nobody must be about to change it.
    Wrong,
}

/// Gives a volume its limit again. Without quotas, or for what is no subvolume, there is nothing to do.
pub(super) fn restore(dir: &Dir, bytes: u64, which: Which) -> Result<()> {
    let Some(subvolume) = subvolume_at(&data_in(dir)?)? else { return Ok(()) };
    let Some(group) = group(quota::quotas(dir)?, subvolume) else { return Ok(()) };
    match quota::limit_of(dir, group)? {
        Some(present) if present == bytes || which == Which::Missing => Ok(()),
        _ => set(dir, bytes),
    }
}

/// What a volume takes up.
pub(super) fn usage(dir: &Dir) -> Result<Usage> {
    let usage = match group(quota::quotas(dir)?, subvolume(dir)?) {
        Some(group) => quota::usage(dir, group)?,
        None => None,
    };
    match usage {
        Some(usage) => Ok(usage),
        None => Err(Error::Precondition(obstacle(dir)?.unwrap_or_else(|| {
            format!("{} has no quota group yet: it gets one within a minute", dir.path().display())
        }))),
    }
}

/// Why no volume can be made on the file system of a pool, and what to do.
pub(super) fn obstacle(pool: &Dir) -> Result<Option<String>> {
    if !dunnage_host::btrfs::is_btrfs(pool)? {
        let filesystem = dunnage_host::mount::mount_of(pool)?.0.filesystem;
        return Ok(Some(format!(
            "{} lies on {filesystem}, and Btrfs volumes need btrfs: mount a btrfs file system there, or use type LoopFile \
             or Directory",
            pool.path().display()
        )));
    }
    Ok(remedy(quota::quotas(pool)?, &pool.path().display().to_string()))
}

fn remedy(quotas: Quotas, path: &str) -> Option<String> {
    match quotas {
        Quotas::Full(Counts::Right) | Quotas::Simple => None,
        Quotas::Off => Some(format!(
            "the btrfs file system of {path} has quotas off, so that no volume would have a limit: run btrfs quota enable \
             {path}, or, with Linux and btrfs-progs 6.7 or later, btrfs quota enable --simple {path}"
        )),
        Quotas::Full(Counts::Wrong) => Some(format!(
            "the quotas of the btrfs file system of {path} are inconsistent, so that limits are not kept to: run btrfs \
             quota rescan -w {path}"
        )),
        Quotas::Full(Counts::Running) => Some(format!(
            "the btrfs file system of {path} counts its quotas just now, and limits are not kept to meanwhile: wait, as \
             btrfs quota rescan -w {path} does"
        )),
    }
}

/// What is to be said of existing volumes whose limit is not all that it should be.
pub(super) fn remaining(plain: usize, with_subvolumes: usize) -> Option<String> {
    let plain = (plain > 0).then(|| {
        format!("{plain} volumes are no subvolumes and have no limit: copy their data into new claims")
    });
    let nested = (with_subvolumes > 0).then(|| {
        format!(
            "{with_subvolumes} volumes have subvolumes of their own, which full quotas do not count: delete those, or use \
             simple quotas (btrfs quota disable, then btrfs quota enable --simple, with Linux and btrfs-progs 6.7 or later)"
        )
    });
    let all: Vec<_> = plain.into_iter().chain(nested).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Removes the groups of subvolumes that are gone.
pub(super) fn sweep(pool: &Dir) -> Result<()> {
    if gone(pool)?.is_empty() {
        return Ok(());
    }
    if matches!(quota::quotas(pool)?, Quotas::Full(_)) {
        // Until a transaction ends, what was in a subvolume counts in its group, whatever that says: to remove it then would
        // make the counts of the whole file system wrong.
        pool.sync_filesystem()?;
    }
    for group in stale(&gone(pool)?) {
        // One that is still in use goes another time.
        quota::remove(pool, group)?;
    }
    Ok(())
}

/// The groups of subvolumes that are gone.
fn gone(pool: &Dir) -> Result<Vec<(Group, Usage)>> {
    let mut gone = Vec::new();
    for (group, usage) in quota::usages(pool)? {
        let ours = matches!(group.level(), 0 | LEVEL) && group.number() >= FIRST_SUBVOLUME;
        if ours && !exists(pool, group.number())? {
            gone.push((group, usage));
        }
    }
    Ok(gone)
}

/// Which groups of subvolumes that are gone can go too, in this order. Newer kernels remove those of level 0 by themselves,
/// whoever's they were: an id is never given twice. What was written first in a subvolume that is gone and is in use by
/// snapshots counts there still with simple quotas.
fn stale(gone: &[(Group, Usage)]) -> Vec<Group> {
    let counts = |usage: &Usage| usage.referenced != 0 || usage.exclusive != 0;
    // Those of level 0 are members of the others, and come first.
    let mut stale: Vec<_> =
        gone.iter().filter(|(_, usage)| !counts(usage)).map(|(group, _)| *group).collect();
    stale.sort();
    stale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_where_the_file_system_counts() {
        for (quotas, expected) in [
            (Quotas::Off, None),
            (Quotas::Full(Counts::Right), Some("0/300")),
            (Quotas::Full(Counts::Wrong), Some("0/300")),
            (Quotas::Simple, Some("1000/300")),
        ] {
            assert_eq!(group(quotas, 300).map(|group| group.to_string()).as_deref(), expected, "{quotas:?}");
        }
    }

    #[test]
    fn what_keeps_limits_from_working_has_its_remedy() {
        for (quotas, words) in [
            (Quotas::Full(Counts::Right), None),
            (Quotas::Simple, None),
            (Quotas::Off, Some("run btrfs quota enable /p, or")),
            (Quotas::Full(Counts::Wrong), Some("run btrfs quota rescan -w /p")),
            (Quotas::Full(Counts::Running), Some("wait, as btrfs quota rescan -w /p")),
        ] {
            let said = remedy(quotas, "/p");
            assert_eq!(said.is_some(), words.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(words.unwrap_or_default()));
        }
        assert!(remedy(Quotas::Off, "/p").unwrap().contains("btrfs quota enable --simple /p"));
    }

    #[test]
    fn volumes_without_a_whole_limit_are_counted_by_kind() {
        assert_eq!(remaining(0, 0), None);
        for (plain, nested, words) in [
            (2, 0, vec!["2 volumes are no"]),
            (0, 1, vec!["--simple"]),
            (2, 1, vec!["2 volumes are no", "1 volumes have"]),
        ] {
            let said = remaining(plain, nested).unwrap();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }

    #[test]
    fn members_go_before_their_group_and_what_still_counts_stays() {
        let used = |bytes| Usage { referenced: bytes, exclusive: bytes };
        let gone =
            [(Group::at(LEVEL, 300), used(0)), (Group::of(300), used(0)), (Group::at(LEVEL, 301), used(9))];
        let full = [&gone[..], &[(Group::of(301), used(9))]].concat();
        let stale: Vec<_> = stale(&full).iter().map(ToString::to_string).collect();
        assert_eq!(stale, ["0/300", "1000/300"], "what still counts stays");
    }
}
