//! `AgentService/Connect`: an agent's stream is a backend while it is open.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use driver::{Bounds, Driver, LinkEnd, SharedTraffic};
use flags::GoDuration;
use grpc::capabilities::{self, CAPABILITIES, Capabilities};
use grpc::live_streams::LiveStreams;
use grpc::{Code, Keepalive, Request, WireStream};
use http::{HeaderMap, HeaderValue};
use mux::{Negotiated, Server};
use serve::logs::Peer;
use serve::metrics::LiveGuard;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::connect_metadata::ConnectMetadata;
use super::gate::AgentGate;
use super::handle::{Commands, LinkFacts, LinkHandle};
use super::handler::ServerLinkHandler;
use super::meter::LinkMeter;
use super::observer::{Observer, steer};
use super::slot::AgentSlot;
use crate::auth::{Admitted, AgentPeer, Owned, Recheck};
use crate::backends::{Backend, BackendManager, LinkId, ReadinessPolicy};
use crate::metrics::{Metrics, PeerKind, Port, RefusedConnect, ServiceMethod};
use crate::server_count::ServerCount;

/// Time for clients to read the bytes that have arrived when the server stops with open connections. These connections are cut
/// anyway, so the server does not wait for a client's own end as it does after an orderly end.
const LAST_BYTES: Duration = Duration::from_millis(50);

/// How long two agents have one agent id until they are logged. A Go agent's duplicate connection ends at once.
const SHARED_ID_AFTER: Duration = Duration::from_secs(10);

/// The path of the agents' method.
pub(crate) const AGENT_PATH: &str = "/AgentService/Connect";

/// Serves agent streams.
pub struct AgentService {
    backends: BackendManager<LinkHandle>,
    metrics: Metrics,
    /// Response metadata of every stream: `serverID` and `serverCount`.
    greeting: HeaderMap,
    server_count: ServerCount,
    server_id: Arc<str>,
    flow: LinkFlow,
    lifetimes: Lifetimes,
    gate: AgentGate,
}

/// The settings of agent streams.
#[derive(Debug, Clone)]
pub struct LinkFlow {
    /// The pings to agents.
    pub keepalive: Keepalive,
    /// The capabilities that the server offers to agents.
    pub capabilities: Capabilities,
    /// Memory limits of each stream, and of all streams together.
    pub bounds: Bounds,
}

/// The tasks that shutdown waits for, and the tokens of its phases.
#[derive(Debug, Clone, Default)]
pub struct Lifetimes {
    /// Pending dials and open connections, each until its client's socket or stream is closed.
    pub connections: TaskTracker,
    /// Canceling this ends every agent stream with status OK, without GOAWAY.
    pub end_streams: CancellationToken,
    /// Canceled when a shutdown begins.
    pub draining: CancellationToken,
}

impl AgentService {
    /// A service for the agents of this server.
    ///
    /// # Errors
    /// The server id cannot be sent as metadata (it must be printable ASCII).
    pub fn new(
        backends: BackendManager<LinkHandle>,
        metrics: Metrics,
        server_id: &str,
        server_count: ServerCount,
        flow: LinkFlow,
        lifetimes: Lifetimes,
        gate: AgentGate,
    ) -> Result<Self, http::header::InvalidHeaderValue> {
        let mut greeting = HeaderMap::new();
        greeting.insert("serverid", HeaderValue::from_str(server_id)?);
        let server_id = server_id.into();
        Ok(AgentService { backends, metrics, greeting, server_count, server_id, flow, lifetimes, gate })
    }

    /// Serves one stream to its end. The memory of the stream's start is freed before the stream is served.
    pub(super) fn serve(
        self: Arc<Self>,
        request: Request,
        peer: Arc<AgentPeer>,
        slot: Arc<AgentSlot>,
    ) -> impl Future<Output = ()> + Send {
        let start = Box::pin(Arc::clone(&self).start(request, Arc::clone(&peer), slot));
        async move {
            let Some(mut started) = start.await else { return };
            self.run(&mut started, &peer).await;
        }
    }

