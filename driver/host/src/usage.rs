//! What a directory tree takes up, counted by walking it.

use std::ffi::OsStr;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;

use crate::dir::{Dir, Mounts};
use crate::error::{Result, failed};

/// What a tree takes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Directories deeper than this are not counted: the walk holds one open directory a level.
const DEPTH: usize = 128;

/// Counts a tree that others change meanwhile. Follows no symlink and crosses no mount.
pub fn measure(dir: &Dir) -> Result<Usage> {
    let mut usage = Usage::default();
    add(&mut usage, dir.stat()?.st_blocks);
    walk(dir, DEPTH, &mut usage)?;
    Ok(usage)
}

fn walk(dir: &Dir, depth: usize, usage: &mut Usage) -> Result<()> {
    dir.each(|name| {
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed("look at", dir.path().join(name))(error)),
        };
        // A file with several names is counted by parts, one a name, for which no name has to be remembered.
        let names = i64::try_from(stat.st_nlink).unwrap_or(1).max(1);
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let parts = if is_dir { 1 } else { names };
        add(usage, (stat.st_blocks + parts - 1) / parts);
        if is_dir && depth > 0 {
            descend(dir, name, depth - 1, usage)?;
        }
        Ok(())
    })
}

fn descend(dir: &Dir, name: &OsStr, depth: usize, usage: &mut Usage) -> Result<()> {
    match dir.dir(Path::new(name), Mounts::Refuse) {
        Ok(child) => walk(&child, depth, usage),
        // Removed or replaced meanwhile, or a mount.
        Err(error)
            if matches!(error.errno(), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV)) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn add(usage: &mut Usage, blocks: i64) {
    usage.bytes += u64::try_from(blocks).unwrap_or_default() * 512;
    usage.inodes += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_counted_without_what_its_links_point_at_and_a_file_once() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("a")).unwrap();
        std::fs::write(scratch.path().join("a/file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/usr", scratch.path().join("a/link")).unwrap();
        for name in ["other", "a/third"] {
            std::fs::hard_link(scratch.path().join("a/file"), scratch.path().join(name)).unwrap();
        }
        let usage = measure(&Dir::open(scratch.path()).unwrap()).unwrap();
        assert_eq!(usage.inodes, 6);
        assert!((1 << 20..2 << 20).contains(&usage.bytes), "{usage:?}");
    }
}
