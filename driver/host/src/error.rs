//! What can go wrong on the host: an action, the thing it was done to, and the cause.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// An error of the host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// A program could not be run, failed, or took too long.
    #[error("{program} {reason}")]
    Program { program: &'static str, reason: String },
    /// A thing is there, but not what it must be.
    #[error("{}: {problem}", path.display())]
    Unexpected { path: PathBuf, problem: String },
}

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What kind of system error is behind it, if one is.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            Self::Program { .. } | Self::Unexpected { .. } => None,
        }
    }

    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { source, .. } => Errno::from_io_error(source),
            Self::Program { .. } | Self::Unexpected { .. } => None,
        }
    }

    /// Whether it says that something is not there.
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(io::ErrorKind::NotFound)
    }

    /// Whether it says that something is there already.
    pub fn is_already_there(&self) -> bool {
        self.kind() == Some(io::ErrorKind::AlreadyExists)
    }

    /// Whether it says that the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self.kind(), Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// Names the action and the path of a failed system call.
pub(crate) fn failed<E: Into<io::Error>>(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(E) -> Error {
    let path = path.into();
    move |source| Error::Io { action, path, source: source.into() }
}
