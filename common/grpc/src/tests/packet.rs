//! The codec, compared with prost.

use bytes::{Buf, Bytes, BytesMut};
use mux::{ConnectId, DialId, Packet, TraceContext};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use proto::packet::Payload;

use super::packets;
use crate::frame::{OutFrame, PREFIX};
use crate::packet::decode;
use crate::{Incoming, MESSAGE_LIMIT};

/// The bytes of a whole message, without the gRPC prefix.
fn encoded(packet: &Packet<Bytes>) -> Bytes {
    let mut frame = OutFrame::new(packet.clone());
    frame.copy_to_bytes(frame.remaining()).slice(PREFIX..)
}

fn payload() -> impl Strategy<Value = Option<Payload>> {
    let id = || prop_oneof![Just(0), Just(-1), any::<i64>(), 0..300_i64];
    let text = || prop_oneof![Just(String::new()), ".{0,20}"];
    prop_oneof![
        Just(None),
        Just(Some(Payload::Drain(proto::Drain {}))),
        id().prop_map(|connect_id| Some(Payload::Fin(proto::Fin { connect_id }))),
        (id(), any::<u64>())
            .prop_map(|(connect_id, offset)| Some(Payload::Grant(proto::Grant { connect_id, offset }))),
        id().prop_map(|random| Some(Payload::CloseDial(proto::CloseDial { random }))),
        id().prop_map(|connect_id| Some(Payload::CloseRequest(proto::CloseRequest { connect_id }))),
        (text(), id()).prop_map(|(error, connect_id)| Some(Payload::CloseResponse(proto::CloseResponse {
            error,
            connect_id
        }))),
        (text(), id(), id()).prop_map(|(error, connect_id, random)| Some(Payload::DialResponse(
            proto::DialResponse { error, connect_id, random }
        ))),
        (text(), text(), id(), traceparent()).prop_map(|(protocol, address, random, traceparent)| Some(
            Payload::DialRequest(proto::DialRequest { protocol, address, random, traceparent })
        )),
        (id(), text(), vec(any::<u8>(), 0..40)).prop_map(|(connect_id, error, data)| Some(Payload::Data(
            proto::Data { connect_id, error, data: data.into() }
        ))),
    ]
}

