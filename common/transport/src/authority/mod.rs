//! Makes any `:authority` acceptable to h2, on the way in.
//!
//! kube-apiserver dials the frontend's Unix socket with the socket's path as target, so grpc-go sends
//! `:authority: %2Fetc%2Fkubernetes%2F...sock` (older ones the path itself), and h2 answers PROTOCOL_ERROR before
//! any handler sees the request. [`AuthorityPatch`] reads along and replaces what no authority may contain,
//! length by length, before h2 gets it.
//!
//! It passes everything else as it is, in the reader's own buffer: other protocols, other frames, broken frames.
//! Only a HEADERS frame is held back, until it is whole. CONTINUATION passes: pseudo-headers come first, and
//! whoever cuts `:authority` itself in two is refused by h2 as before, as is an empty one, and one whose
//! name is taken from the dynamic table. Nobody may derive anything from the authority behind this.

mod block;
mod huffman;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What an HTTP/2 client begins with (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame's length, type, flags and stream.
const HEAD: usize = 9;

const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A transport whose incoming HEADERS are patched. Writes pass through.
#[derive(Debug)]
pub struct AuthorityPatch<IO> {
    io: IO,
    /// The longest HEADERS payload worth holding: h2 refuses longer ones.
    max_frame: usize,
    state: State,
}

/// Where the incoming bytes are.
///
/// ```text
///   Preface ──▶ Head ──▶ Payload ──▶ Head
///      │          └────▶ Headers ──▶ Head          whole in the reader's buffer
///      ▼                    └──▶ Hold ──▶ Release ──▶ Head
///     Pass                        └────▶ Release ──▶ Pass     at the end of file
/// ```
#[derive(Debug)]
enum State {
    /// So many bytes of the preface are there.
    Preface(usize),
    /// So many bytes of a frame's head are there.
    Head([u8; HEAD], usize),
    /// So many bytes of a payload are to pass.
    Payload(usize),
    /// At the beginning of a HEADERS payload of so many bytes.
    Headers { flags: u8, length: usize },
    /// Collects a HEADERS payload: `payload` is as long as it will be, `filled` bytes are there.
    Hold { flags: u8, payload: Vec<u8>, filled: usize },
    /// Hands a collected payload out, from `next` on.
    Release { payload: Vec<u8>, next: usize, last: bool },
    /// Not HTTP/2, or at its end.
    Pass,
}

impl<IO> AuthorityPatch<IO> {
    /// Wraps a fresh server-side transport. `max_frame_size`: that of the server's SETTINGS, in bytes.
    pub fn new(io: IO, max_frame_size: u32) -> Self {
        let max_frame = usize::try_from(max_frame_size).unwrap_or(usize::MAX);
        AuthorityPatch { io, max_frame, state: State::Preface(0) }
    }

    /// The transport.
    pub fn get_ref(&self) -> &IO {
        &self.io
    }

    /// Walks bytes that have just been read, patches, and says how many of them may be handed out. The rest is
    /// held.
    fn scan(&mut self, fresh: &mut [u8]) -> usize {
        let mut at = 0;
        while at < fresh.len() {
            let rest = &mut fresh[at..];
            match &mut self.state {
                State::Preface(matched) => {
                    if rest[0] != PREFACE[*matched] {
                        self.state = State::Pass;
                        return fresh.len();
                    }
                    *matched += 1;
                    at += 1;
                    if *matched == PREFACE.len() {
                        self.state = State::Head([0; HEAD], 0);
                    }
                }
                State::Head(head, have) => {
                    head[*have] = rest[0];
                    *have += 1;
                    at += 1;
                    if *have == HEAD {
                        self.state = State::after_head(head, self.max_frame);
                    }
                }
                State::Payload(left) => {
                    let passed = rest.len().min(*left);
                    *left -= passed;
                    at += passed;
                    if *left == 0 {
                        self.state = State::Head([0; HEAD], 0);
                    }
                }
                State::Headers { flags, length } if rest.len() >= *length => {
                    patch_payload(&mut rest[..*length], *flags);
                    at += *length;
                    self.state = State::Head([0; HEAD], 0);
                }
                State::Headers { flags, length } => {
                    let mut payload = vec![0; *length];
                    payload[..rest.len()].copy_from_slice(rest);
                    self.state = State::Hold { flags: *flags, payload, filled: rest.len() };
                    return at;
                }
                // `poll_read` reads for these three without a scan.
                State::Hold { .. } | State::Release { .. } | State::Pass => return fresh.len(),
            }
        }
        at
    }
}

impl State {
    fn after_head(head: &[u8; HEAD], max_frame: usize) -> State {
        let [a, b, c, kind, flags, ..] = *head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        match length {
            0 => State::Head([0; HEAD], 0),
            _ if kind == HEADERS && length <= max_frame => State::Headers { flags, length },
            _ => State::Payload(length),
        }
    }
}

/// Takes padding and priority off and patches the header block.
fn patch_payload(payload: &mut [u8], flags: u8) -> Option<()> {
    let mut block = payload;
    if flags & PADDED != 0 {
        let (padding, rest) = block.split_first_mut()?;
        let length = rest.len().checked_sub(usize::from(*padding))?;
        block = rest.get_mut(..length)?;
    }
    if flags & PRIORITY != 0 {
        block = block.get_mut(5..)?;
    }
    block::patch(block)
}

impl<IO: AsyncRead + Unpin> AsyncRead for AuthorityPatch<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Pass => return Pin::new(&mut this.io).poll_read(cx, buf),
                State::Release { payload, next, last } => {
                    let rest = &payload[*next..];
                    let count = rest.len().min(buf.remaining());
                    buf.put_slice(&rest[..count]);
                    *next += count;
                    if *next == payload.len() {
                        this.state = if *last { State::Pass } else { State::Head([0; HEAD], 0) };
                    }
                    return Poll::Ready(Ok(()));
                }
                State::Hold { flags, payload, filled } => {
                    let mut rest = ReadBuf::new(&mut payload[*filled..]);
                    ready!(Pin::new(&mut this.io).poll_read(cx, &mut rest))?;
                    let count = rest.filled().len();
                    *filled += count;
                    let last = count == 0;
                    if last {
                        // The end of file: h2 judges what there is.
                        payload.truncate(*filled);
                    } else if *filled < payload.len() {
                        continue;
                    } else {
                        patch_payload(payload, *flags);
                    }
                    this.state = State::Release { payload: std::mem::take(payload), next: 0, last };
                }
                _ => {
                    let before = buf.filled().len();
                    ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
                    let fresh = &mut buf.filled_mut()[before..];
                    let ended = fresh.is_empty();
                    let passed = this.scan(fresh);
                    buf.set_filled(before + passed);
                    // Nothing handed out would mean the end of file.
                    if ended || passed > 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for AuthorityPatch<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
