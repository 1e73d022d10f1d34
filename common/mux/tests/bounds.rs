//! Limits, fairness and exact accounts while a peer, a frontend or the stream misbehaves.

mod queue;

use std::time::Duration;

use mux::{
    Agent, Cause, CloseReason, ConnKey, ConnectId, DialError, DialId, Disposition, Dropped, Event, Limits,
    Negotiated, Packet, Server, Side, SourceEnd, Time, Transmit,
};

use queue::{Lengths, queued};

const T0: Time = Time::START;

/// The most bytes of one discard.
const QUANTUM: usize = 64 << 10;

fn at(seconds: u64) -> Time {
    Time::from_start(Duration::from_secs(seconds))
}

fn events<S: Side>(link: &mut Lengths<S>) -> Vec<Event> {
    std::iter::from_fn(|| link.poll_event()).collect()
}

/// A server's link with open connections 1 to `count`, and nothing to send.
fn server(limits: Limits, count: i64) -> (Lengths<Server>, Vec<ConnKey>) {
    let mut link: Lengths<Server> = Lengths::new(limits, Negotiated::default());
    let keys = (1..=count)
        .map(|n| {
            let key = link.dial("tcp", "a:1", None).expect("the link is not full");
            assert!(link.poll_transmit(T0, 1).is_some());
            link.handle_packet(T0, Packet::DialRsp { random: DialId(n), outcome: Ok(ConnectId(n)) });
            key
        })
        .collect();
    events(&mut link);
    (link, keys)
}

/// An agent's link with open connections 1 to `count`, and nothing to send.
fn agent(limits: Limits, count: i64) -> (Lengths<Agent>, Vec<ConnKey>) {
    let mut link: Lengths<Agent> = Lengths::new(limits, Negotiated::default());
    let keys = (1..=count)
        .map(|n| {
            dial(&mut link, n);
            let [Event::Dial { key, .. }] = events(&mut link)[..] else { panic!("one dial is wanted") };
            assert!(link.dialed(key, Ok(())));
            assert!(link.poll_transmit(T0, 1).is_some());
            key
        })
        .collect();
    (link, keys)
}

fn dial(link: &mut Lengths<Agent>, random: i64) -> Disposition {
    let (random, protocol, address) = (DialId(random), "tcp".to_owned(), "a:1".to_owned());
    link.handle_packet(T0, Packet::DialReq { random, protocol, address, trace: None })
}

#[test]
fn many_small_queues_together_above_the_budget_are_reset_too() {
    let limits = Limits { link_budget: 100_000, ..Limits::default() };
    let (mut link, keys) = server(limits, 100);
    for key in &keys {
        queued(&mut link, T0, *key, 2_000);
    }
    assert!(!link.receiving());
    assert_eq!(link.poll_timeout(), Some(at(2)));
    link.handle_timeout(at(2));
    let told = events(&mut link);
    assert_eq!(told.len(), 75, "as many as free half of the budget");
    assert!(
        told.iter()
            .all(|event| matches!(event, Event::Ended { end: CloseReason::Broken(Cause::Stalled), .. }))
    );
    assert!(link.receiving(), "the others go on");
}

#[test]
fn a_queue_that_has_just_grown_is_given_a_whole_window() {
    let limits = Limits { link_budget: 100_000, ..Limits::default() };
    for grows in [1, 3] {
        let (mut link, keys) = server(limits.clone(), 2);
        queued(&mut link, T0, keys[0], 60_000);
        queued(&mut link, at(grows), keys[1], 45_000);
        link.handle_timeout(at(grows + 1));
        assert_eq!(events(&mut link), [], "the sum has been too much for one second");
        link.handle_timeout(at(grows + 2));
        let stalled = CloseReason::Broken(Cause::Stalled);
        assert_eq!(events(&mut link), [Event::Ended { key: keys[0], end: stalled }]);
        assert!(link.receiving());
        assert_eq!(link.poll_timeout().map(|due| due > at(grows + 2)), Some(true));
    }
}

