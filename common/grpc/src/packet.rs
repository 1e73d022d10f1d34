//! The packet codec: `konnectivity.proto` written by hand, so that the payload of DATA is never copied.
//!
//! Decoding agrees with prost and then applies invariant 9: a known type without its payload, or with another's, is
//! [`Incoming::Malformed`]. Error texts are cut at 4 KiB. Encoding writes the bytes that prost would write.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::{BufMut, Bytes};
use mux::{ConnectId, DialId, Packet, PacketKind, cut_error};

use super::Incoming;
use super::protobuf::{Reader, Refused};

/// The numbers of our own members of the `oneof`, far from those that Konnectivity may assign in future.
const GRANT: u32 = 1000;
const FIN: u32 = 1001;
/// The number of our own field of DialRequest.
const TRACEPARENT: u32 = 1000;
/// The length of its value in bytes.
const TRACEPARENT_LEN: usize = 55;

/// The `oneof payload` read so far.
///
/// By protobuf's rule the last member wins, and repeats of the same member merge.
#[derive(Default)]
enum Payload<'a> {
    #[default]
    Absent,
    DialReq(DialReq<'a>),
    DialRsp(Answer<'a>),
    Data(Data<'a>),
    CloseReq(i64),
    CloseRsp(Answer<'a>),
    DialCls(i64),
    Drain,
    Grant(Grant),
    Fin(i64),
}

#[derive(Default)]
struct DialReq<'a> {
    protocol: &'a str,
    address: &'a str,
    random: i64,
    traceparent: &'a str,
}

/// DialResponse and CloseResponse; CloseResponse has no field 3.
#[derive(Default)]
struct Answer<'a> {
    error: &'a str,
    connect_id: i64,
    random: i64,
}

#[derive(Default)]
struct Data<'a> {
    connect_id: i64,
    data: &'a [u8],
}

#[derive(Default)]
struct Grant {
    connect_id: i64,
    offset: u64,
}

/// Reads one gRPC message. The payload of DATA shares the message's memory.
pub fn decode(message: &Bytes) -> Incoming {
    match walk(message) {
        Err(why) => Incoming::Malformed(why),
        Ok((number, payload)) => judge(message, number, payload),
    }
}

fn walk(message: &[u8]) -> Result<(i32, Payload<'_>), Refused> {
    let mut reader = Reader::new(message);
    let mut number = 0;
    let mut payload = Payload::Absent;
    while let Some(key) = reader.key()? {
        match key.field {
            // An enum is encoded as an int32, which keeps the low 32 bits.
            1 => number = reader.integer(key)? as i32,
            2..=8 | GRANT | FIN => payload.merge(key.field, reader.message(key)?)?,
            _ => reader.skip(key)?,
        }
    }
    Ok((number, payload))
}

impl<'a> Payload<'a> {
    fn merge(&mut self, field: u32, message: Reader<'a>) -> Result<(), Refused> {
        *self = match (field, std::mem::take(self)) {
            (2, Payload::DialReq(old)) => Payload::DialReq(old.merge(message)?),
            (2, _) => Payload::DialReq(DialReq::default().merge(message)?),
            (3, Payload::DialRsp(old)) => Payload::DialRsp(old.merge(message, 3)?),
            (3, _) => Payload::DialRsp(Answer::default().merge(message, 3)?),
            (4, Payload::Data(old)) => Payload::Data(old.merge(message)?),
            (4, _) => Payload::Data(Data::default().merge(message)?),
            (5, Payload::CloseReq(old)) => Payload::CloseReq(merge_id(old, message)?),
            (5, _) => Payload::CloseReq(merge_id(0, message)?),
            (6, Payload::CloseRsp(old)) => Payload::CloseRsp(old.merge(message, 2)?),
            (6, _) => Payload::CloseRsp(Answer::default().merge(message, 2)?),
            (7, Payload::DialCls(old)) => Payload::DialCls(merge_id(old, message)?),
            (7, _) => Payload::DialCls(merge_id(0, message)?),
            (GRANT, Payload::Grant(old)) => Payload::Grant(old.merge(message)?),
            (GRANT, _) => Payload::Grant(Grant::default().merge(message)?),
            (FIN, Payload::Fin(old)) => Payload::Fin(merge_id(old, message)?),
            (FIN, _) => Payload::Fin(merge_id(0, message)?),
            (_, _) => {
                skip_all(message)?;
                Payload::Drain
            }
        };
        Ok(())
    }
}

impl<'a> DialReq<'a> {
    fn merge(mut self, mut message: Reader<'a>) -> Result<Self, Refused> {
        while let Some(key) = message.key()? {
            match key.field {
                1 => self.protocol = message.string(key)?,
                2 => self.address = message.string(key)?,
                3 => self.random = message.integer(key)? as i64,
                TRACEPARENT => self.traceparent = message.string(key)?,
                _ => message.skip(key)?,
            }
        }
        Ok(self)
    }
}

