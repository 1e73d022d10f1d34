//! The answers of each end between peers that negotiated credits and half-close.

mod queue;

use std::time::Duration;

use mux::{
    Agent, Cause, CloseReason, ConnKey, ConnectId, DialId, Disposition, Dropped, Event, Fill, Limits,
    Negotiated, Packet, Server, SourceEnd, Time, Transmit, Windows,
};

use queue::{Lengths, queued};

const T0: Time = Time::START;
const ONE: ConnectId = ConnectId(1);
const PROBE: ConnectId = ConnectId(-1);

fn at(seconds: u64) -> Time {
    Time::from_start(Duration::from_secs(seconds))
}

fn native() -> Negotiated {
    Negotiated { credits: Some(Windows { receive: 1_000, send: 100 }), half_close: true }
}

/// Native peers with windows that no test fills.
fn wide() -> Negotiated {
    Negotiated { credits: Some(Windows { receive: 16 << 20, send: 100 }), half_close: true }
}

/// A server's link with open connections 1 to `count`, and nothing to send.
fn servers(limits: Limits, negotiated: Negotiated, count: i64) -> (Lengths<Server>, Vec<ConnKey>) {
    let mut link = Lengths::new(limits, negotiated);
    let keys = (1..=count).map(|n| open(&mut link, n)).collect();
    (link, keys)
}

/// Opens connection `n`, after those before it.
fn open(link: &mut Lengths<Server>, n: i64) -> ConnKey {
    let key = link.dial("tcp", "a:1", None).expect("the link is not full");
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::DialReq { .. }))));
    link.handle_packet(T0, Packet::DialRsp { random: DialId(n), outcome: Ok(ConnectId(n)) });
    assert_eq!(link.poll_event(), Some(Event::Opened { key, id: ConnectId(n) }));
    key
}

/// A server's link with one open connection.
fn server(negotiated: Negotiated) -> (Lengths<Server>, ConnKey) {
    let (link, keys) = servers(Limits::default(), negotiated, 1);
    (link, keys[0])
}

/// An agent's link with one open connection.
fn agent(negotiated: Negotiated) -> (Lengths<Agent>, ConnKey) {
    let mut link = Lengths::new(Limits::default(), negotiated);
    let dial =
        Packet::DialReq { random: DialId(1), protocol: "tcp".into(), address: "a:1".into(), trace: None };
    link.handle_packet(T0, dial);
    let Some(Event::Dial { key, .. }) = link.poll_event() else { panic!("a dial") };
    assert!(link.dialed(key, Ok(())));
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::DialRsp { .. }))));
    (link, key)
}

fn data(len: usize) -> Packet<usize> {
    Packet::Data { id: ONE, payload: len }
}

#[test]
fn sender_stops_at_its_grant_and_continues_with_the_next() {
    let (mut link, key) = server(native());
    link.readable(key);
    assert_eq!(link.poll_transmit(T0, 70), Some(Transmit::Read { key, max: 70 }));
    drop(link.push(T0, key, 70));
    assert_eq!(link.poll_transmit(T0, 1_000), Some(Transmit::Read { key, max: 30 }));
    drop(link.push(T0, key, 30));
    assert_eq!(link.poll_transmit(T0, 1_000), Some(Transmit::NoCredit { key }));
    assert_eq!(link.poll_transmit(T0, 1_000), None, "told once");
    link.handle_packet(T0, Packet::Grant { id: ONE, offset: 90 });
    assert_eq!(link.poll_transmit(T0, 1_000), None, "less than before is nothing");
    link.handle_packet(T0, Packet::Grant { id: ONE, offset: 150 });
    assert_eq!(link.poll_transmit(T0, 1_000), Some(Transmit::Read { key, max: 50 }));
}

