//! What can go wrong on the host: an action, the thing it was done to, and the cause.

use std::io;
use std::path::PathBuf;

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
    /// The error number behind it, if a system call failed.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    /// Whether it says that something is not there.
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(io::ErrorKind::NotFound)
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
