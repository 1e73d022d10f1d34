//! The packet codec: prost reads `konnectivity.proto`. Packets are written by hand, so that the payload of DATA is never copied.
//!
//! Decoding applies invariant 9: a known type without its payload, or with another's, is [`Incoming::Malformed`]. Error texts
//! are cut at 4 KiB. Encoding writes the bytes that prost would write.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::{Buf, BufMut, Bytes};
use mux::{ConnectId, DialId, Packet, cut_error};
use prost::Message;
use proto::PacketType::{self, CloseReq, CloseRsp, Data, DialCls, DialReq, DialRsp, Drain, Fin, Grant};
use proto::packet::Payload;

use super::Incoming;

/// The number of our own field of DialRequest.
const TRACEPARENT: u32 = 1000;
/// The length of its value in bytes.
const TRACEPARENT_LEN: usize = 55;

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
    let payload = packet.payload.ok_or("a type without its payload")?;
    Ok(Incoming::Packet(match (kind, payload) {
        (DialReq, Payload::DialRequest(mut it)) => {
            it.protocol.shrink_to(MAX_SPARE_BYTES);
            it.address.shrink_to(MAX_SPARE_BYTES);
            // W3C: an invalid trace context is ignored.
            let (random, trace) = (DialId(it.random), it.traceparent.parse().ok());
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
        (Drain, Payload::Drain(_)) => Packet::Drain,
        (Grant, Payload::Grant(it)) => Packet::Grant { id: ConnectId(it.connect_id), offset: it.offset },
        (Fin, Payload::Fin(it)) => Packet::Fin { id: ConnectId(it.connect_id) },
        _ => return Err("a type with another's payload"),
    }))
}

/// Encodes a packet except the payload of DATA, which follows on the wire.
pub(super) fn encode_head(packet: &Packet<Bytes>, to: &mut impl BufMut) {
    put_integer(1, packet.kind().number() as u64, to);
    open(packet.kind().field(), inner_len(packet), to);
    match packet {
        Packet::DialReq { random, protocol, address, trace } => {
            put_string(1, protocol, to);
            put_string(2, address, to);
            put_integer(3, random.0 as u64, to);
            if let Some(trace) = trace {
                put_string(TRACEPARENT, &trace.to_string(), to);
            }
        }
        Packet::DialRsp { random, outcome } => {
            match outcome {
                Ok(id) => put_integer(2, id.0 as u64, to),
                Err(error) => put_string(1, error_or_default(error), to),
            }
            put_integer(3, random.0 as u64, to);
        }
        Packet::Data { id, payload } => {
            put_integer(1, id.0 as u64, to);
            open(3, payload.len(), to);
        }
        Packet::CloseReq { id } | Packet::Fin { id } => put_integer(1, id.0 as u64, to),
        Packet::CloseRsp { id, error } => {
            put_string(1, error, to);
            put_integer(2, id.0 as u64, to);
        }
        Packet::DialCls { random } => put_integer(1, random.0 as u64, to),
        Packet::Drain => {}
        Packet::Grant { id, offset } => {
            put_integer(1, id.0 as u64, to);
            put_integer(2, *offset, to);
        }
    }
}

/// The number of bytes that [`encode_head`] writes.
pub(super) fn head_len(packet: &Packet<Bytes>) -> usize {
    let inner = inner_len(packet);
    let payload = match packet {
        Packet::Data { payload, .. } => payload.len(),
        _ => 0,
    };
    let key = varint_len(key_of(packet.kind().field()));
    integer_len(packet.kind().number() as u64) + key + varint_len(inner as u64) + inner - payload
}

/// The length of the packet's own message in bytes, including the payload of DATA.
fn inner_len(packet: &Packet<Bytes>) -> usize {
    match packet {
        Packet::DialReq { random, protocol, address, trace } => {
            let head = varint_len(key_of(TRACEPARENT)) + varint_len(TRACEPARENT_LEN as u64);
            let trace = trace.map_or(0, |_| head + TRACEPARENT_LEN);
            string_len(protocol) + string_len(address) + integer_len(random.0 as u64) + trace
        }
        Packet::DialRsp { random, outcome } => {
            let outcome = match outcome {
                Ok(id) => integer_len(id.0 as u64),
                Err(error) => string_len(error_or_default(error)),
            };
            outcome + integer_len(random.0 as u64)
        }
        Packet::Data { id, payload } => {
            integer_len(id.0 as u64) + 1 + varint_len(payload.len() as u64) + payload.len()
        }
        Packet::CloseReq { id } | Packet::Fin { id } => integer_len(id.0 as u64),
        Packet::CloseRsp { id, error } => string_len(error) + integer_len(id.0 as u64),
        Packet::DialCls { random } => integer_len(random.0 as u64),
        Packet::Drain => 0,
        Packet::Grant { id, offset } => integer_len(id.0 as u64) + integer_len(*offset),
    }
}

/// The error of a DIAL_RSP. An empty text would mean success.
fn error_or_default(error: &str) -> &str {
    if error.is_empty() { "unspecified error" } else { error }
}

/// The key of a bytes, string or message field.
const fn key_of(field: u32) -> u64 {
    (field << 3 | 2) as u64
}

/// Key and length of a bytes, string or message field.
fn open(field: u32, length: usize, to: &mut impl BufMut) {
    put_varint(key_of(field), to);
    put_varint(length as u64, to);
}

/// An integer field; proto3 omits the default value.
fn put_integer(field: u8, value: u64, to: &mut impl BufMut) {
    if value != 0 {
        to.put_u8(field << 3);
        put_varint(value, to);
    }
}

fn put_string(field: u32, value: &str, to: &mut impl BufMut) {
    if !value.is_empty() {
        open(field, value.len(), to);
        to.put_slice(value.as_bytes());
    }
}

fn put_varint(mut value: u64, to: &mut impl BufMut) {
    while value >= 0x80 {
        to.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    to.put_u8(value as u8);
}

fn integer_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_len(value) }
}

fn string_len(value: &str) -> usize {
    if value.is_empty() { 0 } else { 1 + varint_len(value.len() as u64) + value.len() }
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
