//! The core of the tunnel, at either end, against a peer that sends anything, while its owner calls it in any allowed
//! order: every dial and every connection ends once, only open connections receive bytes, and all limits hold.
//! `common/mux/tests/hostile.rs` tests more properties with less random peers.

use std::collections::BTreeSet;
use std::time::Duration;

use mux::{
    Agent, ConnKey, ConnectId, DialId, Disposition, Event, Limits, Link, Negotiated, Packet, Server, Side,
    SourceEnd, Time, Transmit, Windows,
};

use crate::input::Input;

/// The first byte selects the end and the negotiated terms; each step uses a few more bytes.
pub fn tunnel_core(data: &[u8]) {
    let mut input = Input::new(data);
    let first = input.byte();
    let windows = Windows { receive: 1_000, send: u32::from(input.byte()) };
    let negotiated = Negotiated { credits: (first & 2 != 0).then_some(windows), half_close: first & 4 != 0 };
    if first & 1 == 0 {
        let mut end = End::<Server>::new(negotiated);
        while !input.is_empty() {
            end.server_step(&mut input);
        }
        end.finish();
    } else {
        let mut end = End::<Agent>::new(negotiated);
        while !input.is_empty() {
            end.agent_step(&mut input);
        }
        end.finish();
    }
}

fn limits() -> Limits {
    Limits {
        pending_dials: 3,
        connections: 5,
        soft_cap: 500,
        hard_cap: 2_000,
        link_budget: 4_000,
        outbox: 6,
        min_drain: 100,
        ..Limits::default()
    }
}

/// Small numbers, so that they coincide, and the extreme ones.
fn number(input: &mut Input<'_>) -> i64 {
    match input.byte() {
        250.. => [0, -1, i64::MAX, i64::MIN, i64::from(i32::MAX), 1][usize::from(input.byte() % 6)],
        small => i64::from(small % 8),
    }
}

fn packet(input: &mut Input<'_>) -> Packet<usize> {
    let kind = input.byte();
    let id = ConnectId(number(input));
    let random = DialId(id.0);
    match kind % 9 {
        0 => Packet::DialReq { random, protocol: "tcp".into(), address: "a:1".into(), trace: None },
        1 if kind & 0x80 != 0 => Packet::DialRsp { random, outcome: Err("refused".into()) },
        1 => Packet::DialRsp { random, outcome: Ok(ConnectId(number(input))) },
        2 => Packet::CloseReq { id },
        3 => Packet::CloseRsp { id, error: if kind & 0x80 == 0 { String::new() } else { "broke".into() } },
        4 => Packet::Data { id, payload: usize::from(input.short() % 2_000) + 1 },
        5 => Packet::DialCls { random },
        6 => Packet::Drain,
        7 => Packet::Grant { id, offset: if kind & 0x80 == 0 { u64::from(input.short()) } else { u64::MAX } },
        _ => Packet::Fin { id },
    }
}

fn data_len(packet: &Packet<usize>) -> usize {
    if let Packet::Data { payload, .. } = packet { *payload } else { 0 }
}

/// One end, and its owner's view.
struct End<S> {
    link: Link<S, usize>,
    now: Time,
    dials: BTreeSet<ConnKey>,
    /// Open connections and their queue sizes.
    open: Vec<(ConnKey, usize)>,
    /// Ended connections, which the owner may still use by mistake.
    dead: Vec<ConnKey>,
}

impl<S: Side + Default> End<S> {
    fn new(negotiated: Negotiated) -> Self {
        let link = Link::new(limits(), negotiated);
        End { link, now: Time::START, dials: BTreeSet::new(), open: Vec::new(), dead: Vec::new() }
    }

    /// Any connection, dead or alive.
    fn random_key(&self, input: &mut Input<'_>) -> Option<ConnKey> {
        let all: Vec<ConnKey> = self
            .open
            .iter()
            .map(|(key, _)| *key)
            .chain(self.dials.iter().copied())
            .chain(self.dead.iter().copied())
            .collect();
        all.get(usize::from(input.byte()) % all.len().max(1)).copied()
    }

