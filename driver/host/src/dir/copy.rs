//! Recursive copying that stays in the tree, though others change it meanwhile: everything is looked at through a handle
//! that does not open it, and only then opened through that very handle.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, linkat, makedev, mkdirat, mknodat, openat2,
    readlinkat, symlinkat, syncfs,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::attributes::{Reader, apply, look, through_proc};
use super::{CONFINED, Dir, Mounts};
use crate::copy::{How, can_reflink, plain, reflink};
use crate::error::{Error, Result, failed};

/// Each level holds three open directories.
pub(super) const DEPTH: usize = 200;

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
            attributes: Reader::new(),
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
    attributes: Reader,
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
        from.each(|name| self.entry(from, to, name, depth))?;
        // Last: a default access list would pass to the entries, and each entry changes the time.
        apply(&self.attributes.read(from, &stat, &from.path)?, to, FileType::Directory, &from.path)
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
        apply(&self.attributes.read(&source, &stat, &path)?, &copy, kind, &path)?;
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
}

pub(super) fn create(to: &Dir, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat2(to, name, flags, Mode::RUSR | Mode::WUSR, CONFINED | ResolveFlags::NO_XDEV)
}

/// Tells files apart, one that took the inode of another that has gone meanwhile too.
fn identity(stat: &Statx) -> String {
    let born = &stat.stx_btime;
    let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
    format!("{device:x}-{:x}-{:x}.{:x}", stat.stx_ino, born.tv_sec, born.tv_nsec)
}

pub(super) fn reopen_directory(source: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(source, ".", flags, Mode::empty(), CONFINED | ResolveFlags::NO_XDEV).map_err(failed("open", path))
}

/// A deep tree needs more open files than some processes start with.
pub(super) fn raise_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Without it, a tree of usual depth is copied all the same.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

#[cfg(test)]
pub(super) mod tests;
