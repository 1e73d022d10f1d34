//! The answers of each end of a link to one packet or report at a time.

#![allow(clippy::unwrap_used, reason = "a test's helper panics like the test")]

mod queue;

use std::time::Duration;

use mux::{
    Agent, Cause, CloseReason, ConnKey, ConnectId, Control, DialError, DialId, Disposition, Dropped, Event,
    Fill, Limits, Negotiated, Packet, Server, Side, SourceEnd, Time, Transmit,
};

use queue::{Lengths, queued};

const T0: Time = Time::START;

/// The most bytes of one discard.
const QUANTUM: usize = 64 << 10;

fn at(seconds: u64) -> Time {
    Time::from_start(Duration::from_secs(seconds))
}

/// All control packets that are due.
fn controls<S: Side + Clone>(link: &mut Lengths<S>) -> Vec<Control> {
    let mut sent = Vec::new();
    // Polls a copy first, so that no source's turn is used up.
    while let Some(Transmit::Control(packet)) = link.clone().poll_transmit(T0, 1) {
        link.poll_transmit(T0, 1);
        sent.push(packet);
    }
    sent
}

fn events<S: Side>(link: &mut Lengths<S>) -> Vec<Event> {
    std::iter::from_fn(|| link.poll_event()).collect()
}

fn server() -> Lengths<Server> {
    Lengths::new(Limits::default(), Negotiated::default())
}

fn agent() -> Lengths<Agent> {
    Lengths::new(Limits::default(), Negotiated::default())
}

const ID: ConnectId = ConnectId(7);

fn dial_rsp(random: i64, outcome: Result<ConnectId, &str>) -> Packet<usize> {
    Packet::DialRsp { random: DialId(random), outcome: outcome.map_err(str::to_owned) }
}

fn data(id: ConnectId) -> Packet<usize> {
    Packet::Data { id, payload: 100 }
}

fn close_rsp(id: ConnectId, error: &str) -> Packet<usize> {
    Packet::CloseRsp { id, error: error.to_owned() }
}

/// A server's link with one dial sent under number 1.
fn dialing() -> (Lengths<Server>, ConnKey) {
    dial(server())
}

fn dial(mut link: Lengths<Server>) -> (Lengths<Server>, ConnKey) {
    let key = link.dial("tcp", "10.0.0.1:80", None).unwrap();
    let sent = controls(&mut link);
    let request = Packet::DialReq {
        random: DialId(1),
        protocol: "tcp".into(),
        address: "10.0.0.1:80".into(),
        trace: None,
    };
    assert_eq!(sent, [request]);
    (link, key)
}

/// A server's link with one open connection.
fn open_at_server() -> (Lengths<Server>, ConnKey) {
    open_at(server())
}

fn upstream_agent() -> Lengths<Server> {
    Lengths::new(Limits { close_pause: Duration::from_secs(5), ..Limits::default() }, Negotiated::default())
}

fn open_at(link: Lengths<Server>) -> (Lengths<Server>, ConnKey) {
    let (mut link, key) = dial(link);
    assert_eq!(link.handle_packet(T0, dial_rsp(1, Ok(ID))), Disposition::Handled);
    assert_eq!(events(&mut link), [Event::Opened { key, id: ID }]);
    (link, key)
}

/// An agent's link with one open connection, number 1.
fn open_at_agent() -> (Lengths<Agent>, ConnKey) {
    opened(agent())
}

fn opened(mut link: Lengths<Agent>) -> (Lengths<Agent>, ConnKey) {
    let request =
        Packet::DialReq { random: DialId(5), protocol: "tcp".into(), address: "a:1".into(), trace: None };
    assert_eq!(link.handle_packet(T0, request), Disposition::Handled);
    let [Event::Dial { key, .. }] = events(&mut link)[..] else { panic!("one dial is wanted") };
    assert!(link.dialed(key, Ok(())));
    assert_eq!(controls(&mut link), [Packet::DialRsp { random: DialId(5), outcome: Ok(ConnectId(1)) }]);
    (link, key)
}

const ONE: ConnectId = ConnectId(1);

// ---- the server: dials ----

#[test]
fn dial_ids_are_unique_on_a_link() {
    let mut link = server();
    for expected in 1..=3 {
        link.dial("tcp", "a:1", None).unwrap();
        let sent = controls(&mut link);
        assert!(matches!(&sent[..], [Packet::DialReq { random, .. }] if random.0 == expected), "{sent:?}");
    }
}

#[test]
fn a_refused_dial_ends_with_the_agents_text() {
    let (mut link, key) = dialing();
    link.handle_packet(T0, dial_rsp(1, Err("dial tcp: no")));
    let error = DialError::Refused("dial tcp: no".into());
    assert_eq!(events(&mut link), [Event::DialFailed { key, error }]);
    assert!(link.is_empty());
    assert_eq!(controls(&mut link), []);
}

