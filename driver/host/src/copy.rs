//! Copies of files: with shared blocks where the file system can, else of what is no hole.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;

use crate::dir::Dir;
use crate::error::{Error, Result, failed};

/// So much is copied between two looks at the clock.
const PIECE: usize = 1 << 20;
/// Zeros are left out in pieces of this size.
const BLOCK: usize = 64 << 10;

/// How data were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// The copy shares its blocks with the original until one of them is written.
    Reflink,
    /// It has blocks of its own.
    Copy,
}

/// Whether the files of a directory can share blocks. Found out by trying, with files that never get a name: the file
/// system's name tells nothing.
pub fn can_reflink(dir: &Dir) -> Result<bool> {
    let (Some(from), Some(to)) = (dir.unnamed()?, dir.unnamed()?) else { return Ok(false) };
    from.write_all_at(&[1; 4096], 0).map_err(failed("write a file in", dir.path()))?;
    reflink(&from, &to, dir.path())
}

/// Gives the empty file `to` the content of `from`, which is at `path`. Not synced. A copy that is not finished at
/// `until` is given up with [`Error::is_timeout`].
pub fn file(from: &File, to: &File, path: &Path, until: Option<Instant>) -> Result<How> {
    if reflink(from, to, path)? {
        return Ok(How::Reflink);
    }
    plain(from, to, path, until)?;
    Ok(How::Copy)
}

/// Shares all blocks of `from` with the empty file `to`; `false` where that cannot be.
pub(crate) fn reflink(from: &File, to: &File, path: &Path) -> Result<bool> {
    match ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::TXTBSY) => {
            Ok(false)
        }
        Err(error) => Err(failed("share the blocks of", path)(error)),
    }
}

/// Copies what is no hole, up to the size that the file has now.
pub(crate) fn plain(from: &File, to: &File, path: &Path, until: Option<Instant>) -> Result<()> {
    let length = from.metadata().map_err(failed("look at", path))?.len();
    each_extent(from, length, path, |start, end| range(from, to, path, start, end, until))?;
    to.set_len(length).map_err(failed("set the size of a copy of", path))
}

/// How many bytes of a file are no hole; what was lately read of space that is taken but was never written counts too.
pub fn data_bytes(file: &File, path: &Path) -> Result<u64> {
    let length = file.metadata().map_err(failed("look at", path))?.len();
    let mut bytes = 0;
    each_extent(file, length, path, |start, end| {
        bytes += end - start;
        Ok::<(), Error>(())
    })?;
    Ok(bytes)
}

/// Calls `with` for each range of data. The file may shrink meanwhile.
pub(crate) fn each_extent<E: From<Error>>(
    file: &File,
    length: u64,
    path: &Path,
    mut with: impl FnMut(u64, u64) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let sought = |found: rustix::io::Result<u64>| match found {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(E::from(failed("find the data of", path)(error))),
    };
    let mut at = 0;
    while at < length {
        let Some(start) = sought(seek(file, SeekFrom::Data(at)))? else { break };
        let Some(end) = sought(seek(file, SeekFrom::Hole(start)))? else { break };
        let end = end.min(length);
        if end <= start {
            break;
        }
        with(start, end)?;
        at = end;
    }
    Ok(())
}

fn range(from: &File, to: &File, path: &Path, start: u64, end: u64, until: Option<Instant>) -> Result<()> {
    let mut buffer = vec![0; usize::try_from(end - start).map_or(PIECE, |length| length.min(PIECE))];
    let mut at = start;
    while at < end {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(failed("finish in time the copy of", path)(std::io::Error::from(
                ErrorKind::TimedOut,
            )));
        }
        let most = usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = from.read_at(&mut buffer[..most], at).map_err(failed("read", path))?;
        // It has been cut shorter meanwhile.
        if read == 0 {
            break;
        }
        for block in buffer[..read].chunks(BLOCK) {
            // Space that is taken but was never written shows as data once it has been read, and a new file is all zeros.
            if block.iter().any(|byte| *byte != 0) {
                to.write_all_at(block, at).map_err(failed("write a copy of", path))?;
            }
            at += block.len() as u64;
        }
    }
    Ok(())
}

impl Error {
    /// Whether it says that the time was over.
    pub fn is_timeout(&self) -> bool {
        self.kind() == Some(ErrorKind::TimedOut)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::time::Duration;

    use super::*;

    const M: u64 = 1 << 20;

    fn scratch() -> (tempfile::TempDir, Dir) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        (scratch, dir)
    }

    /// 64 MiB with data in the middle and at the end, and space that is taken but was never written.
    fn sparse(dir: &Dir) -> File {
        let file = dir.create("from").unwrap();
        file.write_all_at(&[7; 4096], 16 * M).unwrap();
        crate::space::allocate(&file, 32 * M, dir.path()).unwrap();
        file.set_len(64 * M).unwrap();
        file.write_all_at(b"end", 64 * M - 3).unwrap();
        file
    }

    #[test]
    fn a_copy_is_equal_and_has_the_holes() {
        let (scratch, dir) = scratch();
        let (from, to) = (sparse(&dir), dir.create("to").unwrap());
        assert!(data_bytes(&from, dir.path()).unwrap() < M);
        plain(&from, &to, dir.path(), None).unwrap();
        let read = |name| std::fs::read(scratch.path().join(name)).unwrap();
        assert!(read("from") == read("to"));
        assert!(to.metadata().unwrap().blocks() * 512 < M, "{}", to.metadata().unwrap().blocks());
    }

    #[test]
    fn a_copy_whose_time_is_over_is_given_up() {
        let (_scratch, dir) = scratch();
        let (from, to) = (sparse(&dir), dir.create("to").unwrap());
        let error = plain(&from, &to, dir.path(), Some(Instant::now())).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        plain(&from, &to, dir.path(), Some(Instant::now() + Duration::from_secs(60))).unwrap();
    }

    #[test]
    fn the_trial_leaves_nothing_behind() {
        let (_scratch, dir) = scratch();
        can_reflink(&dir).unwrap();
        assert_eq!(dir.entries().unwrap(), []);
    }
}
