//! The rules of the client set as data: when to open another stream, and which streams to keep.
//!
//! No clock, no socket: `now` is the time since the set's start, and randomness is passed in. One stream is kept for each
//! server id, or several lanes to a server that offers them. A stream that should be replaced is kept until another one to the
//! same server is open, or for a time after GOAWAY. Then it stays without new dials until it is idle ([`super::streams`]). The
//! pauses are in [`super::backoff`], the choice of the address in [`super::addresses`]. While every server has a stream, slow
//! attempts postpone the next one.
//!
//! | state | attempts |
//! |---|---|
//! | servers are missing | until they are found |
//! | a server has fewer lanes than wanted | until it has them, or [`MAX_LANE_TRIES`] attempts for each server led elsewhere |
//! | the known number is connected, and each holder of a lease | none |
//! | the same, `--sync-forever`, and the number is the leases' | none |
//! | the same while the API cannot be reached, or every connected server announced this number | a search in about ten minutes: one attempt in each interval until a new server is found, at most one more than there are streams |
//! | the same, and the number is evidently wrong | as if servers were missing, until ten times as many attempts in a row led to connected servers |

use std::sync::Arc;
use std::time::Duration;

use super::addresses::{Address, Addresses, Attempt, Leased, Next, Resolved, Wanted};
use super::backoff::{Backoff, MAX_MISSING, TOLERATED_DUPLICATES_PER_SERVER};
use super::streams::{Decision, EndedStream, KeptStream, ServerInfo, StreamId, Streams};

/// After this many duplicates in a row for each connected server, `--sync-forever` no longer expects another server, whatever count
/// the servers announce. A count of 1 is not believed earlier either, because it is the default of servers. If no holder of a lease
/// is connected then, holders are no longer sought: perhaps they are not server ids.
const PROVING_DUPLICATES_PER_SERVER: usize = 10;

/// The set does without missing lanes after this many failures for each connected server: attempts that open no lane, and lanes that
/// end soon.
const MAX_LANE_TRIES: usize = 10;

/// How long a removed address is remembered, as a multiple of `--sync-interval-cap`.
const ADDRESS_MEMORY_CAPS: u32 = 3;

/// How long attempts wait for a lookup if addresses are known from before.
const MAX_LOOKUP_WAIT: Duration = Duration::from_secs(1);

/// An agent without a scheduled search begins the search for an unresponsive server within this share of the interval.
const UNRESPONSIVE_SEARCH_SHARE: f64 = 0.25;

/// How the number of servers is derived if both sources have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CountSource {
    /// The leases' count if there are leases, otherwise the count that servers announced.
    #[default]
    Default,
    /// The larger of the two.
    Max,
}

/// The client set's settings, from flags of the same names.
#[derive(Debug, Clone)]
pub struct SyncSettings {
    /// Pause between attempts.
    pub interval: Duration,
    /// The longest pause, not counting jitter.
    pub cap: Duration,
    /// Whether to continue with as many streams as there are servers.
    pub forever: bool,
    /// The source of the number of servers.
    pub count_source: CountSource,
    /// The wanted lanes to each server; twice as many if the RTT is high.
    pub lanes: usize,
}

/// The next action of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Look up the addresses of the servers, and report them by [`Machine::resolved`].
    Resolve,
    /// Open a stream, and report the result by [`Machine::connected`] or [`Machine::failed`].
    Connect(Address),
    /// Do nothing before this time.
    WaitUntil(Duration),
    /// Do nothing before an event.
    Wait,
}

/// The state of the rules.
#[derive(Debug)]
pub struct Machine<J> {
    settings: SyncSettings,
    backoff: Backoff<J>,
    streams: Streams,
    addresses: Addresses,
    /// The count of the last new server, or the one that all servers announced since; 0 before the first.
    announced: usize,
    /// The servers by their leases; none if leases are not (or not yet) counted.
    leased: Leased,
    draining: bool,
    /// A lookup runs: until when attempts wait for it.
    resolving: Option<Duration>,
    /// The time of the last lookup.
    resolved: Option<Duration>,
    /// No search before this time.
    search: Duration,
    /// No event but a loss brings the search forward to before this time: successors of streams soon wanted successors.
    calm: Duration,
    /// The next attempt for servers that nobody announced.
    unannounced_search: Duration,
    /// Attempts of the present search for servers that nobody announced.
    unannounced_attempts: usize,
    /// Attempts for lanes that are left, see [`MAX_LANE_TRIES`].
    lane_tries: usize,
}

/// Why to open another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Demand {
    None,
    /// Another server is possible, but not expected.
    UnannouncedServer,
    /// The number of servers is evidently wrong.
    Doubt,
    /// A server has fewer lanes than wanted.
    Lane,
    /// A stream needs a successor before its certificate expires.
    Renewal,
    /// A server is missing or does not answer.
    Missing,
}

