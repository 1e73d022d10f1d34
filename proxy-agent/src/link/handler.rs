//! The agent's part of a stream's driver: it dials the endpoints that the server requests.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use driver::{Conns, LinkEnd, LinkHandler};
use flags::GoDuration;
use futures_util::FutureExt;
use mux::{Agent, ConnKey, ConnectId, Time, TraceContext};
use serve::logs::Peer;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::AbortOnDropHandle;

use super::Links;
use super::control::{LinkControl, ServerState};
use super::in_flight::{InFlight, InFlightGuard};
use super::report::{OpenGuard, ReportRequest, ReportRequests};
use crate::endpoint::{ConnContext, ConnInfo, DialError, Endpoint, Failure, Resolve};
use crate::metrics::DialFailureReason;

/// A finished dial, and how long its lookup took.
type Dialed = (ConnKey, Result<Endpoint, DialError>, Option<Duration>);

/// A pending dial. Dropping it aborts the dialing task.
struct Dialing {
    /// `None` if a limit refuses the dial.
    _task: Option<AbortOnDropHandle<()>>,
    /// The server's dial id.
    id: i64,
    address: String,
    began: Instant,
    /// Set if the trace is recorded.
    trace_id: Option<String>,
    /// Passed on to the connection.
    guard: InFlightGuard,
}

/// Resolves when a retiring stream may end.
type Done = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server count that a stream receives sooner after the last one is ignored.
const MIN_COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The error of a dial that is refused because memory is short.
const MEMORY_PRESSURE: &str =
    "out of memory for connections: payload that waits for slow readers fills --memory-limit";

/// The server at the other end of a stream.
pub(crate) struct Server {
    /// The server's id.
    pub(crate) id: Arc<str>,
    /// The server is a native peer, which itself holds back the first bytes of endpoints.
    pub(crate) native: bool,
    /// Connect ids of this stream are above this one.
    pub(crate) beyond: ConnectId,
}

/// The agent's state of one stream.
pub(crate) struct AgentLinkHandler<R> {
    links: Arc<Links<R>>,
    server: Server,
    dials: HashMap<ConnKey, Dialing>,
    /// Boxed, because the channel of an idle stream has room for many.
    results: mpsc::UnboundedReceiver<Box<Dialed>>,
    report: mpsc::UnboundedSender<Box<Dialed>>,
    in_flight: InFlight,
    drain: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    control: LinkControl,
    /// Set after a drain: resolves once this stream retires and is idle.
    done: Option<Done>,
    /// Lists the stream in the status until it ends.
    open: Option<OpenGuard>,
    /// Questions for the status.
    reports: ReportRequests,
    /// When the server told the number of servers.
    counted: Option<Instant>,
}

impl<R: Resolve> AgentLinkHandler<R> {
    pub(crate) fn new(
        links: Arc<Links<R>>,
        server: Server,
        control: LinkControl,
        (open, reports): (OpenGuard, ReportRequests),
    ) -> Self {
        // Never holds more results than the link has pending dials.
        let (report, results) = mpsc::unbounded_channel();
        AgentLinkHandler {
            in_flight: links.in_flight.part(),
            links,
            server,
            dials: HashMap::new(),
            results,
            report,
            drain: Some(Box::pin(control.drain.clone().cancelled_owned())),
            stop: Box::pin(control.stop.clone().cancelled_owned()),
            control,
            done: None,
            counted: None,
            open: Some(open),
            reports,
        }
    }

    fn dialed(&mut self, conns: &mut Conns<Agent>, (key, outcome, lookup): Dialed) {
        // Without an entry the dial was canceled while its result was in the channel: dropping the result closes the socket.
        let Some(dialing) = self.dials.remove(&key) else { return };
        let (elapsed, metrics) = (dialing.began.elapsed(), &self.links.metrics);
        conns.link().number_beyond(self.server.beyond);
        let mut info = ConnInfo {
            server_id: Arc::clone(&self.server.id),
            dial_id: dialing.id,
            connect_id: 0,
            address: dialing.address,
            lookup,
            dial: elapsed,
            trace_id: dialing.trace_id,
            records: self.links.records.clone(),
        };
        match outcome {
            Ok(endpoint) => {
                metrics.dial_duration.observe(elapsed);
                if !conns.link().dialed(key, Ok(())) {
                    return;
                }
                info.connect_id = conns.link().connect_id(key).map_or(0, |id| id.0);
                let open = (metrics.endpoint_connections.enter(), dialing.guard);
                conns.open(key);
                conns.set_target(key, &info.address);
                metrics.journal.dialed();
                let context = ConnContext::new(endpoint, info, open);
                let context = if self.server.native { context } else { context.hold_first_byte() };
                conns.attach(key, Box::new(context));
            }
            Err(error) => {
                let reason =
                    if error.is_timeout() { DialFailureReason::Timeout } else { DialFailureReason::Unknown };
                metrics.dial_failures.count(reason);
                let text = error.to_string();
                let name = reason.name();
                metrics.journal.failed(&info.address, &self.server.id, name, &text, elapsed);
                tracing::info!(
                    error = %Peer(&text),
                    dialID = dialing.id,
                    dialAddress = %Peer(&info.address),
                    serverID = %Peer(&self.server.id),
                    duration = %GoDuration::from(elapsed),
                    "error dialing backend"
                );
                info.record(None, (0, 0), reason.name(), &text);
                conns.link().dialed(key, Err(text));
            }
        }
    }
}

