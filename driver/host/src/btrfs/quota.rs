//! Quotas of btrfs: groups of subvolumes, with what each takes up and may take up.
//!
//! A file system counts in one of two ways. Full quotas count for each subvolume what it refers to. Simple quotas (Linux
//! 6.7) count for each what was written there first, until the last that refers to it is gone.

use std::fmt;

use rustix::io::Errno;

use super::search::{Item, Range, search};
use crate::dir::Dir;
use crate::error::{Result, failed};
use crate::sys::btrfs as sys;

const QUOTA_TREE: u64 = 8;
const STATUS: u32 = 240;
const USAGE: u32 = 242;
const LIMIT: u32 = 244;

/// How the file system counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quotas {
    Off,
    Full(Counts),
    Simple,
}

/// What the numbers of full quotas are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    Right,
    /// The file system counts anew just now.
    Running,
    /// They are not, until somebody makes it count anew.
    Wrong,
}

/// A quota group. Those of level 0 are the subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u64);

/// What a group takes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that it refers to.
    pub referenced: u64,
    /// Bytes that nothing else refers to.
    pub exclusive: u64,
}

impl Group {
    const LEVEL_SHIFT: u32 = 48;

    /// The group of one subvolume.
    pub const fn of(subvolume: u64) -> Self {
        Self(subvolume)
    }

    /// The group of this level and number.
    pub const fn at(level: u16, number: u64) -> Self {
        Self((level as u64) << Self::LEVEL_SHIFT | number)
    }

    pub const fn level(self) -> u16 {
        (self.0 >> Self::LEVEL_SHIFT) as u16
    }

    pub const fn number(self) -> u64 {
        self.0 & ((1 << Self::LEVEL_SHIFT) - 1)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level(), self.number())
    }
}

/// How the file system of a directory counts.
pub fn quotas(dir: &Dir) -> Result<Quotas> {
    let mut flags = None;
    let range = Range { tree: QUOTA_TREE, objects: (0, 0), kind: STATUS, offsets: (0, 0) };
    search(dir, range, |item| flags = Some(item.number(2)))?;
    Ok(flags.map_or(Quotas::Off, judge))
}

/// What the flags of a status say.
fn judge(flags: u64) -> Quotas {
    const ON: u64 = 1;
    const RESCAN: u64 = 2;
    const INCONSISTENT: u64 = 4;
    const SIMPLE: u64 = 8;
    let has = |flag| flags & flag != 0;
    if !has(ON) {
        Quotas::Off
    } else if has(SIMPLE) {
        Quotas::Simple
    } else if has(RESCAN) {
        Quotas::Full(Counts::Running)
    } else if has(INCONSISTENT) {
        Quotas::Full(Counts::Wrong)
    } else {
        Quotas::Full(Counts::Right)
    }
}

/// What each group takes up, as of the last time that the file system wrote it down.
pub fn usages(dir: &Dir) -> Result<Vec<(Group, Usage)>> {
    let mut usages = Vec::new();
    let all = Range { tree: QUOTA_TREE, objects: (0, 0), kind: USAGE, offsets: (0, u64::MAX) };
    search(dir, all, |item| usages.push((Group(item.offset), usage_in(item))))?;
    Ok(usages)
}

/// What one group takes up; `None` when there is no such group.
pub fn usage(dir: &Dir, group: Group) -> Result<Option<Usage>> {
    let mut usage = None;
    let one = Range { tree: QUOTA_TREE, objects: (0, 0), kind: USAGE, offsets: (group.0, group.0) };
    search(dir, one, |item| usage = Some(usage_in(item)))?;
    Ok(usage)
}

/// After the generation come what is referred to, the same compressed, and what is exclusive.
fn usage_in(item: Item<'_>) -> Usage {
    Usage { referenced: item.number(1), exclusive: item.number(3) }
}

/// What a group may refer to; `None` when it has no limit, or is not there.
pub fn limit_of(dir: &Dir, group: Group) -> Result<Option<u64>> {
    let mut limit = None;
    let one = Range { tree: QUOTA_TREE, objects: (0, 0), kind: LIMIT, offsets: (group.0, group.0) };
    search(dir, one, |item| limit = limit_in(item))?;
    Ok(limit)
}