#[test]
fn a_receiver_grants_half_a_window_as_it_is_taken() {
    let (mut link, key) = server(native());
    assert_eq!(link.handle_packet(T0, data(1_000)), Disposition::Deliver(key));
    link.advance(T0, key, 499);
    assert_eq!(link.poll_transmit(T0, 1), None);
    link.advance(T0, key, 1);
    let grant = Some(Transmit::Control(Packet::Grant { id: ONE, offset: 1_500 }));
    assert_eq!(link.poll_transmit(T0, 1), grant);
    assert_eq!(link.poll_transmit(T0, 1), None, "told once");
    link.advance(T0, key, 400);
    link.handle_packet(T0, data(200));
    link.advance(T0, key, 100);
    link.advance(T0, key, 100);
    let grant = Some(Transmit::Control(Packet::Grant { id: ONE, offset: 2_100 }));
    assert_eq!(link.poll_transmit(T0, 1), grant, "and again");
    assert_eq!(link.poll_transmit(T0, 1), None, "once for both");
}

#[test]
fn nothing_is_granted_after_the_peers_close() {
    let (mut link, key) = server(native());
    queued(&mut link, T0, key, 1_000);
    link.advance(T0, key, 500);
    link.handle_packet(T0, Packet::CloseRsp { id: ONE, error: String::new() });
    link.advance(T0, key, 1);
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Discard { .. })));
}

#[test]
fn a_window_is_full_until_more_is_granted() {
    let (mut link, key) = server(native());
    link.handle_packet(T0, data(999));
    assert_eq!(link.fill(key), Fill::Room);
    link.handle_packet(T0, data(1));
    assert_eq!(link.fill(key), Fill::Full);
    link.advance(T0, key, 500);
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::Grant { .. }))));
    assert_eq!(link.fill(key), Fill::Room);
    link.handle_packet(T0, data(500));
    assert_eq!(link.fill(key), Fill::Full);
    link.advance(T0, key, 1_000);
    assert_eq!(link.fill(key), Fill::Room, "nothing waits");
}

#[test]
fn reasons_in_words() {
    let broken = |cause| CloseReason::Broken(cause);
    for (reason, wire, log) in [
        (CloseReason::Flushed, "", "closed"),
        (broken(Cause::LinkLost), "", "agent stream lost"),
        (broken(Cause::Peer("no such host".into())), "no such host", "no such host"),
    ] {
        assert_eq!((reason.wire_text().as_str(), reason.to_string().as_str()), (wire, log));
    }
}

#[test]
fn a_window_grows_as_soon_as_little_is_queued_and_not_before() {
    let limits = Limits { link_budget: 4_000, ..Limits::default() };
    let (mut link, keys) = servers(limits, native(), 3);
    queued(&mut link, T0, keys[1], 1_000);
    let mut half_taken = |others| {
        queued(&mut link, T0, keys[2], others);
        assert_eq!(link.handle_packet(T0, data(500)), Disposition::Deliver(keys[0]));
        link.advance(T0, keys[0], 500);
        let Some(Transmit::Control(Packet::Grant { offset, .. })) = link.poll_transmit(T0, 1) else {
            panic!("half a window was taken")
        };
        offset
    };
    for half in 1..=20 {
        assert_eq!(half_taken(1), half * 500 + 1_000, "more than a quarter of the budget is in use");
    }
    assert_eq!(half_taken(0), 21 * 500 + 2_000, "it has long kept up");
}

#[test]
fn sources_that_become_readable_come_first_eight_in_a_row() {
    let (mut link, keys) = servers(Limits::default(), wide(), 12);
    let mut turn = |becoming_readable: &[ConnKey]| {
        becoming_readable.iter().for_each(|key| link.readable(*key));
        let Some(Transmit::Read { key, .. }) = link.poll_transmit(T0, 1) else {
            panic!("a source has bytes")
        };
        drop(link.push(T0, key, 1));
        key
    };
    assert_eq!(turn(&keys[..1]), keys[0]);
    assert_eq!(turn(&[]), keys[0], "it may have more");
    assert_eq!(turn(&keys[1..]), keys[1]);
    let next: Vec<_> = (0..11).map(|_| turn(&[])).collect();
    assert_eq!(next[..7], keys[2..9]);
    assert_eq!(next[7], keys[0], "eight others were read");
    assert_eq!(next[8..], keys[9..]);
}