#[test]
fn a_late_success_of_an_unknown_dial_is_closed_at_the_agent() {
    let mut link = server();
    assert_eq!(link.handle_packet(T0, dial_rsp(99, Ok(ID))), Disposition::Dropped(Dropped::UnknownDial));
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
    assert_eq!(link.handle_packet(T0, dial_rsp(98, Err("x"))), Disposition::Dropped(Dropped::UnknownDial));
    assert_eq!(controls(&mut link), []);
}

/// As Go's agents answer it, and as ours do if both cross.
#[test]
fn the_answer_to_a_canceled_dial_is_late() {
    for (outcome, answer) in [(Ok(ID), vec![Packet::CloseReq { id: ID }]), (Err("refused"), vec![])] {
        let (mut link, canceled) = dialing();
        link.abandon(T0, canceled);
        controls(&mut link);
        let unknown = Disposition::Dropped(Dropped::UnknownDial);
        assert_eq!(link.handle_packet(T0, dial_rsp(2, Err("refused"))), unknown, "of no dial");
        assert_eq!(link.handle_packet(T0, dial_rsp(1, outcome)), Disposition::Late);
        assert_eq!(controls(&mut link), answer);
        assert_eq!(link.handle_packet(T0, dial_rsp(1, outcome)), unknown, "one answer");
    }
}

#[test]
fn an_agents_dial_cls_ends_the_dial_that_it_names() {
    let (mut link, canceled) = dialing();
    link.abandon(T0, canceled);
    assert_eq!(link.handle_packet(T0, Packet::DialCls { random: DialId(1) }), Disposition::Late);
    let (mut link, key) = dialing();
    let unknown = Packet::DialCls { random: DialId(2) };
    // Go's server counts no failure for it.
    assert_eq!(link.handle_packet(T0, unknown), Disposition::Late);
    assert_eq!(link.handle_packet(T0, Packet::DialCls { random: DialId(1) }), Disposition::Handled);
    assert_eq!(events(&mut link), [Event::DialFailed { key, error: DialError::Closed }]);
    assert!(link.is_empty());
}

#[test]
fn a_dial_that_was_not_sent_yet_cannot_be_answered() {
    let mut link = server();
    link.dial("tcp", "a:1", None).unwrap();
    assert_eq!(link.handle_packet(T0, dial_rsp(1, Ok(ID))), Disposition::Dropped(Dropped::UnknownDial));
    assert_eq!(events(&mut link), []);
}

#[test]
fn replayed_answer_has_no_effect() {
    let (mut link, _) = open_at_server();
    assert_eq!(link.handle_packet(T0, dial_rsp(1, Ok(ID))), Disposition::Dropped(Dropped::UnknownDial));
    assert_eq!(controls(&mut link), [], "closing would hit the connection that lives under this number");
}

#[test]
fn an_answer_that_names_a_living_connection_or_no_number_fails_the_dial_alone() {
    for id in [ID, ConnectId(0), ConnectId(-1)] {
        let (mut link, _) = open_at_server();
        let second = link.dial("tcp", "b:1", None).unwrap();
        controls(&mut link);
        assert_eq!(link.handle_packet(T0, dial_rsp(2, Ok(id))), Disposition::Dropped(Dropped::BadConnectId));
        assert_eq!(events(&mut link), [Event::DialFailed { key: second, error: DialError::BadAnswer }]);
        assert!(matches!(link.handle_packet(T0, data(ID)), Disposition::Deliver(_)), "the first goes on");
    }
}

#[test]
fn abandoned_dial_is_canceled_at_the_agent_only_if_it_was_sent() {
    let mut link = server();
    let key = link.dial("tcp", "a:1", None).unwrap();
    link.abandon(T0, key);
    assert_eq!(controls(&mut link), []);
    let (mut link, key) = dialing();
    link.abandon(T0, key);
    assert_eq!(controls(&mut link), [Packet::DialCls { random: DialId(1) }]);
    assert!(link.is_empty());
    assert_eq!(events(&mut link), [], "nobody listens");
}

#[test]
fn dials_and_connections_are_bounded() {
    let mut link: Lengths<Server> =
        Lengths::new(Limits { pending_dials: 2, connections: 3, ..Limits::default() }, Negotiated::default());
    link.dial("tcp", "a:1", None).unwrap();
    link.dial("tcp", "a:1", None).unwrap();
    assert!(link.dial("tcp", "a:1", None).is_none(), "pending dials");
    controls(&mut link);
    for n in [1, 2] {
        link.handle_packet(T0, dial_rsp(n, Ok(ConnectId(n))));
    }
    link.dial("tcp", "a:1", None).unwrap();
    assert!(link.dial("tcp", "a:1", None).is_none(), "connections");
}

// ---- the server: connections ----

#[test]
fn a_frontends_end_asks_for_a_close_and_awaits_the_answer() {
    for outcome in [SourceEnd::Eof, SourceEnd::Closed] {
        let (mut link, key) = open_at_server();
        link.end_source(T0, key, outcome);
        assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
        assert_eq!(events(&mut link), []);
        assert_eq!(link.handle_packet(T0, close_rsp(ID, "")), Disposition::Handled);
        assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Flushed }]);
        assert!(link.is_empty());
    }
}