/// The flags say which limits are set, and the first of them is on what is referred to.
fn limit_in(item: Item<'_>) -> Option<u64> {
    (item.number(0) & 1 != 0).then(|| item.number(1))
}

/// Limits what a group may refer to, all bits being no limit; at once, but durable only with the file system.
pub fn limit(dir: &Dir, group: Group, bytes: u64) -> Result<()> {
    sys::quota_group_limit(dir, group.0, bytes).map_err(failed("set a quota of", dir.path()))
}

/// Takes the limit from a group.
pub fn lift(dir: &Dir, group: Group) -> Result<()> {
    limit(dir, group, u64::MAX)
}

/// Makes a group, if it is not there.
pub fn make(dir: &Dir, group: Group) -> Result<()> {
    match sys::quota_group_create(dir, true, group.0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(failed("make a quota group for", dir.path())(error)),
    }
}

/// Makes a group a member of another of a higher level, if it is not. With simple quotas, subvolumes made in a member are
/// members, too.
pub fn join(dir: &Dir, member: Group, group: Group) -> Result<()> {
    match sys::quota_group_assign(dir, member.0, group.0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(failed("join the quota groups of", dir.path())(error)),
    }
}

/// Removes a group; `false` when the file system still needs it.
pub fn remove(dir: &Dir, group: Group) -> Result<bool> {
    match sys::quota_group_create(dir, false, group.0) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        Err(error) => Err(failed("remove a quota group of", dir.path())(error)),
    }
}

/// Switches quotas on, as `btrfs quota enable` does; releases of it before 6.7 know no simple ones.
pub fn switch_on(dir: &Dir, simple: bool) -> Result<()> {
    const FULL: u64 = 1;
    const SIMPLE: u64 = 4;
    sys::quota_control(dir, if simple { SIMPLE } else { FULL })
        .map_err(failed("switch on the quotas of", dir.path()))
}

/// Switches quotas off; limits and groups are lost.
pub fn switch_off(dir: &Dir) -> Result<()> {
    const OFF: u64 = 2;
    sys::quota_control(dir, OFF).map_err(failed("switch off the quotas of", dir.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(data: &[u8]) -> Item<'_> {
        Item { object: 0, kind: 0, offset: 0, data }
    }

    #[test]
    fn the_flags_tell_how_it_counts() {
        for (flags, expected) in [
            (0, Quotas::Off),
            (4, Quotas::Off),
            (1, Quotas::Full(Counts::Right)),
            (1 | 4, Quotas::Full(Counts::Wrong)),
            (1 | 2 | 4, Quotas::Full(Counts::Running)),
            (1 | 2, Quotas::Full(Counts::Running)),
            (1 | 8, Quotas::Simple),
        ] {
            assert_eq!(judge(flags), expected, "{flags}");
        }
    }

    #[test]
    fn groups_have_a_level_and_a_number() {
        for (group, level, number, text) in [
            (Group::of(257), 0, 257, "0/257"),
            (Group::at(0, 257), 0, 257, "0/257"),
            (Group::at(1000, 257), 1000, 257, "1000/257"),
            (Group::at(u16::MAX, 1), u16::MAX, 1, "65535/1"),
        ] {
            assert_eq!((group.level(), group.number(), group.to_string()), (level, number, text.to_owned()));
        }
    }

    #[test]
    fn usage_and_limit_are_read_from_their_places() {
        let data =
            |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let usage = data(&[9, 100, 101, 40, 41]);
        assert_eq!(usage_in(item(&usage)), Usage { referenced: 100, exclusive: 40 });
        for (numbers, expected) in [
            ([1, 70, 0, 0, 0], Some(70)),
            ([0, 70, 0, 0, 0], None),
            ([2, 0, 70, 0, 0], None),
            ([3, 7, 8, 0, 0], Some(7)),
        ] {
            let limit = data(&numbers);
            assert_eq!(limit_in(item(&limit)), expected, "{numbers:?}");
        }
    }
}
