//! Byte streams, split at any position.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use httlib_hpack::Encoder;
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use super::super::{ACK, AuthorityPatch, GOAWAY, PADDED, PRIORITY, SETTINGS, patch_payload};
use super::{SOCKET, request};
use crate::raw::{HEADERS, PREFACE, frame};

const MAX_FRAME: u32 = 16_384;

/// A transport that returns its bytes in pieces, and is pending once between two of them.
struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    rested: bool,
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.rested = !self.rested;
        if self.rested {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(mut piece) = self.pieces.pop_front() {
            let count = piece.len().min(buf.remaining());
            buf.put_slice(&piece[..count]);
            piece.drain(..count);
            if !piece.is_empty() {
                self.pieces.push_front(piece);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The output for `bytes` that arrive in pieces of `piece` and are read `read` at a time.
fn through(bytes: &[u8], piece: usize, read: usize) -> Vec<u8> {
    read_through(bytes, piece, read).unwrap()
}

fn read_through(bytes: &[u8], piece: usize, read: usize) -> io::Result<Vec<u8>> {
    let pieces = bytes.chunks(piece).map(<[u8]>::to_vec).collect();
    let mut io = AuthorityPatch::new(Pieces { pieces, rested: false }, MAX_FRAME);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut out = Vec::new();
        let mut buf = vec![0; read];
        loop {
            match io.read(&mut buf).await? {
                0 => return Ok(out),
                count => out.extend_from_slice(&buf[..count]),
            }
        }
    })
}

/// The preface and these frames: the input, and the expected output.
fn streams(frames: &[(u8, u8, Vec<u8>)]) -> (Vec<u8>, Vec<u8>) {
    let (mut before, mut after) = (PREFACE.to_vec(), PREFACE.to_vec());
    for (kind, flags, payload) in frames {
        before.extend(frame(*kind, *flags, 1, payload));
        let mut payload = payload.clone();
        if *kind == HEADERS && payload.len() <= MAX_FRAME as usize {
            patch_payload(&mut payload, *flags);
        }
        after.extend(frame(*kind, *flags, 1, &payload));
    }
    (before, after)
}

fn block() -> Vec<u8> {
    request(&mut Encoder::with_dynamic_size(4096), SOCKET, Encoder::HUFFMAN_VALUE, false)
}

#[test]
fn one_byte_at_a_time() {
    let mut padded = vec![3, 0, 0, 0, 0, 7];
    padded.extend(block());
    padded.extend([0; 3]);
    let frames = [
        (4, 0, vec![]),
        (HEADERS, 4, block()),
        (0, 0, vec![1; 100]),
        (HEADERS, 4 | PADDED | PRIORITY, padded),
        (HEADERS, 0, block()),
        (9, 4, block()),
        (HEADERS, 4, vec![0; 20_000]),
    ];
    let (before, after) = streams(&frames);
    assert_ne!(before, after);
    let count = |bytes: &[u8]| bytes.windows(block().len()).filter(|it| *it == block()).count();
    assert_eq!((count(&before), count(&after)), (4, 1), "all but CONTINUATION are patched");
    for (piece, read) in [(1, 1), (1, 4096), (4096, 1), (7, 3), (100_000, 100_000)] {
        assert_eq!(through(&before, piece, read), after, "pieces of {piece} read by {read}");
    }
}

#[test]
fn frames_that_walk_all_streams_are_limited() {
    let acks = frame(SETTINGS, ACK, 0, &[]).repeat(1_000);
    for (kind, payload) in [(SETTINGS, &[0, 4, 0, 0, 0, 1][..]), (SETTINGS, &[]), (GOAWAY, &[0; 8])] {
        for (count, ends) in [(100, false), (101, true)] {
            let bytes = [PREFACE, &acks, &frame(kind, 0, 0, payload).repeat(count)].concat();
            for piece in [1, 100_000] {
                assert_eq!(read_through(&bytes, piece, 4_096).is_err(), ends, "{count} of type {kind}");
            }
        }
    }
}

#[test]
fn a_cut_stream_comes_out_as_it_is() {
    let (before, _) = streams(&[(HEADERS, 4, block())]);
    for end in 0..before.len() {
        assert_eq!(through(&before[..end], 5, 64), before[..end]);
    }
}

#[test]
fn other_protocols_pass() {
    let mut almost = PREFACE.to_vec();
    almost[23] = b'x';
    almost.extend(frame(HEADERS, 4, 1, &block()));
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), almost] {
        assert_eq!(through(&bytes, 5, 64), bytes);
    }
}

#[test]
fn impossible_padding_is_h2s_to_judge() {
    let mut payload = vec![255];
    payload.extend(block());
    let (before, after) = streams(&[(HEADERS, 4 | PADDED, payload), (HEADERS, PRIORITY, vec![1, 2])]);
    assert_eq!(before, after);
    assert_eq!(through(&before, 11, 64), before);
}

proptest! {
    #[test]
    fn any_frames_in_any_pieces(
        frames in prop::collection::vec(
            (0_u8..11, any::<u8>(), prop_oneof![
                Just(block()),
                prop::collection::vec(any::<u8>(), 0..300),
            ]),
            0..8,
        ),
        piece in 1_usize..400,
        read in 1_usize..400,
    ) {
        let (before, after) = streams(&frames);
        prop_assert_eq!(through(&before, piece, read), after);
    }
}