impl<J: FnMut() -> f64> Machine<J> {
    /// A set without streams; the first attempt is due at once.
    pub fn new(settings: SyncSettings, jitter: J) -> Self {
        Self {
            backoff: Backoff::new(settings.interval, settings.cap, jitter),
            streams: Streams::new(settings.lanes),
            settings,
            addresses: Addresses::default(),
            announced: 0,
            leased: Leased::default(),
            draining: false,
            resolving: None,
            resolved: None,
            search: Duration::ZERO,
            calm: Duration::ZERO,
            unannounced_search: Duration::ZERO,
            unannounced_attempts: 0,
            lane_tries: 0,
        }
    }

    /// The known number of servers; at least 1. Without valid leases it is the announced one: perhaps the servers cannot renew
    /// their leases.
    pub fn server_count(&self) -> usize {
        let count = match (self.settings.count_source, self.leased.count) {
            (CountSource::Default, leases @ 1..) => leases,
            (CountSource::Default, 0) => self.announced,
            (CountSource::Max, leases) => leases.max(self.announced),
        };
        count.max(1)
    }

    /// The number of servers to connect to. It is larger than the known number if a server with a lease is not connected and
    /// a connected one has none, for example because its kube-apiserver is down.
    pub(super) fn wanted_count(&self) -> usize {
        self.server_count().max(self.streams.len() + self.unconnected_holders())
    }

    /// Whether every server to connect to has a stream.
    fn is_complete(&self) -> bool {
        self.streams.len() >= self.wanted_count()
    }

    /// The number of servers to show: while some are missing, with the holders among them.
    pub fn shown_count(&self) -> usize {
        if self.is_complete() { self.server_count() } else { self.wanted_count() }
    }

    /// The number of leases' holders without a stream. A holder is the id that its server announces, as in Go. None counts while
    /// the API cannot be reached, because servers may have restarted with other ids.
    fn unconnected_holders(&self) -> usize {
        let holders = &self.leased.holders;
        let unconnected = holders.iter().filter(|holder| !self.streams.contains(holder)).count();
        let foreign = unconnected == holders.len() && self.is_proven();
        if self.leased.stale || foreign { 0 } else { unconnected }
    }

    /// See [`PROVING_DUPLICATES_PER_SERVER`].
    fn is_proven(&self) -> bool {
        self.backoff.duplicates() >= PROVING_DUPLICATES_PER_SERVER.saturating_mul(self.streams.len())
    }

    /// The number of servers that decides about the pauses.
    fn believed(&self) -> usize {
        self.wanted_count().min(self.streams.len() + MAX_MISSING)
    }

    /// The number of servers without a stream that answers.
    fn missing(&self) -> usize {
        self.believed().saturating_sub(self.streams.len()) + self.streams.unresponsive_servers()
    }

    /// The number of servers with a stream.
    pub fn open_count(&self) -> usize {
        self.streams.len()
    }

    /// Whether the last attempt was the first of many in a row that reached no missing server. True once until a server is new
    /// or lost, or the count changes.
    pub fn is_stuck(&self) -> bool {
        !self.is_complete()
            && self.backoff.duplicates()
                == TOLERATED_DUPLICATES_PER_SERVER.saturating_mul(self.believed()) + 1
    }

    /// Whether the set drains: it opens no stream any more.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// The action at `now`. Several attempts may run at once: the caller asks again after [`Step::Connect`].
    pub fn poll(&mut self, now: Duration) -> Step {
        if self.draining {
            return Step::Wait;
        }
        let waits = self.resolving.unwrap_or_default();
        let next = self.next().map(|(index, attempt, due)| (index, attempt, due.max(waits)));
        let is_resolving = self.resolving.is_some();
        match (self.resolved, next) {
            (None, _) if is_resolving => Step::Wait,
            (Some(_), None) => Step::Wait,
            (Some(_), Some((_, _, due))) if now < due => Step::WaitUntil(due),
            (Some(resolved), Some(next)) if is_resolving || now < resolved + self.settings.interval => {
                self.backoff.attempt(now);
                self.addresses.start(now, next).map_or(Step::Wait, Step::Connect)
            }
            _ => {
                self.resolving = Some(now + MAX_LOOKUP_WAIT);
                Step::Resolve
            }
        }
    }

    /// The result of a lookup, by entry of `--proxy-server-host`.
    pub fn resolved(&mut self, now: Duration, entries: Vec<Resolved>) {
        (self.resolving, self.resolved) = (None, Some(now));
        self.addresses.resolved(now, self.memory(), entries);
    }

