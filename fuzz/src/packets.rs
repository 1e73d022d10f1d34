//! The packet codec: any bytes are a packet, a packet of an unknown type, or malformed for a reason. DATA is never empty.

use bytes::Bytes;
use grpc::{Incoming, decode};
use mux::Packet;

/// One message.
pub fn packets(data: &[u8]) {
    match decode(Bytes::copy_from_slice(data)) {
        Incoming::Malformed(why) => assert!(!why.is_empty()),
        Incoming::Packet(Packet::Data { payload, .. }) => assert!(!payload.is_empty()),
        Incoming::Packet(_) | Incoming::Unknown(_) => {}
    }
}
