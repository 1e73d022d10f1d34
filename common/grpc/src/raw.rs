//! HTTP/2 frames built by hand, for tests: frame types, and frames as bytes.

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// The ACK flag of SETTINGS and PING.
pub(crate) const ACK: u8 = 1;
/// The flag of HEADERS without CONTINUATION.
pub(crate) const END_HEADERS: u8 = 4;

/// The client's connection preface. Not the constant of the code under test.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame: length, type, flags, stream, payload.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A client's preface and its SETTINGS.
pub(crate) fn hello(settings: &[(u16, u32)]) -> Vec<u8> {
    let pair = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let settings: Vec<u8> = settings.iter().flat_map(pair).collect();
    [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat()
}
