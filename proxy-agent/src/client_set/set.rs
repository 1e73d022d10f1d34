//! The client set's loop: carries out the machine's steps, and reports events to it.
//!
//! Owns a task for every kept stream, every attempt and the lookup, so that a panic ends only that task; all of them end with
//! it. Never touches a packet.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use driver::LinkEnd;
use flags::GoDuration;
use grpc::live_streams::{LiveStreams, StreamName};
use net::tls::unix_now;
use serve::logs::{LogLimit, Peer, shown_error};
use serve::metrics::LiveGuard;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::machine::{Machine, Step, SyncSettings};
use super::renewal::PresentedCert;
use super::streams::{Decision, StreamId};
use super::{Address, ConnectError, ConnectStage, ConnectedStream, Connector, Leased, Resolved};
use crate::link::{LinkControl, LinkRunner, ServerState};
use crate::metrics::{AttemptResult, Direction, LostReason, Metrics};

/// How long streams may take to end in order after a stop; then they are dropped.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of an attempt that begins while another one at its address waits for an answer: the next one may find another
/// server. Not shorter, because an attempt that was given up keeps its place in the review queue of a Go server.
const SECOND_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);

/// Interval of the checks of the streams' certificates.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Every attempt is a duplicate.
const STUCK: &str = "no attempt reaches a missing server: is the server count too high, does the load balancer always choose \
                     the same servers, or do two servers have one --server-id?";

/// The state of the set, for readiness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Servers {
    /// The known number of servers.
    pub known: usize,
    /// The number of servers with a stream.
    pub open: usize,
    /// The last error of an attempt or a stream, and its time.
    pub last_error: Option<(Arc<str>, Instant)>,
}

/// Why [`ClientSet::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// `stop` was canceled.
    Stopped,
    /// The set drained, and its last stream has ended.
    Drained,
}

type Outcome<S> = Result<ConnectedStream<S>, ConnectError>;
type Jitter = fn() -> f64;

/// The new state of a stream's server.
type ServerChange = (StreamId, ServerState);

/// A stream whose task runs.
struct Stream {
    id: StreamId,
    /// The number by which servers know it.
    number: u64,
    server_id: Arc<str>,
    drain: CancellationToken,
    retire: CancellationToken,
    presented: Option<PresentedCert>,
    /// Counts the server as open or, once the stream retires, the stream as retiring. The lanes to a server share one.
    counted: Arc<LiveGuard>,
}

/// The set of streams to servers.
pub struct ClientSet<C: Connector, L> {
    connector: Arc<C>,
    links: Arc<L>,
    metrics: Metrics,
    machine: Machine<Jitter>,
    leases: watch::Receiver<Option<Leased>>,
    servers: watch::Sender<Servers>,
    /// The running lookup, one at most.
    lookup: JoinSet<Vec<Resolved>>,
    /// The entries whose last lookup failed.
    unresolved: HashSet<usize>,
    attempts: JoinSet<Outcome<C::Stream>>,
    /// The addresses and numbers of the tasks in `attempts`.
    dialed: HashMap<Id, (Address, u64)>,
    /// The name of the last attempt.
    last_attempt: StreamName,
    running: JoinSet<LinkEnd>,
    /// The streams of the tasks in `running` that have not ended.
    streams: HashMap<Id, Stream>,
    server_changes: (mpsc::UnboundedSender<ServerChange>, mpsc::UnboundedReceiver<ServerChange>),
    /// Unix time in seconds.
    clock: fn() -> i64,
    /// Duplicates that are being closed.
    closing: JoinSet<()>,
    /// A server may answer pings and then not, again and again.
    logs: LogLimit,
    started: Instant,
    /// See [`Self::run`].
    drain: CancellationToken,
    stop: CancellationToken,
}