    /// Starts a stream; `None` if it was refused.
    async fn start(
        self: Arc<Self>,
        mut request: Request,
        peer: Arc<AgentPeer>,
        slot: Arc<AgentSlot>,
    ) -> Option<Started> {
        let open = self.metrics.grpc_connections.enter(ServiceMethod::Connect);
        let admitted = self.admit(&mut request, &peer).await;
        let link = match admitted.and_then(|agent| self.register(agent, &request, &peer, &slot, open)) {
            Ok(link) => link,
            Err(refused) => {
                self.refuse(request, &peer, &refused);
                return None;
            }
        };
        let stream = self.greet(request, &link, &peer)?;
        self.probe_siblings(&link);
        self.warn_of_missing_identifiers();
        self.warn_of_empty_zone();
        Some(self.drive(link, stream))
    }

    /// Authenticates an agent before it reads the rest of the metadata, and checks the agent's claims.
    async fn admit(&self, request: &mut Request, peer: &AgentPeer) -> Result<Agent, RefusedStream> {
        if request.path != AGENT_PATH {
            let text = "unknown service or method, agents use /AgentService/Connect";
            return Err(RefusedStream::new(RefusedConnect::Path, Code::Unimplemented, text));
        }
        let admitted = self.gate.auth.admit(&mut request.metadata, peer).await;
        let admitted = admitted.map_err(|refused| {
            RefusedStream::new(RefusedConnect::Authentication, refused.code, refused.text)
        })?;
        // Go's server answers with `Unknown` and its error text.
        let metadata = ConnectMetadata::read(&request.metadata)
            .map_err(|text| RefusedStream::new(RefusedConnect::Metadata, Code::Unknown, text))?;
        let owned = self.gate.judge(&admitted.identity, &metadata, peer, &self.metrics);
        let owned = owned
            .map_err(|text| RefusedStream::new(RefusedConnect::Identity, Code::PermissionDenied, text))?;
        tracing::info!(
            target: "v2", agentID = %Peer(&metadata.agent_id), serverID = %self.server_id, %peer,
            "Connect request from agent"
        );
        Ok((metadata, admitted, owned))
    }

    /// Takes a slot of admitted agents, and then makes the stream a backend.
    fn register(
        &self,
        (metadata, admitted, owned): Agent,
        request: &Request,
        peer: &AgentPeer,
        slot: &AgentSlot,
        open: LiveGuard,
    ) -> Result<AgentLink, RefusedStream> {
        let full = |reason, text: String| RefusedStream::new(reason, Code::ResourceExhausted, text);
        if !slot.admit() {
            let text = "the server's connection limit for agents is reached";
            return Err(full(RefusedConnect::AgentLimit, text.to_owned()));
        }
        let Admitted { identity, recheck } = admitted;
        let agent_id = metadata.agent_id;
        let offer = Capabilities::read(&request.metadata);
        let lanes = slot.has_room_for_lanes().then_some(capabilities::MAX_LANES);
        let answer = self.flow.capabilities.with_lanes(lanes).and(offer);
        let live = LiveStreams::read(&request.metadata);
        let (mut handle, commands) = LinkHandle::new();
        handle.address = peer.address.ip().to_canonical();
        handle.traces = answer.traces;
        handle.facts = Arc::new(LinkFacts {
            identity: if identity.is_vouched() { identity.to_string() } else { String::new() },
            party: Arc::clone(identity.key()),
            name: live.as_ref().map(|live| live.name),
            address: SocketAddr::new(handle.address, peer.address.port()).to_string(),
            version: version(&request.metadata),
            native: answer.pings,
            since: Some(serve::statusz::now()),
            keepalive: Some(Arc::clone(&request.keepalive)),
            traffic: SharedTraffic::default(),
        });
        let mut backend = Backend {
            agent_id: Arc::clone(&agent_id),
            identifiers: metadata.identifiers,
            process: offer.lanes,
            handle: handle.clone(),
        };
        let lane = self.backends.lanes_beside(&backend).iter().find_map(|lane| lane.counted.upgrade());
        let counted = lane.unwrap_or_else(|| Arc::new(open));
        backend.handle.counted = Arc::downgrade(&counted);
        let registration = self.backends.register(backend).map_err(|error| {
            full(RefusedConnect::Registration, format!("agent ID {}: {error}", Peer(&agent_id)))
        })?;
        let (id, traffic) = (registration.id, handle.facts.traffic.clone());
        let meter = LinkMeter::new(&self.metrics, Arc::clone(&agent_id), &registration, traffic);
        let observer = Observer {
            backends: self.backends.clone(),
            metrics: self.metrics.clone(),
            keepalive: Arc::clone(&request.keepalive),
            lane: registration.lane.clone(),
            registration: Some(registration),
            stuck: false,
            owned,
            agent_id,
            logs: self.gate.toggles.clone(),
        };
        let negotiated = answer.negotiated(offer);
        Ok(AgentLink { id, recheck, live, answer, negotiated, handle, commands, observer, meter, counted })
    }

