//! The registration socket: ours alone to remove, and only while it still is ours.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::socket_path;
use crate::runtime::Error;

/// A socket that listens, and which file it was.
pub(super) struct Socket {
    path: PathBuf,
    device_and_inode: (u64, u64),
    listener: UnixListener,
}

impl Socket {
    /// Listens in `directory` for `driver`. A stale socket is replaced, anything else there is an error.
    pub(super) fn bind(directory: &Path, driver: &str) -> Result<Self, Error> {
        let path = socket_path(directory, driver);
        let action = format!("make the registration socket {}", path.display());
        Self::bind_at(path).map_err(|source| Error::File { action, source })
    }

    fn bind_at(path: PathBuf) -> io::Result<Self> {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.file_type().is_socket() => {}
            Ok(_) => {
                let message = "something that is no socket is in the way: remove it";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Renamed into place when it listens and has its rights. Kubelet overlooks the hidden name, and when a socket
        // is replaced it sees no removal, which would take the driver off the node.
        let hidden = path.with_file_name(format!(".{}", file_name(&path)));
        remove_if_there(&hidden)?;
        let listener = UnixListener::bind(&hidden)?;
        fs::set_permissions(&hidden, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let device_and_inode = identity(&fs::symlink_metadata(&hidden)?);
        fs::rename(&hidden, &path)?;
        Ok(Self { path, device_and_inode, listener })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The listener for the runtime.
    pub(super) fn listener(&self) -> Result<tokio::net::UnixListener, Error> {
        let listener = self.listener.try_clone().and_then(tokio::net::UnixListener::from_std);
        listener
            .map_err(|source| Error::File { action: format!("listen on {}", self.path.display()), source })
    }

    /// Removes the socket, unless another pod of the same driver has put its own there meanwhile.
    pub(super) fn remove(self) {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if identity(&found) == self.device_and_inode => {
                if let Err(error) = fs::remove_file(&self.path) {
                    warn!(socket = %self.path.display(), %error, "cannot remove the registration socket");
                }
            }
            Ok(_) => info!(socket = %self.path.display(), "the socket is another pod's now"),
            Err(_) => {}
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_connect() {
        let directory = tempfile::tempdir().expect("directory");
        let socket = Socket::bind(directory.path(), "d").expect("bind");
        let mode = fs::metadata(socket.path()).expect("socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    }

    #[test]
    fn a_stale_socket_is_replaced_and_anything_else_is_left() {
        let directory = tempfile::tempdir().expect("directory");
        drop(Socket::bind(directory.path(), "d").expect("first"));
        let second = Socket::bind(directory.path(), "d").expect("over a stale socket");
        let path = second.path().to_owned();
        second.remove();
        fs::write(&path, "data").expect("write");
        assert!(Socket::bind(directory.path(), "d").is_err());
        assert_eq!(fs::read(&path).expect("kept"), b"data");
    }

    #[test]
    fn the_socket_of_a_newer_pod_is_not_removed() {
        let directory = tempfile::tempdir().expect("directory");
        let old = Socket::bind(directory.path(), "d").expect("old pod");
        let new = Socket::bind(directory.path(), "d").expect("new pod");
        let path = new.path().to_owned();
        old.remove();
        assert!(path.exists());
        new.remove();
        assert!(!path.exists());
    }
}
