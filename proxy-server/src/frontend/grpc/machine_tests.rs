//! The table of every packet in every state, with the expected replies.

use super::*;

const FIRST: DialId = DialId(77);
const OTHER: DialId = DialId(78);
const STATES: [State; 6] =
    [State::Idle, State::Dialing(FIRST), State::Open(FIRST), State::Closing, State::Told, State::Over];

fn machine_in(state: State) -> Machine {
    Machine { state }
}

fn dial_req(random: DialId) -> Incoming {
    Incoming::Packet(Packet::DialReq { random, protocol: "tcp".into(), address: "a:1".into(), trace: None })
}

fn data(id: i64) -> Incoming {
    Incoming::Packet(Packet::Data { id: ConnectId(id), payload: Bytes::from_static(b"x") })
}

fn close_req(id: i64) -> Incoming {
    Incoming::Packet(Packet::CloseReq { id: ConnectId(id) })
}

fn dial_cls(random: DialId) -> Incoming {
    Incoming::Packet(Packet::DialCls { random })
}

fn rsp(id: i64, error: &str) -> Packet<Bytes> {
    close_rsp(ConnectId(id), error)
}

fn refused() -> Vec<Packet<Bytes>> {
    vec![dial_error(OTHER, "one connection per stream".into())]
}

fn deliver() -> Order {
    Order::Deliver(Bytes::from_static(b"x"))
}

/// State, input, expected replies, expected order (`None`: dropped), expected next state.
type Row = (State, Incoming, Vec<Packet<Bytes>>, Option<Order>, State);

fn table() -> Vec<Row> {
    use State::{Closing, Dialing, Idle, Open, Over, Told};
    let (dialing, open) = (Dialing(FIRST), Open(FIRST));
    let start = Order::Dial { protocol: "tcp".into(), address: "a:1".into() };
    let mismatch = |id| vec![rsp(id, "mismatched connection IDs"), rsp(1, "mismatched connection IDs")];
    vec![
        (Idle, dial_req(FIRST), vec![], Some(start), dialing),
        (Idle, data(0), vec![rsp(0, "backend not initialized")], Some(Order::Finish), Over),
        (Idle, data(9), vec![rsp(9, "backend not initialized")], Some(Order::Finish), Over),
        (Idle, close_req(9), vec![rsp(9, "backend uninitialized")], Some(Order::Nothing), Idle),
        (Idle, dial_cls(FIRST), vec![], None, Idle),
        (dialing, dial_req(FIRST), vec![], None, dialing),
        (dialing, dial_req(OTHER), refused(), Some(Order::Nothing), dialing),
        (dialing, data(0), vec![], None, dialing),
        (dialing, data(1), vec![], None, dialing),
        (dialing, close_req(1), vec![rsp(1, "CLOSE_REQ to backend failed")], Some(Order::Cancel), Over),
        (dialing, dial_cls(FIRST), vec![], Some(Order::Cancel), Over),
        (dialing, dial_cls(OTHER), vec![], None, dialing),
        (open, dial_req(FIRST), vec![], None, open),
        (open, dial_req(OTHER), refused(), Some(Order::Nothing), open),
        (open, data(1), vec![], Some(deliver()), open),
        (open, data(0), vec![], None, open),
        (open, data(2), mismatch(2), Some(Order::Close), Over),
        (open, data(-1), mismatch(-1), Some(Order::Close), Over),
        (open, data(i64::MAX), mismatch(i64::MAX), Some(Order::Close), Over),
        (open, close_req(1), vec![], Some(Order::Close), Closing),
        (open, close_req(2), vec![rsp(2, "Unknown connectID")], Some(Order::Nothing), open),
        (open, dial_cls(FIRST), vec![], Some(Order::Close), Closing),
        (open, dial_cls(OTHER), vec![], None, open),
        (Closing, dial_req(OTHER), refused(), Some(Order::Nothing), Closing),
        (Closing, data(1), vec![], None, Closing),
        (Closing, data(2), vec![], None, Closing),
        (Closing, close_req(1), vec![], None, Closing),
        (Closing, close_req(2), vec![rsp(2, "Unknown connectID")], Some(Order::Nothing), Closing),
        (Closing, dial_cls(FIRST), vec![], None, Closing),
        (Told, dial_req(FIRST), vec![], None, Told),
        (Told, dial_req(OTHER), vec![], None, Told),
        (Told, data(1), vec![], Some(deliver()), Told),
        (Told, data(2), vec![], None, Told),
        (Told, close_req(1), vec![], Some(Order::Close), Over),
        (Told, dial_cls(FIRST), vec![], Some(Order::Close), Over),
        (Over, dial_req(FIRST), vec![], None, Over),
        (Over, dial_req(OTHER), vec![], None, Over),
        (Over, data(1), vec![], Some(Order::Nothing), Over),
        (Over, close_req(1), vec![], Some(Order::Nothing), Over),
        (Over, close_req(2), vec![], Some(Order::Nothing), Over),
        (Over, dial_cls(FIRST), vec![], Some(Order::Nothing), Over),
    ]
}

