//! The packet codec: prost reads and writes `konnectivity.proto`, except the head of DATA, so that its payload is never copied.
//!
//! Decoding applies invariant 9: a known type without its payload, or with another's, is [`Incoming::Malformed`]. Error texts
//! are cut at 4 KiB.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::{Buf, BufMut, Bytes};
use mux::{ConnectId, DialId, Packet, TraceContext, cut_error};
use prost::{EncodeError, Message, encode_length_delimiter, length_delimiter_len};
use proto::PacketType::{self, CloseReq, CloseRsp, Data, DialCls, DialReq, DialRsp, Drain, Fin, Grant};
use proto::packet::Payload;

use super::Incoming;

/// The most reads of one message, nested messages included. A field takes two reads, a text three. Packets have five fields; a
/// message of 4 MiB could have two million, and to decode them would block the thread for milliseconds.
const MAX_READS: u32 = 2 * 1_024;

/// The memory in bytes that a short text of a DIAL_REQ may hold. A repeated field keeps the memory of its longest value.
const MAX_SPARE_BYTES: usize = 256;

/// The unread rest of a message. After the last permitted read it is empty, so that prost stops.
struct Reader {
    rest: Bytes,
    reads: u32,
}

impl Buf for Reader {
    fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.rest
    }

    fn advance(&mut self, count: usize) {
        self.rest.advance(count);
        self.reads = self.reads.saturating_sub((count > 0).into());
        if self.reads == 0 {
            self.rest.clear();
        }
    }

    /// Does not count: prost calls it for the bytes of one integer, after it has looked at what remains.
    fn get_u8(&mut self) -> u8 {
        self.rest.get_u8()
    }

    /// Shares the message's memory.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        self.rest.copy_to_bytes(count)
    }
}

/// Reads one gRPC message. The payload of DATA shares the message's memory.
pub fn decode(message: Bytes) -> Incoming {
    let length = message.len();
    let mut reader = Reader { rest: message, reads: MAX_READS };
    let packet = proto::Packet::decode(&mut reader);
    if reader.reads == 0 {
        return Incoming::Malformed("too many fields");
    }
    packet
        .map_err(|_| "not a packet")
        .and_then(|packet| judge(packet, length))
        .unwrap_or_else(Incoming::Malformed)
}

/// Type and payload must match.
fn judge(packet: proto::Packet, length: usize) -> Result<Incoming, &'static str> {
    let Ok(kind) = PacketType::try_from(packet.r#type) else {
        return Ok(Incoming::Unknown(packet.r#type));
    };
    // It says nothing more. Go does not read the payload.
    if kind == Drain {
        return Ok(Incoming::Packet(Packet::Drain));
    }
    let payload = packet.payload.ok_or("a type without its payload")?;
    Ok(Incoming::Packet(match (kind, payload) {
        (DialReq, Payload::DialRequest(mut it)) => {
            it.protocol.shrink_to(MAX_SPARE_BYTES);
            it.address.shrink_to(MAX_SPARE_BYTES);
            // W3C: an invalid trace context is ignored.
            let (random, trace) = (DialId(it.random), TraceContext::parse(&it.traceparent));
            Packet::DialReq { random, protocol: it.protocol, address: it.address, trace }
        }
        (DialRsp, Payload::DialResponse(it)) => {
            let id = ConnectId(it.connect_id);
            let outcome = if it.error.is_empty() { Ok(id) } else { Err(cut_error(&it.error).to_owned()) };
            Packet::DialRsp { random: DialId(it.random), outcome }
        }
        (CloseReq, Payload::CloseRequest(it)) => Packet::CloseReq { id: ConnectId(it.connect_id) },
        (CloseRsp, Payload::CloseResponse(it)) => {
            Packet::CloseRsp { id: ConnectId(it.connect_id), error: cut_error(&it.error).to_owned() }
        }
        (Data, Payload::Data(it)) if it.data.is_empty() => return Err("DATA without bytes"),
        (Data, Payload::Data(it)) => {
            // A payload that is a small part of its message, because of unknown fields, is copied, so that the rest is freed.
            let payload = if it.data.len() < length / 2 { Bytes::copy_from_slice(&it.data) } else { it.data };
            Packet::Data { id: ConnectId(it.connect_id), payload }
        }
        (DialCls, Payload::CloseDial(it)) => Packet::DialCls { random: DialId(it.random) },
        (Grant, Payload::Grant(it)) => Packet::Grant { id: ConnectId(it.connect_id), offset: it.offset },
        (Fin, Payload::Fin(it)) => Packet::Fin { id: ConnectId(it.connect_id) },
        _ => return Err("a type with another's payload"),
    }))
}

/// The message of a packet.
pub(super) fn message(packet: Packet<Bytes>) -> proto::Packet {
    let r#type = packet.kind() as i32;
    let payload = match packet {
        Packet::DialReq { random: DialId(random), protocol, address, trace } => {
            let traceparent = trace.map(|trace| trace.to_string()).unwrap_or_default();
            Payload::DialRequest(proto::DialRequest { protocol, address, random, traceparent })
        }
        Packet::DialRsp { random: DialId(random), outcome } => {
            let (connect_id, error) = match outcome {
                Ok(id) => (id.0, String::new()),
                // An empty text would mean success.
                Err(error) if error.is_empty() => (0, "unspecified error".to_owned()),
                Err(error) => (0, error),
            };
            Payload::DialResponse(proto::DialResponse { error, connect_id, random })
        }
        Packet::Data { id, payload: data } => {
            Payload::Data(proto::Data { connect_id: id.0, data, ..Default::default() })
        }
        Packet::CloseReq { id } => Payload::CloseRequest(proto::CloseRequest { connect_id: id.0 }),
        Packet::CloseRsp { id, error } => {
            Payload::CloseResponse(proto::CloseResponse { error, connect_id: id.0 })
        }
        Packet::DialCls { random } => Payload::CloseDial(proto::CloseDial { random: random.0 }),
        Packet::Drain => Payload::Drain(proto::Drain {}),
        Packet::Grant { id, offset } => Payload::Grant(proto::Grant { connect_id: id.0, offset }),
        Packet::Fin { id } => Payload::Fin(proto::Fin { connect_id: id.0 }),
    };
    proto::Packet { r#type, payload: Some(payload) }
}

/// Writes the message of a DATA up to its payload of `length` bytes, which follows on the wire. The payload is the last field, so
/// that prost writes the same bytes.
///
/// # Errors
/// `to` has no room for the head.
pub(super) fn put_data_head(id: ConnectId, length: usize, to: &mut impl BufMut) -> Result<(), EncodeError> {
    let id = proto::Data { connect_id: id.0, ..Default::default() };
    to.put_slice(&[0x08, 4, 0x22]);
    encode_length_delimiter(id.encoded_len() + 1 + length_delimiter_len(length) + length, to)?;
    id.encode(to)?;
    to.put_u8(0x1a);
    encode_length_delimiter(length, to)
}
