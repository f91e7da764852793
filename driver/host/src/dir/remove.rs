//! Recursive removal that stays in the tree, whatever was planted there and however deep it goes.

use std::ffi::OsStr;
use std::path::Path;

use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;

use super::{Dir, Mounts};
use crate::btrfs;
use crate::error::{Result, failed};

/// Deeper directories are first moved up, so that neither the stack nor the open files grow with the tree.
const DEPTH: usize = 32;

impl Dir {
    /// Removes an entry and all below it. Symlinks are removed, never followed; a mount is an error. A subvolume of btrfs
    /// goes as a whole, for one that is read-only cannot be emptied.
    pub fn remove_tree(&self, name: &str) -> Result<()> {
        let mut moved = 0;
        remove(self, OsStr::new(name), self, name, DEPTH, &mut moved)?;
        // Each round may move more of them up.
        let mut next = 0;
        while next < moved {
            let deep = deep_name(name, next);
            remove(self, OsStr::new(&deep), self, name, DEPTH, &mut moved)?;
            next += 1;
        }
        self.sync()
    }
}

fn deep_name(name: &str, number: usize) -> String {
    format!("{name}.deep-{number}")
}

fn remove(
    parent: &Dir,
    name: &OsStr,
    top: &Dir,
    top_name: &str,
    depth: usize,
    moved: &mut usize,
) -> Result<()> {
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
        // A name that a removal cut short left behind is passed over.
        loop {
            let deep = deep_name(top_name, *moved);
            *moved += 1;
            if !top.has(&deep)? {
                return renameat(parent, name, top, deep.as_str()).map_err(removing());
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
        let removed = empty(&dir, top, top_name, depth - 1, moved)?;
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(()),
            // A directory that changes while it is listed may have passed over some of its entries.
            Err(Errno::NOTEMPTY | Errno::EXIST) if removed > 0 => {}
            Err(error) => return Err(removing()(error)),
        }
    }
}

/// Removes the entries of a directory, and tells how many it met.
fn empty(dir: &Dir, top: &Dir, top_name: &str, depth: usize, moved: &mut usize) -> Result<usize> {
    let mut met = 0;
    dir.each(|name| {
        met += 1;
        remove(dir, name, top, top_name, depth, moved)
    })?;
    Ok(met)
}