#[test]
fn data_after_a_half_close_is_delivered_after_a_full_close_dropped() {
    let (mut link, key) = open_at_server();
    link.end_source(T0, key, SourceEnd::Eof);
    assert_eq!(link.handle_packet(T0, data(ID)), Disposition::Deliver(key));
    let (mut link, key) = open_at_server();
    link.end_source(T0, key, SourceEnd::Closed);
    assert_eq!(link.handle_packet(T0, data(ID)), Disposition::Late);
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }], "asked once");
}

#[test]
fn unanswered_close_ends_after_ten_seconds() {
    let (mut link, key) = open_at_server();
    link.end_source(T0, key, SourceEnd::Eof);
    assert_eq!(link.poll_timeout(), Some(at(10)));
    link.handle_timeout(at(9));
    assert_eq!(events(&mut link), []);
    link.handle_timeout(at(10));
    let [Event::Ended { end: CloseReason::Broken(Cause::Peer(_)), .. }] = &events(&mut link)[..] else {
        panic!()
    };
    assert!(link.is_empty());
    assert_eq!(link.poll_timeout(), None);
}

/// An upstream agent drops the bytes that it has not written when CLOSE_REQ arrives.
#[test]
fn close_follows_the_last_data_after_a_pause() {
    for end in [SourceEnd::Eof, SourceEnd::Closed, SourceEnd::Failed("lost".to_owned())] {
        let (mut link, key) = open_at(upstream_agent());
        assert_eq!(link.push(at(1), key, 100).count(), 1);
        link.end_source(at(2), key, end);
        assert_eq!((controls(&mut link), link.poll_timeout()), (vec![], Some(at(6))));
        link.handle_timeout(at(6));
        assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
        assert!(link.poll_timeout() > Some(at(6)), "the answer has its time");
    }
}

#[test]
fn close_after_the_pause_is_sent_at_once_and_not_after_the_agents_close() {
    let (mut link, key) = open_at(upstream_agent());
    assert_eq!(link.push(T0, key, 100).count(), 1);
    let mut closed_first = link.clone();
    link.end_source(at(5), key, SourceEnd::Eof);
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);

    closed_first.end_source(at(1), key, SourceEnd::Eof);
    queued(&mut closed_first, at(1), key, 100);
    closed_first.handle_packet(at(2), close_rsp(ID, ""));
    closed_first.handle_timeout(at(5));
    assert_eq!(controls(&mut closed_first), []);
    queued(&mut closed_first, at(6), key, 0);
    assert_eq!(events(&mut closed_first), [Event::Ended { key, end: CloseReason::Flushed }]);
}

#[test]
fn close_of_the_agent_waits_for_queued_data() {
    let (mut link, key) = open_at_server();
    queued(&mut link, T0, key, 5_000);
    link.handle_packet(T0, close_rsp(ID, ""));
    assert_eq!(events(&mut link), [], "bytes accepted before the close come first");
    queued(&mut link, at(1), key, 2_000);
    queued(&mut link, at(2), key, 0);
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Flushed }]);
    assert_eq!(controls(&mut link), []);
}

#[test]
fn error_in_the_agents_close_is_reported_after_the_flush() {
    let (mut link, key) = open_at_server();
    queued(&mut link, T0, key, 10);
    link.handle_packet(T0, close_rsp(ID, "read: connection reset by peer"));
    assert_eq!(events(&mut link), []);
    queued(&mut link, T0, key, 0);
    let cause = Cause::Peer("read: connection reset by peer".into());
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(cause) }]);
}

/// The frontend has sent everything, and its close was answered while this many bytes waited for it.
fn closed_by_the_frontend(bytes: usize) -> (Lengths<Server>, ConnKey) {
    let (mut link, key) = open_at_server();
    queued(&mut link, T0, key, bytes);
    link.end_source(T0, key, SourceEnd::Eof);
    link.handle_packet(T0, close_rsp(ID, ""));
    (link, key)
}

#[test]
fn a_flush_goes_on_while_it_progresses_and_not_longer_than_a_minute() {
    let (mut link, key) = closed_by_the_frontend(1_000);
    for second in (5..60).step_by(5) {
        link.handle_timeout(at(second));
        assert_eq!(events(&mut link), [], "at {second} s");
        queued(&mut link, at(second), key, 1_000 - usize::try_from(second).unwrap());
    }
    link.handle_timeout(at(60));
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(Cause::FlushTimeout) }]);

    let (mut link, key) = closed_by_the_frontend(1_000);
    link.handle_timeout(at(10));
    assert_eq!(
        events(&mut link),
        [Event::Ended { key, end: CloseReason::Broken(Cause::FlushTimeout) }],
        "no progress"
    );
}

/// An upstream agent cannot know how slowly the frontend reads: it closes as soon as the endpoint does.
#[test]
fn frontend_may_pause_for_ten_minutes_after_the_endpoint_has_closed() {
    let (mut link, key) = open_at_server();
    queued(&mut link, T0, key, 1_000);
    link.handle_packet(T0, close_rsp(ID, ""));
    link.handle_timeout(at(599));
    assert_eq!(events(&mut link), []);
    queued(&mut link, at(599), key, 999);
    link.handle_timeout(at(1_198));
    assert_eq!(events(&mut link), [], "it has read something");
    link.handle_timeout(at(1_199));
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(Cause::FlushTimeout) }]);
    assert!(link.is_empty());
}

