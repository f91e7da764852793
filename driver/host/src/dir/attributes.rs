//! Everything about a file but its name and content, read from one and given to another. Nothing is followed.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Statx, StatxFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, getxattr, listxattr, setxattr, statx, utimensat,
};
use rustix::io::Errno;

use crate::error::{Error, Result, failed};
use crate::stream::Attributes;

/// The kernel's limit for the list of attributes, and for the value of one.
const LIMIT: usize = 64 << 10;

const PERMISSIONS: u32 = 0o7777;

/// Reads attributes, with room for names and values that is used again and again.
#[derive(Debug)]
pub(super) struct Reader {
    list: Vec<u8>,
    value: Vec<u8>,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self { list: vec![0; LIMIT], value: vec![0; LIMIT] }
    }

    /// The attributes of an open file, which `stat` is of.
    pub(super) fn read(&mut self, file: impl AsFd, stat: &Statx, path: &Path) -> Result<Attributes> {
        let failing = || failed("read the attributes of", path);
        let file = through_proc(file);
        let listed = match listxattr(&file, self.list.as_mut_slice()) {
            Ok(listed) => listed,
            Err(Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(failing()(error)),
        };
        let mut extended = Vec::new();
        let names = self.list[..listed].split_inclusive(|byte| *byte == 0);
        for name in names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
            match getxattr(&file, name, self.value.as_mut_slice()) {
                Ok(size) => extended.push((name.to_bytes().to_vec(), self.value[..size].to_vec())),
                // Removed meanwhile.
                Err(Errno::NODATA) => {}
                Err(error) => return Err(failing()(error)),
            }
        }
        Ok(Attributes {
            mode: stat.stx_mode.into(),
            owner: stat.stx_uid,
            group: stat.stx_gid,
            accessed: (stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec),
            modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            size: stat.stx_size,
            extended,
        })
    }
}

/// Gives an open file attributes, but for its size. A new owner takes away capabilities and mode bits, so it comes first.
pub(super) fn apply(attributes: &Attributes, file: impl AsFd, kind: FileType, path: &Path) -> Result<()> {
    let failing = || failed("set the attributes of", path);
    let (owner, group) = (Uid::from_raw(attributes.owner), Gid::from_raw(attributes.group));
    chownat(&file, "", Some(owner), Some(group), AtFlags::EMPTY_PATH).map_err(failing())?;
    let file = through_proc(file);
    if kind != FileType::Symlink {
        let mode = Mode::from_raw_mode(attributes.mode & PERMISSIONS);
        chmodat(CWD, &file, mode, AtFlags::empty()).map_err(failing())?;
    }
    for (name, value) in &attributes.extended {
        let name = CString::new(name.as_slice()).map_err(|_| Error::Unexpected {
            path: path.to_owned(),
            problem: "is given an attribute with a zero in its name".into(),
        })?;
        setxattr(&file, &name, value, XattrFlags::empty()).map_err(failing())?;
    }
    let times =
        Timestamps { last_access: time(attributes.accessed), last_modification: time(attributes.modified) };
    utimensat(CWD, &file, &times, AtFlags::empty()).map_err(failing())
}

pub(super) fn look(fd: impl AsFd, path: &Path) -> Result<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    statx(fd, "", AtFlags::EMPTY_PATH, mask).map_err(failed("look at", path))
}

fn time((seconds, nanoseconds): (i64, u32)) -> Timespec {
    Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() }
}

/// The path by which calls that take no such handle reach it. It leads to the file itself, be that a link.
pub(super) fn through_proc(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}