#[test]
fn has_to_send_reports_pending_packets() {
    let (mut link, key) = server(native());
    let reasons: [fn(&mut Lengths<Server>, ConnKey); 3] = [
        |link, _| {
            link.handle_packet(T0, Packet::Data { id: ConnectId(9), payload: 1 });
        },
        |link, key| {
            link.handle_packet(T0, data(500));
            link.advance(T0, key, 500);
        },
        |link, key| link.readable(key),
    ];
    assert!(!link.has_to_send());
    for (n, reason) in reasons.iter().enumerate() {
        reason(&mut link, key);
        assert!(link.has_to_send(), "reason {n}");
        assert!(link.poll_transmit(T0, 1).is_some());
        assert!(!link.has_to_send(), "after reason {n}");
    }
}

#[test]
fn more_than_was_granted_costs_the_connection_and_nothing_else() {
    let (mut link, key) = server(native());
    assert_eq!(link.handle_packet(T0, data(1_000)), Disposition::Deliver(key));
    assert_eq!(link.handle_packet(T0, data(1)), Disposition::Dropped(Dropped::Overrun));
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end: CloseReason::Broken(Cause::Overrun) }));
    assert_eq!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::CloseReq { id: ONE })));
    assert!(link.receiving());
}

#[test]
fn packets_that_were_not_agreed_on_are_dropped() {
    let (mut link, _) = server(Negotiated::default());
    for packet in [Packet::Grant { id: ONE, offset: 5 }, Packet::Fin { id: ONE }] {
        assert_eq!(link.handle_packet(T0, packet), Disposition::Dropped(Dropped::NotAgreed));
    }
    assert_eq!((link.poll_event(), link.poll_transmit(T0, 1)), (None, None));
}

#[test]
fn canceled_dial_is_answered_to_an_upstream_server_only() {
    let random = DialId(1);
    for (negotiated, answer) in
        [(Negotiated::default(), Some(Transmit::Control(Packet::DialCls { random }))), (native(), None)]
    {
        let mut link: Lengths<Agent> = Lengths::new(Limits::default(), negotiated);
        let dial = Packet::DialReq { random, protocol: "tcp".into(), address: "a:1".into(), trace: None };
        link.handle_packet(T0, dial);
        assert_eq!(link.handle_packet(T0, Packet::DialCls { random }), Disposition::Handled);
        assert_eq!(link.poll_transmit(T0, 1), answer);
        assert!(link.is_empty());
    }
}

#[test]
fn late_packets_for_a_connection_that_has_gone_answer_nothing() {
    let (mut link, _) = agent(native());
    assert_eq!(link.handle_packet(T0, Packet::Grant { id: ConnectId(9), offset: 5 }), Disposition::Handled);
    let fin = link.handle_packet(T0, Packet::Fin { id: ConnectId(9) });
    assert_eq!(fin, Disposition::Dropped(Dropped::UnknownConnection));
    assert_eq!(link.poll_transmit(T0, 1), None);
}

#[test]
fn end_of_a_source_sends_fin_and_the_other_direction_continues() {
    let (mut link, key) = server(native());
    link.end_source(T0, key, SourceEnd::Eof);
    assert_eq!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::Fin { id: ONE })));
    assert_eq!(link.handle_packet(at(9), data(10)), Disposition::Deliver(key));
    link.advance(at(9), key, 10);
    link.handle_timeout(at(10));
    assert_eq!(link.poll_transmit(T0, 1), None, "activity at 9 s");
    closes_idle(&mut link, at(19));
}

/// The connection has been idle until `now`: it is closed once the agent has answered a probe.
fn closes_idle(link: &mut Lengths<Server>, now: Time) {
    link.handle_timeout(now);
    assert_eq!((link.poll_event(), link.poll_transmit(now, 1)), (Some(Event::ProbeWanted), None));
    assert!(link.probe(0));
    assert_eq!(link.poll_transmit(now, 1), Some(Transmit::Control(Packet::CloseReq { id: PROBE })));
    link.handle_packet(now, Packet::CloseRsp { id: PROBE, error: String::new() });
    link.handle_timeout(now.after(Duration::from_secs(3)));
    assert_eq!(link.poll_transmit(now, 1), Some(Transmit::Control(Packet::CloseReq { id: ONE })));
}

