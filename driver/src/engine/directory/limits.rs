//! Hard limits for directories: a project of the pool's file system for each volume.
//!
//! A volume's project is an attribute of its directory, so it is found again wherever the disk goes.

use std::sync::{Mutex, PoisonError};

use dunnage_host::dir::Dir;
use dunnage_host::quota::{self, ProjectUsage};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::remedy::{Remedy, project_quota};

/// Projects are taken from here up, out of the way of those that people and other programs number from 1.
const FIRST: u32 = 0x4000_0000;

/// So many projects taken by others in a row are no accident.
const TRIES: u32 = 64;

/// Choosing a project and taking it is one step.
static CHOOSING: Mutex<()> = Mutex::new(());

/// Gives the empty data directory of a volume its limit, if the file system keeps to such.
pub(super) fn set(data: &Dir, id: &VolumeId, bytes: u64) -> Result<()> {
    if !quota::is_enforced(data)? {
        return Ok(());
    }
    let _one = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
    for number in 0..TRIES {
        let project = candidate(id, number);
        // A directory counts as an inode of its project, so a project without inodes is nobody's.
        if quota::usage(data, project)?.inodes == 0 {
            quota::limit(data, project, bytes)?;
            quota::join(data, project)?;
            return Ok(());
        }
    }
    Err(Error::Precondition(format!(
        "no free project for the limit of volume {id} was found on the pool's file system"
    )))
}

/// Changes the limit of a volume that has one, at once; 0 lifts it.
pub(super) fn change(data: &Dir, bytes: u64) -> Result<()> {
    match quota::project_of(data)? {
        Some(project) if quota::is_enforced(data)? => Ok(quota::limit(data, project, bytes)?),
        _ => Ok(()),
    }
}

/// What a volume with a limit takes up; none for one without.
pub(super) fn usage(data: &Dir) -> Result<Option<ProjectUsage>> {
    match quota::project_of(data)? {
        Some(project) if quota::is_enforced(data)? => Ok(Some(quota::usage(data, project)?)),
        _ => Ok(None),
    }
}

/// Why volumes made on this file system can outgrow their size, and what to do; none when they cannot.
pub(super) fn obstacle(pool: &Dir, filesystem: &str) -> Result<Option<String>> {
    Ok(if quota::is_enforced(pool)? { None } else { Some(unlimited(filesystem, pool)) })
}

/// What is to be said of volumes that were made when the file system kept to no limits.
pub(super) fn remaining(volumes: usize) -> Option<String> {
    (volumes > 0).then(|| {
        format!(
            "{volumes} volumes were made before the pool's file system kept to limits and have none: copy their data \
             into new claims"
        )
    })
}

fn unlimited(filesystem: &str, pool: &Dir) -> String {
    let Remedy { problem, remedy } = project_quota(filesystem);
    format!(
        "sizes of Directory volumes are accounted for but not enforced: the {filesystem} file system of {} {problem}; \
         {remedy}, with a kernel (5.14 or later) that has quota support, or use type LoopFile",
        pool.path().display()
    )
}

/// The project to try for a volume.
fn candidate(id: &VolumeId, number: u32) -> u32 {
    let hash = Sha256::new().chain_update(id.as_str()).chain_update(number.to_be_bytes()).finalize();
    let value = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
    FIRST | value >> 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_differ_by_volume_and_number_and_stay_in_their_range() {
        let pool = "0123456789abcdef".parse().unwrap();
        let (a, b) = (VolumeId::make(&pool, "a"), VolumeId::make(&pool, "b"));
        let all = [candidate(&a, 0), candidate(&a, 1), candidate(&b, 0), candidate(&b, 1)];
        assert!(all.iter().all(|project| (FIRST..0x8000_0000).contains(project)), "{all:?}");
        let unique: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(unique.len(), all.len());
        assert_eq!(candidate(&a, 0), all[0]);
    }

    #[test]
    fn what_is_not_enforced_is_told_with_the_pool_and_both_remedies() {
        let scratch = tempfile::tempdir().unwrap();
        let pool = Dir::open(scratch.path()).unwrap();
        let text = unlimited("ext4", &pool);
        let path = scratch.path().display().to_string();
        assert!(text.contains(&path) && text.contains("tune2fs") && text.contains("LoopFile"), "{text}");
    }
}