    fn queue(&mut self, key: ConnKey) -> Option<&mut usize> {
        self.open.iter_mut().find(|(open, _)| *open == key).map(|(_, queue)| queue)
    }

    /// The steps that are the same for both ends.
    fn step(&mut self, kind: u8, input: &mut Input<'_>) {
        match kind % 16 {
            0..=6 => self.arrives(packet(input)),
            7 | 8 => self.transmit(input),
            9 => self.with(input, |link, _, key| link.readable(key)),
            10 => self.takes(input),
            11 => self
                .with(input, |link, now, key| link.end_source(now, key, SourceEnd::Failed("broke".into()))),
            12 => self.write_fails(input),
            13 => self.with(input, |link, now, key| link.local_closed(now, key)),
            _ => {
                self.now = self.now.after(Duration::from_millis(u64::from(input.short())));
                self.link.handle_timeout(self.now);
                assert!(self.link.poll_timeout().is_none_or(|due| due > self.now), "due again at once");
            }
        }
        self.run_events();
    }

    fn with(&mut self, input: &mut Input<'_>, what: impl Fn(&mut Link<S, usize>, Time, ConnKey)) {
        if let Some(key) = self.random_key(input) {
            what(&mut self.link, self.now, key);
        }
    }

    fn arrives(&mut self, packet: Packet<usize>) {
        if !self.link.receiving() {
            return;
        }
        let bytes = data_len(&packet);
        if let Disposition::Deliver(key) = self.link.handle_packet(self.now, packet) {
            let queue = self.queue(key).expect("bytes reach only what is open");
            *queue += bytes;
            self.link.advance(self.now, key, 0);
        }
    }

    /// A local end reads a part of its queue.
    fn takes(&mut self, input: &mut Input<'_>) {
        let Some(key) = self.random_key(input) else { return };
        let wanted = usize::from(input.short());
        if let Some(queue) = self.queue(key) {
            *queue = queue.saturating_sub(wanted);
        }
        self.link.advance(self.now, key, wanted);
    }

    /// Writes to a local end fail: its queue is dropped.
    fn write_fails(&mut self, input: &mut Input<'_>) {
        let Some(key) = self.random_key(input) else { return };
        if let Some(queue) = self.queue(key) {
            *queue = 0;
        }
        self.link.write_failed(self.now, key, "broke".into());
    }

    fn transmit(&mut self, input: &mut Input<'_>) {
        let budget = usize::from(input.byte());
        match self.link.poll_transmit(self.now, budget) {
            None | Some(Transmit::Control(_)) => {}
            Some(Transmit::NoCredit { key }) => {
                assert!(self.queue(key).is_some(), "a dead source lacks credit")
            }
            Some(Transmit::Discard { key, max }) => self.brought(key, max, input),
            Some(Transmit::Linger { key, .. }) => {
                assert!(self.dead.contains(&key), "an open connection lingers");
                self.link.release(key);
            }
            Some(Transmit::Read { key, max, .. }) => {
                assert!(max >= 1 && max <= budget, "{max} of {budget} bytes");
                self.brought(key, max, input);
            }
        }
    }

    fn brought(&mut self, key: ConnKey, most: usize, input: &mut Input<'_>) {
        let queue = self.queue(key).expect("only what is open is read");
        let end = match input.byte() % 5 {
            0 => {
                let sent: usize = self.link.push(self.now, key, most).map(|packet| data_len(&packet)).sum();
                assert!(sent == 0 || sent == most, "{sent} of {most} bytes are sent");
                return;
            }
            1 => return,
            2 => SourceEnd::Eof,
            3 => {
                *queue = 0;
                SourceEnd::Closed
            }
            _ => SourceEnd::Failed("broke".into()),
        };
        self.link.end_source(self.now, key, end);
    }