    /// Refuses a Connect, counts and logs it, and remembers it for the status.
    fn refuse(
        &self,
        request: Request,
        peer: &AgentPeer,
        RefusedStream { reason, code, text }: &RefusedStream,
    ) {
        self.metrics.refused_connects.count(*reason);
        let ip = peer.address.ip();
        // The slot has remembered that it is refused.
        if *reason != RefusedConnect::AgentLimit {
            self.metrics.journal.refused(Port::Agent.listener(), ip, text);
        }
        if *reason == RefusedConnect::Authentication && *code == Code::PermissionDenied {
            self.metrics.name_refusals.count(PeerKind::Agent);
        }
        if let Some(suppressed) = self.gate.refusals.due(reason.name(), ip) {
            let err = Peer(text);
            match reason {
                RefusedConnect::Path => tracing::warn!(
                    %peer, path = %Peer(&request.path), suppressed,
                    "a client that is no agent came to --agent-port; frontends have their own"
                ),
                RefusedConnect::Authentication => {
                    tracing::error!(%err, %peer, suppressed, "Client authentication failed");
                }
                RefusedConnect::Metadata => tracing::error!(%err, %peer, suppressed, "Invalid backend"),
                RefusedConnect::Registration => tracing::error!(%err, %peer, suppressed, "agent refused"),
                // The gate and the slot have logged it.
                RefusedConnect::Identity | RefusedConnect::AgentLimit => {}
            }
        }
        request.refuse(*code, text);
    }

    /// Accepts the stream; `None` if it is lost.
    fn greet(&self, request: Request, link: &AgentLink, peer: &AgentPeer) -> Option<WireStream> {
        let agent_id = Peer(&link.observer.agent_id);
        let mut greeting = self.greeting.clone();
        greeting.insert("servercount", HeaderValue::from(self.server_count.get()));
        greeting.extend(link.answer.header().map(|value| (CAPABILITIES, value)));
        request.keepalive.set_keepalive(self.flow.keepalive);
        request.keepalive.measure(capabilities::RTT_PROBES);
        match request.accept(greeting) {
            Ok(stream) => {
                tracing::info!(
                    target: "v2", agentID = %agent_id, serverID = %self.server_id, %peer,
                    identity = %Peer(&link.handle.facts.identity), "Agent connected"
                );
                Some(stream)
            }
            Err(error) => {
                if let Some(suppressed) = self.gate.refusals.due("greeting", peer.address.ip()) {
                    tracing::error!(
                        err = %error, agentID = %agent_id, %peer, suppressed,
                        "Failed to send server count back to agent"
                    );
                }
                None
            }
        }
    }

    /// The agent may have reconnected because another stream of its id is half-open. A lane that lives answers the ping.
    fn probe_siblings(&self, link: &AgentLink) {
        for sibling in self.backends.siblings(link.id) {
            if !link.live.as_ref().is_some_and(|live| sibling.end_lost(&link.handle.facts.party, live)) {
                sibling.supersede();
            }
        }
    }