impl<C: Connector, L: LinkRunner<C::Stream>> ClientSet<C, L> {
    /// A set that opens streams by `connector` and passes them to `links`. `leases` receives the servers by their leases,
    /// `None` if leases are not counted.
    pub fn new(
        connector: C,
        links: L,
        settings: SyncSettings,
        leases: watch::Receiver<Option<Leased>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            connector: Arc::new(connector),
            links: Arc::new(links),
            metrics,
            machine: Machine::new(settings, rand::random::<f64>),
            leases,
            servers: watch::Sender::default(),
            lookup: JoinSet::new(),
            unresolved: HashSet::new(),
            attempts: JoinSet::new(),
            dialed: HashMap::new(),
            last_attempt: StreamName { process: rand::random(), number: 0 },
            running: JoinSet::new(),
            streams: HashMap::new(),
            server_changes: mpsc::unbounded_channel(),
            clock: unix_now,
            closing: JoinSet::new(),
            logs: LogLimit::default(),
            started: Instant::now(),
            drain: CancellationToken::new(),
            stop: CancellationToken::new(),
        }
    }

    /// The state of the set, updated at each change.
    pub fn servers(&self) -> watch::Receiver<Servers> {
        self.servers.subscribe()
    }

    /// Runs until `stop` is canceled, or until the set has drained. Canceling `drain` asks every server for no new dials and
    /// opens no further stream; connections continue.
    pub async fn run(mut self, drain: CancellationToken, stop: CancellationToken) -> RunEnd {
        (self.started, self.drain, self.stop) = (Instant::now(), drain, stop);
        self.take_leases();
        let mut looks = interval(CERTIFICATE_CHECK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.publish();
            if self.machine.is_draining() && self.running.is_empty() {
                self.finish().await;
                return RunEnd::Drained;
            }
            let due = self.step();
            let draining = self.machine.is_draining();
            tokio::select! {
                () = self.stop.cancelled() => {
                    self.finish().await;
                    return RunEnd::Stopped;
                }
                () = self.drain.cancelled(), if !draining => self.drain(),
                Some(entries) = self.lookup.join_next() => self.resolved(entries),
                Some(ended) = self.attempts.join_next_with_id() => self.attempted(ended),
                Some(ended) = self.running.join_next_with_id() => self.ended(ended),
                Some(_) = self.closing.join_next() => {}
                Ok(()) = self.leases.changed() => self.leases_counted(),
                Some((id, state)) = self.server_changes.1.recv() => self.server_changed(id, state),
                _ = looks.tick() => self.renew(),
                () = sleep_until(due.unwrap_or(self.started)), if due.is_some() => {}
            }
        }
    }

    /// Takes the result of a lookup. Lookups are frequent, so only the first failure in a row is logged. A lookup that panicked
    /// has failed for every entry.
    fn resolved(&mut self, looked_up: Result<Vec<Resolved>, JoinError>) {
        let entries = looked_up.unwrap_or_else(|error| {
            let failed = |entry| Resolved { addresses: vec![entry], error: Some(error.to_string()) };
            self.connector.entries().into_iter().map(failed).collect()
        });
        for (entry, itself) in entries.iter().zip(self.connector.entries()) {
            let name = itself.dial.host;
            match &entry.error {
                Some(error) if self.unresolved.insert(itself.entry) => {
                    tracing::warn!(name, err = %Peer(error), "server name lookup failed");
                }
                None if self.unresolved.remove(&itself.entry) => {
                    tracing::info!(name, "server name lookup works again");
                }
                _ => {}
            }
        }
        self.machine.resolved(self.now(), entries);
    }

    fn server_changed(&mut self, id: StreamId, state: ServerState) {
        // A retiring stream needs no successor.
        let kept = self.streams.values().find(|stream| stream.id == id && !stream.retire.is_cancelled());
        let due = |cause| {
            let server_id = &*kept?.server_id;
            Some((Peer(server_id), self.logs.due_for(cause, server_id)?))
        };
        let unresponsive = match state {
            ServerState::HighRtt => return self.machine.set_high_rtt(self.now(), id),
            ServerState::Servers(count) => return self.machine.server_count_announced(self.now(), id, count),
            ServerState::Unreplaced => {
                if let Some(Stream { server_id, .. }) = kept {
                    tracing::info!(serverID = %Peer(server_id), "no other stream to this server opened after GOAWAY, draining stream");
                    self.machine.retire(self.now(), id);
                    self.retire(id);
                }
                return;
            }
            ServerState::Lost(end) => {
                let task = self.streams.iter().find(|(_, stream)| stream.id == id).map(|(task, _)| *task);
                if let Some(task) = task {
                    self.lost(task, Ok(end));
                }
                return;
            }
            ServerState::Responsive => {
                if let Some((server_id, suppressed)) = due("responsive") {
                    tracing::info!(serverID = %server_id, suppressed, "keepalive ping answered again");
                }
                false
            }
            ServerState::Unresponsive => {
                // The lanes to one server count once.
                if kept.is_some() && !self.machine.has_unresponsive_sibling_lane(id) {
                    self.metrics.unresponsive.inc();
                }
                if let Some((server_id, suppressed)) = due("unresponsive") {
                    tracing::warn!(
                        serverID = %server_id, suppressed,
                        "keepalive ping unanswered, opening another stream to the server"
                    );
                }
                true
            }
            ServerState::GoingAway => {
                if let Some(Stream { server_id, .. }) = kept {
                    tracing::info!(serverID = %Peer(server_id), "GOAWAY received, opening another stream to the server");
                }
                true
            }
        };
        self.machine.set_unresponsive(self.now(), id, unresponsive);
    }

    /// Checks whether a stream's certificate is about to expire.
    fn renew(&mut self) {
        let (unix_now, newest) = ((self.clock)(), self.connector.certificate_validity());
        let due = |stream: &&Stream| stream.presented.is_some_and(|cert| cert.is_due(unix_now, newest));
        let now = self.now();
        for stream in self.streams.values().filter(due) {
            if self.machine.certificate_expiring(now, stream.id) {
                tracing::info!("client certificate of a stream is about to expire, opening another stream");
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn publish(&self) {
        let (known, open) = (self.machine.shown_count(), self.machine.open_count());
        self.metrics.known_servers.set(i64::try_from(known).unwrap_or(i64::MAX));
        self.servers.send_if_modified(|servers| {
            let before = (servers.known, servers.open);
            (servers.known, servers.open) = (known, open);
            before != (known, open)
        });
    }

    /// Starts what is due; returns when to poll again.
    fn step(&mut self) -> Option<Instant> {
        loop {
            let connector = Arc::clone(&self.connector);
            match self.machine.poll(self.now()) {
                Step::Wait => return None,
                Step::WaitUntil(due) => return Some(self.started + due),
                Step::Resolve => {
                    self.lookup.spawn(async move { connector.resolve().await });
                }
                Step::Connect(address) => {
                    let (dialed, streams) = (address.clone(), self.name_attempt());
                    let number = streams.name.number;
                    let is_second = self.dialed.values().any(|(other, _)| *other == address);
                    let limit = if is_second { SECOND_ATTEMPT_TIMEOUT } else { Duration::MAX };
                    let late = || Err(ConnectError::at(ConnectStage::Stream, "no answer from the server"));
                    let attempt = self.attempts.spawn(async move {
                        timeout(limit, connector.connect(&dialed, streams)).await.unwrap_or_else(|_| late())
                    });
                    self.dialed.insert(attempt.id(), (address, number));
                }
            }
        }
    }

    /// The name of the next attempt, and the streams and attempts beside it.
    fn name_attempt(&mut self) -> LiveStreams {
        self.last_attempt.number += 1;
        let attempts = self.dialed.values().map(|(_, number)| *number);
        let others = self.streams.values().map(|stream| stream.number).chain(attempts).collect();
        LiveStreams { name: self.last_attempt, others }
    }

    fn attempted(&mut self, ended: Result<(Id, Outcome<C::Stream>), JoinError>) {
        let (task, outcome) = ended.unwrap_or_else(|error| {
            let panicked = format_args!("the attempt's {error}");
            (error.id(), Err(ConnectError::at(ConnectStage::Task, panicked)))
        });
        let Some((address, number)) = self.dialed.remove(&task) else { return };
        let now = self.now();
        let connected = match outcome {
            Ok(connected) => connected,
            Err(error) => {
                self.metrics.attempts.count(AttemptResult::Error);
                self.metrics.connect_failures.count(error.stage);
                let reached = !matches!(error.stage, ConnectStage::Lookup | ConnectStage::Dial);
                let pause = self.machine.failed(now, &address, reached);
                let (text, hint, dialed) = (error.to_string(), error.hint, address.dial.to_string());
                tracing::error!(
                    err = %Peer(&text), address = %Peer(&dialed), hint, retry_in = %GoDuration::from(pause),
                    "cannot connect once"
                );
                let text = hint.map_or(text.clone(), |hint| format!("{text} ({hint})"));
                self.metrics.journal.refused_at("server", &dialed, &text);
                self.failed(&text);
                return;
            }
        };
        let server_id = Arc::clone(&connected.server_id);
        let decision = self.machine.connected(now, &address, &server_id, connected.info);
        let (Decision::Keep(id) | Decision::KeepLane(id) | Decision::Replace(id, _)) = decision else {
            self.metrics.attempts.count(AttemptResult::Duplicate);
            tracing::debug!(target: "v4", serverID = %Peer(&server_id), "duplicate server connection attempt");
            if self.machine.is_stuck() {
                let (open, known) = (self.machine.open_count(), self.machine.shown_count());
                tracing::warn!(serverID = %Peer(&server_id), open, known, "{STUCK}");
                self.failed(&format!("{open} of {known} servers: {STUCK}"));
            }
            let connector = Arc::clone(&self.connector);
            self.closing.spawn(async move { connector.close(connected.stream).await });
            return;
        };
        self.metrics.attempts.count(AttemptResult::Connected);
        match decision {
            Decision::Replace(..) => tracing::info!(serverID = %Peer(&server_id), "draining replaced stream"),
            Decision::KeepLane(_) => {
                tracing::info!(target: "v2", serverID = %Peer(&server_id), "opened another lane");
            }
            _ => tracing::info!(
                target: "v2",
                serverID = %Peer(&server_id),
                newServerCount = connected.info.servers,
                open = self.machine.open_count(),
                "successfully connected to new proxy server"
            ),
        }
        self.keep((id, number), connected);
        // Stays counted as open until the new stream is.
        if let Decision::Replace(_, old) = decision {
            self.retire(old);
        }
    }

    /// Drains a stream that the machine no longer keeps.
    fn retire(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.values_mut().find(|stream| stream.id == id) {
            stream.counted = Arc::new(self.metrics.retiring_connections.enter());
            stream.retire.cancel();
            stream.drain.cancel();
        }
    }

    /// Records an error for readiness.
    fn failed(&self, error: &str) {
        let error = (shown_error(error).into(), Instant::now());
        self.servers.send_modify(|servers| servers.last_error = Some(error));
    }

    fn keep(&mut self, (id, number): (StreamId, u64), connected: ConnectedStream<C::Stream>) {
        let ConnectedStream { server_id, presented, stream, .. } = connected;
        let presented = presented.map(|validity| PresentedCert::new(validity, rand::random::<f64>()));
        let (drain, retire) = (self.drain.child_token(), CancellationToken::new());
        let server_changes = self.server_changes.0.clone();
        let control = LinkControl {
            drain: drain.clone(),
            retire: retire.clone(),
            stop: self.stop.clone(),
            // Sending fails only after the set has ended.
            observer: Arc::new(move |state| {
                let _ = server_changes.send((id, state));
            }),
        };
        let run = Arc::clone(&self.links).run(Arc::clone(&server_id), stream, control);
        let task = self.running.spawn(run);
        let is_lane = |other: &&Stream| other.server_id == server_id && !other.retire.is_cancelled();
        let counted = match self.streams.values().find(is_lane) {
            Some(lane) => Arc::clone(&lane.counted),
            None => Arc::new(self.metrics.server_connections.enter()),
        };
        self.streams.insert(task.id(), Stream { id, number, server_id, drain, retire, presented, counted });
    }

    fn ended(&mut self, ended: Result<(Id, LinkEnd), JoinError>) {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, _)| *task);
        self.lost(task, ended.map(|(_, end)| end));
    }

    /// A stream has ended. Its task may still run. Reported twice, it counts once.
    fn lost(&mut self, task: Id, end: Result<LinkEnd, JoinError>) {
        let Some(Stream { id, server_id, retire, .. }) = self.streams.remove(&task) else { return };
        // The lanes to one server count once.
        let is_beside = |other: &Stream| {
            other.server_id == server_id && other.retire.is_cancelled() == retire.is_cancelled()
        };
        let is_lane = self.streams.values().any(is_beside);
        let metrics = self.metrics.clone();
        let lose = |reason| {
            if !is_lane {
                metrics.lost.count(reason);
                if reason == LostReason::RecvError {
                    metrics.server_failures.count(Direction::FromServer);
                }
            }
        };
        self.machine.lost(self.now(), id);
        let server_id = Peer(&server_id);
        match end {
            Ok(LinkEnd::Finished) => {
                lose(LostReason::Eof);
                tracing::info!(target: "v2", serverID = %server_id, "received EOF, exit");
            }
            Ok(LinkEnd::Stopped) => {
                tracing::info!(target: "v2", serverID = %server_id, "stop agent client.");
            }
            Ok(LinkEnd::Failed(error)) => {
                lose(LostReason::RecvError);
                let error = error.to_string();
                tracing::error!(err = %Peer(&error), serverID = %server_id, "could not read stream");
                self.failed(&error);
            }
            Err(error) => {
                lose(LostReason::RecvError);
                tracing::error!(err = %error, serverID = %server_id, "the stream's task failed");
            }
        }
        tracing::info!(serverID = %server_id, "Removing client used for server connection");
    }

    /// Returns whether there are leases.
    fn take_leases(&mut self) -> bool {
        let leased = self.leases.borrow_and_update().clone().unwrap_or_default();
        let counted = leased.count > 0;
        self.machine.leased(self.now(), leased);
        counted
    }

    fn leases_counted(&mut self) {
        let source = if self.take_leases() { "fromLeases" } else { "fromResponses" };
        let count = self.machine.server_count();
        tracing::debug!(target: "v4", serverCount = count, source, "Determined server count");
    }

    fn cancel_attempts(&mut self) {
        (self.lookup, self.attempts) = (JoinSet::new(), JoinSet::new());
        self.dialed.clear();
    }

    fn drain(&mut self) {
        tracing::info!(streams = self.running.len(), "draining, no further streams are opened");
        self.cancel_attempts();
        self.machine.drain();
    }

    /// Waits for the stopped streams; drops those that do not end in time.
    async fn finish(&mut self) {
        self.cancel_attempts();
        let all = async {
            while let Some(ended) = self.running.join_next_with_id().await {
                self.ended(ended);
            }
            while self.closing.join_next().await.is_some() {}
        };
        if timeout(STOP_TIMEOUT, all).await.is_err() {
            tracing::warn!(streams = self.running.len(), "streams did not end in time, dropping them");
        }
        self.publish();
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