#[test]
fn crossing_the_soft_cap_begins_a_new_measure() {
    let (mut link, keys) = server(Limits::default(), 1);
    let limits = Limits::default();
    queued(&mut link, T0, keys[0], 500_000);
    queued(&mut link, at(1), keys[0], 100);
    queued(&mut link, at(100), keys[0], limits.hard_cap + 1);
    assert_eq!(link.poll_timeout(), Some(at(102)));
    link.handle_timeout(at(102));
    assert_eq!(events(&mut link).len(), 1, "what it drained long ago does not count");
}

#[test]
fn discarded_source_that_never_blocks_does_not_starve_others() {
    let (mut link, keys) = agent(Limits::default(), 2);
    queued(&mut link, T0, keys[0], 600);
    link.handle_packet(T0, Packet::CloseReq { id: ConnectId(1) });
    link.readable(keys[1]);
    let (mut read, mut discarded) = (0, 0);
    for _ in 0..10 {
        match link.poll_transmit(T0, 100) {
            Some(Transmit::Discard { key, .. }) => {
                discarded += 1;
                drop(link.push(T0, key, 100));
            }
            Some(Transmit::Read { key, .. }) => {
                read += 1;
                drop(link.push(T0, key, 100));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((read, discarded), (5, 5));
    assert_eq!(
        link.poll_transmit(T0, 0),
        Some(Transmit::Discard { key: keys[0], max: QUANTUM }),
        "also while the stream is full"
    );
}

#[test]
fn control_packets_wait_while_the_stream_takes_nothing() {
    let (mut link, _) = agent(Limits { outbox: 3, ..Limits::default() }, 0);
    for n in 1..=3 {
        assert!(link.receiving());
        link.handle_packet(T0, Packet::Data { id: ConnectId(n), payload: 1 });
        assert_eq!(link.poll_transmit(T0, 0), None, "it would pile up where nobody counts");
    }
    assert!(!link.receiving());
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Control(_))));
    assert!(link.receiving());
}

/// A Go agent whose only reader is blocked by an endpoint has not read our CLOSE_REQ, and keeps sending DATA.
#[test]
fn unknown_data_is_answered_once_until_the_answer_is_sent() {
    let mut server: Lengths<Server> =
        Lengths::new(Limits { outbox: 3, ..Limits::default() }, Negotiated::default());
    let mut agent: Lengths<Agent> =
        Lengths::new(Limits { outbox: 3, ..Limits::default() }, Negotiated::default());
    for _ in 0..100 {
        for id in [ConnectId(7), ConnectId(8)] {
            let unknown = Disposition::Dropped(Dropped::UnknownConnection);
            assert_eq!(server.handle_packet(T0, Packet::Data { id, payload: 4_096 }), unknown);
            assert_eq!(agent.handle_packet(T0, Packet::Data { id, payload: 4_096 }), unknown);
        }
        assert!(server.receiving() && agent.receiving());
    }
    let said: Vec<_> = std::iter::from_fn(|| server.poll_transmit(T0, 1)).collect();
    let close = |n| Transmit::Control(Packet::CloseReq { id: ConnectId(n) });
    assert_eq!(said, [close(7), close(8)]);
    assert_eq!(std::iter::from_fn(|| agent.poll_transmit(T0, 1)).count(), 2);
    server.handle_packet(T0, Packet::Data { id: ConnectId(7), payload: 4_096 });
    assert_eq!(
        server.poll_transmit(T0, 1),
        Some(close(7)),
        "what was sent may have been overtaken: it is said again"
    );
}

#[test]
fn dials_that_come_and_go_while_the_stream_takes_nothing_do_not_pile_up() {
    let mut link: Lengths<Server> =
        Lengths::new(Limits { outbox: 10, ..Limits::default() }, Negotiated::default());
    for _ in 0..10_000 {
        let key = link.dial("tcp", "a:1", None).expect("one that has gone takes nobody's place");
        link.abandon(T0, key);
        assert!(link.receiving());
    }
    assert!(format!("{link:?}").len() < 20_000, "nor memory");
    assert_eq!(link.poll_transmit(T0, 1), None, "none of them is wanted any more");
    for _ in 0..10 {
        link.dial("tcp", "a:1", None).expect("room");
    }
    assert!(link.dial("tcp", "a:1", None).is_none(), "these ten are");
}

