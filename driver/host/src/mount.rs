//! Mounts, made and undone through directory handles so that no path is resolved twice.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fstatvfs, mkdirat,
    openat, readlink, statx, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_remount, move_mount,
    open_tree, unmount,
};

use crate::dir::{Dir, Mounts, below};
use crate::error::{Error, Result, failed};
use crate::mountinfo::{self, Mount};
use crate::options::Options;
use crate::sys::mount::set_attributes;

/// How often and how long to wait for a mount that is still in use: a process that just died holds it a little longer.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// A place to mount something on: the open parent directory and a name in it.
#[derive(Debug)]
pub struct Place {
    parent: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl Place {
    /// The place that `path` names below `base`, symlinks nowhere in between. `None` when its parent is not there.
    pub fn find(base: &Dir, path: &Path) -> Result<Option<Self>> {
        let rest = below(base.path(), path).ok_or_else(|| Error::Unexpected {
            path: path.to_owned(),
            problem: format!("is not a plain path below {}", base.path().display()),
        })?;
        let name = rest.file_name().unwrap_or_default().to_owned();
        let parent = match rest.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        match base.open_at(parent, OFlags::PATH | OFlags::DIRECTORY, Mounts::Cross) {
            Ok(parent) => Ok(Some(Self { parent, name, path: path.to_owned() })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is mounted here, if anything is; the topmost of several.
    pub fn mounted(&self) -> Result<Option<Mount>> {
        let mask = StatxFlags::TYPE | StatxFlags::MNT_ID;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let found = match statx(&self.parent, &self.name, flags, mask) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed("look at", &self.path)(error)),
        };
        if !found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Ok(None);
        }
        let mount = mountinfo::read()?.into_iter().find(|mount| mount.id == found.stx_mnt_id);
        mount.map(Some).ok_or_else(|| Error::Unexpected {
            path: self.path.clone(),
            problem: "is a mount point that the kernel does not list".into(),
        })
    }

    /// Makes the directory to mount on, if it is not there.
    pub fn make(&self) -> Result<()> {
        match mkdirat(&self.parent, &self.name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(failed("make", &self.path)(error)),
        }
    }

    /// Makes the file to mount a device on, if nothing is there.
    pub fn make_file(&self) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.parent, &self.name, flags, Mode::from_raw_mode(0o640)) {
            Ok(_) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(failed("make", &self.path)(error)),
        }
    }

    /// Removes the empty directory or file that was mounted on.
    pub fn remove(&self) -> Result<()> {
        match unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTDIR) => self.remove_file(),
            Err(error) => Err(failed("remove", &self.path)(error)),
        }
    }

    /// Nothing but what [`Self::make_file`] makes.
    fn remove_file(&self) -> Result<()> {
        let mask = StatxFlags::TYPE | StatxFlags::SIZE;
        let found = match statx(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW, mask) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed("look at", &self.path)(error)),
        };
        let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        if !is_file || found.stx_size > 0 {
            let problem = "is no empty file, so it is left alone".to_owned();
            return Err(Error::Unexpected { path: self.path.clone(), problem });
        }
        match unlinkat(&self.parent, &self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("remove", &self.path)(error)),
        }
    }

    /// The directory itself, or what is mounted on it. While it is open it cannot be unmounted.
    pub fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.parent, &self.name, flags, Mode::empty()).map_err(failed("open", &self.path))
    }

    /// Mounts the directory or device node behind `source` here as well, without what is mounted below it; other mounts of
    /// the same file system keep their flags. What the administrator forbade on the source stays forbidden.
    ///
    /// The flags are set before it is mounted, for then they hold wherever the mount propagates to, such as to kubelet.
    pub fn bind(&self, source: impl AsFd, options: &Options) -> Result<()> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(source, "", flags).map_err(failed("bind to", &self.path))?;
        if options.is_plain() {
            return self.attach(&tree);
        }
        match set_attributes(&tree, options.changes()) {
            Ok(()) => self.attach(&tree),
            // Before Linux 5.12: the flags hold in this mount namespace alone.
            Err(Errno::NOSYS) => {
                self.attach(&tree)?;
                self.remount(options)
            }
            Err(error) => Err(failed("set the options of", &self.path)(error)),
        }
    }

    fn remount(&self, options: &Options) -> Result<()> {
        let context = || failed("set the options of", &self.path);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mounted = openat(&self.parent, &self.name, flags, Mode::empty()).map_err(context())?;
        let inherited = fstatvfs(&mounted).map_err(context())?.f_flag;
        let mut flags = options.remount();
        for (has, flag) in [
            (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
            (StatVfsMountFlags::NODEV, MountFlags::NODEV),
            (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        ] {
            flags.set(flag, flags.contains(flag) || inherited.contains(has));
        }
        mount_remount(through_proc(&mounted, None), flags, "").map_err(context())
    }

    /// Mounts the file system on a block device here.
    pub fn mount(&self, device: &Path, filesystem: &'static str, options: &Options) -> Result<()> {
        let context = || failed("mount a file system on", &self.path);
        let fs = fsopen(filesystem, FsOpenFlags::FSOPEN_CLOEXEC).map_err(context())?;
        fsconfig_set_string(&fs, "source", device).map_err(context())?;
        for (key, value) in &options.filesystem {
            let set = match value {
                Some(value) => fsconfig_set_string(&fs, key.as_str(), value.as_str()),
                None => fsconfig_set_flag(&fs, key.as_str()),
            };
            set.map_err(|error| Error::Unexpected {
                path: self.path.clone(),
                problem: format!("{filesystem} does not take the mount option {key:?}: {error}"),
            })?;
        }
        fsconfig_create(&fs).map_err(context())?;
        let attributes: MountAttrFlags = options.attributes();
        let tree = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(context())?;
        self.attach(&tree)
    }

    fn attach(&self, tree: &OwnedFd) -> Result<()> {
        move_mount(tree, "", &self.parent, &self.name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(failed("mount on", &self.path))
    }

    /// Unmounts everything that is mounted here; it is no error when nothing is.
    pub fn unmount(&self) -> Result<()> {
        let mut tries = 0;
        while self.mounted()?.is_some() {
            match unmount(through_proc(&self.parent, Some(&self.name)), UnmountFlags::NOFOLLOW) {
                Ok(()) => tries = 0,
                Err(Errno::BUSY) if tries < BUSY_TRIES => {
                    tries += 1;
                    sleep(BUSY_PAUSE);
                }
                Err(error) => return Err(failed("unmount", &self.path)(error)),
            }
        }
        Ok(())
    }
}

/// The path by which calls that take no handle reach one.
fn through_proc(fd: &OwnedFd, name: Option<&OsStr>) -> PathBuf {
    let mut path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    path.extend(name);
    path
}

/// The mount that a directory lies on, and whether the directory is its root.
pub fn mount_of(dir: &Dir) -> Result<(Mount, bool)> {
    let looked = statx(dir, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::MNT_ID)
        .map_err(failed("look at", dir.path()))?;
    let is_root = looked.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let mount = mountinfo::read()?.into_iter().find(|mount| mount.id == looked.stx_mnt_id);
    mount.map(|mount| (mount, is_root)).ok_or_else(|| Error::Unexpected {
        path: dir.path().to_owned(),
        problem: "lies on a mount that the kernel does not list".into(),
    })
}

/// The file system that a directory lies on, and the directory's path on it, whatever part of it is mounted where.
pub fn on_filesystem(dir: &Dir) -> Result<((u32, u32), PathBuf)> {
    let (mount, _) = mount_of(dir)?;
    let link = PathBuf::from(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()));
    let path = readlink(&link, Vec::new()).map_err(failed("tell the path of", dir.path()))?;
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    match path.strip_prefix(&mount.mount_point) {
        Ok(rest) => Ok((mount.device, mount.root.join(rest))),
        Err(_) => Err(Error::Unexpected {
            path: dir.path().to_owned(),
            problem: format!("is no longer below {}", mount.mount_point.display()),
        }),
    }
}

/// Whether a directory is the root of a mounted file system, not just a directory in one. In a container every host
/// directory is a mount point, so that alone says nothing: what counts is which part of the file system is mounted.
pub fn is_root_of_filesystem(dir: &Dir) -> Result<bool> {
    /// The root directory of every btrfs subvolume has this inode.
    const BTRFS_ROOT_INODE: u64 = 256;
    let (mount, is_root) = mount_of(dir)?;
    let whole = mount.root == Path::new("/");
    let subvolume = mount.filesystem == "btrfs" && dir.stat()?.st_ino == BTRFS_ROOT_INODE;
    Ok(is_root && (whole || subvolume))
}