    /// A stream is open. The count that a known server announces is used only if all agree.
    pub fn connected(
        &mut self,
        now: Duration,
        address: &Address,
        server: &Arc<str>,
        info: ServerInfo,
    ) -> Decision {
        if self.draining {
            return Decision::Unwanted;
        }
        let (again, demand) = (now + self.settings.interval, self.demand());
        self.addresses.connected(now, address, server, again, |server| self.streams.lacks(server, false));
        let decision = self.streams.insert(now, server, info);
        let before = self.server_count();
        self.announced = match decision {
            Decision::Keep(_) => info.servers,
            _ => self.streams.agreed_server_count().unwrap_or(self.announced),
        };
        // A server that did not answer may have used up the attempts for its lanes.
        if matches!(decision, Decision::Keep(_) | Decision::Replace(..)) {
            self.renew_lane_tries();
        }
        let known_server = matches!(decision, Decision::Duplicate | Decision::KeepLane(_));
        if demand == Demand::Lane && decision == Decision::Duplicate {
            self.lane_tries = self.lane_tries.saturating_sub(1);
        }
        if self.server_count() > before {
            self.start_burst(false);
        }
        let (known, demand_now) = (self.believed(), self.demand());
        let wanted = matches!(demand_now, Demand::Missing | Demand::Lane);
        if demand_now == Demand::Lane {
            self.backoff.only_lanes(known);
        }
        let servers = (known - self.missing().min(known), known);
        let pause = match known_server {
            true => self.backoff.after_duplicate(now, servers, wanted),
            false => self.backoff.after_stream(now, servers, wanted),
        };
        self.search = now + pause;
        self.after_unannounced_search(now, demand == Demand::UnannouncedServer && known_server);
        decision
    }

    fn renew_lane_tries(&mut self) {
        self.lane_tries = MAX_LANE_TRIES.saturating_mul(self.streams.len());
    }

    /// A balancer that chooses at random leads one attempt to an added server too rarely, so a search has one for each connected
    /// server and one more.
    fn after_unannounced_search(&mut self, now: Duration, fruitless: bool) {
        let goes_on = fruitless && self.unannounced_attempts < self.streams.len();
        self.unannounced_attempts = if goes_on { self.unannounced_attempts + 1 } else { 0 };
        self.unannounced_search =
            now + if goes_on { self.backoff.grown(0) } else { self.backoff.unannounced_search_pause() };
    }

    /// The server of a kept stream does not answer pings or has sent GOAWAY, or it answers again.
    pub fn set_unresponsive(&mut self, now: Duration, id: StreamId, unresponsive: bool) {
        self.update_kept(now, id, |kept| kept.unresponsive = unresponsive);
    }

    /// The RTT to the server of a kept stream is high.
    pub fn set_high_rtt(&mut self, now: Duration, id: StreamId) {
        if self.streams.set_high_rtt(id) {
            self.renew_lane_tries();
            self.search = self.search.max(now);
        }
    }

    /// Whether another lane to the same server does not answer.
    pub fn has_unresponsive_sibling_lane(&self, id: StreamId) -> bool {
        self.streams.has_unresponsive_sibling_lane(id)
    }

    /// The certificate of a kept stream is about to expire. Returns false if that was already known.
    pub fn certificate_expiring(&mut self, now: Duration, id: StreamId) -> bool {
        let mut news = false;
        self.update_kept(now, id, |kept| news = !std::mem::replace(&mut kept.expiring, true));
        news
    }

    fn update_kept(&mut self, now: Duration, id: StreamId, update: impl FnOnce(&mut KeptStream)) {
        let Some((server, short)) = self.streams.update_kept(now, id, update) else { return };
        if short > 0 {
            // Successors do not help. The stream goes on meanwhile.
            let calm = now + self.backoff.grown(short);
            self.calm = calm;
            self.addresses.lost(&server, |due| due.max(calm));
        }
        self.schedule_search(now, UNRESPONSIVE_SEARCH_SHARE);
    }

    /// Schedules a search that other agents need at the same time, too. It is due within an interval. At rest it is due within a
    /// random part of this share of the interval, because the agents must not search in step.
    fn schedule_search(&mut self, now: Duration, share: f64) {
        if self.calm <= now {
            self.start_burst(true);
        }
        self.postpone_unannounced_search(now);
        let at_rest = self.resolved.is_some() && self.search <= now;
        let search = match at_rest {
            true => now + self.backoff.part_of_interval().mul_f64(share),
            false => self.search.min(now + self.settings.interval),
        };
        self.search = search.max(self.calm);
    }

    fn postpone_unannounced_search(&mut self, now: Duration) {
        self.unannounced_search = self.unannounced_search.max(now + self.backoff.unannounced_search_pause());
    }

    /// See [`Backoff::start_burst`].
    fn start_burst(&mut self, shared: bool) {
        self.backoff.start_burst(self.believed(), self.missing().max(1), shared);
    }