#[test]
fn memory_pressure_ends_a_frontend_that_pauses() {
    let (mut link, key) = open_at_server();
    queued(&mut link, T0, key, 1_000);
    link.handle_packet(T0, close_rsp(ID, ""));
    link.shed(at(2), 1, false);
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(Cause::Stalled) }]);
}

#[test]
fn lost_stream_does_not_wait_for_a_frontend_that_pauses() {
    let (mut link, key) = open_at_server();
    queued(&mut link, T0, key, 1_000);
    link.handle_packet(T0, close_rsp(ID, ""));
    link.stream_lost(at(100));
    link.handle_timeout(at(109));
    assert_eq!(events(&mut link), []);
    link.handle_timeout(at(110));
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(Cause::FlushTimeout) }]);
    assert!(link.is_empty());
}

#[test]
fn broken_frontend_ends_at_once_and_its_number_stays_reserved() {
    let (mut link, key) = open_at_server();
    link.end_source(T0, key, SourceEnd::Failed("reset".into()));
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
    let cause = Cause::Local("reset".into());
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(cause) }]);
    assert_eq!(link.handle_packet(T0, data(ID)), Disposition::Late);
    assert_eq!(controls(&mut link), [], "late data does not belong to an unknown connection");
    link.handle_packet(T0, close_rsp(ID, ""));
    assert!(link.is_empty());
    assert_eq!(events(&mut link), []);
}

#[test]
fn a_local_end_that_takes_no_more_is_still_read_to_its_end() {
    let (mut link, key) = open_at_server();
    queued(&mut link, T0, key, 9_000);
    link.write_failed(T0, key, "broken pipe".into());
    assert_eq!((events(&mut link), controls(&mut link), link.total_held()), (vec![], vec![], 0));
    assert_eq!(link.handle_packet(T0, data(ID)), Disposition::Late);
    assert_eq!(link.poll_transmit(T0, 100), Some(Transmit::Read { key, max: 100 }), "what it sent before");
    drop(link.push(T0, key, 100));
    assert!(link.poll_transmit(T0, 100).is_some());
    link.end_source(T0, key, SourceEnd::Closed);
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
    let cause = Cause::Local("broken pipe".into());
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(cause) }]);
}

#[test]
fn a_local_end_that_takes_no_more_and_does_not_end_is_broken_after_a_minute() {
    let (mut link, key) = open_at_agent();
    link.write_failed(T0, key, "broken pipe".into());
    link.handle_timeout(at(59));
    assert_eq!(events(&mut link), []);
    link.handle_timeout(at(60));
    assert_eq!(controls(&mut link), [Packet::CloseRsp { id: ONE, error: String::new() }]);
    let cause = Cause::Local("broken pipe".into());
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(cause) }]);
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn data_received_before_the_loss_is_delivered() {
    let (mut link, key) = open_at_server();
    queued(&mut link, T0, key, 9_000);
    link.stream_lost(T0);
    assert_eq!(events(&mut link), []);
    queued(&mut link, at(1), key, 0);
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(Cause::LinkLost) }]);
    assert!(link.is_empty());
}

#[test]
fn an_abandoned_connection_is_closed_without_an_event() {
    let (mut link, key) = open_at_server();
    link.abandon(T0, key);
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
    link.handle_timeout(at(10));
    assert!(link.is_empty());
    assert_eq!(events(&mut link), []);
}

#[test]
fn data_for_an_unknown_connection_is_answered_by_close_req() {
    let mut link = server();
    assert_eq!(link.handle_packet(T0, data(ID)), Disposition::Dropped(Dropped::UnknownConnection));
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
    assert_eq!(link.handle_packet(T0, data(ConnectId(0))), Disposition::Dropped(Dropped::BadConnectId));
    assert_eq!(link.handle_packet(T0, close_rsp(ID, "")), Disposition::Dropped(Dropped::UnknownConnection));
    assert_eq!(controls(&mut link), []);
}

#[test]
fn a_probe_is_answered_once_by_the_agents_packet_loop() {
    let mut link = server();
    assert!(link.probe(0));
    assert!(!link.probe(0), "one at a time");
    let sent = controls(&mut link);
    let [Packet::CloseReq { id: probe }] = sent[..] else { panic!("{sent:?}") };
    let mut agent = agent();
    assert_eq!(agent.handle_packet(T0, Packet::CloseReq { id: probe }), Disposition::Handled);
    let answer = Packet::CloseRsp { id: probe, error: "Unknown connectID".into() };
    assert_eq!(controls(&mut agent), [answer]);
    for (answer, event) in [
        (Disposition::Handled, vec![Event::ProbeAnswered]),
        (Disposition::Dropped(Dropped::UnknownConnection), vec![]),
    ] {
        assert_eq!(link.handle_packet(T0, close_rsp(probe, "Unknown connectID")), answer);
        assert_eq!(events(&mut link), event);
    }
    assert!(link.probe(0));
    link.stream_lost(T0);
    assert!(!link.probe(0));
}