    /// Handles the events and checks the limits.
    fn run_events(&mut self) {
        while let Some(event) = self.link.poll_event() {
            match event {
                Event::Dial { key, .. } => assert!(self.dials.insert(key), "a dial is asked for twice"),
                Event::DialCanceled { key } | Event::DialFailed { key, .. } => {
                    assert!(self.dials.remove(&key), "a dial ends twice");
                    self.dead.push(key);
                }
                Event::Opened { key, id } => {
                    assert!(self.dials.remove(&key) && id.0 > 0, "opened without a dial, or as {id:?}");
                    self.open.push((key, 0));
                }
                Event::ShutDown { key } => assert_eq!(self.queue(key), Some(&mut 0), "shut down too early"),
                Event::Ended { key, .. } => self.ended(key),
                Event::Draining | Event::ServerCount { servers: 1.. } => {}
                Event::ProbeWanted => {}
                Event::ProbeAnswered | Event::ServerCount { servers: 0 } => panic!("no probe was sent"),
            }
        }
        let queued: usize = self.open.iter().map(|(_, queue)| queue).sum();
        let limits = limits();
        assert_eq!(self.link.total_held(), queued);
        assert!(self.link.len() <= limits.connections && self.dials.len() <= limits.pending_dials);
        let hard = self.open.iter().any(|(_, queue)| *queue > limits.hard_cap);
        assert!(!(self.link.receiving() && (hard || queued > limits.link_budget)), "reads beyond its bounds");
    }

    fn ended(&mut self, key: ConnKey) {
        let at = self.open.iter().position(|(open, _)| *open == key).expect("a connection ends once");
        self.open.swap_remove(at);
        self.dead.push(key);
        // Some local ends discard before they are gone.
        if key.index().is_multiple_of(2) { self.link.release(key) } else { self.link.linger(key) }
    }

    /// The stream is lost; only queues outlive it.
    fn finish(mut self) {
        self.link.stream_lost(self.now);
        self.run_events();
        assert!(self.dials.is_empty(), "a dial outlives the stream");
        for (key, queue) in &mut self.open {
            *queue = 0;
            self.link.advance(self.now, *key, usize::MAX);
        }
        self.run_events();
        assert!(self.open.is_empty() && self.link.is_empty(), "a connection outlives stream and queue");
        // At most the measure of drain rates and the budget of discards: neither belongs to a connection.
        for _ in 0..2 {
            if let Some(due) = self.link.poll_timeout() {
                self.link.handle_timeout(due);
            }
        }
        assert_eq!(self.link.poll_timeout(), None, "a timer outlives everything");
        while let Some(next) = self.link.poll_transmit(self.now, 1) {
            assert!(matches!(next, Transmit::Linger { .. }), "{next:?} on a lost stream");
        }
    }
}

impl End<Server> {
    fn server_step(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            kind if kind & 0xf0 == 0 => {
                if let Some(key) = self.link.dial("tcp", "a:1", None) {
                    self.dials.insert(key);
                }
                self.run_events();
            }
            kind if kind & 0xf0 == 0x10 => {
                if let Some(key) = self.random_key(input) {
                    self.link.abandon(self.now, key);
                    let open = self.open.iter().position(|(open, _)| *open == key);
                    if let Some(at) = open {
                        self.open.swap_remove(at);
                    }
                    if self.dials.remove(&key) || open.is_some() {
                        self.dead.push(key);
                    }
                }
                self.run_events();
            }
            kind => self.step(kind, input),
        }
    }
}

impl End<Agent> {
    fn agent_step(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            kind if kind & 0xf0 == 0 => self.dialed(kind & 1 == 0),
            0x10 => self.link.drain(),
            kind => self.step(kind, input),
        }
        self.run_events();
    }

    /// A dial completes, or one that was already canceled.
    fn dialed(&mut self, well: bool) {
        let Some(key) = self.dials.first().or(self.dead.last()).copied() else { return };
        let awaited = self.dials.remove(&key);
        let opened = self.link.dialed(key, if well { Ok(()) } else { Err("refused".into()) });
        assert_eq!(opened, awaited && well, "a dial that nobody waits for");
        if opened {
            assert!(self.link.connect_id(key).is_some_and(|id| id.0 > 0), "open without a number");
            self.open.push((key, 0));
        } else if awaited {
            self.dead.push(key);
        }
    }
}
