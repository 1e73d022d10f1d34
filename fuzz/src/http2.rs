//! HTTP/2 encoding, for a client with one stream (RFC 9113, 3.4 and 4.1).

/// The client's connection preface.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A frame type.
pub(crate) const DATA: u8 = 0;
/// A frame type.
pub(crate) const HEADERS: u8 = 1;
/// A flag of DATA.
pub(crate) const END_STREAM: u8 = 1;
/// A flag of HEADERS.
pub(crate) const END_HEADERS: u8 = 4;

/// A frame of the first stream.
pub(crate) fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    [&length.to_be_bytes()[1..], &[kind, flags], &1u32.to_be_bytes(), payload].concat()
}
