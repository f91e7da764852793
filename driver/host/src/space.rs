//! Space: how much a file system has, and taking some of it for a file.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs, ftruncate};

use crate::error::{Result, failed};

/// What a file system has, in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    /// What an unprivileged user may still take.
    pub available: u64,
    pub used: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// Asks the file system that an open file or directory lies on.
pub fn of(fd: impl AsFd, path: &Path) -> Result<Space> {
    let found = fstatvfs(fd).map_err(failed("tell the space of", path))?;
    Ok(Space {
        total: found.f_blocks.saturating_mul(found.f_frsize),
        available: found.f_bavail.saturating_mul(found.f_frsize),
        used: found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize),
        inodes: found.f_files,
        inodes_free: found.f_ffree,
    })
}

/// Whether a file has holes, into which a write could find no room.
pub fn has_holes(file: &File, path: &Path) -> Result<bool> {
    const UNIT: u64 = 512;
    let metadata = file.metadata().map_err(failed("look at", path))?;
    Ok(metadata.blocks().saturating_mul(UNIT) < metadata.len())
}

/// Gives a file at least this size, with all of its blocks taken now; what they hold stays.
pub fn allocate(file: &File, bytes: u64, path: &Path) -> Result<()> {
    fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(failed("take the space of", path))
}

/// Takes the blocks of a file up to this size, beyond its end too, which stays where it is. Beyond it, all or nothing.
pub fn take(file: &File, bytes: u64, path: &Path) -> Result<()> {
    let length = file.metadata().map_err(failed("look at", path))?.len();
    fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes).map_err(|error| {
        let _ = ftruncate(file, length);
        failed("take the space of", path)(error)
    })
}

/// Gives back what a file has taken beyond its end, if that is worth the trouble.
pub fn give_back(file: &File, path: &Path) -> Result<()> {
    const UNIT: u64 = 512;
    const WORTH: u64 = 1 << 20;
    /// The file system's own blocks for a file are counted as the file's.
    const OVERHEAD_PARTS: u64 = 1024;
    let metadata = file.metadata().map_err(failed("look at", path))?;
    let length = metadata.len();
    if metadata.blocks().saturating_mul(UNIT) < length + length / OVERHEAD_PARTS + WORTH {
        return Ok(());
    }
    ftruncate(file, length).map_err(failed("give back space of", path))
}

/// Makes a file larger without taking space.
pub fn extend(file: &File, bytes: u64, path: &Path) -> Result<()> {
    let length = file.metadata().map_err(failed("look at", path))?.len();
    if length >= bytes { Ok(()) } else { ftruncate(file, bytes).map_err(failed("make larger", path)) }
}

/// Makes a file's content and size durable.
pub fn sync(file: &File, path: &Path) -> Result<()> {
    file.sync_all().map_err(failed("sync", path))
}