#[test]
fn a_probe_tells_the_number_of_servers() {
    let (mut link, mut agent) = (server(), agent());
    for (servers, told) in [
        (0, vec![]),
        (1, vec![Event::ServerCount { servers: 1 }]),
        (u32::MAX, vec![Event::ServerCount { servers: u32::MAX }]),
    ] {
        assert!(link.probe(servers));
        let [Packet::CloseReq { id }] = controls(&mut link)[..] else { panic!("no probe") };
        assert_eq!(agent.handle_packet(T0, Packet::CloseReq { id }), Disposition::Handled);
        assert_eq!(events(&mut agent), told);
        let [Packet::CloseRsp { id, .. }] = controls(&mut agent)[..] else { panic!("no answer") };
        link.handle_packet(T0, close_rsp(id, "Unknown connectID"));
        assert_eq!(events(&mut link), [Event::ProbeAnswered]);
    }
    agent.handle_packet(T0, Packet::CloseReq { id: ConnectId(i64::MIN) });
    assert_eq!(events(&mut agent), [], "no server sends this");
}

#[test]
fn drain_of_an_agent_is_reported_once_and_connections_stay() {
    let (mut link, key) = open_at_server();
    link.handle_packet(T0, Packet::Drain);
    link.handle_packet(T0, Packet::Drain);
    assert_eq!(events(&mut link), [Event::Draining]);
    assert_eq!(link.handle_packet(T0, data(ID)), Disposition::Deliver(key));
}

#[test]
fn packets_of_the_other_direction_are_dropped() {
    let mut link = server();
    let dial =
        Packet::DialReq { random: DialId(1), protocol: "tcp".into(), address: "a:1".into(), trace: None };
    for packet in [dial, Packet::CloseReq { id: ID }] {
        assert_eq!(link.handle_packet(T0, packet), Disposition::Dropped(Dropped::WrongDirection));
    }
    let mut link = agent();
    for packet in [dial_rsp(1, Ok(ID)), close_rsp(ID, ""), Packet::Drain] {
        assert_eq!(link.handle_packet(T0, packet), Disposition::Dropped(Dropped::WrongDirection));
    }
    assert_eq!(controls(&mut link), []);
}

// ---- the agent ----

#[test]
fn connect_ids_count_up_and_failed_dials_consume_them() {
    let (mut link, _) = open_at_agent();
    for (random, outcome, answer) in [
        (6, Err("refused".to_owned()), Err("refused".to_owned())),
        (7, Err(String::new()), Err("dial failed".to_owned())),
        (8, Ok(()), Ok(ConnectId(4))),
    ] {
        let random = DialId(random);
        link.handle_packet(
            T0,
            Packet::DialReq { random, protocol: "tcp".into(), address: "a:1".into(), trace: None },
        );
        let [Event::Dial { key, .. }] = events(&mut link)[..] else { panic!() };
        link.dialed(key, outcome);
        assert_eq!(controls(&mut link), [Packet::DialRsp { random, outcome: answer }]);
    }
}

#[test]
fn connect_ids_continue_above_the_given_one() {
    let mut link = agent();
    let next = |link: &mut Lengths<Agent>, random| {
        let random = DialId(random);
        link.handle_packet(
            T0,
            Packet::DialReq { random, protocol: "tcp".into(), address: "a:1".into(), trace: None },
        );
        let [Event::Dial { key, .. }] = events(link)[..] else { panic!() };
        link.dialed(key, Ok(()));
        link.connect_id(key).map(|id| id.0)
    };
    assert_eq!(next(&mut link, 1), Some(1));
    link.number_beyond(ConnectId(5 << 32));
    assert_eq!(next(&mut link, 2), Some((5 << 32) + 1));
    link.number_beyond(ConnectId(5 << 32));
    assert_eq!(next(&mut link, 3), Some((5 << 32) + 2), "never back");
}

#[test]
fn dial_cls_cancels_and_a_late_result_is_refused() {
    let mut link = agent();
    let random = DialId(3);
    link.handle_packet(
        T0,
        Packet::DialReq { random, protocol: "tcp".into(), address: "a:1".into(), trace: None },
    );
    let [Event::Dial { key, .. }] = events(&mut link)[..] else { panic!() };
    assert_eq!(link.handle_packet(T0, Packet::DialCls { random }), Disposition::Handled);
    assert_eq!(events(&mut link), [Event::DialCanceled { key }]);
    controls(&mut link);
    assert!(!link.dialed(key, Ok(())), "the socket is to be closed");
    assert_eq!(link.handle_packet(T0, Packet::DialCls { random }), Disposition::Late);
    assert_eq!(controls(&mut link), [], "the server knows");
}

