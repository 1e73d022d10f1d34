//! Names, numbers and charges that the wire, dashboards and the driver's queues depend on.

use std::convert::Infallible;
use std::time::Duration;

use mux::{
    BULK_BYTES, Cause, ConnectId, DialId, Dropped, Limits, Packet, PacketKind, Payload, Time, charge,
    oversized_target,
};

#[test]
fn small_slices_are_charged_their_buffer_and_bookkeeping() {
    for (len, charged) in [(0, 576), (1, 576), (511, 576), (512, 576), (513, 577), (4_000_000, 4_000_064)] {
        assert_eq!(charge(len), charged, "{len}");
    }
}

#[test]
fn a_slice_is_split_where_it_ends_at_the_latest() {
    let mut slice = bytes::Bytes::from_static(b"abc");
    assert_eq!([2, 2].map(|count| Payload::split_to(&mut slice, count)), ["ab", "c"]);
}

#[test]
fn a_target_longer_than_any_that_is_dialed_is_refused() {
    for (protocol, address, error) in [
        (16, 1_024, None),
        (17, 1_024, Some("protocol of more than 16 bytes")),
        (16, 1_025, Some("address of more than 1024 bytes")),
    ] {
        assert_eq!(oversized_target(&"p".repeat(protocol), &"a".repeat(address)).as_deref(), error);
    }
}

#[test]
fn labels_are_distinct_and_stable() {
    let dropped = [
        (Dropped::UnknownConnection, "unknown_connection"),
        (Dropped::UnknownDial, "unknown_dial"),
        (Dropped::DuplicateDial, "duplicate_dial"),
        (Dropped::AfterEnd, "after_end"),
        (Dropped::WrongDirection, "wrong_direction"),
        (Dropped::BadConnectId, "bad_connect_id"),
        (Dropped::Overrun, "overrun"),
        (Dropped::NotAgreed, "not_agreed"),
    ];
    for (reason, label) in dropped {
        assert_eq!(reason.label(), label);
    }
    let causes = [
        (Cause::LinkLost, "link_lost", "agent stream lost"),
        (Cause::Local("reset".into()), "local", "reset"),
        (Cause::Peer("refused".into()), "peer", "refused"),
        (Cause::Stalled, "stalled", "connection stalled: its reader was too slow for the link"),
        (Cause::FlushTimeout, "flush_timeout", "close timed out: queued bytes were not taken"),
        (Cause::Overrun, "overrun", "the other side sent more than it was granted"),
    ];
    for (cause, label, words) in causes {
        assert_eq!((cause.label(), cause.to_string().as_str()), (label, words));
    }
}

#[test]
fn an_application_that_aborts_its_connection_is_no_loss_of_the_tunnels() {
    for text in [
        "Connection reset by peer (os error 104)",
        "Broken pipe (os error 32)",
        "read tcp 10.0.0.1:2->10.0.0.1:1: read: connection reset by peer",
    ] {
        assert!(Cause::Local(text.into()).is_abort() && Cause::Peer(text.into()).is_abort(), "{text}");
    }
    for text in ["Connection timed out (os error 110)", "No route to host", "unrecognized connectID"] {
        assert!(!Cause::Local(text.into()).is_abort() && !Cause::Peer(text.into()).is_abort(), "{text}");
    }
    for cause in [Cause::LinkLost, Cause::Stalled, Cause::FlushTimeout, Cause::Overrun] {
        assert!(!cause.is_abort(), "{cause}");
    }
}

#[test]
fn kinds_have_their_numbers_and_names_of_the_wire() {
    let names =
        ["DIAL_REQ", "DIAL_RSP", "CLOSE_REQ", "CLOSE_RSP", "DATA", "DIAL_CLS", "DRAIN", "GRANT", "FIN"];
    for (number, (kind, name)) in (0..7).chain(100..).zip(PacketKind::ALL.into_iter().zip(names)) {
        assert_eq!((kind as i32, kind.name()), (number, name));
    }
    let (random, id) = (DialId(-5), ConnectId(i64::MAX));
    let all: [Packet<u8>; 9] = [
        Packet::DialReq { random, protocol: "tcp".into(), address: "a:1".into(), trace: None },
        Packet::DialRsp { random, outcome: Err("no".into()) },
        Packet::CloseReq { id },
        Packet::CloseRsp { id, error: "why".into() },
        Packet::Data { id, payload: 7 },
        Packet::DialCls { random },
        Packet::Drain,
        Packet::Grant { id, offset: 9 },
        Packet::Fin { id },
    ];
    for (packet, kind) in all.into_iter().zip(PacketKind::ALL) {
        assert_eq!(packet.kind(), kind);
        let there: Packet<u16> = packet.clone().map(u16::from);
        assert_eq!(there.kind(), kind);
        assert_eq!(there.map(|n| u8::try_from(n).unwrap()), packet, "only the payload is exchanged");
    }
    let control: Packet<Infallible> = Packet::Drain;
    assert_eq!(control.map(|never| -> u8 { match never {} }), Packet::Drain);
}

#[test]
fn time_is_a_duration_since_the_start_that_saturates() {
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let late = Time::START.after(minute);
    assert_eq!(late, Time::from_start(minute));
    assert_eq!(late.since_start(), minute);
    assert_eq!(late.since(Time::START.after(second)), Duration::from_secs(59));
    assert_eq!(Time::START.since(late), Duration::ZERO);
    assert_eq!(Time::from_start(Duration::MAX).after(second), Time::from_start(Duration::MAX));
}

#[test]
fn the_bounds_are_those_of_the_documents() {
    let limits = Limits::default();
    assert_eq!((limits.pending_dials, limits.connections, limits.outbox), (4_096, 16_000, 16_384));
    assert_eq!((limits.soft_cap, limits.hard_cap, limits.link_budget), (1_048_576, 8_388_608, 268_435_456));
    assert_eq!(limits.min_drain, 131_072);
    assert_eq!(
        (limits.window_max, limits.window_high_bdp, limits.high_bdp_budget),
        (1_048_576, 8_388_608, 67_108_864)
    );
    assert_eq!((limits.chunk, BULK_BYTES), (131_072, 1_048_576));
}
