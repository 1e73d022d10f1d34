//! Valid and invalid packets.

use bytes::Bytes;
use proto::{
    CloseDial, CloseRequest, CloseResponse, Data, DialRequest, DialResponse, Drain, Packet, PacketType,
    packet::Payload,
};

fn packet(kind: PacketType, payload: Payload) -> Packet {
    Packet { r#type: kind.into(), payload: Some(payload) }
}

/// DIAL_REQ for TCP.
pub fn dial_req(random: i64, address: &str) -> Packet {
    let request =
        DialRequest { protocol: "tcp".into(), address: address.into(), random, ..Default::default() };
    packet(PacketType::DialReq, Payload::DialRequest(request))
}

/// DIAL_RSP; an empty error is a success.
pub fn dial_rsp(random: i64, connect_id: i64, error: &str) -> Packet {
    let response = DialResponse { error: error.into(), connect_id, random };
    packet(PacketType::DialRsp, Payload::DialResponse(response))
}

/// DIAL_CLS.
pub fn dial_cls(random: i64) -> Packet {
    packet(PacketType::DialCls, Payload::CloseDial(CloseDial { random }))
}

/// DATA.
pub fn data(connect_id: i64, bytes: impl Into<Bytes>) -> Packet {
    packet(PacketType::Data, Payload::Data(Data { connect_id, error: String::new(), data: bytes.into() }))
}

/// CLOSE_REQ.
pub fn close_req(connect_id: i64) -> Packet {
    packet(PacketType::CloseReq, Payload::CloseRequest(CloseRequest { connect_id }))
}

/// CLOSE_RSP.
pub fn close_rsp(connect_id: i64, error: &str) -> Packet {
    packet(PacketType::CloseRsp, Payload::CloseResponse(CloseResponse { error: error.into(), connect_id }))
}

/// DRAIN.
pub fn drain() -> Packet {
    packet(PacketType::Drain, Payload::Drain(Drain {}))
}

/// A packet of an unknown type, without payload.
pub fn unknown(number: i32) -> Packet {
    Packet { r#type: number, payload: None }
}

/// A known type without its payload, which crashes implementations that trust their peer.
pub fn bare(kind: PacketType) -> Packet {
    Packet { r#type: kind.into(), payload: None }
}

/// A known type with the payload of another packet.
pub fn crossed(kind: PacketType, other: Packet) -> Packet {
    Packet { r#type: kind.into(), payload: other.payload }
}
