//! Recursive copying that stays in the tree, though others change it meanwhile: everything is looked at through a handle
//! that does not open it, and only then opened through that very handle.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp, Timespec,
    Timestamps, Uid, XattrFlags, chmodat, chownat, getxattr, linkat, listxattr, makedev, mkdirat, mknodat,
    openat2, readlinkat, setxattr, statx, symlinkat, syncfs, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{CONFINED, Dir, Mounts};
use crate::copy::{How, can_reflink, plain, reflink};
use crate::error::{Error, Result, failed};

/// Each level holds three open directories.
const DEPTH: usize = 200;

/// The kernel's limit for the list of attributes, and for the value of one.
const ATTRIBUTES: usize = 64 << 10;

const PERMISSIONS: u32 = 0o7777;

impl Dir {
    /// Copies the directory with all below it into a new one: contents, owners, modes, times, attributes (access lists
    /// and capabilities are some), links among its files, and files that are none. Nothing is followed, and a mount in
    /// it is an error. Durable when this returns. In use, its files are as they were while each was copied.
    pub fn copy_tree(&self, to: &Self, name: &str) -> Result<How> {
        // A name for each file that has several, so that its other names are found without remembering any.
        let links = format!("{name}.links");
        let copy = to.make_dir(name, 0o700)?;
        let mut copier = Copier {
            links: to.make_dir(&links, 0o700)?,
            shares: can_reflink(to)?,
            how: How::Reflink,
            list: vec![0; ATTRIBUTES],
            value: vec![0; ATTRIBUTES],
        };
        raise_file_limit();
        copier.directory(self, &copy, DEPTH)?;
        to.remove_tree(&links)?;
        syncfs(to).map_err(failed("sync", &to.path))?;
        // Without a single byte to copy, it is told how one would have been.
        Ok(if copier.shares { copier.how } else { How::Copy })
    }
}

struct Copier {
    links: Dir,
    shares: bool,
    how: How,
    /// Room for the attributes' names, and for the value of one.
    list: Vec<u8>,
    value: Vec<u8>,
}

