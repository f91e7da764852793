//! Lets kubelet talk to a Rust server: its `:authority` is mended before HTTP/2 sees it.
//!
//! Kubelet dials a plugin's registration socket by its path (`grpc.DialContext(ctx, path)`), so gRPC-Go sends the
//! percent-encoded path as `:authority`. RFC 9113, section 8.3.1, wants an authority as of RFC 3986 there, the `h2`
//! crate insists on it, and the stream ends with `PROTOCOL_ERROR`. A server on a unix socket has no use for the name:
//! here it becomes `localhost`, on the way in.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// The magic words at the start of every HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// Length, type, flags and stream of a frame (RFC 9113, section 4.1).
const FRAME_HEADER: usize = 9;
/// Frame type HEADERS and its flags (RFC 9113, section 6.2).
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Longest HEADERS frame that is looked into: the limit of a frame that a peer may send unasked.
const MAX_FRAME: usize = 1 << 14;
/// Index of `:authority` in HPACK's static table (RFC 7541, appendix A).
const AUTHORITY_INDEX: usize = 1;
/// What `:authority` becomes.
const LOCALHOST: &[u8] = b"localhost";

/// A connection whose requests all have the authority `localhost`.
#[derive(Debug)]
pub struct Mended<S> {
    stream: S,
    frames: Mender,
    ready: Vec<u8>,
    taken: usize,
}

impl<S> Mended<S> {
    /// Wraps a connection that a client has just made.
    pub fn new(stream: S) -> Self {
        Self { stream, frames: Mender::default(), ready: Vec::new(), taken: 0 }
    }
}

impl<S: Connected> Connected for Mended<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Mended<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.taken == this.ready.len() {
            this.ready.clear();
            this.taken = 0;
            let mut space = [0; 4096];
            let mut read = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.frames.feed(read.filled(), &mut this.ready);
        }
        let rest = &this.ready[this.taken..];
        let part = &rest[..rest.len().min(out.remaining())];
        out.put_slice(part);
        this.taken += part.len();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Mended<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Follows the frames of one connection. Bytes go in as they come and out as soon as it is clear what they are.
#[derive(Debug, Default)]
struct Mender {
    state: State,
    /// The frame's header, and of a HEADERS frame its payload, as far as they are here.
    held: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// So many bytes go through as they are; then a frame begins.
    Pass(usize),
    FrameHeader,
    /// The payload of a HEADERS frame, of this length, is collected.
    Headers(usize),
}

impl Default for State {
    fn default() -> Self {
        Self::Pass(PREFACE)
    }
}

impl Mender {
    fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            match self.state {
                State::Pass(left) => {
                    let (part, rest) = input.split_at(left.min(input.len()));
                    out.extend_from_slice(part);
                    input = rest;
                    self.state =
                        if part.len() == left { State::FrameHeader } else { State::Pass(left - part.len()) };
                }
                State::FrameHeader => {
                    input = self.hold(input, FRAME_HEADER);
                    if self.held.len() == FRAME_HEADER {
                        let length = usize::from(self.held[0]) << 16
                            | usize::from(self.held[1]) << 8
                            | usize::from(self.held[2]);
                        let whole = self.held[3] == HEADERS && self.held[4] & END_HEADERS != 0;
                        if whole && (1..=MAX_FRAME).contains(&length) {
                            self.state = State::Headers(length);
                        } else {
                            out.append(&mut self.held);
                            self.state = if length == 0 { State::FrameHeader } else { State::Pass(length) };
                        }
                    }
                }
                State::Headers(length) => {
                    input = self.hold(input, FRAME_HEADER + length);
                    if self.held.len() == FRAME_HEADER + length {
                        out.extend(mend_frame(&self.held).unwrap_or_else(|| self.held.clone()));
                        self.held.clear();
                        self.state = State::FrameHeader;
                    }
                }
            }
        }
    }

    /// Takes from `input` until `size` bytes are held; gives what is left of it.
    fn hold<'a>(&mut self, input: &'a [u8], size: usize) -> &'a [u8] {
        let (part, rest) = input.split_at((size - self.held.len()).min(input.len()));
        self.held.extend_from_slice(part);
        rest
    }
}

/// A whole HEADERS frame with its authority mended; `None` for one that cannot be read, which the server shall refuse.
fn mend_frame(frame: &[u8]) -> Option<Vec<u8>> {
    let (header, payload) = frame.split_at_checked(FRAME_HEADER)?;
    let flags = header[4];
    let padding = if flags & PADDED == 0 { 0 } else { usize::from(*payload.first()?) };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    let block = mend_block(payload.get(start..end)?)?;
    let length = u32::try_from(start + block.len() + padding).ok()?.to_be_bytes();
    Some([&length[1..], &header[3..], &payload[..start], &block, &payload[end..]].concat())
}

/// An HPACK block (RFC 7541, section 6) with every literal `:authority` replaced.
///
/// The new value is never longer than the old one, so the decoder's table forgets nothing that the encoder's still has.
fn mend_block(block: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(block.len() + LOCALHOST.len());
    let mut rest = block;
    while let Some(&first) = rest.first() {
        let (prefix, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, mut used) = integer(rest, prefix)?;
        if !literal {
            out.extend_from_slice(rest.get(..used)?);
            rest = &rest[used..];
            continue;
        }
        if index == 0 {
            used += string(rest.get(used..)?)?;
        }
        let value = string(rest.get(used..)?)?;
        out.extend_from_slice(&rest[..used]);
        // Huffman coding never makes this one shorter than its letters' 5 bits: 9 coded bytes are 9 letters at least.
        if index == AUTHORITY_INDEX && value > LOCALHOST.len() {
            out.push(u8::try_from(LOCALHOST.len()).ok()?);
            out.extend_from_slice(LOCALHOST);
        } else {
            out.extend_from_slice(&rest[used..used + value]);
        }
        rest = &rest[used + value..];
    }
    Some(out)
}

/// An integer with a prefix of so many bits (RFC 7541, section 5.1), and how many bytes it takes.
fn integer(bytes: &[u8], prefix: u32) -> Option<(usize, usize)> {
    let full = (1 << prefix) - 1;
    let mut value = usize::from(*bytes.first()?) & full;
    if value < full {
        return Some((value, 1));
    }
    for (position, byte) in bytes.iter().skip(1).take(4).enumerate() {
        value += usize::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            return Some((value, position + 2));
        }
    }
    None
}

/// How many bytes the string literal at the start takes (RFC 7541, section 5.2).
fn string(bytes: &[u8]) -> Option<usize> {
    let (length, used) = integer(bytes, 7)?;
    bytes.get(..used + length).map(<[u8]>::len)
}

#[cfg(test)]
mod tests;