#[test]
fn slow_endpoint_extends_the_wait_for_its_answer() {
    let (mut link, key) = server(native());
    link.end_source(T0, key, SourceEnd::Eof);
    assert!(link.poll_transmit(T0, 1).is_some());
    assert_eq!(link.handle_packet(at(9), Packet::Grant { id: ONE, offset: 101 }), Disposition::Handled);
    link.handle_timeout(at(10));
    assert_eq!(link.poll_transmit(T0, 1), None, "something was taken at 9 s");
    closes_idle(&mut link, at(19));
}

#[test]
fn after_fin_any_progress_is_granted() {
    let mib = 1 << 20;
    let negotiated = Negotiated { credits: Some(Windows { receive: mib, send: 100 }), half_close: true };
    let (mut link, key) = agent(negotiated);
    assert_eq!(link.handle_packet(T0, data(mib as usize)), Disposition::Deliver(key));
    link.handle_packet(T0, Packet::Fin { id: ONE });
    let mut take = |bytes: usize| {
        link.advance(T0, key, bytes);
        match link.poll_transmit(T0, 1) {
            None => false,
            Some(Transmit::Control(Packet::Grant { id: ONE, .. })) => true,
            other => panic!("{other:?}"),
        }
    };
    assert!(!take(0));
    assert!(take(4_096), "an endpoint that reads slowly is not idle");
    assert!(take(mib as usize - 4_096 - 100));
    assert!(take(100));
}

#[test]
fn an_endpoint_that_ended_waits_ten_minutes_for_its_frontend() {
    let (mut link, key) = agent(native());
    link.end_source(T0, key, SourceEnd::Eof);
    assert_eq!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::Fin { id: ONE })));
    link.handle_timeout(at(599));
    assert_eq!(link.poll_transmit(T0, 1), None);
    link.handle_timeout(at(600));
    let close = Packet::CloseRsp { id: ONE, error: String::new() };
    assert_eq!(link.poll_transmit(T0, 1), Some(Transmit::Control(close)));
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end: CloseReason::Flushed }));
}

#[test]
fn frontend_may_pause_after_a_close_in_order() {
    for order in ["", "frontend", "endpoint", "frontend, endpoint", "endpoint, frontend"] {
        let (mut link, key) = server(native());
        queued(&mut link, T0, key, 10);
        for end in order.split(", ") {
            match end {
                "frontend" => link.end_source(T0, key, SourceEnd::Eof),
                "endpoint" => {
                    assert_eq!(link.handle_packet(T0, Packet::Fin { id: ONE }), Disposition::Handled)
                }
                _ => {}
            }
        }
        link.handle_packet(T0, Packet::CloseRsp { id: ONE, error: String::new() });
        assert_eq!(link.poll_event(), None);
        assert_eq!(link.poll_timeout(), Some(at(600)), "ends: {order}");
    }
}

#[test]
fn queued_data_keeps_a_half_closed_connection_open() {
    let (mut link, key) = server(native());
    link.end_source(T0, key, SourceEnd::Eof);
    assert!(link.poll_transmit(T0, 1).is_some());
    queued(&mut link, T0, key, 10);
    link.handle_timeout(at(10));
    assert_eq!(link.poll_transmit(T0, 1), None, "it still takes what came");
    queued(&mut link, at(11), key, 0);
    closes_idle(&mut link, at(20));
}

/// When a half-closed connection closes, if the agent answers probes from this time on, so many milliseconds late.
fn closes_at(resumes: Time, late: u64) -> Option<Time> {
    let (mut link, key) = server(native());
    link.end_source(T0, key, SourceEnd::Eof);
    assert!(link.poll_transmit(T0, 1).is_some());
    let mut answer = None;
    for _ in 0..20 {
        let due = link.poll_timeout()?;
        if let Some(now) = answer.take_if(|answer: &mut Time| *answer <= due) {
            link.handle_packet(now, Packet::CloseRsp { id: PROBE, error: String::new() });
            assert_eq!(link.poll_event(), Some(Event::ProbeAnswered));
        }
        link.handle_timeout(due);
        if let Some(wanted) = link.poll_event() {
            assert_eq!(wanted, Event::ProbeWanted);
            // Fails while the earlier one is unanswered.
            let _ = link.probe(0);
        }
        match link.poll_transmit(due, 1) {
            Some(Transmit::Control(Packet::CloseReq { id: PROBE })) => {
                answer = Some(due.max(resumes).after(Duration::from_millis(late)))
            }
            Some(closed) => {
                assert_eq!(closed, Transmit::Control(Packet::CloseReq { id: ONE }));
                return Some(due);
            }
            None => {}
        }
    }
    None
}

