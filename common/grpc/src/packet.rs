//! The packet codec: `konnectivity.proto` written by hand, so that the payload of DATA is never copied.
//!
//! Decoding agrees with prost and then applies invariant 9: a known type without its payload, or with another's, is
//! [`Incoming::Malformed`]. Error texts are cut at 4 KiB. Encoding writes the bytes that prost would write.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::{BufMut, Bytes};
use mux::{ConnectId, DialId, Packet, PacketKind, cut_error};

use super::Incoming;
use super::protobuf::{Reader, Refused};

/// The number of our own field of DialRequest.
const TRACEPARENT: u32 = 1000;
/// The length of its value in bytes.
const TRACEPARENT_LEN: usize = 55;

/// The fields of the `oneof payload` read so far.
///
/// By protobuf's rule the last member wins, and repeats of the same member merge.
#[derive(Default)]
struct Fields<'a> {
    /// The member, if there is one.
    kind: Option<PacketKind>,
    id: i64,
    random: i64,
    offset: u64,
    error: &'a str,
    protocol: &'a str,
    address: &'a str,
    traceparent: &'a str,
    data: &'a [u8],
}

/// Reads one gRPC message. The payload of DATA shares the message's memory.
pub fn decode(message: &Bytes) -> Incoming {
    read(message)
        .and_then(|(number, fields)| judge(message, number, &fields))
        .unwrap_or_else(Incoming::Malformed)
}

/// The packet's type, and its payload.
fn read(message: &[u8]) -> Result<(i32, Fields<'_>), Refused> {
    let (mut reader, mut number, mut fields) = (Reader::new(message), 0, Fields::default());
    while let Some(key) = reader.key()? {
        let member = PacketKind::ALL.into_iter().find(|kind| kind.field() == key.field);
        match (key.field, member) {
            // An enum is encoded as an int32, which keeps the low 32 bits.
            (1, _) => number = reader.integer(key)? as i32,
            (_, Some(kind)) => reader.message(key, |nested| fields.merge(kind, nested))?,
            (_, None) => reader.skip(key)?,
        }
    }
    Ok((number, fields))
}

impl<'a> Fields<'a> {
    fn merge(&mut self, kind: PacketKind, message: &mut Reader<'a>) -> Result<(), Refused> {
        use PacketKind::{CloseReq, CloseRsp, Data, DialCls, DialReq, DialRsp, Fin, Grant};
        if self.kind != Some(kind) {
            *self = Fields { kind: Some(kind), ..Fields::default() };
        }
        while let Some(key) = message.key()? {
            match (kind, key.field) {
                (Data | CloseReq | Grant | Fin, 1) | (DialRsp | CloseRsp, 2) => {
                    self.id = message.integer(key)? as i64;
                }
                (Data, 3) => self.data = message.bytes(key)?,
                // No program sets or reads `error`, but it must be a string.
                (Data, 2) => drop(message.string(key)?),
                (DialCls, 1) | (DialReq | DialRsp, 3) => self.random = message.integer(key)? as i64,
                (Grant, 2) => self.offset = message.integer(key)?,
                (DialRsp | CloseRsp, 1) => self.error = message.string(key)?,
                (DialReq, 1) => self.protocol = message.string(key)?,
                (DialReq, 2) => self.address = message.string(key)?,
                (DialReq, TRACEPARENT) => self.traceparent = message.string(key)?,
                _ => message.skip(key)?,
            }
        }
        Ok(())
    }
}

/// Type and payload must match.
fn judge(message: &Bytes, number: i32, fields: &Fields<'_>) -> Result<Incoming, Refused> {
    let Some(kind) = PacketKind::ALL.into_iter().find(|kind| kind.number() == number) else {
        return Ok(Incoming::Unknown(number));
    };
    match fields.kind {
        None => return Err("a type without its payload"),
        Some(other) if other != kind => return Err("a type with another's payload"),
        Some(_) => {}
    }
    let (id, random) = (ConnectId(fields.id), DialId(fields.random));
    Ok(Incoming::Packet(match kind {
        PacketKind::DialReq => Packet::DialReq {
            random,
            protocol: fields.protocol.to_owned(),
            address: fields.address.to_owned(),
            // W3C: an invalid one is ignored.
            trace: fields.traceparent.parse().ok(),
        },
        PacketKind::DialRsp => {
            let outcome =
                if fields.error.is_empty() { Ok(id) } else { Err(cut_error(fields.error).to_owned()) };
            Packet::DialRsp { random, outcome }
        }
        PacketKind::CloseReq => Packet::CloseReq { id },
        PacketKind::CloseRsp => Packet::CloseRsp { id, error: cut_error(fields.error).to_owned() },
        PacketKind::Data if fields.data.is_empty() => return Err("DATA without bytes"),
        PacketKind::Data => Packet::Data { id, payload: payload_of(message, fields.data) },
        PacketKind::DialCls => Packet::DialCls { random },
        PacketKind::Drain => Packet::Drain,
        PacketKind::Grant => Packet::Grant { id, offset: fields.offset },
        PacketKind::Fin => Packet::Fin { id },
    }))
}

/// The payload, without a copy. Exception: a payload that is a small part of its message, because of unknown fields, is
/// copied, so that the rest of the message is freed.
fn payload_of(message: &Bytes, data: &[u8]) -> Bytes {
    if data.len() < message.len() / 2 { Bytes::copy_from_slice(data) } else { message.slice_ref(data) }
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
                Err(error) => put_string(1, said(error), to),
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
                Err(error) => string_len(said(error)),
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

/// A dial's error on the wire: an empty one would mean success.
fn said(error: &str) -> &str {
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
