//! Whether kubelet can still find the driver.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use axum::http::StatusCode;
use dunnage_csi::registration::InfoRequest;
use dunnage_csi::registration::registration_client::RegistrationClient;
use dunnage_csi::uds;

use crate::runtime::Page;

/// Asks on the socket as kubelet would: another pod may have taken its place, or removed it.
pub(super) async fn check(socket: &Path, driver: &str, timeout: Duration) -> Page {
    let failed = |text: String| Page::failed(StatusCode::INTERNAL_SERVER_ERROR, text);
    match std::fs::symlink_metadata(socket) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return failed(format!("{} is no socket", socket.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Page::failed(StatusCode::NOT_FOUND, format!("{} is gone", socket.display()));
        }
        Err(error) => return failed(format!("cannot look at {}: {error}", socket.display())),
    }
    match tokio::time::timeout(timeout, name(socket)).await {
        Ok(Ok(name)) if name == driver => Page::ok(),
        Ok(Ok(name)) => failed(format!("the socket is that of {name:?}")),
        Ok(Err(error)) => failed(format!("nobody answers on the socket: {error}")),
        Err(_elapsed) => failed(format!("no answer on the socket within {timeout:?}")),
    }
}

async fn name(socket: &Path) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let channel = uds::connect(&socket.to_string_lossy()).await?;
    Ok(RegistrationClient::new(channel).get_info(InfoRequest {}).await?.into_inner().name)
}