impl<R: Resolve> LinkHandler<Agent> for AgentLinkHandler<R> {
    /// Only a server probes.
    fn probe_wanted(&mut self, _conns: &mut Conns<Agent>) {}

    fn poll_commands(&mut self, cx: &mut Context<'_>, conns: &mut Conns<Agent>, now: Time) -> Poll<()> {
        while let Poll::Ready(Some(dialed)) = self.results.poll_recv(cx) {
            self.dialed(conns, *dialed);
        }
        while let Poll::Ready(Some(request)) = self.reports.poll_recv(cx) {
            let ReportRequest { skip, limit, reply } = *request;
            let _ = reply.send(conns.live(now, skip, limit));
        }
        if self.drain.as_mut().is_some_and(|drain| drain.as_mut().poll(cx).is_ready()) {
            self.drain = None;
            tracing::info!(
                target: "v2", serverID = %Peer(&self.server.id), agentID = %self.links.agent_id,
                "drain agent client"
            );
            conns.link().drain();
            let (retire, in_flight) = (self.control.retire.clone(), self.in_flight.clone());
            self.done = Some(Box::pin(async move {
                retire.cancelled().await;
                in_flight.idle().await;
            }));
        }
        if self.done.as_mut().is_some_and(|done| done.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(());
        }
        self.stop.as_mut().poll(cx)
    }

    fn dial(
        &mut self,
        conns: &mut Conns<Agent>,
        key: ConnKey,
        (protocol, address): (String, String),
        trace: Option<TraceContext>,
    ) {
        // Only in debug builds: tests see what a panic ends.
        debug_assert_ne!(address, "panic-agent.invalid:1", "injected by a test");
        let id = conns.link().dial_id(key).map_or(0, |id| id.0);
        tracing::debug!(
            serverID = %Peer(&self.server.id), agentID = %self.links.agent_id, dialID = id,
            dialAddress = %Peer(&address), "Received DIAL_REQ"
        );
        let (began, guard) = (Instant::now(), self.in_flight.enter());
        let no_memory = || self.links.bounds.memory.should_reject().then(|| MEMORY_PRESSURE.to_owned());
        if let Some(text) = mux::oversized_target(&protocol, &address).or_else(no_memory) {
            self.dials.insert(key, Dialing { _task: None, id, address, began, trace_id: None, guard });
            return self.dialed(conns, (key, Err(DialError::bare(Failure::Limit(text))), None));
        }
        let mut span = self.links.tracer.span("dial endpoint", trace);
        span.set("server.address", &address);
        span.set("konnectivity.server.id", &self.server.id);
        let trace_id = span.trace_id();
        let (dialer, target) = (Arc::clone(&self.links.dialer), address.clone());
        let report = self.report.clone();
        let dial = async move {
            let mut lookup = None;
            let outcome = dialer.dial_timed(&protocol, &target, &mut lookup).await;
            let connect = began + lookup.unwrap_or_default();
            if lookup.is_some() {
                span.stage("lookup", began, connect);
            }
            span.stage("connect", connect, Instant::now());
            span.end(outcome.as_ref().map(drop).map_err(|error| error as &dyn std::fmt::Display));
            (key, outcome, lookup)
        };
        let task = tokio::spawn(async move {
            let dialed = AssertUnwindSafe(dial).catch_unwind().await;
            // Sending fails only if the stream's task has ended: dropping the result closes the socket.
            let _ =
                report.send(Box::new(dialed.unwrap_or((key, Err(DialError::bare(Failure::Panicked)), None))));
        });
        let _task = Some(AbortOnDropHandle::new(task));
        self.dials.insert(key, Dialing { _task, id, address, began, trace_id, guard });
    }

    fn dial_canceled(&mut self, key: ConnKey) {
        self.dials.remove(&key);
    }

    fn server_count(&mut self, servers: u32) {
        if self.server.native && self.counted.is_none_or(|counted| counted.elapsed() >= MIN_COUNT_INTERVAL) {
            self.counted = Some(Instant::now());
            (self.control.observer)(ServerState::Servers(servers as usize));
        }
    }

    /// The set opens another stream at once: an endpoint may take the last bytes of this one for a minute.
    fn lost(&mut self, end: &LinkEnd, _connections: usize) {
        self.open = None;
        if *end != LinkEnd::Stopped {
            (self.control.observer)(ServerState::Lost(end.clone()));
        }
    }
}