#[test]
fn dials_that_come_and_go_behind_many_answers_do_not_pile_up_either() {
    let (mut link, _) = server(Limits::default(), 0);
    for n in 1..=200 {
        link.handle_packet(T0, Packet::Data { id: ConnectId(n), payload: 1 });
    }
    for _ in 0..2_000 {
        let key = link.dial("tcp", "a:1", None).expect("one that has gone takes nobody's place");
        link.abandon(T0, key);
    }
    let places = format!("{link:?}").matches("Dial(").count();
    assert!(places < 300, "{places} dials that nobody wants wait to be sent");
    assert_eq!(std::iter::from_fn(|| link.poll_transmit(T0, 1)).count(), 200, "the answers are all there");
}

#[test]
fn blocked_stream_is_read_to_its_end() {
    let mut link: Lengths<Server> =
        Lengths::new(Limits { outbox: 3, ..Limits::default() }, Negotiated::default());
    for n in 1..=3 {
        link.handle_packet(T0, Packet::Data { id: ConnectId(n), payload: 1 });
    }
    assert!(!link.receiving());
    link.shutdown_send();
    assert!(link.receiving(), "the stream's end is behind what has not been read");
    link.handle_packet(T0, Packet::Data { id: ConnectId(4), payload: 1 });
    assert_eq!(link.poll_transmit(T0, 1), None);
    let key = link.dial("tcp", "a:1", None).expect("answered at once");
    assert_eq!(events(&mut link), [Event::DialFailed { key, error: DialError::LinkLost }]);
    link.stream_lost(T0);
    assert!(link.is_empty());
}

#[test]
fn an_answer_is_no_longer_than_a_go_server_takes() {
    let (mut link, _) = agent(Limits::default(), 0);
    dial(&mut link, 1);
    let [Event::Dial { key, .. }] = events(&mut link)[..] else { panic!("one dial is wanted") };
    link.dialed(key, Err("ü".repeat(5 << 20)));
    let Some(Transmit::Control(Packet::DialRsp { outcome: Err(text), .. })) = link.poll_transmit(T0, 1)
    else {
        panic!("refused")
    };
    assert_eq!(text.len(), 4 << 10);
}

#[test]
fn close_is_answered_in_five_seconds_and_the_number_stays_known() {
    let (mut link, keys) = server(Limits::default(), 1);
    link.end_source(T0, keys[0], SourceEnd::Closed);
    assert_eq!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::CloseReq { id: ConnectId(1) })));
    link.handle_timeout(at(4));
    assert_eq!(events(&mut link), []);
    link.handle_timeout(at(5));
    assert_eq!(events(&mut link), [Event::Ended { key: keys[0], end: CloseReason::Flushed }]);
    link.handle_packet(at(6), Packet::Data { id: ConnectId(1), payload: 1 });
    assert_eq!(link.poll_transmit(T0, 1), None, "late bytes do not belong to an unknown connection");
    link.handle_timeout(at(10));
    assert!(link.is_empty());
}

#[test]
fn reports_about_an_ended_connection_are_ignored() {
    let (mut link, keys) = server(Limits::default(), 3);
    link.end_source(T0, keys[0], SourceEnd::Failed("reset".into()));
    link.abandon(T0, keys[1]);
    link.end_source(T0, keys[2], SourceEnd::Closed);
    for key in keys {
        assert!(link.recv(key).is_none_or(mux::Buffer::is_empty));
        link.advance(T0, key, Limits::default().hard_cap + 1);
        assert_eq!(link.total_held(), 0);
        assert!(link.receiving());
    }
    assert_eq!(link.poll_timeout(), Some(at(5)), "the close's, no measure");
}

#[test]
fn no_event_follows_an_abandon_not_even_one_that_was_due() {
    let mut link: Lengths<Server> = Lengths::new(Limits::default(), Negotiated::default());
    let keys: Vec<ConnKey> = (1..=3)
        .map(|n| {
            let key = link.dial("tcp", "a:1", None).unwrap();
            link.poll_transmit(T0, 1);
            let outcome = if n == 2 { Err("no".to_owned()) } else { Ok(ConnectId(n)) };
            link.handle_packet(T0, Packet::DialRsp { random: DialId(n), outcome });
            key
        })
        .collect();
    link.abandon(T0, keys[0]);
    link.abandon(T0, keys[1]);
    assert_eq!(events(&mut link), [Event::Opened { key: keys[2], id: ConnectId(3) }]);
}

