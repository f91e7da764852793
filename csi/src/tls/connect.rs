//! The client's side: a channel that connects on its first call and again whenever it has to.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::Material;

/// For the TCP connection and the handshake together.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// A dead machine is noticed after the interval and the time-out: 10 seconds.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A channel to the part at an address whose certificate carries the `expected` name.
pub fn connect(address: SocketAddr, material: Arc<Material>, expected: &str) -> Channel {
    let expected: Arc<str> = expected.into();
    let connector = tower::service_fn(move |_: tonic::codegen::http::Uri| {
        let (material, expected) = (Arc::clone(&material), Arc::clone(&expected));
        async move {
            let connection =
                tokio::time::timeout(CONNECT_LIMIT, handshake(address, &material, &expected)).await;
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {address}"));
            connection.map_err(late)?.map(TokioIo::new)
        }
    });
    // The scheme is plain because the connector, not tonic, does the TLS; the address is the connector's too.
    Endpoint::from_static("http://dunnage")
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connector)
}

async fn handshake(
    address: SocketAddr,
    material: &Material,
    expected: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(expected.to_owned()).map_err(io::Error::other)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(material.current().client).connect(name, stream).await
}
