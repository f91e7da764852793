//! A frozen file system: all that was written is on its device, and writers wait until it is thawed.

use rustix::io::Errno;
use tracing::warn;

use crate::dir::Dir;
use crate::error::{Error, Result, failed};
use crate::sys;

/// A file system that stays as it is. Thawed when dropped, for its writers cannot even be killed.
#[derive(Debug)]
pub struct Frozen {
    dir: Dir,
    /// Whether this froze it; what somebody else froze is theirs to thaw.
    ours: bool,
}

impl Frozen {
    /// Freezes the file system that a directory lies on, unless somebody else has done so already.
    pub fn freeze(dir: Dir) -> Result<Self> {
        match sys::freeze(&dir) {
            Ok(()) => Ok(Self { dir, ours: true }),
            Err(Errno::BUSY) => Ok(Self { dir, ours: false }),
            Err(error) => Err(failed("freeze the file system at", dir.path())(error)),
        }
    }

    /// Ends the freeze. It is an error when it was not frozen all the while.
    pub fn thaw(mut self) -> Result<()> {
        let lost = || Error::Unexpected {
            path: self.dir.path().to_owned(),
            problem: "was thawed by somebody else meanwhile".into(),
        };
        if self.ours {
            self.ours = false;
            return if thaw(&self.dir)? { Ok(()) } else { Err(lost()) };
        }
        match sys::freeze(&self.dir) {
            Err(Errno::BUSY) => Ok(()),
            Err(error) => Err(failed("look at", self.dir.path())(error)),
            Ok(()) => {
                thaw(&self.dir)?;
                Err(lost())
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = sys::thaw(&self.dir)
        {
            warn!(path = %self.dir.path().display(), %error, "cannot thaw a file system");
        }
    }
}

/// Thaws the file system that a directory lies on; `false` when it was not frozen.
pub fn thaw(dir: &Dir) -> Result<bool> {
    match sys::thaw(dir) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(failed("thaw the file system at", dir.path())(error)),
    }
}
