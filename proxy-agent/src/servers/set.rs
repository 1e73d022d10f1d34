//! The client set's loop: does what the machine says, and tells it what happened.
//!
//! Owns a task for every kept stream and the one try under way; all of them end with it. Never touches a packet.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use relay::LinkEnd;
use serve::logs::Peer;
use serve::metrics::LiveGuard;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use transport::tls::unix_now;

use super::machine::{Machine, Step, StreamId, SyncSettings, Verdict};
use super::renewal::Shown;
use super::{ConnectError, ConnectedStream, Connector, LinkRunner};
use crate::link::Life;
use crate::metrics::Metrics;

/// How long streams may take to end in order once they are told to stop; then they are cut off.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Between looks at certificates that were shown.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How the set stands, for readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Servers {
    /// How many servers there are, as far as is known.
    pub known: usize,
    /// To how many of them there is a stream.
    pub open: usize,
}

/// Why [`ClientSet::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// It was told to stop.
    Stopped,
    /// It drained, and its last stream has ended: it would never open another.
    Drained,
}

type Attempt<S> = Pin<Box<dyn Future<Output = Result<ConnectedStream<S>, ConnectError>> + Send>>;
type Jitter = fn() -> f64;

/// The server of a stream ceased to answer pings, or answers again.
type Suspicion = (StreamId, bool);

/// A stream that another can take the place of.
struct Replaceable {
    drain: CancellationToken,
    retire: CancellationToken,
    shown: Option<Shown>,
    _open: LiveGuard,
}

/// The set of streams to servers.
pub struct ClientSet<C: Connector, L> {
    connector: Arc<C>,
    links: Arc<L>,
    metrics: Metrics,
    machine: Machine<Jitter>,
    leases: watch::Receiver<Option<usize>>,
    servers: watch::Sender<Servers>,
    attempt: Option<Attempt<C::Stream>>,
    running: JoinSet<LinkEnd>,
    kept: HashMap<Id, (StreamId, Arc<str>)>,
    /// What is needed to replace a stream.
    replaceable: HashMap<StreamId, Replaceable>,
    /// Streams that another took the place of.
    retiring: HashMap<StreamId, LiveGuard>,
    suspicions: (mpsc::UnboundedSender<Suspicion>, mpsc::UnboundedReceiver<Suspicion>),
    /// Seconds of Unix time.
    clock: fn() -> i64,
    /// Duplicates on their way out.
    closing: JoinSet<()>,
    started: Instant,
}

