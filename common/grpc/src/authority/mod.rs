//! Replaces any incoming `:authority` by one that h2 accepts.
//!
//! kube-apiserver dials the frontend's Unix socket with the socket's path as target, so grpc-go sends `:authority:
//! %2Fetc%2Fkubernetes%2F...sock` (older versions send the path itself), and h2 answers PROTOCOL_ERROR before any
//! handler sees the request. [`AuthorityPatch`] parses the incoming bytes and replaces the value by a filler of the same
//! length before h2 reads them.
//!
//! Everything else passes unchanged in the reader's own buffer: other protocols, other frames, malformed frames. Only a
//! HEADERS frame is held back until it is complete. CONTINUATION passes: pseudo-headers come first, and h2 refuses, as
//! before, an `:authority` that is split across frames, an empty literal, and one whose name is in the dynamic table. No
//! code behind this patch may derive anything from the authority.
//!
//! Since it sees each frame, it also ends a connection with too many frames for which h2 walks through all streams.

mod block;
mod huffman;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// An HTTP/2 client's connection preface (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame's length, type, flags and stream.
pub(super) const HEAD: usize = 9;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 0x1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The most SETTINGS (without ACK) and GOAWAY of a connection. For each h2 walks through all streams, of which there may be 65,536,
/// without a pause. grpc-go sends SETTINGS once, and up to 20 times more while its window grows from 64 KiB to 16 MiB.
const MAX_WALKS: usize = 100;

/// A transport whose incoming HEADERS are patched. Writes pass through.
#[derive(Debug)]
pub struct AuthorityPatch<IO> {
    io: IO,
    /// The longest HEADERS payload that is held: h2 refuses longer ones.
    max_frame: usize,
    /// SETTINGS and GOAWAY so far.
    walks: usize,
    state: State,
}

/// The position in the incoming bytes.
///
/// ```text
///   Preface ──▶ Head ──▶ Payload ──▶ Head
///      │          └────▶ Headers ──▶ Head          whole in the reader's buffer
///      ▼                    └──▶ Hold ──▶ Release ──▶ Head
///     Pass                        └────▶ Release ──▶ Pass     at the end of file
/// ```
#[derive(Debug)]
enum State {
    /// This many bytes of the preface have arrived.
    Preface(usize),
    /// This many bytes of a frame's head have arrived.
    Head([u8; HEAD], usize),
    /// This many bytes of a payload still have to pass.
    Payload(usize),
    /// At the start of a HEADERS payload of this length.
    Headers { flags: u8, length: usize },
    /// Collects a HEADERS payload: `payload` has its final length, of which `filled` bytes have arrived.
    Hold { flags: u8, payload: Vec<u8>, filled: usize },
    /// Returns a collected payload, from `next` on.
    Release { payload: Vec<u8>, next: usize, last: bool },
    /// Not HTTP/2, or at its end.
    Pass,
}

impl<IO> AuthorityPatch<IO> {
    /// Wraps a new server-side transport. `max_frame_size`: that of the server's SETTINGS, in bytes.
    pub fn new(io: IO, max_frame_size: u32) -> Self {
        let max_frame = usize::try_from(max_frame_size).unwrap_or(usize::MAX);
        AuthorityPatch { io, max_frame, walks: 0, state: State::Preface(0) }
    }

    /// Parses new bytes, patches them, and returns how many of them may be passed on. The rest is held.
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
                        let [_, _, _, kind, flags, ..] = *head;
                        let walks = kind == GOAWAY || kind == SETTINGS && flags & ACK == 0;
                        self.walks += usize::from(walks);
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
                // In these three states `poll_read` does not scan.
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

/// Skips padding and priority, and patches the header block.
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
                        // End of file: h2 judges the truncated payload.
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
                    if this.walks > MAX_WALKS {
                        return Poll::Ready(Err(io::Error::other("too many frames of SETTINGS or GOAWAY")));
                    }
                    buf.set_filled(before + passed);
                    // A read of zero bytes would mean end of file.
                    if ended || passed > 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

net::writes_pass_through!(AuthorityPatch);