#[test]
fn a_half_closed_connection_waits_for_an_agent_that_stands_still() {
    let at_ms = |ms| Some(Time::from_start(Duration::from_millis(ms)));
    assert_eq!(closes_at(T0, 0), at_ms(12_500));
    assert_eq!(closes_at(at(12), 0), at_ms(12_500), "it answers in time, and its endpoint is silent");
    assert_eq!(closes_at(at(14), 0), at_ms(22_500), "ten seconds after it was missed");
    assert_eq!(closes_at(T0, 3_000), at_ms(22_500), "each answer comes late");
    assert_eq!(closes_at(at(100_000), 0), None);
}

#[test]
fn fin_is_delivered_after_earlier_data() {
    let (mut link, key) = agent(native());
    queued(&mut link, T0, key, 10);
    assert_eq!(link.handle_packet(T0, Packet::Fin { id: ONE }), Disposition::Handled);
    assert_eq!(link.poll_event(), None);
    assert_eq!(link.handle_packet(T0, data(1)), Disposition::Dropped(Dropped::AfterEnd), "after its end");
    queued(&mut link, T0, key, 0);
    assert_eq!(link.poll_event(), Some(Event::ShutDown { key }));
    let again = link.handle_packet(T0, Packet::Fin { id: ONE });
    assert_eq!((again, link.poll_event()), (Disposition::Dropped(Dropped::AfterEnd), None), "told once");
}

#[test]
fn after_both_fins_the_agent_closes() {
    let (mut link, key) = agent(native());
    link.end_source(T0, key, SourceEnd::Eof);
    assert!(link.poll_transmit(T0, 1).is_some());
    link.handle_packet(T0, Packet::Fin { id: ONE });
    let close = Packet::CloseRsp { id: ONE, error: String::new() };
    assert_eq!(link.poll_transmit(T0, 1), Some(Transmit::Control(close)));
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end: CloseReason::Flushed }));
    assert!(link.is_empty());
}

#[test]
fn an_endpoint_that_breaks_after_its_end_is_an_orderly_end_for_the_frontend() {
    let (mut link, key) = agent(native());
    link.end_source(T0, key, SourceEnd::Eof);
    assert!(link.poll_transmit(T0, 1).is_some());
    link.write_failed(T0, key, "broken pipe".into());
    let close = Packet::CloseRsp { id: ONE, error: String::new() };
    assert_eq!(link.poll_transmit(T0, 1), Some(Transmit::Control(close)));
    let end = CloseReason::Broken(Cause::Local("broken pipe".into()));
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end }));
}

#[test]
fn bytes_of_a_departed_local_end_wait_as_long_as_the_peer_takes_some() {
    let (mut link, key) = server(native());
    link.readable(key);
    assert!(link.poll_transmit(T0, 100).is_some());
    drop(link.push(T0, key, 100));
    assert_eq!(link.poll_transmit(T0, 100), Some(Transmit::NoCredit { key }));
    link.local_closed(T0, key);
    for (seconds, offset) in [(40, 110), (80, 120)] {
        link.handle_timeout(at(seconds));
        link.handle_packet(at(seconds), Packet::Grant { id: ONE, offset });
        assert!(link.poll_transmit(T0, 100).is_some());
        drop(link.push(at(seconds), key, 10));
    }
    link.handle_timeout(at(124));
    assert_eq!(link.poll_event(), None, "bytes moved at 80 s");
    link.handle_timeout(at(125));
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end: CloseReason::Broken(Cause::FlushTimeout) }));
}

