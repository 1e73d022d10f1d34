//! HTTP/2 frames and gRPC messages by hand: some that no library sends, or that libraries hide on receipt.

use anyhow::{Context, Result};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The client's connection preface.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of DATA frames.
pub const DATA: u8 = 0;
/// The type of HEADERS frames.
pub const HEADERS: u8 = 1;
/// The type of RST_STREAM frames.
pub const RST_STREAM: u8 = 3;
/// The type of SETTINGS frames.
pub const SETTINGS: u8 = 4;
/// The type of PING frames.
pub const PING: u8 = 6;
/// The type of GOAWAY frames.
pub const GOAWAY: u8 = 7;

/// The flag of an acknowledging SETTINGS or PING.
pub const ACK: u8 = 1;
/// The flag of the last DATA or HEADERS of a stream.
pub const END_STREAM: u8 = 1;
/// The flag of HEADERS without CONTINUATION.
pub const END_HEADERS: u8 = 4;

/// A received frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// One frame as bytes; the payload's length is cut to 24 bits.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A client's preface and empty SETTINGS.
pub fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// The next frame.
///
/// # Errors
/// The peer closed the connection.
pub async fn read_frame(io: &mut (impl AsyncRead + Unpin)) -> Result<Frame> {
    let mut head = [0; 9];
    io.read_exact(&mut head).await.context("the server hung up")?;
    let [a, b, c, kind, flags, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    io.read_exact(&mut payload).await.context("the server hung up within a frame")?;
    Ok(Frame { kind, flags, payload })
}

/// The header block of a gRPC request: entries 3 and 6 of HPACK's static table (POST and http), and literals without indexing,
/// one of them an agent's id.
pub fn block(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let (path, kind) = (text(path), text("application/grpc"));
    [&[0x83, 0x86, 0x04], &*path, &[0x0f, 0x10], &kind, &[0x00], &text("agentid"), &text("by-hand")].concat()
}

/// A message as gRPC frames it: without compression, and behind its length.
pub fn framed(message: &[u8]) -> Bytes {
    [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat().into()
}

/// Takes the first complete gRPC message from received bytes.
pub fn message(arrived: &mut BytesMut) -> Option<Bytes> {
    let length = arrived.get(1..5)?.get_u32() as usize;
    if arrived.len() < 5 + length {
        return None;
    }
    arrived.advance(5);
    Some(arrived.split_to(length).freeze())
}