    /// An attempt failed, after the server accepted the connection or before (`reached`). Returns the pause, for the log.
    pub fn failed(&mut self, now: Duration, address: &Address, reached: bool) -> Duration {
        let mut pause = Duration::ZERO;
        let attempt = self.addresses.failed(now, address, reached, |failures| {
            pause = self.backoff.grown(failures);
            now + pause
        });
        if self.demand() == Demand::Lane {
            self.lane_tries = self.lane_tries.saturating_sub(1);
        }
        if attempt != Some(Attempt::Search) || self.demand() != Demand::UnannouncedServer {
            return pause;
        }
        self.after_unannounced_search(now, false);
        self.unannounced_search - now
    }

    /// The server of a kept stream announces the number of servers. As in [`Self::connected`], it is used only if all agree.
    pub fn server_count_announced(&mut self, now: Duration, id: StreamId, count: usize) {
        let before = self.server_count();
        self.streams.set_server_count(id, count);
        self.announced = self.streams.agreed_server_count().unwrap_or(self.announced);
        if self.server_count() != before {
            self.schedule_search(now, 1.0);
        }
    }

    /// A kept stream retires, because none has replaced it after GOAWAY. Its server may be gone: it is missing only if the number
    /// of servers says so.
    pub fn retire(&mut self, now: Duration, id: StreamId) {
        self.streams.retire(now, id);
    }

    /// A kept or a retiring stream has ended.
    pub fn lost(&mut self, now: Duration, id: StreamId) {
        if self.streams.end_retired(id) {
            if self.streams.lack_successor() {
                // Before, the server had no room for the replacement.
                self.schedule_search(now, UNRESPONSIVE_SEARCH_SHARE);
            }
            return;
        }
        let complete = self.is_complete();
        let Some(EndedStream { server, last, soon }) = self.streams.end_kept(now, id) else { return };
        match soon {
            true => self.lane_tries = self.lane_tries.saturating_sub(1),
            false => self.renew_lane_tries(),
        }
        // All agents of a server lose their last streams at the same time.
        self.start_burst(last);
        if last {
            self.postpone_unannounced_search(now);
        }
        self.search = self.backoff.after_loss(now, self.search, complete);
        self.addresses.lost(&server, |due| self.backoff.after_loss(now, due, true));
    }

    /// Takes the servers by their leases. All agents learn of a change at once, and they must not dial in step.
    pub fn leased(&mut self, now: Duration, leased: Leased) {
        let memory = self.memory();
        self.addresses.advertised(now, memory, &leased, || now + self.backoff.part_of_interval());
        if leased.stale && !self.leased.stale {
            self.postpone_unannounced_search(now);
        }
        let counts = |machine: &Self| (machine.server_count(), machine.unconnected_holders());
        let before = counts(self);
        self.leased = leased;
        if counts(self) != before {
            self.schedule_search(now, 1.0);
        }
    }

    /// How long an address that is gone is remembered.
    fn memory(&self) -> Duration {
        self.settings.cap.saturating_mul(ADDRESS_MEMORY_CAPS)
    }

    /// Opens no stream from now on; the result of a running attempt is discarded.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    fn demand(&self) -> Demand {
        let open = self.streams.len();
        if !self.is_complete() || self.streams.lack_answers() {
            return Demand::Missing;
        }
        if self.streams.lack_successor() {
            return Demand::Renewal;
        }
        if self.lane_tries > 0 && self.streams.lack_lanes() {
            return Demand::Lane;
        }
        if !self.settings.forever {
            return Demand::None;
        }
        if self.leased.count == open {
            return if self.leased.stale { Demand::UnannouncedServer } else { Demand::None };
        }
        if self.is_proven() || open > 1 && self.streams.agreed_server_count() == Some(open) {
            Demand::UnannouncedServer
        } else {
            Demand::Doubt
        }
    }

    /// The next attempt.
    fn next(&self) -> Option<Next> {
        let (demand, unannounced) = (self.demand(), Some(self.unannounced_search));
        let wanted = Wanted {
            unknown: matches!(demand, Demand::Missing | Demand::Doubt),
            // Without leases an address that led to a server is better evidence of it than the count.
            known: self.leased.count == 0 || !matches!(demand, Demand::None | Demand::UnannouncedServer),
            unannounced_search: unannounced.filter(|_| demand != Demand::None),
            search: Some(self.search).filter(|_| !matches!(demand, Demand::None | Demand::UnannouncedServer)),
            servers: self.wanted_count(),
            complete: self.is_complete(),
        };
        let lanes = self.lane_tries > 0;
        let is_open = |server: &Arc<str>| self.streams.contains(server);
        self.addresses.next(wanted, is_open, |server| self.streams.lacks(server, lanes))
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