    /// The driver of an accepted stream, and the task that watches the stream.
    fn drive(self: &Arc<Self>, link: AgentLink, stream: WireStream) -> Started {
        let AgentLink { handle, commands, observer, meter, .. } = link;
        let agent_id = Arc::clone(&observer.agent_id);
        let watch = Arc::clone(self).watch(handle.clone(), link.id, Arc::clone(&agent_id));
        let servers = link.answer.pings.then(|| self.server_count.clone());
        let handler = ServerLinkHandler::new(commands, &handle, servers, observer);
        let driver =
            Driver::<Server, _, _, _>::new(&self.flow.bounds, link.negotiated, stream, handler, meter);
        Started {
            driver: Box::pin(driver),
            handle,
            recheck: link.recheck,
            agent_id,
            began: Instant::now(),
            _counted: link.counted,
            _watch: AbortOnDropHandle::new(tokio::spawn(watch)),
        }
    }

    /// Logs, once a minute, that the agents do not serve the first strategy.
    fn warn_of_missing_identifiers(&self) {
        let lacking = self.backends.lacking(ReadinessPolicy::FirstStrategy);
        let Some(strategy) = lacking.first().map(|strategy| strategy.name()) else { return };
        let Some(suppressed) = self.gate.refusals.due_for("identifiers", ()) else { return };
        let agents = self.backends.agent_count();
        tracing::warn!(
            agents,
            strategy,
            suppressed,
            "no connected agent has --agent-identifiers for the first of --proxy-strategies"
        );
    }

    /// Logs, once a minute, that no agent is in the zone of `--prefer-zone`.
    fn warn_of_empty_zone(&self) {
        let Some(zone) = self.backends.empty_zone() else { return };
        if let Some(suppressed) = self.gate.refusals.due_for("zone", ()) {
            let agents = self.backends.agent_count();
            tracing::warn!(%zone, agents, suppressed, "no connected agent is in the zone of --prefer-zone");
        }
    }

    /// Follows the pings of a stream, and logs once if two agents seem to have one id. A duplicate connection has ended by then.
    async fn watch(self: Arc<Self>, handle: LinkHandle, link: LinkId, agent_id: Arc<str>) {
        let Some(keepalive) = &handle.facts.keepalive else { return };
        let shared_id = async {
            tokio::time::sleep(SHARED_ID_AFTER).await;
            let (address, id) = (handle.address, Peer(&agent_id));
            let Some(other) = rival_address(&self.backends.rivals(link), &handle) else { return };
            let Some(suppressed) = self.gate.refusals.due("shared id", address) else { return };
            let text = format!("agent id {id} is also used by an agent at {other}");
            let text = format!("{text} (both serve; give each its own --agent-id)");
            self.metrics.journal.refused(Port::Agent.listener(), address, &text);
            tracing::warn!(
                agentID = %id, %address, %other, suppressed,
                "two agents use one agent id: give each its own --agent-id"
            );
        };
        let (backends, metrics, logs) =
            (self.backends.clone(), self.metrics.clone(), self.gate.toggles.clone());
        let steered = steer(backends, metrics, link, keepalive.unresponsive(), Arc::clone(&agent_id), logs);
        tokio::join!(steered, shared_id);
    }