#[test]
fn closed_connections_leave_no_ring_entries_while_the_stream_is_blocked() {
    let (mut link, stays) = agent(Limits { outbox: usize::MAX, ..Limits::default() }, 2);
    link.readable(stays[0]);
    link.readable(stays[1]);
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Read { .. })));
    drop(link.push(T0, stays[0], 1));
    let mut sizes = Vec::new();
    for n in 3..=2_000 {
        dial(&mut link, n);
        let [Event::Dial { key, .. }] = events(&mut link)[..] else { panic!("one dial is wanted") };
        link.dialed(key, Ok(()));
        link.readable(key);
        link.handle_packet(T0, Packet::CloseReq { id: ConnectId(n) });
        events(&mut link);
        sizes.push(format!("{link:?}").matches("ConnKey").count());
    }
    assert!(sizes.iter().all(|places| *places < 100), "{:?}", sizes.iter().max());
    let mut sent = std::iter::from_fn(|| link.poll_transmit(T0, 1))
        .skip_while(|next| matches!(next, Transmit::Control(_)));
    for key in [stays[1], stays[0]] {
        assert!(
            matches!(sent.next(), Some(Transmit::Read { key: of, .. }) if of == key),
            "who lives keeps its place"
        );
    }
    assert_eq!(sent.next(), None);
}

#[test]
fn an_unasked_answer_with_an_impossible_number_is_not_closed() {
    let (mut link, _) = server(Limits::default(), 0);
    for id in [0, -1, i64::MIN] {
        let outcome = Ok(ConnectId(id));
        let disposition = link.handle_packet(T0, Packet::DialRsp { random: DialId(9), outcome });
        assert_eq!(disposition, Disposition::Dropped(Dropped::UnknownDial));
        assert_eq!(link.poll_transmit(T0, 1), None);
    }
}

#[test]
fn no_end_of_a_dial_leaves_it_counted_at_the_server() {
    let mut link: Lengths<Server> =
        Lengths::new(Limits { pending_dials: 1, ..Limits::default() }, Negotiated::default());
    for n in 1..=50 {
        let key = link.dial("tcp", "a:1", None).expect("the one before is over");
        assert!(link.dial("tcp", "a:1", None).is_none(), "this one counts");
        assert!(link.poll_transmit(T0, 1).is_some());
        match n % 5 {
            0 => answer(&mut link, n, Err("no".into())),
            1 => answer(&mut link, n, Ok(ConnectId(0))),
            2 => answer(&mut link, n, Ok(ConnectId(n))),
            3 => {
                link.handle_packet(T0, Packet::DialCls { random: DialId(n) });
            }
            _ => link.abandon(T0, key),
        }
        while link.poll_transmit(T0, 1).is_some() {}
    }
}

fn answer(link: &mut Lengths<Server>, random: i64, outcome: Result<ConnectId, String>) {
    link.handle_packet(T0, Packet::DialRsp { random: DialId(random), outcome });
}

#[test]
fn no_end_of_a_dial_leaves_it_counted_at_the_agent() {
    let mut link: Lengths<Agent> =
        Lengths::new(Limits { pending_dials: 1, ..Limits::default() }, Negotiated::default());
    for n in 1..=30 {
        dial(&mut link, n);
        let [Event::Dial { key, .. }] = events(&mut link)[..] else { panic!("the one before is over") };
        dial(&mut link, 1_000);
        assert_eq!(events(&mut link), [], "this one counts");
        match n % 3 {
            0 => {
                link.handle_packet(T0, Packet::DialCls { random: DialId(n) });
            }
            1 => drop(link.dialed(key, Ok(()))),
            _ => drop(link.dialed(key, Err("no".into()))),
        }
        events(&mut link);
    }
}

#[test]
fn a_trickle_does_not_begin_the_measure_anew() {
    for soft_cap in [60_000, 1 << 20] {
        let limits = Limits { soft_cap, link_budget: 100_000, ..Limits::default() };
        let (mut link, keys) = server(limits, 2);
        queued(&mut link, T0, keys[0], 60_001);
        queued(&mut link, T0, keys[0], 60_000);
        queued(&mut link, T0, keys[1], 50_000);
        queued(&mut link, at(1), keys[0], 60_000);
        queued(&mut link, at(1), keys[0], 59_999);
        link.handle_timeout(at(2));
        let told = events(&mut link);
        assert_eq!(
            told,
            [Event::Ended { key: keys[0], end: CloseReason::Broken(Cause::Stalled) }],
            "soft cap {soft_cap}"
        );
    }
}