impl<C: Connector, L: LinkRunner<C::Stream>> ClientSet<C, L> {
    /// A set that opens streams by `connector` and hands them to `links`. `leases` is the count of servers by
    /// their leases, `None` if they are not counted.
    pub fn new(
        connector: C,
        links: L,
        settings: SyncSettings,
        leases: watch::Receiver<Option<usize>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            connector: Arc::new(connector),
            links: Arc::new(links),
            metrics,
            machine: Machine::new(settings, rand::random::<f64>),
            leases,
            servers: watch::Sender::default(),
            attempt: None,
            running: JoinSet::new(),
            kept: HashMap::new(),
            replaceable: HashMap::new(),
            retiring: HashMap::new(),
            suspicions: mpsc::unbounded_channel(),
            clock: unix_now,
            closing: JoinSet::new(),
            started: Instant::now(),
        }
    }

    /// How the set stands, now and whenever that changes.
    pub fn servers(&self) -> watch::Receiver<Servers> {
        self.servers.subscribe()
    }

    /// Runs until `stop` falls, or until it has drained. When `drain` falls every server is asked for no new
    /// dials, and no stream is opened any more; connections go on.
    pub async fn run(mut self, drain: CancellationToken, stop: CancellationToken) -> RunEnd {
        self.started = Instant::now();
        let leases = *self.leases.borrow_and_update();
        self.machine.leases_counted(Duration::ZERO, leases);
        let mut leases_live = true;
        let mut looks = interval(LOOK_EVERY);
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
                () = stop.cancelled() => {
                    self.finish().await;
                    return RunEnd::Stopped;
                }
                () = drain.cancelled(), if !draining => self.drain(),
                opened = pending_attempt(&mut self.attempt) => self.opened(opened, &drain, &stop),
                Some(ended) = self.running.join_next_with_id() => self.ended(ended),
                Some(_) = self.closing.join_next() => {}
                changed = self.leases.changed(), if leases_live => match changed {
                    Ok(()) => self.leases_counted(),
                    Err(_) => leases_live = false,
                },
                Some((id, suspect)) = self.suspicions.1.recv() => self.suspected(id, suspect),
                _ = looks.tick() => self.renew(),
                () = at(due) => {}
            }
        }
    }

    fn suspected(&mut self, id: StreamId, suspect: bool) {
        let server_id = self.kept.values().find(|(kept, _)| *kept == id).map(|(_, server_id)| server_id);
        match server_id.map(|server_id| Peer(server_id)) {
            Some(server_id) if suspect => {
                tracing::warn!(serverID = %server_id, "keepalive ping unanswered, opening another stream to the server");
            }
            Some(server_id) => tracing::info!(serverID = %server_id, "keepalive ping answered again"),
            None => {}
        }
        self.machine.suspect(self.now(), id, suspect);
    }

    /// Looks whether a stream's certificate is about to expire.
    fn renew(&mut self) {
        let (now, newest) = ((self.clock)(), self.connector.own_validity());
        let due = |entry: &Replaceable| entry.shown.is_some_and(|shown| shown.is_due(now, newest));
        let aged: Vec<StreamId> =
            self.replaceable.iter().filter(|(_, entry)| due(entry)).map(|(id, _)| *id).collect();
        for id in aged {
            if self.machine.aged(self.now(), id) {
                tracing::info!("the certificate shown to a server is about to expire, showing the newer one");
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn publish(&self) {
        let servers = Servers { known: self.machine.server_count(), open: self.machine.open_count() };
        self.metrics.set_known_servers(servers.known);
        self.servers.send_if_modified(|current| std::mem::replace(current, servers) != servers);
    }

    /// Starts what is due; returns when to look again.
    fn step(&mut self) -> Option<Instant> {
        match self.machine.poll(self.now()) {
            Step::Wait => None,
            Step::WaitUntil(due) => Some(self.started + due),
            Step::Connect => {
                let connector = Arc::clone(&self.connector);
                self.attempt = Some(Box::pin(async move { connector.connect().await }));
                None
            }
        }
    }

    fn opened(
        &mut self,
        opened: Result<ConnectedStream<C::Stream>, ConnectError>,
        drain: &CancellationToken,
        stop: &CancellationToken,
    ) {
        let now = self.now();
        let ConnectedStream { server_id, server_count, shown, stream } = match opened {
            Ok(connected) => connected,
            Err(error) => {
                let pause = self.machine.failed(now);
                let text = error.to_string();
                tracing::error!(err = %Peer(&text), retry_in = ?pause, "cannot connect once");
                return;
            }
        };
        let shown = shown.map(|validity| Shown::new(validity, rand::random::<f64>()));
        match self.machine.connected(now, &server_id, server_count) {
            Verdict::Replace(id, old) => {
                tracing::info!(serverID = %Peer(&server_id), "another stream takes a stream's place");
                // Counted until the other one is.
                let replaced = self.replaceable.remove(&old);
                self.keep(id, server_id, stream, shown, drain, stop);
                if let Some(replaced) = replaced {
                    self.retiring.insert(old, self.metrics.retiring_connections.enter());
                    replaced.retire.cancel();
                    replaced.drain.cancel();
                }
            }
            Verdict::Keep(id) => {
                tracing::info!(
                    target: "v2",
                    serverID = %Peer(&server_id),
                    newServerCount = server_count,
                    open = self.machine.open_count(),
                    "successfully connected to new proxy server"
                );
                self.keep(id, server_id, stream, shown, drain, stop);
            }
            Verdict::Duplicate | Verdict::Unwanted => {
                tracing::debug!(
                    target: "v4", serverID = %Peer(&server_id), "duplicate server connection attempt"
                );
                let connector = Arc::clone(&self.connector);
                self.closing.spawn(async move { connector.close(stream).await });
            }
        }
    }

    fn keep(
        &mut self,
        id: StreamId,
        server_id: Arc<str>,
        stream: C::Stream,
        shown: Option<Shown>,
        drain: &CancellationToken,
        stop: &CancellationToken,
    ) {
        let (links, name) = (Arc::clone(&self.links), Arc::clone(&server_id));
        let (drain, retire) = (drain.child_token(), CancellationToken::new());
        let open = self.metrics.server_connections.enter();
        let entry = Replaceable { drain: drain.clone(), retire: retire.clone(), shown, _open: open };
        self.replaceable.insert(id, entry);
        let suspicions = self.suspicions.0.clone();
        let life = Life {
            drain,
            retire,
            stop: stop.clone(),
            // Nobody listens once the set has ended.
            suspect: Arc::new(move |suspect| {
                let _ = suspicions.send((id, suspect));
            }),
        };
        let task = self.running.spawn(async move { links.run(name, stream, life).await });
        self.kept.insert(task.id(), (id, server_id));
    }

    fn ended(&mut self, ended: Result<(Id, LinkEnd), JoinError>) {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, _)| *task);
        // Every task of `running` is in `kept`, and only this takes it out.
        let Some((id, server_id)) = self.kept.remove(&task) else { return };
        self.replaceable.remove(&id);
        self.retiring.remove(&id);
        self.machine.lost(self.now(), id);
        let server_id = Peer(&server_id);
        match ended {
            Ok((_, LinkEnd::Finished)) => {
                tracing::info!(target: "v2", serverID = %server_id, "received EOF, exit");
            }
            Ok((_, LinkEnd::Stopped)) => {
                tracing::info!(target: "v2", serverID = %server_id, "stop agent client.");
            }
            Ok((_, LinkEnd::Failed(error))) => {
                let error = error.to_string();
                tracing::error!(err = %Peer(&error), serverID = %server_id, "could not read stream");
            }
            Err(error) => tracing::error!(err = %error, serverID = %server_id, "the stream's task failed"),
        }
        tracing::info!(serverID = %server_id, "Removing client used for server connection");
    }

    fn leases_counted(&mut self) {
        let leases = *self.leases.borrow_and_update();
        self.machine.leases_counted(self.now(), leases);
        let source = if leases.is_some() { "fromLeases" } else { "fromResponses" };
        let count = self.machine.server_count();
        tracing::debug!(target: "v4", serverCount = count, source, "Determined server count");
    }

    fn drain(&mut self) {
        tracing::info!(streams = self.running.len(), "draining: no more connections to servers are made");
        self.attempt = None;
        self.machine.drain();
    }

    /// Streams were told to stop, or there are none; what does not end in time is cut off by being dropped.
    async fn finish(&mut self) {
        self.attempt = None;
        let all = async {
            while let Some(ended) = self.running.join_next_with_id().await {
                self.ended(ended);
            }
            while self.closing.join_next().await.is_some() {}
        };
        if timeout(STOP_WITHIN, all).await.is_err() {
            tracing::warn!(streams = self.running.len(), "streams did not end in time and are cut off");
        }
        self.publish();
    }
}

/// The try under way, for ever pending without one. Taken out once it has ended.
async fn pending_attempt<S>(attempt: &mut Option<Attempt<S>>) -> Result<ConnectedStream<S>, ConnectError> {
    match attempt {
        Some(future) => {
            let outcome = future.await;
            *attempt = None;
            outcome
        }
        None => std::future::pending().await,
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
