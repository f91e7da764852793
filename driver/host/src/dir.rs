//! A directory held open: everything below it is reached through the handle, never by a path that could be replaced.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fchmod, flock, fstat,
    fsync, mkdirat, openat, openat2, renameat, renameat_with, statat, syncfs, unlinkat,
};
use rustix::io::Errno;

use crate::error::{Error, Result, failed};

mod attributes;
mod copy;
mod receive;
mod remove;
mod send;

pub use receive::TreeReceiver;

/// Never out of the directory, never through a symlink, never through `/proc`.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A record larger than this is not one of ours.
const RECORD_LIMIT: u64 = 1 << 20;

/// What may lie on the way to something below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// Only the directory's own file system.
    Refuse,
    /// Other file systems mounted below it, too.
    Cross,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: OsString,
    pub is_dir: bool,
}

/// An open directory. The path serves messages only.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Dir> for OwnedFd {
    fn from(dir: Dir) -> Self {
        dir.fd
    }
}

impl Dir {
    /// Opens a directory that an administrator named: the only place where symlinks are followed.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open", path))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory below this one.
    pub fn dir(&self, below: impl AsRef<Path>, mounts: Mounts) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Ok(Self { fd: self.open_at(below.as_ref(), flags, mounts)?, path: self.path.join(below) })
    }

    /// A directory of this one, made if it is not there.
    pub fn make_dir(&self, name: &str, mode: u32) -> Result<Self> {
        let path = self.path.join(name);
        match mkdirat(&self.fd, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make", path)(error)),
        }
        let dir = self.dir(name, Mounts::Refuse)?;
        // Explicitly, for the umask must not decide.
        fchmod(&dir.fd, Mode::from_raw_mode(mode)).map_err(failed("set the mode of", path))?;
        Ok(dir)
    }

    /// An existing file, for reading and writing.
    pub fn file(&self, name: &str) -> Result<File> {
        let file =
            File::from(self.open_at(Path::new(name), OFlags::RDWR | OFlags::NONBLOCK, Mounts::Refuse)?);
        if file.metadata().map_err(failed("look at", self.path.join(name)))?.is_file() {
            Ok(file)
        } else {
            Err(Error::Unexpected { path: self.path.join(name), problem: "is not a regular file".into() })
        }
    }

    /// A new, empty file that goes when it is closed; none where the file system has no such files.
    pub(crate) fn unnamed(&self) -> Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match openat(&self.fd, ".", flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => Ok(None),
            Err(error) => Err(failed("make a file in", &self.path)(error)),
        }
    }

    /// A new, empty file; one of the same name is replaced.
    pub fn create(&self, name: &str) -> Result<File> {
        self.remove_file(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let resolve = CONFINED | ResolveFlags::NO_XDEV;
        let fd =
            openat2(&self.fd, name, flags, mode, resolve).map_err(failed("create", self.path.join(name)))?;
        Ok(File::from(fd))
    }

    /// The content of a small file.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = File::from(self.open_at(Path::new(name), flags, Mounts::Refuse)?);
        let mut content = Vec::new();
        file.take(RECORD_LIMIT + 1).read_to_end(&mut content).map_err(failed("read", &path))?;
        if content.len() as u64 > RECORD_LIMIT {
            return Err(Error::Unexpected { path, problem: format!("is larger than {RECORD_LIMIT} bytes") });
        }
        Ok(content)
    }

    /// Writes a small file so that after a power cut it is there whole, old or new.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let temporary = format!("{name}.new");
        let mut file = self.create(&temporary)?;
        file.write_all(content)
            .and_then(|()| file.sync_all())
            .map_err(failed("write", self.path.join(&temporary)))?;
        renameat(&self.fd, temporary.as_str(), &self.fd, name)
            .map_err(failed("write", self.path.join(name)))?;
        self.sync()
    }

    /// Moves an entry to another directory of the same file system and makes both ends durable.
    pub fn rename(&self, from: &str, to: &Self, name: &str) -> Result<()> {
        renameat_with(&self.fd, from, &to.fd, name, RenameFlags::NOREPLACE)
            .map_err(failed("move", self.path.join(from)))?;
        to.sync()?;
        self.sync()
    }

    /// Bytes of the disk that a file below takes up.
    pub fn taken(&self, below: impl AsRef<Path>) -> Result<u64> {
        const UNIT: u64 = 512;
        let file = self.open_at(below.as_ref(), OFlags::PATH, Mounts::Refuse)?;
        let stat = fstat(file).map_err(failed("look at", self.path.join(below)))?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or_default() * UNIT)
    }

    /// Makes the directory's entries durable.
    pub fn sync(&self) -> Result<()> {
        fsync(&self.fd).map_err(failed("sync", &self.path))
    }

    /// Makes durable everything that was written to the file system that the directory lies on.
    pub fn sync_filesystem(&self) -> Result<()> {
        syncfs(&self.fd).map_err(failed("sync the file system of", &self.path))
    }

    /// Does something with each entry but `.` and `..`, one at a time, for there may be millions.
    pub(crate) fn each<E: From<Error>>(
        &self,
        mut work: impl FnMut(&OsStr) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let listing = || failed("list", &self.path);
        let mut entries = rustix::fs::Dir::read_from(&self.fd).map_err(listing())?;
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(listing())?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                work(name)?;
            }
        }
        Ok(())
    }

    /// All entries but `.` and `..`, sorted by name.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let looking = || failed("list", &self.path);
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(looking())? {
            let entry = entry.map_err(looking())?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name == "." || name == ".." {
                continue;
            }
            let is_dir = match entry.file_type() {
                FileType::Unknown => self.is_dir(&name)?,
                kind => kind == FileType::Directory,
            };
            entries.push(Entry { name, is_dir });
        }
        entries.sort();
        Ok(entries)
    }

    /// Whether there is an entry of this name, of whatever kind.
    pub fn has(&self, name: &str) -> Result<bool> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(failed("look at", self.path.join(name))(error)),
        }
    }

    /// Removes a file or symlink; it is no error when there is none.
    pub fn remove_file(&self, name: &str) -> Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("remove", self.path.join(name))(error)),
        }
    }

    /// Takes the directory for this process, until the handle is dropped; `false` when another process has it.
    pub fn lock(&self) -> Result<bool> {
        match flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(failed("lock", &self.path)(error)),
        }
    }

    /// Device and inode, which tell whether two handles are the same directory.
    pub fn identity(&self) -> Result<(u64, u64)> {
        let stat = self.stat()?;
        Ok((stat.st_dev, stat.st_ino))
    }

    pub(crate) fn stat(&self) -> Result<Stat> {
        fstat(&self.fd).map_err(failed("look at", &self.path))
    }

    fn is_dir(&self, name: &OsStr) -> Result<bool> {
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("look at", self.path.join(name)))?;
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    pub(crate) fn open_at(&self, below: &Path, flags: OFlags, mounts: Mounts) -> Result<OwnedFd> {
        let resolve = match mounts {
            Mounts::Refuse => CONFINED | ResolveFlags::NO_XDEV,
            Mounts::Cross => CONFINED,
        };
        openat2(&self.fd, below, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
            .map_err(failed("open", self.path.join(below)))
    }
}

/// The part of `path` below `base`, if it is there by its letters alone: absolute, no `..`, no `.`, not `base` itself.
pub fn below<'a>(base: &Path, path: &'a Path) -> Option<&'a Path> {
    let rest = path.strip_prefix(base).ok()?;
    let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    let nul = path.as_os_str().as_bytes().contains(&0);
    (path.is_absolute() && plain && !nul && rest != Path::new("")).then_some(rest)
}

#[cfg(test)]
mod tests;
