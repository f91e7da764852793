//! The UUID of a file system: a copied one gets its own, or the kernel takes it for its original.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::mount::{FsOpenFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsopen};

use crate::command::run;
use crate::error::{Error, Result, failed};
use crate::filesystem::Kind;

const TIME: Duration = Duration::from_secs(3600);

/// Gives the file system on an unmounted device a new UUID. Cut short at any moment, it can be done again.
pub fn renew(kind: Kind, device: &File, path: &Path) -> Result<()> {
    let before = read(kind, device, path)?;
    match kind {
        Kind::Ext4 => renew_ext4(path)?,
        Kind::Xfs => {
            replay_xfs_log(path)?;
            // What xfs_admin does, which is a shell script. It refuses a log with changes in it.
            run("xfs_db", &arguments(&["-x", "-p", "xfs_admin", "-c", "uuid generate"], path), &[0], TIME)?;
        }
        // In the superblock alone; one that was cut short is finished by the next.
        Kind::Btrfs => run("btrfstune", &arguments(&["-f", "-m"], path), &[0], TIME)?,
    }
    // Not every version tells a failure by its exit code.
    if read(kind, device, path)? == before {
        return Err(Error::Unexpected { path: path.to_owned(), problem: "still has its old UUID".into() });
    }
    Ok(())
}

fn renew_ext4(device: &Path) -> Result<()> {
    run("e2fsck", &arguments(&["-f", "-p"], device), &[0, 1], TIME)?;
    // With a seed of their own the checksums stay as they are, so that nothing but the superblock changes.
    let seeded =
        run("tune2fs", &arguments(&["-O", "metadata_csum_seed", "-U", "random"], device), &[0], TIME);
    // A file system without checksums has no use for a seed.
    seeded.or_else(|_| run("tune2fs", &arguments(&["-U", "random"], device), &[0], TIME))
}

/// Lets the kernel work through the log. The file system is mounted nowhere, so that nothing is left should this die.
fn replay_xfs_log(device: &Path) -> Result<()> {
    let context = || failed("replay the log of", device);
    let fs = fsopen("xfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(context())?;
    fsconfig_set_string(&fs, "source", device).map_err(context())?;
    fsconfig_set_flag(&fs, "nouuid").map_err(context())?;
    fsconfig_create(&fs).map_err(context())
}

fn read(kind: Kind, device: &File, path: &Path) -> Result<[u8; 16]> {
    let at = match kind {
        Kind::Ext4 => 1024 + 0x68,
        Kind::Xfs => 32,
        Kind::Btrfs => (64 << 10) + 0x20,
    };
    let mut uuid = [0; 16];
    device.read_exact_at(&mut uuid, at).map_err(failed("read", path))?;
    Ok(uuid)
}

fn arguments<'a>(args: &[&'a str], device: &'a Path) -> Vec<&'a OsStr> {
    args.iter().map(|arg| OsStr::new(*arg)).chain([device.as_os_str()]).collect()
}
