//! Recursive removal that stays in the tree, whatever was planted there and however deep it goes.

use std::ffi::OsStr;
use std::path::Path;

use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;

use super::{Dir, Mounts};
use crate::btrfs;
use crate::error::{Error, Result, failed};

/// Deeper directories are first moved up, so that neither the stack nor the open files grow with the tree.
const DEPTH: usize = 32;

/// Where directories that lie deep go before they are removed: the directory, and what their names begin with.
struct Top<'a> {
    dir: &'a Dir,
    name: &'a str,
    moved: usize,
}

impl Dir {
    /// Removes an entry and all below it. Symlinks are removed, never followed; a mount is an error. A subvolume of btrfs
    /// goes as a whole, for one that is read-only cannot be emptied.
    pub fn remove_tree(&self, name: &str) -> Result<()> {
        let mut top = Top { dir: self, name, moved: 0 };
        remove(self, OsStr::new(name), Some(&mut top), DEPTH)?;
        // Each round may move more of them up.
        let mut next = 0;
        while next < top.moved {
            let deep = deep_name(name, next);
            remove(self, OsStr::new(&deep), Some(&mut top), DEPTH)?;
            next += 1;
        }
        self.sync()
    }

    /// Removes an entry, whose name need not be text, and all below it, which is not deeper than so many directories.
    /// Nothing is moved meanwhile. Not durable by itself.
    pub(super) fn remove_shallow(&self, name: &OsStr, depth: usize) -> Result<()> {
        remove(self, name, None, depth)
    }
}

fn deep_name(name: &str, number: usize) -> String {
    format!("{name}.deep-{number}")
}

fn remove(parent: &Dir, name: &OsStr, mut top: Option<&mut Top<'_>>, depth: usize) -> Result<()> {
    let removing = || failed("remove", parent.path.join(name));
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Directories give one or the other, by file system.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(removing()(error)),
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(error) => return Err(removing()(error)),
    }
    if depth == 0 {
        let Some(top) = top else {
            let problem = "lies deeper than what is removed here: remove it by hand".into();
            return Err(Error::Unexpected { path: parent.path.join(name), problem });
        };
        // A name that a removal cut short left behind is passed over.
        loop {
            let deep = deep_name(top.name, top.moved);
            top.moved += 1;
            if !top.dir.has(&deep)? {
                return renameat(parent, name, top.dir, deep.as_str()).map_err(removing());
            }
        }
    }
    let dir = parent.dir(Path::new(name), Mounts::Refuse)?;
    if let Some(subvolume) = btrfs::subvolume_at(&dir)? {
        // While it is open, none of its space comes back.
        drop(dir);
        return btrfs::destroy(parent, subvolume);
    }
    loop {
        let removed = empty(&dir, top.as_deref_mut(), depth - 1)?;
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(()),
            // A directory that changes while it is listed may have passed over some of its entries.
            Err(Errno::NOTEMPTY | Errno::EXIST) if removed > 0 => {}
            Err(error) => return Err(removing()(error)),
        }
    }
}

/// Removes the entries of a directory, and tells how many it met.
fn empty(dir: &Dir, mut top: Option<&mut Top<'_>>, depth: usize) -> Result<usize> {
    let mut met = 0;
    dir.each(|name| {
        met += 1;
        remove(dir, name, top.as_deref_mut(), depth)
    })?;
    Ok(met)
}