#[test]
fn dial_id_in_use_is_not_dialed_again() {
    let mut link = agent();
    let dial =
        Packet::DialReq { random: DialId(3), protocol: "tcp".into(), address: "a:1".into(), trace: None };
    link.handle_packet(T0, dial.clone());
    assert_eq!(link.handle_packet(T0, dial), Disposition::Dropped(Dropped::DuplicateDial));
    assert_eq!(events(&mut link).len(), 1);
}

#[test]
fn a_full_agent_says_so_in_words_that_servers_map_to_503() {
    let mut link: Lengths<Agent> =
        Lengths::new(Limits { pending_dials: 1, ..Limits::default() }, Negotiated::default());
    for random in [1, 2] {
        let random = DialId(random);
        link.handle_packet(
            T0,
            Packet::DialReq { random, protocol: "tcp".into(), address: "a:1".into(), trace: None },
        );
    }
    assert_eq!(events(&mut link).len(), 1);
    let sent = controls(&mut link);
    let [Packet::DialRsp { random: DialId(2), outcome: Err(text) }] = &sent[..] else { panic!("{sent:?}") };
    assert!(text.contains("too many open files"), "{text}");
}

#[test]
fn an_endpoints_end_is_close_rsp_alone() {
    let (mut link, key) = open_at_agent();
    link.end_source(T0, key, SourceEnd::Eof);
    assert_eq!(controls(&mut link), [Packet::CloseRsp { id: ONE, error: String::new() }]);
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Flushed }]);
    assert!(link.is_empty());
}

#[test]
fn end_of_an_endpoint_flushes_accepted_data() {
    let (mut link, key) = open_at_agent();
    queued(&mut link, T0, key, 600);
    link.end_source(T0, key, SourceEnd::Eof);
    assert_eq!(events(&mut link), []);
    queued(&mut link, T0, key, 0);
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Flushed }]);
}

#[test]
fn an_endpoints_error_rides_in_close_rsp_to_a_native_server() {
    let text = "connection reset by peer".to_owned();
    let native = Negotiated { half_close: true, ..Negotiated::default() };
    for (negotiated, error) in [(Negotiated::default(), String::new()), (native, text.clone())] {
        let (mut link, key) = opened(Lengths::new(Limits::default(), negotiated));
        link.end_source(T0, key, SourceEnd::Failed(text.clone()));
        assert_eq!(controls(&mut link), [Packet::CloseRsp { id: ONE, error }]);
        let cause = Cause::Local(text.clone());
        assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(cause) }]);
    }
}

#[test]
fn close_req_is_answered_after_the_flush() {
    let (mut link, key) = open_at_agent();
    queued(&mut link, T0, key, 600);
    assert_eq!(link.handle_packet(T0, Packet::CloseReq { id: ONE }), Disposition::Handled);
    assert_eq!(controls(&mut link), []);
    assert_eq!(link.handle_packet(T0, data(ONE)), Disposition::Dropped(Dropped::AfterEnd), "after its close");
    assert_eq!(link.handle_packet(T0, Packet::CloseReq { id: ONE }), Disposition::Handled, "a second close");
    queued(&mut link, at(1), key, 0);
    assert_eq!(controls(&mut link), [Packet::CloseRsp { id: ONE, error: String::new() }]);
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Flushed }]);
}

#[test]
fn close_req_is_answered_within_five_seconds_and_the_flush_goes_on() {
    let (mut link, key) = open_at_agent();
    queued(&mut link, T0, key, 600);
    link.handle_packet(T0, Packet::CloseReq { id: ONE });
    assert_eq!(link.poll_timeout(), Some(at(5)));
    link.handle_timeout(at(5));
    assert_eq!(controls(&mut link), [Packet::CloseRsp { id: ONE, error: String::new() }]);
    assert_eq!(events(&mut link), []);
    queued(&mut link, at(6), key, 0);
    assert_eq!(controls(&mut link), [], "answered once");
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Flushed }]);
}

#[test]
fn flushing_connection_discards_its_source_even_if_the_stream_is_full() {
    let (mut link, key) = open_at_agent();
    queued(&mut link, T0, key, 600);
    link.handle_packet(T0, Packet::CloseReq { id: ONE });
    link.readable(key);
    assert_eq!(link.poll_transmit(T0, 0), Some(Transmit::Discard { key, max: QUANTUM }));
    drop(link.push(T0, key, 100));
    assert_eq!(link.poll_transmit(T0, 0), Some(Transmit::Discard { key, max: QUANTUM }));
    assert_eq!(link.poll_transmit(T0, 0), None);
    link.readable(key);
    assert_eq!(link.poll_transmit(T0, 0), Some(Transmit::Discard { key, max: QUANTUM }));
    link.end_source(T0, key, SourceEnd::Eof);
    link.readable(key);
    assert_eq!(link.poll_transmit(T0, 0), None, "the source has ended");
}

