//! A gRPC stream: a server's connection receives one request whose DATA frames are split as the input says, and returns
//! the same messages as a parser of all bytes at once. An invalid message ends the stream with an error.

use std::cell::RefCell;
use std::future::{Future, pending};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use grpc::{Incoming, ServerSettings, Wire, WireError, WireStream, decode, serve_connection};
use http::HeaderMap;
use tokio::io::{AsyncRead, ReadBuf, join, sink};

use crate::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, frame};
use crate::input::Input;

/// SETTINGS without settings.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// `:method POST`, `:scheme http`, `:path /`, `:authority a`, `te trailers`, `content-type application/grpc`.
const REQUEST: &[u8] = b"\x83\x86\x84\x01\x01a\x00\x02te\x08trailers\x00\x0ccontent-type\x10application/grpc";
/// Below the window, so that no frame is held back.
const MOST: usize = 64 << 10;

/// h2 ends a connection with more empty DATA frames, and one with about as many unread small ones. The last frame takes the rest.
const MOST_FRAMES: usize = 100;

/// The input is a sequence of frames: one byte of length, then that many bytes.
pub fn grpc(data: &[u8]) {
    let mut input = Input::new(&data[..data.len().min(MOST)]);
    let mut wire = [PREFACE, &SETTINGS, &frame(HEADERS, END_HEADERS, REQUEST)].concat();
    let mut body = Vec::new();
    for frames in 1.. {
        if input.is_empty() {
            break;
        }
        let length = usize::from(input.byte());
        let part = input.take(if frames < MOST_FRAMES { length } else { MOST });
        body.extend_from_slice(part);
        let flags = if input.is_empty() { END_STREAM } else { 0 };
        wire.extend(frame(DATA, flags, part));
    }
    if body.is_empty() && data.is_empty() {
        wire.extend(frame(DATA, END_STREAM, &[]));
    }
    let (messages, good) = expected(&body);
    let (got, error) = served(wire);
    assert_eq!(got, messages, "other messages than those sent");
    assert_eq!(error.is_none(), good, "{error:?}");
}

/// The messages in the bytes, and whether the bytes end at a message boundary.
fn expected(mut body: &[u8]) -> (Vec<Incoming>, bool) {
    let mut messages = Vec::new();
    while let Some((&[flag, a, b, c, d], rest)) = body.split_first_chunk::<5>() {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if flag != 0 || rest.len() < length {
            return (messages, false);
        }
        let (message, rest) = rest.split_at(length);
        messages.push(decode(Bytes::copy_from_slice(message)));
        body = rest;
    }
    (messages, body.is_empty())
}

/// The stream's messages, and the error that ends it.
fn served(wire: Vec<u8>) -> (Vec<Incoming>, Option<WireError>) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    }
    RUNTIME.with(|runtime| {
        let _context = runtime.enter();
        let streams = RefCell::new(Vec::new());
        let settings = ServerSettings::for_agents();
        let accept = |request: grpc::Request| {
            let stream = request.accept(HeaderMap::new()).expect("a request that can be accepted");
            streams.borrow_mut().push(stream);
        };
        let mut connection =
            pin!(serve_connection(join(Fed { bytes: wire, at: 0 }, sink()), &settings, accept, pending()));
        let mut cx = Context::from_waker(Waker::noop());
        let mut got = Vec::new();
        // Each turn of the connection reads a piece; the stream must end within this number of turns.
        for _ in 0..4 * MOST {
            let over = connection.as_mut().poll(&mut cx).is_ready();
            if let Some(stream) = streams.borrow_mut().first_mut()
                && let Some(end) = drain(stream, &mut cx, &mut got)
            {
                return (got, end);
            }
            assert!(!over, "the connection ended before its stream");
        }
        panic!("the stream does not end")
    })
}

/// Takes the available messages. Returns the end of the stream once it has arrived.
fn drain(
    stream: &mut WireStream,
    cx: &mut Context<'_>,
    got: &mut Vec<Incoming>,
) -> Option<Option<WireError>> {
    loop {
        match stream.poll_packet(cx) {
            Poll::Ready(Some(Ok(message))) => got.push(message),
            Poll::Ready(Some(Err(error))) => return Some(Some(error)),
            Poll::Ready(None) => return Some(None),
            Poll::Pending => return None,
        }
    }
}

/// A peer that sends these bytes and then waits.
struct Fed {
    bytes: Vec<u8>,
    at: usize,
}

impl AsyncRead for Fed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.bytes[self.at..];
        if rest.is_empty() {
            return Poll::Pending;
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        self.at += count;
        Poll::Ready(Ok(()))
    }
}
