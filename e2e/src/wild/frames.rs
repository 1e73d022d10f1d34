//! HTTP/2's frames by hand: what no library would send, or hides when it arrives.

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt};

/// What a client begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A type of frames.
pub const DATA: u8 = 0;
/// A type of frames.
pub const HEADERS: u8 = 1;
/// A type of frames.
pub const RST_STREAM: u8 = 3;
/// A type of frames.
pub const SETTINGS: u8 = 4;
/// A type of frames.
pub const PING: u8 = 6;
/// A type of frames.
pub const GOAWAY: u8 = 7;

/// The flag of SETTINGS and PING that answer.
pub const ACK: u8 = 1;
/// The flag of DATA and HEADERS that nothing follows on their stream.
pub const END_STREAM: u8 = 1;
/// The flag of HEADERS that no CONTINUATION follows.
pub const END_HEADERS: u8 = 4;

/// A frame that arrived.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// One frame as bytes; of its payload's length only 24 bits are said.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A client's preface and its SETTINGS, which change nothing.
pub fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// The next frame.
///
/// # Errors
/// The peer hung up.
pub async fn read_frame(io: &mut (impl AsyncRead + Unpin)) -> Result<Frame> {
    let mut head = [0; 9];
    io.read_exact(&mut head).await.context("the server hung up")?;
    let [a, b, c, kind, flags, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    io.read_exact(&mut payload).await.context("the server hung up within a frame")?;
    Ok(Frame { kind, flags, payload })
}
