//! CSI over unix sockets: where the driver listens and how everyone reaches it.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};

/// Largest message that a client takes: `ListVolumes` of a big pool passes gRPC's default of 4 MiB.
pub const MAX_MESSAGE: usize = 16 << 20;

/// An endpoint that is no unix socket.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no unix socket: give an absolute path, with or without unix:// before it")]
pub struct NotASocket(String);

/// The path in an endpoint such as `/csi/csi.sock` or `unix:///csi/csi.sock`.
pub fn path(endpoint: &str) -> Result<PathBuf, NotASocket> {
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    if path.starts_with('/') { Ok(path.into()) } else { Err(NotASocket(endpoint.to_owned())) }
}

/// Listens on `endpoint`. A socket left by an earlier process is removed first, anything else there is an error.
/// Owner and group may connect (mode 0660): in the controller pod the sidecars share the driver's group.
pub fn listen(endpoint: &str) -> io::Result<UnixListenerStream> {
    let path = path(endpoint).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    remove_stale(&path)?;
    // Bound under another name and renamed, so that nobody finds the socket with wider rights or before it listens.
    let fresh = path.with_extension("new");
    remove_stale(&fresh)?;
    let listener = UnixListener::bind(&fresh)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o660))?;
    std::fs::rename(&fresh, &path)?;
    Ok(UnixListenerStream::new(listener))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} is in the way and is no socket: remove it", path.display()),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// A connection to `endpoint`, made at once and again whenever it breaks.
pub async fn connect(endpoint: &str) -> Result<Channel, ConnectError> {
    Ok(address(endpoint)?.connect().await?)
}

/// A connection to `endpoint` that is made with the first call.
pub fn connect_lazy(endpoint: &str) -> Result<Channel, ConnectError> {
    Ok(address(endpoint)?.connect_lazy())
}

fn address(endpoint: &str) -> Result<Endpoint, ConnectError> {
    let path = path(endpoint)?;
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))?;
    Ok(endpoint.connect_timeout(Duration::from_secs(5)))
}

/// Why a socket cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint is no unix socket.
    #[error(transparent)]
    Endpoint(#[from] NotASocket),
    /// Nobody answers there.
    #[error("cannot connect")]
    Transport(#[from] tonic::transport::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_path_with_or_without_scheme() {
        for (endpoint, expected) in [
            ("/csi/csi.sock", Some("/csi/csi.sock")),
            ("unix:///csi/csi.sock", Some("/csi/csi.sock")),
            ("unix:/csi/csi.sock", Some("/csi/csi.sock")),
            ("csi.sock", None),
            ("tcp://10.0.0.1:80", None),
            ("", None),
        ] {
            assert_eq!(path(endpoint).ok(), expected.map(PathBuf::from), "{endpoint}");
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let socket = dir.path().join("csi.sock");
        let endpoint = socket.to_str().expect("utf-8").to_owned();
        drop(listen(&endpoint).expect("first"));
        drop(listen(&endpoint).expect("over a stale socket"));
        std::fs::remove_file(&socket).expect("remove");
        std::fs::write(&socket, "data").expect("write");
        let refused = listen(&endpoint).expect_err("a file is in the way");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&socket).expect("kept"), b"data");
    }
}
