//! The server's side: connections whose handshake is done, for tonic's `serve_with_incoming`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt as _};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::{Material, NAMES, Peer};

/// How long a client may take to prove itself.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Handshakes at a time: enough that idle strangers do not keep the real clients out, few enough to bound memory.
const HANDSHAKES: usize = 512;
/// Pause after a failed accept, which is mostly a lack of file descriptors and would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An authenticated connection.
pub struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
}

/// Accepts clients that have a certificate of the CA with a known name. Everyone else is dropped and logged.
pub fn incoming(
    listener: TcpListener,
    material: Arc<Material>,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    stream::unfold(listener, |listener| async move {
        loop {
            match listener.accept().await {
                Ok(accepted) => return Some((accepted, listener)),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
    .map(move |(stream, address)| {
        let material = Arc::clone(&material);
        async move {
            let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, handshake(stream, &material)).await;
            match handshake.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))) {
                Ok(connection) => Some(Ok(connection)),
                Err(error) => {
                    tracing::warn!(%address, %error, "refused a connection");
                    None
                }
            }
        }
    })
    .buffer_unordered(HANDSHAKES)
    .filter_map(std::future::ready)
}

async fn handshake(stream: TcpStream, material: &Material) -> io::Result<Connection> {
    stream.set_nodelay(true)?;
    let stream = TlsAcceptor::from(material.current().server).accept(stream).await?;
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    let peer = certificate.and_then(name).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the client's certificate has none of the known names",
        )
    })?;
    Ok(Connection { stream, peer })
}

/// Which of the known names a certificate carries.
fn name(certificate: &CertificateDer<'_>) -> Option<Peer> {
    let certificate = ParsedCertificate::try_from(certificate).ok()?;
    let carries = |name: &&str| {
        ServerName::try_from(*name).is_ok_and(|name| verify_server_name(&certificate, &name).is_ok())
    };
    NAMES.into_iter().find(carries).map(|name| Peer(name.to_owned()))
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