impl Copier {
    fn directory(&mut self, from: &Dir, to: &Dir, depth: usize) -> Result<()> {
        if depth == 0 {
            return Err(Error::Unexpected {
                path: from.path.clone(),
                problem: format!("lies more than {DEPTH} directories deep, and no such tree is copied"),
            });
        }
        let stat = look(from, &from.path)?;
        // One entry at a time, for there may be millions.
        let mut entries = rustix::fs::Dir::read_from(from).map_err(failed("list", &from.path))?;
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(failed("list", &from.path))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                self.entry(from, to, name, depth)?;
            }
        }
        // Last: a default access list would pass to the entries, and each entry changes the time.
        self.attributes(from.as_fd(), to.as_fd(), &stat, &from.path)
    }

    fn entry(&mut self, from: &Dir, to: &Dir, name: &OsStr, depth: usize) -> Result<()> {
        let path = from.path.join(name);
        let source = match from.open_at(Path::new(name), OFlags::PATH | OFlags::NOFOLLOW, Mounts::Refuse) {
            Ok(source) => source,
            // Removed meanwhile.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.errno() == Some(Errno::XDEV) => {
                let problem = "is a mount point, and no tree with mounts in it is copied: unmount it".into();
                return Err(Error::Unexpected { path, problem });
            }
            Err(error) => return Err(error),
        };
        let stat = look(&source, &path)?;
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let making = || failed("copy", &path);
        let link = (kind != FileType::Directory && stat.stx_nlink > 1).then(|| identity(&stat));
        if let Some(link) = &link {
            match linkat(&self.links, link.as_str(), to, name, AtFlags::empty()) {
                // There already: a directory that changes while it is listed may show an entry twice.
                Ok(()) | Err(Errno::EXIST) => return Ok(()),
                // Not seen yet, or it has as many names as a file can have: it is copied again.
                Err(Errno::NOENT | Errno::MLINK) => {}
                Err(error) => return Err(making()(error)),
            }
        }
        let made = match kind {
            FileType::Directory => mkdirat(to, name, Mode::RWXU),
            FileType::RegularFile => create(to, name).map(drop),
            FileType::Symlink => {
                readlinkat(&source, "", Vec::new()).and_then(|target| symlinkat(target.as_c_str(), to, name))
            }
            special => {
                let device = makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
                mknodat(to, name, special, Mode::RUSR, device)
            }
        };
        match made {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(()),
            Err(error) => return Err(making()(error)),
        }
        if kind == FileType::Directory {
            let copy = to.dir(Path::new(name), Mounts::Refuse)?;
            let source = Dir { fd: reopen_directory(&source, &path)?, path };
            return self.directory(&source, &copy, depth - 1);
        }
        if kind == FileType::RegularFile {
            self.file(&source, to, name, &path)?;
        }
        let copy = to.open_at(Path::new(name), OFlags::PATH | OFlags::NOFOLLOW, Mounts::Refuse)?;
        self.attributes(source.as_fd(), copy.as_fd(), &stat, &path)?;
        match link.map(|link| linkat(to, name, &self.links, link.as_str(), AtFlags::empty())) {
            None | Some(Ok(()) | Err(Errno::MLINK)) => Ok(()),
            Some(Err(error)) => Err(making()(error)),
        }
    }

    /// The content of a regular file, which `source` is known to be.
    fn file(&mut self, source: &OwnedFd, to: &Dir, name: &OsStr, path: &Path) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC;
        let from =
            rustix::fs::open(through_proc(source), flags, Mode::empty()).map_err(failed("open", path))?;
        let copy = to.open_at(Path::new(name), OFlags::RDWR | OFlags::NOFOLLOW, Mounts::Refuse)?;
        let (from, copy) = (File::from(from), File::from(copy));
        if self.shares && reflink(&from, &copy, path)? {
            return Ok(());
        }
        self.how = How::Copy;
        plain(&from, &copy, path, None)
    }

    /// Everything about a file but its content. A new owner takes away capabilities and mode bits, so it comes first.
    fn attributes(&mut self, from: impl AsFd, to: impl AsFd, stat: &Statx, path: &Path) -> Result<()> {
        let failing = || failed("copy the attributes of", path);
        let (owner, group) = (Uid::from_raw(stat.stx_uid), Gid::from_raw(stat.stx_gid));
        chownat(&to, "", Some(owner), Some(group), AtFlags::EMPTY_PATH).map_err(failing())?;
        let (from, to) = (through_proc(from), through_proc(to));
        let mode = u32::from(stat.stx_mode);
        if FileType::from_raw_mode(mode) != FileType::Symlink {
            let mode = Mode::from_raw_mode(mode & PERMISSIONS);
            chmodat(CWD, &to, mode, AtFlags::empty()).map_err(failing())?;
        }
        let listed = match listxattr(&from, self.list.as_mut_slice()) {
            Ok(listed) => listed,
            Err(Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(failing()(error)),
        };
        let names = self.list[..listed].split_inclusive(|byte| *byte == 0);
        for name in names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
            let size = match getxattr(&from, name, self.value.as_mut_slice()) {
                Ok(size) => size,
                // Removed meanwhile.
                Err(Errno::NODATA) => continue,
                Err(error) => return Err(failing()(error)),
            };
            setxattr(&to, name, &self.value[..size], XattrFlags::empty()).map_err(failing())?;
        }
        let times =
            Timestamps { last_access: time(&stat.stx_atime), last_modification: time(&stat.stx_mtime) };
        utimensat(CWD, &to, &times, AtFlags::empty()).map_err(failing())
    }
}

fn create(to: &Dir, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat2(to, name, flags, Mode::RUSR | Mode::WUSR, CONFINED | ResolveFlags::NO_XDEV)
}

fn look(fd: impl AsFd, path: &Path) -> Result<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    statx(fd, "", AtFlags::EMPTY_PATH, mask).map_err(failed("look at", path))
}

/// Tells files apart, one that took the inode of another that has gone meanwhile too.
fn identity(stat: &Statx) -> String {
    let born = &stat.stx_btime;
    let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
    format!("{device:x}-{:x}-{:x}.{:x}", stat.stx_ino, born.tv_sec, born.tv_nsec)
}

fn time(of: &StatxTimestamp) -> Timespec {
    Timespec { tv_sec: of.tv_sec, tv_nsec: of.tv_nsec.into() }
}

fn reopen_directory(source: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(source, ".", flags, Mode::empty(), CONFINED | ResolveFlags::NO_XDEV).map_err(failed("open", path))
}

/// The path by which calls that take no such handle reach it. It leads to the file itself, be that a link.
fn through_proc(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// A deep tree needs more open files than some processes start with.
fn raise_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Without it, a tree of usual depth is copied all the same.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

#[cfg(test)]
mod tests;