#[test]
fn the_soft_cap_is_crossed_by_the_first_byte_above_it() {
    let limits = Limits { soft_cap: 1_000, hard_cap: 2_000, min_drain: 500, ..Limits::default() };
    let (mut link, keys) = server(limits, 1);
    for charged in [900, 100, 1_000] {
        queued(&mut link, T0, keys[0], charged);
    }
    queued(&mut link, at(100), keys[0], 2_001);
    link.handle_timeout(at(102));
    assert_eq!(events(&mut link).len(), 1);
}

#[test]
fn exactly_the_least_drain_in_exactly_a_window_is_enough() {
    let limits = Limits { hard_cap: 2_000, min_drain: 500, ..Limits::default() };
    for (drained, ends) in [(500, 0), (499, 1)] {
        let (mut link, keys) = server(limits.clone(), 1);
        queued(&mut link, T0, keys[0], 2_000);
        assert!(link.receiving(), "at the cap is not above it");
        queued(&mut link, T0, keys[0], 3_000);
        assert!(!link.receiving());
        queued(&mut link, at(1), keys[0], 3_000 - drained);
        link.handle_timeout(at(2));
        assert_eq!(events(&mut link).len(), ends, "after {drained} bytes");
    }
}

#[test]
fn a_link_at_its_budget_is_not_above_it() {
    let limits = Limits { link_budget: 1_000, ..Limits::default() };
    let (mut link, keys) = server(limits, 2);
    queued(&mut link, T0, keys[0], 600);
    queued(&mut link, T0, keys[1], 400);
    assert!(link.receiving());
    assert_eq!(link.poll_timeout(), None);
    queued(&mut link, T0, keys[1], 401);
    assert!(!link.receiving());
    link.handle_timeout(at(2));
    assert_eq!(events(&mut link).len(), 1, "the larger one is enough");
}

#[test]
fn a_report_that_nothing_was_taken_is_no_progress() {
    let (mut link, keys) = server(Limits::default(), 1);
    queued(&mut link, T0, keys[0], 1_000);
    link.handle_packet(T0, Packet::CloseRsp { id: ConnectId(1), error: String::new() });
    link.advance(at(599), keys[0], 0);
    link.handle_timeout(at(600));
    assert_eq!(
        events(&mut link),
        [Event::Ended { key: keys[0], end: CloseReason::Broken(Cause::FlushTimeout) }]
    );
}

#[test]
fn wake_up_during_a_read_adds_one_ring_entry() {
    let (mut link, keys) = server(Limits::default(), 1);
    link.readable(keys[0]);
    assert!(matches!(link.poll_transmit(T0, 9), Some(Transmit::Read { .. })));
    link.readable(keys[0]);
    drop(link.push(T0, keys[0], 1));
    assert!(matches!(link.poll_transmit(T0, 9), Some(Transmit::Read { .. })));
    assert_eq!(link.poll_transmit(T0, 9), None);
}

#[test]
fn reads_are_bounded_by_the_chunk_and_the_budget_however_many_are_busy() {
    let limits = Limits { chunk: 100, ..Limits::default() };
    for count in 1..5 {
        let (mut link, keys) = server(limits.clone(), count);
        keys.iter().for_each(|key| link.readable(*key));
        let rows = [(1_000, 100), (60, 60)];
        for (budget, longest) in rows.into_iter().take(keys.len()) {
            let Some(Transmit::Read { max, .. }) = link.poll_transmit(T0, budget) else {
                panic!("a source has bytes")
            };
            assert_eq!(max, longest, "{count} are busy");
        }
    }
}

#[test]
fn open_dials_and_connections_are_counted() {
    let (mut link, keys) = server(Limits::default(), 2);
    assert_eq!((link.len(), link.is_empty(), link.receiving()), (2, false, true));
    queued(&mut link, T0, keys[0], 5);
    link.stream_lost(T0);
    assert_eq!((link.len(), link.is_empty(), link.receiving()), (1, false, false));
    queued(&mut link, T0, keys[0], 0);
    assert_eq!((link.len(), link.is_empty()), (0, true));
}

