//! One honest core against a peer that sends anything: a packet affects only the connection that it names, everything
//! stays within limits, and everything ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mux::{
    Agent, ConnKey, ConnectId, DialId, Disposition, Event, Limits, Negotiated, Packet, Server, Side,
    SourceEnd, Time, Transmit, Windows,
};
use proptest::prelude::*;

/// A payload is its length here.
type Lengths<S> = mux::Link<S, usize>;

fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![12 => 1i64..8, 1 => Just(0), 1 => Just(-1), 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

fn lie() -> impl Strategy<Value = Packet<usize>> {
    let id = || number().prop_map(ConnectId);
    let random = || number().prop_map(DialId);
    let text = || prop_oneof![Just(String::new()), Just("boom".to_owned())];
    prop_oneof![
        2 => random().prop_map(|random| Packet::DialReq { random, protocol: "unix".into(), address: "\0".into(), trace: None }),
        4 => (random(), prop_oneof![3 => id().prop_map(Ok), 1 => text().prop_map(Err)])
            .prop_map(|(random, outcome)| Packet::DialRsp { random, outcome }),
        2 => id().prop_map(|id| Packet::CloseReq { id }),
        2 => (id(), text()).prop_map(|(id, error)| Packet::CloseRsp { id, error }),
        4 => (id(), 1usize..2_000).prop_map(|(id, payload)| Packet::Data { id, payload }),
        1 => random().prop_map(|random| Packet::DialCls { random }),
        1 => Just(Packet::Drain),
        2 => (id(), prop_oneof![0u64..5_000, any::<u64>()]).prop_map(|(id, offset)| Packet::Grant { id, offset }),
        2 => id().prop_map(|id| Packet::Fin { id }),
    ]
}

/// One step of the honest core. Numbers select among the existing connections.
#[derive(Debug, Clone)]
enum Happening {
    Packet(Packet<usize>),
    /// Server: a frontend dials. Agent: a dial completes.
    Dial(bool),
    Abandon(usize),
    Readable(usize),
    Queued(usize, usize),
    Failed(usize),
    Transmit(usize, ReadOutcome),
    Wait(u64),
    Drain,
    StreamLost,
}

/// The result of a read.
#[derive(Debug, Clone)]
enum ReadOutcome {
    Data(usize),
    Blocked,
    Ended(SourceEnd),
}

fn happening() -> impl Strategy<Value = Happening> {
    let outcome = prop_oneof![
        Just(ReadOutcome::Data(1)),
        Just(ReadOutcome::Blocked),
        Just(ReadOutcome::Ended(SourceEnd::Eof)),
        Just(ReadOutcome::Ended(SourceEnd::Closed)),
        Just(ReadOutcome::Ended(SourceEnd::Failed("x".into()))),
    ];
    prop_oneof![
        30 => lie().prop_map(Happening::Packet),
        8 => any::<bool>().prop_map(Happening::Dial),
        3 => any::<usize>().prop_map(Happening::Abandon),
        8 => any::<usize>().prop_map(Happening::Readable),
        8 => (any::<usize>(), 0usize..3_000).prop_map(|(who, charged)| Happening::Queued(who, charged)),
        2 => any::<usize>().prop_map(Happening::Failed),
        20 => (0usize..3, outcome).prop_map(|(budget, outcome)| Happening::Transmit(budget, outcome)),
        4 => (0u64..4_000).prop_map(Happening::Wait),
        1 => Just(Happening::Drain),
        1 => Just(Happening::StreamLost),
    ]
}

/// The driver's view of the honest core's connections.
struct Driver<S> {
    link: Lengths<S>,
    limits: Limits,
    now: Time,
    /// Pending dials.
    dials: BTreeSet<ConnKey>,
    /// Open connections: id and queue size.
    open: BTreeMap<ConnKey, (ConnectId, usize)>,
    /// The connection that was last opened with an id.
    latest: BTreeMap<ConnectId, ConnKey>,
    /// Dead keys, which the driver may still use by mistake.
    dead: Vec<ConnKey>,
    draining: usize,
}

fn bounds() -> Limits {
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

impl<S: Side + Default + 'static> Driver<S> {
    fn new(native: bool) -> Self {
        let windows = Windows { receive: 1_000, send: 10 };
        let negotiated = Negotiated { credits: native.then_some(windows), half_close: native };
        Driver {
            link: Lengths::new(bounds(), negotiated),
            limits: bounds(),
            now: Time::START,
            dials: BTreeSet::new(),
            open: BTreeMap::new(),
            latest: BTreeMap::new(),
            dead: Vec::new(),
            draining: 0,
        }
    }

    /// A known key, dead or alive.
    fn any_key(&self, choice: usize) -> Option<ConnKey> {
        let all: Vec<ConnKey> = self.open.keys().chain(&self.dials).chain(&self.dead).copied().collect();
        all.get(choice % all.len().max(1)).copied()
    }

    /// The connection that a peer means by an id.
    fn named(&self, id: ConnectId) -> Option<ConnKey> {
        self.latest.get(&id).copied()
    }

    fn packet(&mut self, packet: &Packet<usize>) -> Result<(), TestCaseError> {
        if !self.link.receiving() {
            return Ok(());
        }
        let disposition = self.link.handle_packet(self.now, packet.clone());
        if let Disposition::Deliver(key) = disposition {
            let Packet::Data { id, payload } = packet else { panic!("{packet:?} is delivered") };
            prop_assert_eq!(self.named(*id), Some(key), "bytes for another connection");
            let Some((_, queue)) = self.open.get_mut(&key) else {
                return Err(TestCaseError::fail(format!("delivered to {key:?}, which is not open")));
            };
            *queue += payload;
            self.link.advance(self.now, key, 0);
        }
        let named = match packet {
            Packet::CloseReq { id }
            | Packet::CloseRsp { id, .. }
            | Packet::Data { id, .. }
            | Packet::Fin { id } => Some(*id),
            _ => None,
        };
        let named = named.and_then(|id| self.named(id));
        for event in self.events()? {
            if let Event::Ended { key, .. } = event {
                prop_assert_eq!(Some(key), named, "another connection is ended by {:?}", packet);
            }
        }
        Ok(())
    }

    fn events(&mut self) -> Result<Vec<Event>, TestCaseError> {
        let events: Vec<Event> = std::iter::from_fn(|| self.link.poll_event()).collect();
        for event in &events {
            match event {
                Event::Dial { key, .. } => prop_assert!(self.dials.insert(*key)),
                Event::DialCanceled { key } | Event::DialFailed { key, .. } => {
                    prop_assert!(self.dials.remove(key), "a dial ends twice");
                    self.dead.push(*key);
                }
                Event::Opened { key, id } => {
                    prop_assert!(self.dials.remove(key), "opened without a dial");
                    prop_assert!(id.0 > 0);
                    // An adversarial agent may reuse an id while the earlier connection with this id still flushes.
                    self.latest.insert(*id, *key);
                    self.open.insert(*key, (*id, 0));
                }
                Event::Ended { key, .. } => {
                    prop_assert!(self.open.remove(key).is_some(), "a connection ends twice");
                    self.dead.push(*key);
                    // Some local ends discard before they are gone.
                    if key.index().is_multiple_of(2) {
                        self.link.release(*key)
                    } else {
                        self.link.linger(*key)
                    }
                }
                Event::ShutDown { key } => {
                    prop_assert_eq!(
                        self.open.get(key).map(|(_, queue)| *queue),
                        Some(0),
                        "shut down too early"
                    );
                }
                Event::Draining => self.draining += 1,
                Event::ProbeWanted => {}
                Event::ProbeAnswered => prop_assert!(false, "the link has sent no probe"),
                Event::ServerCount { servers } => prop_assert!(*servers > 0),
            }
        }
        prop_assert!(self.draining <= 1, "draining is told twice");
        Ok(events)
    }

    fn transmit(&mut self, budget: usize, outcome: ReadOutcome) -> Result<(), TestCaseError> {
        match self.link.poll_transmit(self.now, budget) {
            None | Some(Transmit::Control(_)) => {}
            Some(Transmit::NoCredit { key }) => {
                prop_assert!(self.open.contains_key(&key), "a dead source lacks credit");
                self.link.local_closed(self.now, key);
            }
            Some(Transmit::Read { key, max }) => {
                prop_assert!(max >= 1 && max <= budget);
                let id = self.open.get(&key).map(|(id, _)| *id);
                prop_assert!(id.is_some(), "a dead source is read");
                for packet in self.brought(key, outcome) {
                    let sent = matches!(packet, Packet::Data { id: sent, payload: 1 } if Some(sent) == id);
                    prop_assert!(sent, "{:?} is sent", packet);
                }
            }
            Some(Transmit::Discard { key, .. }) => {
                prop_assert!(self.open.contains_key(&key), "a dead source is discarded");
                prop_assert!(self.brought(key, outcome).next().is_none(), "discarded bytes are sent");
            }
            Some(Transmit::Linger { key, .. }) => {
                prop_assert!(self.dead.contains(&key), "an open connection lingers");
                self.link.release(key);
            }
        }
        Ok(())
    }

    /// Reports the result of a read. Returns the packets that are sent.
    fn brought(&mut self, key: ConnKey, outcome: ReadOutcome) -> Box<dyn Iterator<Item = Packet<usize>>> {
        match outcome {
            ReadOutcome::Blocked => {}
            ReadOutcome::Data(bytes) => return Box::new(self.link.push(self.now, key, bytes)),
            ReadOutcome::Ended(end) => {
                if end == SourceEnd::Closed
                    && let Some((_, queue)) = self.open.get_mut(&key)
                {
                    *queue = 0;
                }
                self.link.end_source(self.now, key, end);
            }
        }
        Box::new(std::iter::empty())
    }

    /// The steps that are the same for both ends.
    fn happen(&mut self, happening: Happening) -> Result<(), TestCaseError> {
        match happening {
            Happening::Packet(packet) => self.packet(&packet)?,
            Happening::Readable(choice) => {
                if let Some(key) = self.any_key(choice) {
                    self.link.readable(key);
                }
            }
            Happening::Queued(choice, charged) => {
                if let Some(key) = self.any_key(choice) {
                    let taken = self.open.get_mut(&key).map_or(charged, |(_, queue)| {
                        let taken = queue.saturating_sub(charged);
                        *queue -= taken;
                        taken
                    });
                    self.link.advance(self.now, key, taken);
                }
            }
            Happening::Failed(choice) => {
                if let Some(key) = self.any_key(choice) {
                    self.link.end_source(self.now, key, SourceEnd::Failed("broke".into()));
                }
            }
            Happening::Transmit(budget, outcome) => self.transmit(budget, outcome)?,
            Happening::Wait(millis) => {
                self.now = self.now.after(Duration::from_millis(millis));
                self.link.handle_timeout(self.now);
                prop_assert!(self.link.poll_timeout().is_none_or(|due| due > self.now), "due again at once");
            }
            Happening::StreamLost => self.link.stream_lost(self.now),
            Happening::Dial(_) | Happening::Abandon(_) | Happening::Drain => {}
        }
        self.events()?;
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let total: usize = self.open.values().map(|(_, queue)| queue).sum();
        prop_assert_eq!(self.link.total_held(), total);
        prop_assert!(self.link.len() <= self.limits.connections);
        prop_assert!(self.dials.len() <= self.limits.pending_dials);
        let hard = self.open.values().any(|(_, queue)| *queue > self.limits.hard_cap);
        prop_assert!(!(self.link.receiving() && (hard || total > self.limits.link_budget)));
        Ok(())
    }

    /// The stream is lost: everything ends, including the queues of connections that the peer had closed.
    fn finish(mut self) -> Result<(), TestCaseError> {
        self.link.stream_lost(self.now);
        self.events()?;
        prop_assert!(self.dials.is_empty(), "a dial outlives the stream");
        for key in self.open.keys().copied().collect::<Vec<_>>() {
            self.link.advance(self.now, key, usize::MAX);
        }
        self.events()?;
        prop_assert!(self.open.is_empty(), "a connection outlives the stream and its queue");
        prop_assert!(self.link.is_empty());
        prop_assert_eq!(self.link.total_held(), 0);
        if let Some(due) = self.link.poll_timeout() {
            self.link.handle_timeout(due);
        }
        prop_assert_eq!(self.link.poll_timeout(), None, "a timer outlives everything");
        while let Some(next) = self.link.poll_transmit(self.now, 1) {
            prop_assert!(matches!(next, Transmit::Linger { .. }), "{:?} on a lost stream", next);
        }
        prop_assert!(!self.link.receiving());
        Ok(())
    }
}

/// The number of control packets that wait, counted on a copy.
fn waiting<S: Side + Clone>(link: &Lengths<S>) -> usize {
    let mut copy = link.clone();
    std::iter::from_fn(|| copy.poll_transmit(Time::START, 1))
        .take_while(|next| matches!(next, Transmit::Control(_)))
        .count()
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn a_server_bears_any_agent(native: bool, happenings in prop::collection::vec(happening(), 0..200)) {
        let mut driver: Driver<Server> = Driver::new(native);
        for happening in happenings {
            match happening {
                Happening::Dial(_) => {
                    if let Some(key) = driver.link.dial("tcp", "a:1", None) {
                        driver.dials.insert(key);
                    }
                }
                Happening::Abandon(choice) => {
                    if let Some(key) = driver.any_key(choice) {
                        driver.link.abandon(driver.now, key);
                        if driver.dials.remove(&key) || driver.open.remove(&key).is_some() {
                            driver.dead.push(key);
                        }
                    }
                }
                _ => {}
            }
            driver.happen(happening)?;
            // At the limit the link refuses packets and dials; closes of open connections are added to that.
            prop_assert!(waiting(&driver.link) <= driver.limits.outbox + 4 * driver.limits.connections);
        }
        driver.finish()?;
    }

    #[test]
    fn an_agent_bears_any_server(native: bool, happenings in prop::collection::vec(happening(), 0..200)) {
        let mut driver: Driver<Agent> = Driver::new(native);
        let mut draining = false;
        for happening in happenings {
            match happening {
                Happening::Dial(well) => {
                    let dial = driver.dials.iter().next().copied().or_else(|| driver.dead.last().copied());
                    if let Some(key) = dial {
                        let awaited = driver.dials.remove(&key);
                        let opened = driver.link.dialed(key, if well { Ok(()) } else { Err(String::new()) });
                        prop_assert_eq!(opened, awaited && well);
                        match driver.link.connect_id(key) {
                            Some(id) if opened => {
                                driver.open.insert(key, (id, 0));
                                driver.latest.insert(id, key);
                            }
                            _ => driver.dead.push(key),
                        }
                    }
                }
                Happening::Drain if !std::mem::replace(&mut draining, true) => driver.link.drain(),
                _ => {}
            }
            driver.happen(happening)?;
            let extra = usize::from(draining) + driver.limits.pending_dials + 2 * driver.limits.connections;
            prop_assert!(waiting(&driver.link) <= driver.limits.outbox + extra);
        }
        driver.finish()?;
    }
}
