//! The connection to the driver's socket, which notices its own end.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use dunnage_csi::uds;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Uri};
use tracing::{info, warn};

use super::Error;

/// How long the driver may take to listen.
const LIMIT: Duration = Duration::from_secs(30);
/// How often the wait is told of.
const TELL: Duration = Duration::from_secs(10);

/// A connection that is made once and never again by itself.
#[derive(Clone)]
pub struct Connection {
    channel: Channel,
    lost: CancellationToken,
}

impl Connection {
    /// Connects to the driver at `address`, waiting for it up to 30 s.
    pub async fn open(address: &str, stop: &CancellationToken) -> Result<Self, Error> {
        let path = uds::path(address)?;
        let start = Instant::now();
        let mut told = start;
        loop {
            let error = match Self::once(path.clone()).await {
                Ok(connection) => {
                    info!("connected to the driver");
                    return Ok(connection);
                }
                Err(error) => error,
            };
            if start.elapsed() >= LIMIT {
                let seconds = LIMIT.as_secs();
                return Err(Error::NoDriver { address: address.to_owned(), seconds, source: error.into() });
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                warn!(address, waited = start.elapsed().as_secs(), "still waiting for the driver");
            }
            tokio::select! {
                () = stop.cancelled() => return Err(Error::Stopped),
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
        }
    }

    /// Connects to a driver that listens already.
    pub async fn dial(address: &str) -> Result<Self, Error> {
        let unreachable =
            |source| Error::Unreachable { address: address.to_owned(), source: Box::new(source) };
        Self::once(uds::path(address)?).await.map_err(unreachable)
    }

    async fn once(path: PathBuf) -> Result<Self, tonic::transport::Error> {
        let lost = CancellationToken::new();
        let token = lost.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let (path, token) = (path.clone(), token.clone());
            async move {
                if token.is_cancelled() {
                    return Err(io::Error::from(io::ErrorKind::NotConnected));
                }
                let stream = UnixStream::connect(path).await?;
                Ok(TokioIo::new(Watched { stream, _ends: token.drop_guard() }))
            }
        });
        // The name is only what the HTTP/2 requests say; the connector knows the way.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await?;
        Ok(Self { channel, lost })
    }

    /// The channel for clients.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Waits until the connection is broken.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

/// A stream that cancels a token when it is dropped, which the HTTP/2 task does as soon as the peer is gone.
struct Watched {
    stream: UnixStream,
    _ends: DropGuard,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