#[test]
fn a_source_is_asked_only_while_its_connection_is_open_or_flushes() {
    let mut link: Lengths<Server> = Lengths::new(Limits::default(), Negotiated::default());
    let key = link.dial("tcp", "a:1", None).unwrap();
    link.readable(key);
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Control(_))));
    assert_eq!(link.poll_transmit(T0, 1), None, "while it is dialed");
    let (mut link, keys) = server(Limits::default(), 1);
    link.end_source(T0, keys[0], SourceEnd::Eof);
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Control(_))));
    link.readable(keys[0]);
    assert_eq!(link.poll_transmit(T0, 1), None, "after its end");
}

#[test]
fn a_write_that_fails_after_a_close_ends_the_connection_at_once() {
    let broken = |key| [Event::Ended { key, end: CloseReason::Broken(Cause::Local("broken pipe".into())) }];
    let (mut link, keys) = agent(Limits::default(), 1);
    queued(&mut link, T0, keys[0], 600);
    link.handle_packet(T0, Packet::CloseReq { id: ConnectId(1) });
    link.write_failed(T0, keys[0], "broken pipe".into());
    assert_eq!(events(&mut link), broken(keys[0]));

    let (mut link, keys) = server(Limits::default(), 1);
    queued(&mut link, T0, keys[0], 600);
    link.end_source(T0, keys[0], SourceEnd::Eof);
    link.write_failed(T0, keys[0], "broken pipe".into());
    assert_eq!(events(&mut link), broken(keys[0]));
    assert_eq!(link.poll_timeout(), Some(at(10)), "CLOSE_RSP is still awaited");
}

#[test]
fn the_young_are_spared_while_the_old_are_measured() {
    let limits = Limits { link_budget: 100_000, ..Limits::default() };
    let (mut link, keys) = server(limits, 2);
    queued(&mut link, T0, keys[0], 101_000);
    queued(&mut link, at(1), keys[1], 200_000);
    link.handle_timeout(at(2));
    assert_eq!(events(&mut link), [Event::Ended { key: keys[0], end: CloseReason::Broken(Cause::Stalled) }]);
    link.handle_timeout(at(4));
    assert_eq!(events(&mut link), [Event::Ended { key: keys[1], end: CloseReason::Broken(Cause::Stalled) }]);
    assert!(link.receiving());
}

#[test]
fn connections_that_are_closing_are_reset_too_when_they_hold_up_the_link() {
    let above = Limits::default().hard_cap + 1;
    let stalled = |key| [Event::Ended { key, end: CloseReason::Broken(Cause::Stalled) }];
    let (mut link, keys) = server(Limits::default(), 1);
    queued(&mut link, T0, keys[0], above);
    link.end_source(T0, keys[0], SourceEnd::Eof);
    link.handle_timeout(at(2));
    assert_eq!(events(&mut link), stalled(keys[0]), "it awaits CLOSE_RSP");
    assert_eq!((link.receiving(), link.len()), (true, 1), "and its number is kept");

    let (mut link, keys) = agent(Limits::default(), 1);
    queued(&mut link, T0, keys[0], above);
    link.handle_packet(T0, Packet::CloseReq { id: ConnectId(1) });
    link.handle_timeout(at(2));
    assert_eq!(events(&mut link), stalled(keys[0]), "it flushes");
    assert_eq!((link.receiving(), link.len()), (true, 0));
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::CloseRsp { .. }))));
}

#[test]
fn queues_equal_to_the_budget_are_not_reset() {
    let limits =
        Limits { soft_cap: 500, hard_cap: 1_000, link_budget: 1_500, min_drain: 100, ..Limits::default() };
    let (mut link, keys) = server(limits, 2);
    queued(&mut link, T0, keys[0], 1_200);
    queued(&mut link, T0, keys[1], 499);
    queued(&mut link, at(1), keys[0], 1_001);
    link.handle_timeout(at(2));
    assert_eq!(events(&mut link), [], "one drains well, the other does not stand in line");
    assert!(!link.receiving());
}