    /// Runs the driver in this task; at shutdown, or when the agent's token is refused, ends the stream in order.
    async fn run(&self, started: &mut Started, peer: &AgentPeer) {
        let Started { driver, handle, recheck, agent_id, began, .. } = started;
        let mut driver = unconstrained(driver);
        let refused = async {
            match recheck {
                Some(recheck) => recheck.refused().await,
                None => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            end = &mut driver => end,
            () = self.lifetimes.end_streams.cancelled() => {
                handle.finish();
                timeout(LAST_BYTES, driver).await.unwrap_or(LinkEnd::Stopped)
            }
            why = refused => {
                tracing::warn!(
                    agentID = %Peer(agent_id), why = %Peer(&why), "token refused, closing agent stream"
                );
                handle.finish();
                driver.await
            }
        };
        self.metrics.backend_duration.observe(began.elapsed());
        log_end(&end, agent_id, peer, began.elapsed());
    }
}

/// Why a Connect is refused.
struct RefusedStream {
    reason: RefusedConnect,
    code: Code,
    text: String,
}

impl RefusedStream {
    fn new(reason: RefusedConnect, code: Code, text: impl Into<String>) -> Self {
        Self { reason, code, text: text.into() }
    }
}

/// An authenticated agent, and its share in the agent id.
type Agent = (ConnectMetadata, Admitted, Option<Owned>);

/// An agent stream that is a backend and not accepted yet.
struct AgentLink {
    id: LinkId,
    recheck: Option<Recheck>,
    /// The agent's other streams.
    live: Option<LiveStreams>,
    answer: Capabilities,
    negotiated: Negotiated,
    handle: LinkHandle,
    commands: Commands,
    observer: Observer,
    meter: LinkMeter,
    /// Counts the lanes of the agent.
    counted: Arc<LiveGuard>,
}

/// An accepted agent stream.
struct Started {
    /// Boxed, because a task keeps several copies of what is moved into it.
    driver: Pin<Box<dyn Future<Output = LinkEnd> + Send>>,
    handle: LinkHandle,
    recheck: Option<Recheck>,
    agent_id: Arc<str>,
    began: Instant,
    /// Counts the lanes of the agent.
    _counted: Arc<LiveGuard>,
    _watch: AbortOnDropHandle<()>,
}

/// The agent's program and version: `konnectivity/0.36.0`, or `grpc-go/1.72.0` of a Go agent.
fn version(metadata: &HeaderMap) -> String {
    let text = metadata.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
    Peer(text.unwrap_or_default()).to_string()
}

/// The address of another agent among streams that are no lanes of `own`. Without different addresses only native agents, which
/// name their process, are known to be different.
fn rival_address(rivals: &[LinkHandle], own: &LinkHandle) -> Option<IpAddr> {
    let is_other =
        |rival: &&LinkHandle| rival.address != own.address || rival.facts.native && own.facts.native;
    rivals.iter().find(is_other).map(|rival| rival.address)
}

/// Logs the end of a stream in Go's words. As in Go, a lost connection is logged as an agent that left: an agent closes its
/// connection this way when it finds that it already has a stream to this server.
fn log_end(end: &LinkEnd, agent_id: &str, peer: &AgentPeer, duration: Duration) {
    let (agent_id, duration) = (Peer(agent_id), GoDuration::from(duration));
    match end {
        LinkEnd::Finished => {
            tracing::info!(target: "v2", agentID = %agent_id, %peer, %duration, "Receive stream from agent is closed");
        }
        LinkEnd::Stopped => {
            tracing::info!(target: "v2", agentID = %agent_id, %peer, %duration, "Stream read from agent cancelled");
        }
        LinkEnd::Failed(error) if error.code == Code::Canceled => {
            tracing::info!(
                target: "v2", agentID = %agent_id, %peer, %duration, err = %error, "Stream read from agent cancelled"
            );
        }
        LinkEnd::Failed(error) => {
            tracing::error!(err = %error, agentID = %agent_id, %peer, %duration, "Receive stream from agent read failure");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_agent_with_the_same_id_is_reported() {
        let at = |address: &str, native| {
            let (mut handle, _) = LinkHandle::new();
            handle.address = address.parse().unwrap();
            handle.facts = Arc::new(LinkFacts { native, ..LinkFacts::default() });
            handle
        };
        let (go, native) = (at("10.0.0.1", false), at("10.0.0.1", true));
        let mut rivals = vec![at("10.0.0.1", false)];
        assert_eq!(rival_address(&rivals, &go), None, "the duplicate connection of a Go agent");
        assert_eq!(rival_address(std::slice::from_ref(&native), &native), Some(native.address));
        rivals.push(at("10.0.0.2", false));
        assert_eq!(rival_address(&rivals, &go), Some("10.0.0.2".parse().unwrap()));
    }
}