#[test]
fn unknown_numbers_at_the_agent_are_answered_by_gos_words() {
    let mut link = agent();
    assert_eq!(link.handle_packet(T0, data(ID)), Disposition::Dropped(Dropped::UnknownConnection));
    let request = Packet::CloseReq { id: ID };
    assert_eq!(link.handle_packet(T0, request), Disposition::Dropped(Dropped::UnknownConnection));
    assert_eq!(
        controls(&mut link),
        [
            Packet::CloseRsp { id: ID, error: "unrecognized connectID".into() },
            Packet::CloseRsp { id: ID, error: "Unknown connectID".into() },
        ]
    );
    assert_eq!(link.handle_packet(T0, data(ConnectId(0))), Disposition::Dropped(Dropped::BadConnectId));
    assert_eq!(controls(&mut link), []);
}

#[test]
fn dials_are_served_after_a_drain() {
    let mut link = agent();
    link.drain();
    assert_eq!(controls(&mut link), [Packet::Drain]);
    link.handle_packet(
        T0,
        Packet::DialReq { random: DialId(1), protocol: "tcp".into(), address: "a:1".into(), trace: None },
    );
    assert_eq!(events(&mut link).len(), 1);
}

// ---- either end ----

#[test]
fn sources_take_turns_and_read_no_more_than_the_budget() {
    let (mut link, first) = open_at_server();
    let second = link.dial("tcp", "b:1", None).unwrap();
    controls(&mut link);
    link.handle_packet(T0, dial_rsp(2, Ok(ConnectId(8))));
    link.readable(first);
    link.readable(first);
    link.readable(second);
    assert_eq!(link.poll_transmit(T0, 0), None, "no budget, no read");
    assert_eq!(link.poll_transmit(T0, 500), Some(Transmit::Read { key: first, max: 500 }));
    drop(link.push(T0, first, 500));
    assert!(matches!(link.poll_transmit(T0, 9), Some(Transmit::Read { key, .. }) if key == second));
    assert!(matches!(link.poll_transmit(T0, 9), Some(Transmit::Read { key, .. }) if key == first));
    assert_eq!(link.poll_transmit(T0, 9), None);
}

#[test]
fn a_long_read_is_sent_in_several_packets() {
    let (mut link, key) = open_at_server();
    let frame = 64 << 10;
    for (read, packets) in [(1, vec![1]), (frame, vec![frame]), (2 * frame + 1, vec![frame, frame, 1])] {
        let sent: Vec<_> = link.push(T0, key, read).collect();
        let data = |payload: &usize| Packet::Data { id: ID, payload: *payload };
        assert_eq!(sent, packets.iter().map(data).collect::<Vec<_>>());
    }
}

#[test]
fn losing_the_stream_ends_dials_and_connections_once_and_leaves_flushes() {
    let (mut link, open) = open_at_server();
    let dial = link.dial("tcp", "b:1", None).unwrap();
    link.stream_lost(T0);
    link.stream_lost(T0);
    let mut told = events(&mut link);
    told.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(
        told,
        [
            Event::DialFailed { key: dial, error: DialError::LinkLost },
            Event::Ended { key: open, end: CloseReason::Broken(Cause::LinkLost) },
        ]
    );
    assert!(link.is_empty());
    assert_eq!(controls(&mut link), []);
    assert!(!link.receiving());

    let (mut link, key) = open_at_agent();
    queued(&mut link, T0, key, 600);
    link.handle_packet(T0, Packet::CloseReq { id: ONE });
    link.stream_lost(T0);
    assert_eq!(events(&mut link), [], "what the peer closed before goes on flushing");
    queued(&mut link, T0, key, 0);
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Flushed }]);
    assert_eq!(controls(&mut link), []);
}

#[test]
fn a_dial_after_the_loss_fails() {
    let mut link = server();
    link.stream_lost(T0);
    let key = link.dial("tcp", "a:1", None).unwrap();
    assert_eq!(events(&mut link), [Event::DialFailed { key, error: DialError::LinkLost }]);
    assert!(link.is_empty());
}

#[test]
fn a_queue_above_the_hard_cap_stops_receiving_and_a_slow_one_is_reset() {
    let (mut link, key) = open_at_server();
    let hard = Limits::default().hard_cap;
    queued(&mut link, T0, key, hard + 1);
    assert!(!link.receiving());
    assert_eq!(link.fill(key), Fill::HoldsUpLink);
    assert_eq!(link.poll_timeout(), Some(at(2)));
    queued(&mut link, at(1), key, hard);
    assert!(link.receiving());
    assert_eq!(link.fill(key), Fill::Room);
    queued(&mut link, at(1), key, hard + 1);
    link.handle_timeout(at(2));
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(Cause::Stalled) }]);
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
    assert!(link.receiving());
    assert_eq!(link.total_held(), 0);
}

#[test]
fn all_that_stall_above_the_soft_cap_go_with_the_one_that_holds_up_the_link() {
    let limits = Limits { soft_cap: 100, hard_cap: 1_000, ..Limits::default() };
    let mut link: Lengths<Server> = Lengths::new(limits, Negotiated::default());
    let keys: Vec<ConnKey> = (1..=3)
        .map(|n| {
            let key = link.dial("tcp", "a:1", None).unwrap();
            controls(&mut link);
            link.handle_packet(T0, dial_rsp(n, Ok(ConnectId(n))));
            key
        })
        .collect();
    events(&mut link);
    for (key, charged) in keys.iter().zip([1_001, 900, 100]) {
        queued(&mut link, T0, *key, charged);
    }
    link.handle_timeout(at(2));
    let stalled = |key| Event::Ended { key, end: CloseReason::Broken(Cause::Stalled) };
    assert_eq!(events(&mut link), [stalled(keys[0]), stalled(keys[1])]);
    assert!(link.receiving());
    assert_eq!(link.total_held(), 100);
}