impl<'a> Answer<'a> {
    /// `fields`: how many of the three fields the message has.
    fn merge(mut self, mut message: Reader<'a>, fields: u32) -> Result<Self, Refused> {
        while let Some(key) = message.key()? {
            match key.field {
                1 => self.error = message.string(key)?,
                2 => self.connect_id = message.integer(key)? as i64,
                3 if fields == 3 => self.random = message.integer(key)? as i64,
                _ => message.skip(key)?,
            }
        }
        Ok(self)
    }
}

impl<'a> Data<'a> {
    fn merge(mut self, mut message: Reader<'a>) -> Result<Self, Refused> {
        while let Some(key) = message.key()? {
            match key.field {
                1 => self.connect_id = message.integer(key)? as i64,
                // No program sets or reads `error`, but it must be a string.
                2 => drop(message.string(key)?),
                3 => self.data = message.bytes(key)?,
                _ => message.skip(key)?,
            }
        }
        Ok(self)
    }
}

impl Grant {
    fn merge(mut self, mut message: Reader<'_>) -> Result<Self, Refused> {
        while let Some(key) = message.key()? {
            match key.field {
                1 => self.connect_id = message.integer(key)? as i64,
                2 => self.offset = message.integer(key)?,
                _ => message.skip(key)?,
            }
        }
        Ok(self)
    }
}

fn merge_id(mut id: i64, mut message: Reader<'_>) -> Result<i64, Refused> {
    while let Some(key) = message.key()? {
        match key.field {
            1 => id = message.integer(key)? as i64,
            _ => message.skip(key)?,
        }
    }
    Ok(id)
}

fn skip_all(mut message: Reader<'_>) -> Result<(), Refused> {
    while let Some(key) = message.key()? {
        message.skip(key)?;
    }
    Ok(())
}

/// Type and payload must match.
fn judge(message: &Bytes, number: i32, payload: Payload<'_>) -> Incoming {
    let Some(kind) = PacketKind::ALL.into_iter().find(|kind| kind.number() == number) else {
        return Incoming::Unknown(number);
    };
    Incoming::Packet(match (kind, payload) {
        (PacketKind::DialReq, Payload::DialReq(it)) => Packet::DialReq {
            random: DialId(it.random),
            protocol: it.protocol.to_owned(),
            address: it.address.to_owned(),
            // W3C: an invalid one is ignored.
            trace: it.traceparent.parse().ok(),
        },
        (PacketKind::DialRsp, Payload::DialRsp(it)) => Packet::DialRsp {
            random: DialId(it.random),
            outcome: match it.error {
                "" => Ok(ConnectId(it.connect_id)),
                error => Err(cut_error(error).to_owned()),
            },
        },
        (PacketKind::CloseReq, Payload::CloseReq(id)) => Packet::CloseReq { id: ConnectId(id) },
        (PacketKind::CloseRsp, Payload::CloseRsp(it)) => {
            Packet::CloseRsp { id: ConnectId(it.connect_id), error: cut_error(it.error).to_owned() }
        }
        (PacketKind::Data, Payload::Data(it)) if it.data.is_empty() => {
            return Incoming::Malformed("DATA without bytes");
        }
        (PacketKind::Data, Payload::Data(it)) => {
            Packet::Data { id: ConnectId(it.connect_id), payload: payload_of(message, it.data) }
        }
        (PacketKind::DialCls, Payload::DialCls(random)) => Packet::DialCls { random: DialId(random) },
        (PacketKind::Drain, Payload::Drain) => Packet::Drain,
        (PacketKind::Grant, Payload::Grant(it)) => {
            Packet::Grant { id: ConnectId(it.connect_id), offset: it.offset }
        }
        (PacketKind::Fin, Payload::Fin(id)) => Packet::Fin { id: ConnectId(id) },
        (_, Payload::Absent) => return Incoming::Malformed("a type without its payload"),
        (_, _) => return Incoming::Malformed("a type with another's payload"),
    })
}

/// The payload, without a copy. Exception: a payload that is a small part of its message, because of unknown fields, is
/// copied, so that the rest of the message is freed.
fn payload_of(message: &Bytes, data: &[u8]) -> Bytes {
    if data.len() < message.len() / 2 { Bytes::copy_from_slice(data) } else { message.slice_ref(data) }
}

/// Encodes a packet except the payload of DATA, which follows on the wire.
pub(super) fn encode_head(packet: &Packet<Bytes>, to: &mut impl BufMut) {
    put_integer(1, packet.kind().number() as u64, to);
    open(field_of(packet), inner_len(packet), to);
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
    let key = varint_len(key_of(field_of(packet)));
    integer_len(packet.kind().number() as u64) + key + varint_len(inner as u64) + inner - payload
}

/// The field of the packet's own message.
const fn field_of(packet: &Packet<Bytes>) -> u32 {
    match packet {
        Packet::DialReq { .. } => 2,
        Packet::DialRsp { .. } => 3,
        Packet::Data { .. } => 4,
        Packet::CloseReq { .. } => 5,
        Packet::CloseRsp { .. } => 6,
        Packet::DialCls { .. } => 7,
        Packet::Drain => 8,
        Packet::Grant { .. } => GRANT,
        Packet::Fin { .. } => FIN,
    }
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
