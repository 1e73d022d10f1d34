//! The packet codec, compared with prost: both decode the same, and messages that prost refuses are malformed.

use bytes::Bytes;
use grpc::{Incoming, decode};
use mux::{ConnectId, DialId, Packet};
use prost::Message;
use proto::packet::Payload;

/// One message.
pub fn packets(data: &[u8]) {
    let message = Bytes::copy_from_slice(data);
    let own_codec = match decode(&message) {
        Incoming::Malformed(why) => {
            assert!(!why.is_empty());
            None
        }
        known => Some(known),
    };
    assert_eq!(own_codec, prost_codec(message), "the codecs differ");
}

/// prost's result, with the rule that type and payload match.
fn prost_codec(message: Bytes) -> Option<Incoming> {
    let packet = proto::Packet::decode(message).ok()?;
    let (number, payload) = (packet.r#type, packet.payload);
    if !matches!(number, 0..=6 | 100..=101) {
        return Some(Incoming::Unknown(number));
    }
    let packet = match (number, payload?) {
        (0, Payload::DialRequest(it)) => Packet::DialReq {
            random: DialId(it.random),
            protocol: it.protocol,
            address: it.address,
            trace: it.traceparent.parse().ok(),
        },
        (1, Payload::DialResponse(it)) => {
            let outcome = if it.error.is_empty() { Ok(ConnectId(it.connect_id)) } else { Err(cut(it.error)) };
            Packet::DialRsp { random: DialId(it.random), outcome }
        }
        (2, Payload::CloseRequest(it)) => Packet::CloseReq { id: ConnectId(it.connect_id) },
        (3, Payload::CloseResponse(it)) => {
            Packet::CloseRsp { id: ConnectId(it.connect_id), error: cut(it.error) }
        }
        (4, Payload::Data(it)) if !it.data.is_empty() => {
            Packet::Data { id: ConnectId(it.connect_id), payload: it.data }
        }
        (5, Payload::CloseDial(it)) => Packet::DialCls { random: DialId(it.random) },
        (6, Payload::Drain(_)) => Packet::Drain,
        (100, Payload::Grant(it)) => Packet::Grant { id: ConnectId(it.connect_id), offset: it.offset },
        (101, Payload::Fin(it)) => Packet::Fin { id: ConnectId(it.connect_id) },
        _ => return None,
    };
    Some(Incoming::Packet(packet))
}

/// Error texts are cut at 4 KiB.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(4096));
    text
}