#[test]
fn second_report_of_a_departed_local_end_does_not_extend_its_time() {
    let (mut link, key) = server(native());
    link.local_closed(T0, key);
    link.local_closed(at(9), key);
    link.handle_timeout(at(44));
    assert_eq!(link.poll_event(), None, "an outage is no stall");
    link.handle_timeout(at(45));
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end: CloseReason::Broken(Cause::FlushTimeout) }));
}

#[test]
fn departed_local_end_that_was_write_closed_keeps_its_deadline() {
    let (mut link, key) = server(native());
    link.write_failed(T0, key, "broken pipe".into());
    link.write_failed(at(1), key, "known".into());
    link.local_closed(at(1), key);
    link.handle_timeout(at(59));
    assert_eq!(link.poll_event(), None);
    link.handle_timeout(at(60));
    let end = CloseReason::Broken(Cause::Local("broken pipe".into()));
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end }));
}

#[test]
fn memory_pressure_resets_the_largest_stalled_connections() {
    let (mut link, keys) = servers(Limits::default(), wide(), 3);
    let megabyte = 1 << 20;
    queued(&mut link, T0, keys[0], 2 * megabyte);
    queued(&mut link, T0, keys[1], megabyte);
    queued(&mut link, T0, keys[2], 4 * megabyte);
    queued(&mut link, at(1), keys[2], 3 * megabyte);
    link.shed(at(1), megabyte, false);
    assert_eq!(link.poll_event(), None, "nobody has stalled for two seconds");
    link.shed(at(3), megabyte, false);
    let stalled = |key| Some(Event::Ended { key, end: CloseReason::Broken(Cause::Stalled) });
    assert_eq!(link.poll_event(), stalled(keys[0]), "the largest of those that stall");
    assert_eq!(link.poll_event(), None, "which was enough");
    link.shed(at(3), 1, false);
    assert_eq!(link.poll_event(), stalled(keys[1]), "asked again, the next one");
    link.shed(at(3), megabyte, true);
    assert_eq!(link.poll_event(), stalled(keys[2]), "urgently, the largest");
}

#[test]
fn under_memory_pressure_the_minimal_drain_suffices_for_one_window() {
    let (mut link, key) = server(wide());
    let least = Limits::default().min_drain;
    queued(&mut link, T0, key, 2 * least);
    queued(&mut link, at(1), key, least);
    link.shed(at(2), 1, false);
    assert_eq!(link.poll_event(), None);
    link.shed(at(4), 1, false);
    let end = CloseReason::Broken(Cause::Stalled);
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end }), "nothing in the next");
}

#[test]
fn connections_without_bytes_survive_memory_pressure() {
    let (mut link, keys) = servers(Limits::default(), native(), 2);
    queued(&mut link, T0, keys[0], 1_000);
    link.shed(T0, 1 << 20, true);
    let end = CloseReason::Broken(Cause::Stalled);
    assert_eq!(link.poll_event(), Some(Event::Ended { key: keys[0], end }));
    assert_eq!(link.poll_event(), None);
}

#[test]
fn bytes_held_by_local_ends_count_under_memory_pressure() {
    let (mut link, key) = server(native());
    link.holds_ahead(at(1), key, 300_000);
    assert_eq!(link.total_held(), 300_000);
    link.holds_ahead(at(2), key, 200_000);
    link.shed(at(2), 1, false);
    assert_eq!(link.poll_event(), None, "not for two seconds yet");
    assert_eq!(link.poll_timeout(), Some(at(4)), "looks again");
    link.shed(at(3), 1, false);
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end: CloseReason::Broken(Cause::Stalled) }));
    assert_eq!(link.total_held(), 0);
    link.handle_timeout(at(4));
    link.shed(at(4), 1, true);
    assert_eq!(
        link.poll_timeout(),
        Some(at(13)),
        "the close's: where nothing is held there is nothing to look at"
    );
}

#[test]
fn held_bytes_that_drain_do_not_count_as_stalled() {
    let (mut link, key) = server(native());
    // Up to 300,000 bytes come and go, but never all: half of a message always remains.
    for second in 1..8 {
        link.holds_ahead(at(second), key, 300_000);
        link.holds_ahead(at(second), key, 1_000);
        link.shed(at(second), 1, false);
        assert_eq!(link.poll_event(), None, "{second}");
    }
    link.shed(at(8), 1, false);
    assert_eq!(link.poll_event(), None, "it went on a second ago");
    link.shed(at(10), 1, false);
    assert_eq!(link.poll_event(), Some(Event::Ended { key, end: CloseReason::Broken(Cause::Stalled) }));
}

