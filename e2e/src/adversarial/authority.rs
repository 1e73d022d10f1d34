//! A raw HTTP/2 client that sends any `:authority`, which no Rust library permits.
//!
//! kube-apiserver uses the socket's path as gRPC target, so grpc-go sends `:authority: %2Fetc%2F...` (older versions the raw
//! path). This client writes its frames by hand, makes one dial, and reads only the frames up to the answer.

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use prost::Message;
use proto::Packet;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, framed, hello,
    message, read_frame,
};
use super::packets::dial_req;
use crate::wait::within;

/// The encoding of the authority on the wire.
#[derive(Clone, Copy, Debug)]
pub enum Authority<'a> {
    /// A literal of plain octets.
    Raw(&'a str),
    /// A literal in HPACK's Huffman code, as grpc-go writes it.
    Huffman(&'a str),
}

/// Dials `target` over a connected socket with this authority; returns the packet that answers.
pub async fn dial_with_authority(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    authority: Authority<'_>,
    target: &str,
) -> Result<Packet> {
    let dial = framed(&dial_req(7, target).encode_to_vec());
    let request = frame(HEADERS, END_HEADERS, 1, &headers(authority)?);
    socket.write_all(&[hello(), request, frame(DATA, 0, 1, &dial)].concat()).await?;
    within("the answer to a hand-written dial", answer(&mut socket)).await?
}

async fn answer(socket: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<Packet> {
    let mut arrived = BytesMut::new();
    loop {
        let Frame { kind, flags, payload } = read_frame(socket).await?;
        match kind {
            SETTINGS if flags & ACK == 0 => socket.write_all(&frame(SETTINGS, ACK, 0, &[])).await?,
            DATA => arrived.extend_from_slice(&payload),
            RST_STREAM => bail!("the stream was reset: {payload:?}"),
            GOAWAY => bail!("the connection was ended: {}", String::from_utf8_lossy(&payload)),
            HEADERS if flags & END_STREAM != 0 => bail!("the stream ended with a status and no packet"),
            _ => {}
        }
        if let Some(message) = message(&mut arrived) {
            return Ok(Packet::decode(message)?);
        }
    }
}

/// The request's header block. `:method: POST` and `:scheme: http` are entries 3 and 6 of HPACK's static table; the others are
/// literals without indexing, with `:path`, `:authority` and `content-type` by their static names.
fn headers(authority: Authority<'_>) -> Result<Vec<u8>> {
    let mut block = vec![0x83, 0x86];
    literal(&mut block, &[0x04], b"/ProxyService/Proxy", 0);
    match authority {
        Authority::Raw(text) => literal(&mut block, &[0x01], text.as_bytes(), 0),
        Authority::Huffman(text) => literal(&mut block, &[0x01], &huffman(text)?, 0x80),
    }
    literal(&mut block, &[0x0f, 0x10], b"application/grpc", 0);
    block.push(0x00);
    string(&mut block, b"te", 0);
    string(&mut block, b"trailers", 0);
    Ok(block)
}

fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8], coding: u8) {
    block.extend_from_slice(name);
    string(block, value, coding);
}

/// A string literal with a 7-bit length prefix; greater lengths have continuation octets.
fn string(block: &mut Vec<u8>, value: &[u8], coding: u8) {
    let length = value.len();
    if length < 127 {
        block.push(coding | u8::try_from(length).unwrap_or(0));
    } else {
        block.push(coding | 127);
        let mut rest = length - 127;
        while rest >= 128 {
            block.push(u8::try_from(rest % 128).unwrap_or(0) | 128);
            rest /= 128;
        }
        block.push(u8::try_from(rest).unwrap_or(0));
    }
    block.extend_from_slice(value);
}

/// HPACK's Huffman code (RFC 7541, appendix B) for the characters of a socket's path.
fn huffman(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u64, 0_u32);
    for character in text.chars() {
        let (code, length) = code(character).with_context(|| format!("no code for {character:?} here"))?;
        bits = (bits << length) | code;
        count += length;
        while count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff)?);
        }
    }
    if count > 0 {
        // The padding is the start of the end-of-string code: all ones.
        bytes.push(u8::try_from(((bits << (8 - count)) | (0xff >> count)) & 0xff)?);
    }
    Ok(bytes)
}

fn code(character: char) -> Option<(u64, u32)> {
    const FIVE: &str = "012aceiost";
    const SIX: &str = " %-./3456789=A_bdfghlmnpru";
    const SEVEN: &str = ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz";
    const EIGHT: &str = "&*,;XZ";
    let at = |set: &str| set.chars().position(|known| known == character).map(|at| at as u64);
    // The codes of one length are consecutive in the order of the characters above.
    at(FIVE)
        .map(|at| (at, 5))
        .or_else(|| at(SIX).map(|at| (0x14 + at, 6)))
        .or_else(|| at(SEVEN).map(|at| (0x5c + at, 7)))
        .or_else(|| at(EIGHT).map(|at| (0xf8 + at, 8)))
}

#[cfg(test)]
mod tests {
    use super::huffman;

    /// The examples of RFC 7541, appendix C.4 and C.6.
    #[test]
    fn the_code_is_the_rfcs() {
        let hex =
            |text: &str| huffman(text).unwrap().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex("www.example.com"), "f1e3c2e5f23a6ba0ab90f4ff");
        assert_eq!(hex("no-cache"), "a8eb10649cbf");
        assert_eq!(hex("302"), "6402");
        // Of eight bits, by the table.
        assert_eq!(hex("XZ"), "fcfd");
    }
}
