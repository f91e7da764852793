//! What volumes have in common whose data are a directory of the pool's own file system: there is nothing to attach and
//! nothing to mount but that directory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use dunnage_csi::mount_options::On;
use dunnage_host::dir::{Dir, Mounts};
use dunnage_host::mount::on_filesystem;
use dunnage_host::mountinfo::{self, Mount};

use crate::capability::Capability;
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::store::Volume;

/// The directory that pods get to see.
pub(super) const DATA: &str = "data";

pub(super) fn data(volume: &Volume) -> Result<Dir> {
    data_in(&volume.dir)
}

/// The data in the directory of a volume or of a snapshot.
pub(super) fn data_in(dir: &Dir) -> Result<Dir> {
    Ok(dir.dir(DATA, Mounts::Refuse)?)
}

/// Refuses what a directory in a pool of this type cannot be.
pub(super) fn check(kind: &str, capability: &Capability) -> Result<()> {
    if capability.block {
        return Err(Error::Invalid(format!(
            "block volumes are not possible with type {kind}: use volumeMode Filesystem, or type LoopFile"
        )));
    }
    if !capability.fs_type.is_empty() {
        return Err(Error::Invalid(format!(
            "fs type {:?} is not possible: a {kind} volume lies on the pool's own file system, so leave \
             csi.storage.k8s.io/fstype out, or use type LoopFile",
            capability.fs_type
        )));
    }
    capability.check_options(On::Pool)
}

/// All mounts of the volume's data or of parts of it.
pub(super) fn mounts(volume: &Volume) -> Result<Vec<Mount>> {
    let home = Home::of(volume)?;
    Ok(mountinfo::read()?.into_iter().filter(|mount| home.has(mount)).collect())
}

/// Those of some volumes that pods can use. Nobody publishes them meanwhile, so that the others stay as they are.
pub(super) fn used<'a>(group: &[(&'a Volume, &Dir)]) -> Result<Vec<&'a VolumeId>> {
    let mounted = mountinfo::read()?;
    let mut used = Vec::new();
    for (volume, _) in group {
        let home = Home::of(volume)?;
        if mounted.iter().any(|mount| home.has(mount)) {
            used.push(volume.id());
        }
    }
    Ok(used)
}

/// Whether one of those is of all data.
pub(super) fn is_whole(volume: &Volume, mount: &Mount) -> bool {
    Home::of(volume).is_ok_and(|home| home.has(mount) && mount.root == home.path)
}

/// Where the data lie, whatever of that file system is mounted where.
struct Home {
    device: (u32, u32),
    path: PathBuf,
}

impl Home {
    fn of(volume: &Volume) -> Result<Self> {
        let (device, path) = on_filesystem(&data(volume)?)?;
        Ok(Self { device, path })
    }

    fn has(&self, mount: &Mount) -> bool {
        mount.device == self.device && mount.root.starts_with(&self.path)
    }
}

/// Counts the publishes of all volumes, so that a copy knows whether there was one meanwhile.
#[derive(Debug, Default)]
pub(super) struct Published(AtomicU64);

impl Published {
    pub(super) fn note(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Does something with a volume, and tells whether a pod can have used it meanwhile.
    pub(super) fn watch<T>(&self, volume: &Volume, work: impl FnOnce() -> Result<T>) -> Result<(T, bool)> {
        let count = || self.0.load(Ordering::SeqCst);
        let before = count();
        let used = !mounts(volume)?.is_empty();
        let done = work()?;
        Ok((done, used || count() != before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_volume_and_of_its_parts_are_told_from_others() {
        let home = Home { device: (8, 1), path: "/pool/volumes/id/data".into() };
        for (device, root, expected) in [
            ((8, 1), "/pool/volumes/id/data", true),
            ((8, 1), "/pool/volumes/id/data/sub", true),
            ((8, 2), "/pool/volumes/id/data", false),
            ((8, 1), "/copy/pool/volumes/id/data", false),
            ((8, 1), "/pool/volumes/other/data", false),
            ((8, 1), "/pool/volumes/id/database", false),
            ((8, 1), "/", false),
        ] {
            let mount = Mount {
                id: 1,
                device,
                root: root.into(),
                mount_point: "/pod".into(),
                read_only: false,
                filesystem: "ext4".into(),
                source: "/dev/sda1".into(),
            };
            assert_eq!(home.has(&mount), expected, "{device:?} {root}");
        }
    }

    #[test]
    fn a_file_system_of_its_own_and_its_options_are_refused_with_the_remedy() {
        let capability = |fs_type: &str, option: &str| Capability {
            fs_type: fs_type.into(),
            options: dunnage_host::options::parse([option]),
            access: crate::capability::Access::Shared,
            block: false,
        };
        for kind in ["Directory", "Btrfs"] {
            assert!(check(kind, &capability("", "noatime,ro")).is_ok());
            let block = Capability { block: true, ..capability("", "") };
            for (refused, words) in [
                (capability("ext4", ""), ["ext4", "LoopFile", kind]),
                (block, ["volumeMode Filesystem", "LoopFile", kind]),
                (capability("", "data=journal"), ["data", "noatime", "pool"]),
            ] {
                let refusal = check(kind, &refused).unwrap_err().to_string();
                assert!(words.iter().all(|word| refusal.contains(word)), "{refusal}");
            }
        }
    }
}