/// A connection whose local end reads everything at once.
struct Quick {
    key: ConnKey,
    id: ConnectId,
    taken: u64,
    granted: u64,
}

impl Quick {
    fn all(keys: &[ConnKey]) -> Vec<Quick> {
        let ids = (1..).map(ConnectId);
        keys.iter().zip(ids).map(|(&key, id)| Quick { key, id, taken: 0, granted: 1_000 }).collect()
    }

    /// Reads this many half windows. Returns how far the last grant reaches beyond the bytes read.
    fn take(&mut self, link: &mut Lengths<Server>, half_windows: usize) -> u64 {
        for _ in 0..half_windows {
            let half = (self.granted - self.taken) / 2;
            let len = usize::try_from(half).expect("a window fits");
            let packet = Packet::Data { id: self.id, payload: len };
            assert_eq!(link.handle_packet(T0, packet), Disposition::Deliver(self.key));
            link.advance(T0, self.key, len);
            self.taken += half;
            while let Some(Transmit::Control(packet)) = link.poll_transmit(T0, 1) {
                let Packet::Grant { offset, .. } = packet else { panic!("a grant: {packet:?}") };
                self.granted = offset;
            }
        }
        self.granted - self.taken
    }
}

fn bounds(high_bdp_budget: usize) -> Limits {
    Limits { window_max: 4_000, window_high_bdp: 32_000, high_bdp_budget, ..Limits::default() }
}

const LONG_RTT: Duration = Duration::from_millis(50);

#[test]
fn windows_grow_wider_and_sooner_at_a_high_bdp() {
    let (mut link, keys) = servers(bounds(100_000), native(), 2);
    let mut quick = Quick::all(&keys);
    assert_eq!(quick[0].take(&mut link, 200), 4_000);
    link.set_rtt(LONG_RTT);
    assert_eq!(quick[1].take(&mut link, 3), 32_000, "each half window widens it four times");
    link.set_rtt(Duration::ZERO);
    assert_eq!(quick[0].take(&mut link, 200), 4_000, "it is not so long");
}

#[test]
fn first_windows_at_a_high_bdp_are_wide_and_share_the_budget() {
    let (mut link, _) = servers(bounds(10_000), native(), 0);
    let first = |link: &mut Lengths<Server>, n| {
        open(link, n);
        match link.poll_transmit(T0, 1) {
            Some(Transmit::Control(Packet::Grant { id: ConnectId(id), offset })) if id == n => offset,
            None => 1_000,
            other => panic!("a grant of {n}: {other:?}"),
        }
    };
    assert_eq!(first(&mut link, 1), 1_000, "without a measured RTT: as negotiated");
    link.set_rtt(LONG_RTT);
    assert_eq!(
        [2, 3, 4].map(|n| first(&mut link, n)),
        [4_000, 4_000, 3_333],
        "the limit at a low RTT, or a share"
    );
    let others: Vec<u64> = (5..=20).map(|n| first(&mut link, n)).collect();
    assert_eq!(others.last(), Some(&1_000), "never less than was negotiated: {others:?}");
}

#[test]
fn high_bdp_windows_share_one_budget() {
    let (mut link, keys) = servers(bounds(40_000), native(), 3);
    link.set_rtt(LONG_RTT);
    let mut quick = Quick::all(&keys);
    assert_eq!(quick[0].take(&mut link, 100), 32_000);
    assert_eq!((quick[1].take(&mut link, 1), quick[2].take(&mut link, 1)), (4_000, 4_000));
    // Each gets at most half of the remaining budget.
    assert_eq!((quick[1].take(&mut link, 100), quick[2].take(&mut link, 100)), (15_999, 4_000));
    link.handle_packet(T0, Packet::CloseRsp { id: ONE, error: String::new() });
    assert_eq!(quick[2].take(&mut link, 100), 32_000, "the first has gone");
}
