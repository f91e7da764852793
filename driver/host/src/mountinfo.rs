//! The kernel's list of mounts, as `/proc/self/mountinfo` has it.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Error, Result, failed};

/// Where the kernel lists this process's mounts.
const PATH: &str = "/proc/self/mountinfo";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What `statx` calls the mount id.
    pub id: u64,
    /// Numbers of the device that the file system lies on.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted: `/` unless it is a bind mount of a part.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    pub read_only: bool,
    pub filesystem: String,
    /// What was mounted: the node of a device, or whatever else the file system made of it.
    pub source: PathBuf,
}

/// Reads the list.
pub fn read() -> Result<Vec<Mount>> {
    let text = std::fs::read(PATH).map_err(failed("read", PATH))?;
    parse(&text)
        .map_err(|line| Error::Unexpected { path: PATH.into(), problem: format!("strange line {line:?}") })
}

/// Tells when the list changes.
#[derive(Debug)]
pub struct Watch(File);

impl Watch {
    pub fn open() -> Result<Self> {
        File::open(PATH).map(Self).map_err(failed("open", PATH))
    }

    /// Waits for a change since the last call; `false` when there was none for so long.
    pub fn changed(&self, limit: Duration) -> Result<bool> {
        let limit = Timespec::try_from(limit).ok();
        let mut watched = [PollFd::new(&self.0, PollFlags::PRI | PollFlags::ERR)];
        Ok(poll(&mut watched, limit.as_ref()).map_err(failed("watch", PATH))? > 0)
    }
}

/// Parses the list; the error is the line that makes no sense.
pub fn parse(text: &[u8]) -> std::result::Result<Vec<Mount>, String> {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| parse_line(line).ok_or_else(|| String::from_utf8_lossy(line).into_owned()))
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let id = text()?.parse().ok()?;
    let _parent = text()?;
    let (major, minor) = text()?.split_once(':')?;
    let root = unescape(fields.next()?)?;
    let mount_point = unescape(fields.next()?)?;
    let options = std::str::from_utf8(fields.next()?).ok()?;
    // Any number of optional fields, up to a lone dash.
    fields.by_ref().find(|field| field == b"-")?;
    let filesystem = std::str::from_utf8(fields.next()?).ok()?.to_owned();
    let source = unescape(fields.next()?)?;
    Some(Mount {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        mount_point,
        read_only: options.split(',').any(|option| option == "ro"),
        filesystem,
        source,
    })
}

/// Space, tab, line feed and backslash come as three octal digits.
fn unescape(field: &[u8]) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(3)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?);
        rest = tail;
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_shapes_are_understood() {
        let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
                     40 35 7:3 / /var/lib/a\\040b\\134c ro,relatime shared:7 master:2 propagate_from:1 - xfs /dev/loop3 rw\n\
                     41 35 0:44 / /t rw - tmpfs none rw\n";
        let mounts = parse(text).unwrap();
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[0].id, 36);
        assert_eq!(mounts[0].root, PathBuf::from("/mnt1"));
        assert_eq!(mounts[0].filesystem, "ext3");
        assert!(!mounts[0].read_only);
        assert_eq!(mounts[1].device, (7, 3));
        assert_eq!(mounts[1].mount_point, PathBuf::from("/var/lib/a b\\c"));
        assert!(mounts[1].read_only);
        assert_eq!(mounts[1].source, PathBuf::from("/dev/loop3"));
        assert_eq!(mounts[2].filesystem, "tmpfs");
    }

    #[test]
    fn a_strange_line_is_named() {
        for line in [
            "x",
            "36 35 98:0 / /m rw",
            "36 35 98 / /m rw - ext4 /d rw",
            "a 35 98:0 / /m rw - ext4 /d rw",
            "36 35 98:0 / /m rw - ext4",
            "36 35 98:0 / /m\\04 rw - ext4 /d rw",
            "36 35 98:0 / /m\\999 rw - ext4 /d rw",
        ] {
            assert_eq!(parse(line.as_bytes()), Err(line.to_owned()));
        }
    }

    #[test]
    fn the_kernels_own_list_is_understood() {
        assert!(read().unwrap().iter().any(|mount| mount.filesystem == "proc"));
    }
}