/// A trace context, or any text in its place.
fn traceparent() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), Just("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned())]
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    (prop_oneof![4 => 0..7, 2 => 100..102, 1 => any::<i32>()], payload())
        .prop_map(|(r#type, payload)| proto::Packet { r#type, payload }.encode_to_vec())
}

#[test]
fn payload_does_not_pin_its_packet() {
    let data = Packet::Data { id: ConnectId(1), payload: Bytes::from_static(&[7; 40_000]) };
    let mut message = BytesMut::from(encoded(&data));
    let whole = message.clone().freeze();
    let Incoming::Packet(Packet::Data { payload, .. }) = decode(whole.clone()) else { panic!("a packet") };
    assert!(whole.as_ptr_range().contains(&payload.as_ptr()), "no copy of an ordinary one");
    // The unknown bytes field 2,000.
    message.extend_from_slice(&[0x82, 0x7d, 0xc0, 0x84, 0x3d]);
    message.extend_from_slice(&vec![0; 1_000_000]);
    let padded = message.freeze();
    let Incoming::Packet(Packet::Data { payload, .. }) = decode(padded.clone()) else { panic!("a packet") };
    assert_eq!(payload.len(), 40_000);
    assert!(!padded.as_ptr_range().contains(&payload.as_ptr()), "a megabyte would stay with it");
}

#[test]
fn repeated_texts_keep_no_memory() {
    let dial = |text: String| {
        let request = proto::DialRequest { protocol: text.clone(), address: text, ..Default::default() };
        proto::Packet { r#type: 0, payload: Some(Payload::DialRequest(request)) }.encode_to_vec()
    };
    let message = [dial("x".repeat(100_000)), dial("a:1".into())].concat();
    let Incoming::Packet(Packet::DialReq { protocol, address, .. }) = decode(message.into()) else {
        panic!("DIAL_REQ")
    };
    assert_eq!((protocol.as_str(), address.as_str()), ("a:1", "a:1"));
    assert!(protocol.capacity() + address.capacity() < 1_000);
}

/// A message of 4 MiB could have two million, which would hold up the thread.
#[test]
fn fields_are_limited() {
    let close = [0x08, 2, 0x2a, 2, 0x08, 7];
    let unknown = |count: usize| Bytes::from([&close[..], &[0x78, 1].repeat(count)].concat());
    assert!(matches!(decode(unknown(1_000)), Incoming::Packet(_)));
    assert_eq!(decode(unknown(1_100)), Incoming::Malformed("too many fields"));
    // The same in nested messages: the member that `close` has, again and again.
    let member = Bytes::from([&[0x08, 2][..], &[0x2a, 2, 0x08, 7].repeat(600)].concat());
    assert_eq!(decode(member), Incoming::Malformed("too many fields"));
    // Fields of each wire type, of Packet and of the messages in it, and an integer that is cut where the limit is.
    for field in
        [&[0x78, 1][..], &[0x78, 0x80, 1], &[0x7d, 1, 2, 3, 4], &[0x7b, 0x7c], &[0x22, 3, 0x12, 1, 120]]
    {
        for count in 500..1_100 {
            let message = [&field.repeat(count), &[0x78, 0xff, 0xff][..]].concat();
            assert!(matches!(decode(message.into()), Incoming::Malformed(_)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A decoded packet is encoded as by prost.
    #[test]
    fn encodes_as_prost_does(message in message()) {
        let message = Bytes::from(message);
        if let Incoming::Packet(packet) = decode(message.clone()) {
            let encoded_packet = encoded(&packet);
            let mut decoded_packet = proto::Packet::decode(message).unwrap();
            if packet == Packet::Drain {
                decoded_packet.payload = Some(Payload::Drain(proto::Drain {}));
            }
            match &mut decoded_packet.payload {
                // Fields that our enum does not have.
                Some(Payload::Data(it)) => it.error.clear(),
                Some(Payload::DialRequest(it)) if TraceContext::parse(&it.traceparent).is_none() => {
                    it.traceparent.clear();
                }
                Some(Payload::DialResponse(it)) if !it.error.is_empty() => it.connect_id = 0,
                _ => {}
            }
            prop_assert_eq!(&encoded_packet, &decoded_packet.encode_to_vec());
            prop_assert_eq!(decode(encoded_packet), Incoming::Packet(packet));
        }
    }
}

#[test]
fn every_packet_comes_back() {
    for packet in packets() {
        assert_eq!(decode(encoded(&packet)), Incoming::Packet(packet));
    }
}

#[test]
fn payload_is_a_slice_of_the_message() {
    let packet = Packet::Data { id: ConnectId(3), payload: vec![9; 1000].into() };
    let message = encoded(&packet);
    let Incoming::Packet(Packet::Data { payload, .. }) = decode(message.clone()) else { panic!("DATA") };
    assert!(message.as_ptr_range().contains(&payload.as_ptr()));
}

#[test]
fn verdicts_are_named() {
    let of = |bytes: &'static [u8]| decode(Bytes::from_static(bytes));
    assert_eq!(of(&[]), Incoming::Malformed("a type without its payload"));
    assert_eq!(of(&[0x08, 0x03, 0x2a, 0x00]), Incoming::Malformed("a type with another's payload"));
    // Go does not read the payload of DRAIN.
    for drain in [&[0x08, 0x06][..], &[0x08, 0x06, 0x2a, 0x00]] {
        assert_eq!(of(drain), Incoming::Packet(Packet::Drain));
    }
    assert_eq!(of(&[0x08, 0x04, 0x22, 0x00]), Incoming::Malformed("DATA without bytes"));
    assert_eq!(of(&[0x08, 0x07, 0x42, 0x00]), Incoming::Unknown(7));
    assert_eq!(of(&[0x08, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x42, 0x00]), Incoming::Unknown(-1));
    assert_eq!(of(&[0x12, 0x03, 0x0a, 0x01, 0xff]), Incoming::Malformed("not a packet"));
}

#[test]
fn an_error_wins_over_a_connect_id() {
    let error = proto::DialResponse { error: "i/o timeout".into(), connect_id: 5, random: 6 };
    let packet = proto::Packet { r#type: 1, payload: Some(Payload::DialResponse(error)) };
    assert_eq!(
        decode(packet.encode_to_vec().into()),
        Incoming::Packet(Packet::DialRsp { random: DialId(6), outcome: Err("i/o timeout".into()) })
    );
}

#[test]
fn a_failed_dial_never_looks_like_success() {
    let packet = Packet::DialRsp { random: DialId(1), outcome: Err(String::new()) };
    let Incoming::Packet(Packet::DialRsp { outcome, .. }) = decode(encoded(&packet)) else {
        panic!("DIAL_RSP")
    };
    assert!(outcome.is_err());
}

/// A peer's text goes into answers and logs: it must not fill a message or a queue.
#[test]
fn error_texts_are_cut() {
    let cut = |error: String| {
        let answer = Packet::DialRsp { random: DialId(1), outcome: Err(error.clone()) };
        let close = Packet::CloseRsp { id: ConnectId(1), error };
        let Incoming::Packet(Packet::DialRsp { outcome: Err(answer), .. }) = decode(encoded(&answer)) else {
            panic!("DIAL_RSP")
        };
        let Incoming::Packet(Packet::CloseRsp { error, .. }) = decode(encoded(&close)) else {
            panic!("CLOSE_RSP")
        };
        assert_eq!(answer, error);
        error
    };
    assert_eq!(cut("x".repeat(4096)), "x".repeat(4096));
    assert_eq!(cut("x".repeat(4_000_000)), "x".repeat(4096));
    assert_eq!(cut(format!("x{}", "\u{fc}".repeat(3000))).len(), 4095, "whole characters");
}

#[test]
fn the_longest_payload() {
    let packet = Packet::Data { id: ConnectId(-1), payload: vec![1; MESSAGE_LIMIT].into() };
    assert_eq!(decode(encoded(&packet)), Incoming::Packet(packet));
}