#[test]
fn packets_and_their_answers() {
    for (state, incoming, replies, order, after) in table() {
        let mut machine = machine_in(state);
        let reaction = machine.handle(incoming.clone());
        assert_eq!(reaction.replies, replies, "{incoming:?} in {state:?}");
        match order {
            Some(order) => assert_eq!(reaction.order, order, "{incoming:?} in {state:?}"),
            None => assert!(matches!(reaction.order, Order::Drop(_)), "{incoming:?} in {state:?}"),
        }
        assert_eq!(machine.state, after, "{incoming:?} in {state:?}");
    }
}

#[test]
fn a_dial_that_no_target_needs_is_refused_before_an_agent_sees_it() {
    let dial = |protocol: usize, address: usize| {
        let mut machine = machine_in(State::Idle);
        let (protocol, address) = ("p".repeat(protocol), "a".repeat(address));
        let incoming = Incoming::Packet(Packet::DialReq { random: FIRST, protocol, address, trace: None });
        (machine.handle(incoming), machine.state)
    };
    let (reaction, state) = dial(16, 1024);
    assert!(matches!(reaction.order, Order::Dial { .. }) && reaction.replies.is_empty());
    assert_eq!(state, State::Dialing(FIRST));
    for (protocol, address, text) in [
        (17, 1, "dial: protocol of more than 16 bytes"),
        (3, 1025, "dial: address of more than 1024 bytes"),
        (3, 4_000_000, "dial: address of more than 1024 bytes"),
    ] {
        let (reaction, state) = dial(protocol, address);
        assert_eq!((reaction.order, state), (Order::Finish, State::Over));
        assert_eq!(reaction.replies, [dial_error(FIRST, text.into())]);
    }
}

#[test]
fn invalid_packets_are_dropped_in_every_state() {
    let packets = [
        Incoming::Packet(Packet::DialRsp { random: FIRST, outcome: Ok(ConnectId(1)) }),
        Incoming::Packet(Packet::DialRsp { random: FIRST, outcome: Err("no".into()) }),
        Incoming::Packet(rsp(1, "")),
        Incoming::Packet(Packet::Drain),
        Incoming::Unknown(7),
        Incoming::Unknown(-1),
        Incoming::Malformed("DATA without its payload"),
    ];
    for state in STATES {
        for packet in &packets {
            let mut machine = machine_in(state);
            let reaction = machine.handle(packet.clone());
            assert!(reaction.replies.is_empty() && matches!(reaction.order, Order::Drop(_)));
            assert_eq!(machine.state, state);
        }
    }
}

#[test]
fn ends_of_the_stream() {
    use State::{Closing, Idle, Over, Told};
    let (dialing, open) = (State::Dialing(FIRST), State::Open(FIRST));
    let rows = [
        (Idle, Order::Finish, Over, Order::Finish),
        (dialing, Order::Cancel, Over, Order::Cancel),
        (open, Order::Close, Closing, Order::Close),
        (Closing, Order::Finish, Closing, Order::Close),
        (Told, Order::Close, Over, Order::Close),
        (Over, Order::Finish, Over, Order::Finish),
    ];
    for (state, on_end, after_end, on_reset) in rows {
        let mut machine = machine_in(state);
        assert_eq!((machine.handle_end(), machine.state), (on_end, after_end), "{state:?}");
        let mut machine = machine_in(state);
        assert_eq!((machine.handle_reset(), machine.state), (on_reset, Over), "{state:?}");
    }
}

#[test]
fn events_of_the_backend() {
    let answer = |state, f: fn(&mut Machine) -> Option<Packet<Bytes>>| {
        let mut machine = machine_in(state);
        (f(&mut machine), machine.state)
    };
    for state in STATES {
        let dialed = answer(state, Machine::handle_dialed);
        let refused = answer(state, |m| m.handle_refused("no such host".into()));
        let ended = answer(state, |m| m.handle_backend_end("reset"));
        if state == State::Dialing(FIRST) {
            let ok = Packet::DialRsp { random: FIRST, outcome: Ok(ConnectId(1)) };
            assert_eq!(dialed, (Some(ok), State::Open(FIRST)));
            assert_eq!(refused, (Some(dial_error(FIRST, "no such host".into())), State::Over));
        } else {
            assert_eq!((dialed, refused), ((None, state), (None, state)));
        }
        let finished = answer(state, Machine::handle_backend_fin);
        if matches!(state, State::Open(_) | State::Closing) {
            assert_eq!(ended, (Some(rsp(1, "reset")), State::Over));
            let next = if state == State::Closing { State::Over } else { State::Told };
            assert_eq!(finished, (Some(rsp(1, "")), next));
        } else {
            assert_eq!((ended, finished), ((None, state), (None, state)));
        }
    }
}