#[test]
fn end_of_a_discarded_source_changes_nothing() {
    let (mut link, keys) = agent(Limits::default(), 1);
    queued(&mut link, T0, keys[0], 600);
    link.handle_packet(T0, Packet::CloseReq { id: ConnectId(1) });
    assert_eq!(link.poll_transmit(T0, 1), Some(Transmit::Discard { key: keys[0], max: QUANTUM }));
    link.end_source(T0, keys[0], SourceEnd::Eof);
    assert_eq!(link.poll_transmit(T0, 1), None, "CLOSE_RSP is not due before the flush is over");
    queued(&mut link, at(1), keys[0], 0);
    assert!(matches!(link.poll_transmit(T0, 1), Some(Transmit::Control(Packet::CloseRsp { .. }))));
    assert_eq!(events(&mut link), [Event::Ended { key: keys[0], end: CloseReason::Flushed }]);
}

#[test]
fn a_local_end_that_closes_ends_its_flush() {
    let (mut link, keys) = server(Limits::default(), 1);
    queued(&mut link, T0, keys[0], 600);
    link.handle_packet(T0, Packet::CloseRsp { id: ConnectId(1), error: String::new() });
    link.end_source(T0, keys[0], SourceEnd::Closed);
    assert_eq!(events(&mut link), [Event::Ended { key: keys[0], end: CloseReason::Flushed }]);
    assert_eq!(link.poll_transmit(T0, 1), None, "the agent has closed");
}

#[test]
fn flush_discards_no_more_than_the_budget_of_each_interval() {
    let (mut link, keys) = agent(Limits::default(), 1);
    queued(&mut link, T0, keys[0], 600);
    link.handle_packet(T0, Packet::CloseReq { id: ConnectId(1) });
    let discard = Some(Transmit::Discard { key: keys[0], max: QUANTUM });
    let interval = Duration::from_millis(10);
    for start in [T0, T0.after(interval)] {
        for _ in 0..Limits::default().discard_budget / QUANTUM {
            assert!(link.has_to_discard(start));
            assert_eq!(link.poll_transmit(start, 0), discard);
            assert!(link.push(start, keys[0], QUANTUM).next().is_none(), "dropped");
        }
        assert!(!link.has_to_discard(start));
        assert_eq!(link.poll_transmit(start, 0), None);
        assert_eq!(link.poll_timeout(), Some(start.after(interval)));
        link.handle_timeout(start.after(interval));
        assert_eq!(link.poll_timeout(), Some(at(5)), "the answer's");
    }
    assert_eq!(link.poll_transmit(T0.after(interval * 2), 0), discard);
}

#[test]
fn local_end_that_lingers_is_called_once_there_is_budget() {
    let (mut link, keys) = server(Limits::default(), 2);
    for key in &keys {
        link.end_source(T0, *key, SourceEnd::Failed("reset".into()));
    }
    while link.poll_transmit(T0, 1).is_some() {}
    assert_eq!(link.discard_allowance(T0), QUANTUM);
    link.discarded(Limits::default().discard_budget);
    assert_eq!(link.discard_allowance(T0), 0);
    link.linger(keys[0]);
    link.linger(keys[0]);
    link.linger(keys[1]);
    link.release(keys[1]);
    assert_eq!(link.poll_transmit(T0, 0), None);
    let due = Time::from_start(Duration::from_millis(10));
    assert_eq!(link.poll_timeout(), Some(due));
    link.handle_timeout(due);
    assert_eq!(link.poll_transmit(due, 0), Some(Transmit::Linger { key: keys[0], max: QUANTUM }));
    assert_eq!(link.poll_transmit(due, 0), None, "once, and not for one that is gone");
    assert_eq!(link.discard_allowance(due), QUANTUM);
}

#[test]
fn abandoned_opening_frees_its_key() {
    let mut link: Lengths<Server> = Lengths::new(Limits::default(), Negotiated::default());
    for n in 1..=3 {
        let key = link.dial("tcp", "a:1", None).unwrap();
        assert_eq!(key.index(), 0);
        link.poll_transmit(T0, 1);
        answer(&mut link, n, Ok(ConnectId(n)));
        link.abandon(T0, key);
        link.handle_packet(T0, Packet::CloseRsp { id: ConnectId(n), error: String::new() });
    }
    assert!(link.is_empty());
}