#[test]
fn a_queue_that_drains_fast_enough_is_left_alone() {
    let (mut link, key) = open_at_agent();
    let hard = Limits::default().hard_cap;
    for second in 0..10 {
        queued(&mut link, at(second), key, hard + 1);
        queued(&mut link, at(second), key, hard + 1 - 80_000);
        queued(&mut link, at(second), key, hard + 1);
        link.handle_timeout(at(second));
    }
    assert_eq!(events(&mut link), []);
    assert!(!link.receiving());
}

#[test]
fn when_only_the_sum_is_too_much_the_largest_slow_queue_goes_first() {
    let limits = Limits { soft_cap: 10, hard_cap: 1_000, link_budget: 1_000, ..Limits::default() };
    let mut link: Lengths<Server> = Lengths::new(limits, Negotiated::default());
    let keys: Vec<ConnKey> = (1..=3)
        .map(|n| {
            let key = link.dial("tcp", "a:1", None).unwrap();
            controls(&mut link);
            link.handle_packet(T0, dial_rsp(n, Ok(ConnectId(n))));
            key
        })
        .collect();
    events(&mut link);
    for (key, charged) in keys.iter().zip([300, 600, 200]) {
        queued(&mut link, T0, *key, charged);
    }
    assert!(!link.receiving());
    link.handle_timeout(at(2));
    assert_eq!(events(&mut link), [Event::Ended { key: keys[1], end: CloseReason::Broken(Cause::Stalled) }]);
    assert!(link.receiving());
}

#[test]
fn peer_that_does_not_read_answers_is_not_received() {
    let mut link: Lengths<Agent> =
        Lengths::new(Limits { outbox: 3, ..Limits::default() }, Negotiated::default());
    for n in 1..=3 {
        assert!(link.receiving());
        link.handle_packet(T0, data(ConnectId(n)));
    }
    assert!(!link.receiving());
    controls(&mut link);
    assert!(link.receiving());
}

#[test]
fn a_second_close_req_postpones_neither_the_answer_nor_the_end_of_the_flush() {
    let (mut link, key) = open_at_agent();
    queued(&mut link, T0, key, 600);
    link.handle_packet(T0, Packet::CloseReq { id: ONE });
    link.handle_packet(at(4), Packet::CloseReq { id: ONE });
    link.handle_timeout(at(5));
    assert_eq!(controls(&mut link), [Packet::CloseRsp { id: ONE, error: String::new() }]);
    assert_eq!(link.poll_timeout(), Some(at(10)));
    link.handle_timeout(at(10));
    assert_eq!(events(&mut link), [Event::Ended { key, end: CloseReason::Broken(Cause::FlushTimeout) }]);
    assert_eq!(controls(&mut link), [], "answered once");
    assert!(link.is_empty());
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn the_number_of_an_abandoned_connection_is_kept_until_the_agents_last_word() {
    let (mut link, key) = open_at_server();
    link.abandon(T0, key);
    assert_eq!(controls(&mut link), [Packet::CloseReq { id: ID }]);
    assert_eq!(link.handle_packet(T0, data(ID)), Disposition::Late);
    assert_eq!(controls(&mut link), [], "asked once");
    let second = link.dial("tcp", "b:1", None).unwrap();
    controls(&mut link);
    link.handle_packet(T0, dial_rsp(2, Ok(ID)));
    assert_eq!(events(&mut link), [Event::DialFailed { key: second, error: DialError::BadAnswer }]);
    assert_eq!(link.handle_packet(T0, close_rsp(ID, "")), Disposition::Handled);
    assert!(link.is_empty());
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn packets_that_cross_a_close_are_late_and_no_fault() {
    let (mut link, key) = open_at_server();
    link.end_source(T0, key, SourceEnd::Eof);
    link.handle_packet(T0, close_rsp(ID, ""));
    for packet in [data(ID), close_rsp(ID, "Unknown connectID")] {
        assert_eq!(link.handle_packet(T0, packet), Disposition::Late, "the agent had not read our CLOSE_REQ");
    }
    let (mut link, key) = open_at_agent();
    link.end_source(T0, key, SourceEnd::Closed);
    for packet in [data(ONE), Packet::CloseReq { id: ONE }] {
        assert_eq!(
            link.handle_packet(T0, packet),
            Disposition::Late,
            "the server had not read our CLOSE_RSP"
        );
    }
    let beyond = link.handle_packet(T0, data(ConnectId(2)));
    assert_eq!(beyond, Disposition::Dropped(Dropped::UnknownConnection), "this one never was");
}
