//! Project quota: a limit on all that lies in a directory, kept to by the file system itself (ext4, xfs).
//!
//! A project is a number that a directory has and everything made in it takes over. It lies on the disk with the file, so
//! nothing has to be kept of it elsewhere.

use rustix::io::Errno;

use crate::dir::Dir;
use crate::error::{Result, failed};
use crate::sys;

/// Quota calls count in these bytes.
const UNIT: u64 = 1024;

/// What a project takes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectUsage {
    /// The limit in bytes; 0 is none.
    pub limit: u64,
    pub bytes: u64,
    pub inodes: u64,
}

/// Whether the file system of a directory keeps to the limits of projects. `false` also where kernel or file system know
/// nothing of them.
pub fn is_enforced(dir: &Dir) -> Result<bool> {
    match sys::quota_state(dir) {
        Ok(state) => Ok(state.flags & sys::PROJECT_ENFORCED != 0),
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NODEV | Errno::SRCH | Errno::INVAL | Errno::NOTBLK) => {
            Ok(false)
        }
        Err(error) => Err(failed("ask for the quota of", dir.path())(error)),
    }
}

/// The project of a directory; `None` when it is in none.
pub fn project_of(dir: &Dir) -> Result<Option<u32>> {
    match sys::file_attributes(dir) {
        Ok(attributes) => Ok(Some(attributes.project).filter(|project| *project != 0)),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(error) => Err(failed("look at the project of", dir.path())(error)),
    }
}

/// Puts an empty directory, and all that will be made in it, into a project.
pub fn join(dir: &Dir, project: u32) -> Result<()> {
    let mut attributes = sys::file_attributes(dir).map_err(failed("look at the project of", dir.path()))?;
    attributes.project = project;
    attributes.flags |= sys::PROJECT_INHERIT;
    sys::set_file_attributes(dir, attributes).map_err(failed("set the project of", dir.path()))
}

/// Sets how many bytes a project may take up on the file system of `dir`, in whole KiB; 0 lifts the limit. It is also the
/// size that `statfs`, and so `df`, tells of a directory in the project.
pub fn limit(dir: &Dir, project: u32, bytes: u64) -> Result<()> {
    let block = sys::QuotaBlock::of_limit(bytes.div_ceil(UNIT));
    sys::set_project_quota(dir, project, block).map_err(failed("set the quota of", dir.path()))
}

/// What a project takes up on the file system of `dir`.
pub fn usage(dir: &Dir, project: u32) -> Result<ProjectUsage> {
    match sys::project_quota(dir, project) {
        Ok(block) => Ok(ProjectUsage {
            limit: block.hard_limit.saturating_mul(UNIT),
            bytes: block.bytes,
            inodes: block.inodes,
        }),
        Err(Errno::NOENT) => Ok(ProjectUsage::default()),
        Err(error) => Err(failed("ask for the quota of", dir.path())(error)),
    }
}
