//! `AgentService/Connect`: an agent's stream is a backend while it is open.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use driver::{Bounds, Driver, LinkEnd, SharedTraffic};
use flags::GoDuration;
use grpc::capabilities::{self, CAPABILITIES, Capabilities};
use grpc::live_streams::LiveStreams;
use grpc::{Code, Keepalive, Request};
use http::{HeaderMap, HeaderValue};
use mux::Server;
use serve::logs::Peer;
use serve::metrics::LiveGuard;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::connect_metadata::ConnectMetadata;
use super::gate::AgentGate;
use super::handle::{LinkFacts, LinkHandle};
use super::handler::ServerLinkHandler;
use super::meter::LinkMeter;
use super::observer::{Observer, steer};
use super::slot::AgentSlot;
use crate::auth::{Admitted, AgentPeer, Identity, Owned, Recheck};
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
            if let Some(started) = start.await {
                self.run(started, &peer).await;
            }
        }
    }

    /// Starts a stream; `None` if it was refused. Authenticates the agent before it reads the rest of the metadata.
    async fn start(
        self: Arc<Self>,
        mut request: Request,
        peer: Arc<AgentPeer>,
        slot: Arc<AgentSlot>,
    ) -> Option<Started> {
        let open = self.metrics.grpc_connections.enter(ServiceMethod::Connect);
        if request.path != AGENT_PATH {
            if let Some(suppressed) = self.log_due("path", &peer) {
                let path = Peer(&request.path);
                tracing::warn!(
                    %peer, %path, suppressed, "a client that is no agent came to --agent-port; frontends have their own"
                );
            }
            let text = "unknown service or method, agents use /AgentService/Connect";
            return self.refuse(request, &peer, RefusedConnect::Path, Code::Unimplemented, text);
        }
        let Admitted { identity, recheck } = match self.gate.auth.admit(&mut request.metadata, &peer).await {
            Ok(admitted) => admitted,
            Err(refused) => {
                if refused.code == Code::PermissionDenied {
                    self.metrics.name_refusals.count(PeerKind::Agent);
                }
                if let Some(suppressed) = self.log_due("authentication", &peer) {
                    let err = Peer(&refused.text);
                    tracing::error!(%err, %peer, suppressed, "Client authentication failed");
                }
                let reason = RefusedConnect::Authentication;
                return self.refuse(request, &peer, reason, refused.code, &refused.text);
            }
        };
        let metadata = match ConnectMetadata::read(&request.metadata) {
            Ok(metadata) => metadata,
            Err(error) => {
                let text = error.to_string();
                if let Some(suppressed) = self.log_due("metadata", &peer) {
                    tracing::error!(err = %Peer(&text), %peer, suppressed, "Invalid backend");
                }
                // Go's server answers with `Unknown` and its error text.
                return self.refuse(request, &peer, RefusedConnect::Metadata, Code::Unknown, &text);
            }
        };
        let owned = match self.gate.judge(&identity, &metadata, &peer, &self.metrics) {
            Ok(owned) => owned,
            Err(text) => {
                return self.refuse(request, &peer, RefusedConnect::Identity, Code::PermissionDenied, &text);
            }
        };
        let bound = Bound { identity, recheck, owned, open };
        self.connect(request, metadata, bound, &peer, &slot)
    }

    /// Whether another log line about this cause and peer is due; returns the number of suppressed lines.
    fn log_due(&self, cause: &'static str, peer: &AgentPeer) -> Option<u64> {
        self.gate.refusals.due(cause, peer.address.ip())
    }

    /// Refuses a Connect, counts it, and remembers it for the status. Returns `None`.
    fn refuse(
        &self,
        request: Request,
        peer: &AgentPeer,
        reason: RefusedConnect,
        code: Code,
        text: &str,
    ) -> Option<Started> {
        self.metrics.refused_connects.count(reason);
        self.metrics.journal.refused(Port::Agent.listener(), peer.address.ip(), text);
        request.refuse(code, text);
        None
    }

    fn connect(
        self: Arc<Self>,
        request: Request,
        metadata: ConnectMetadata,
        bound: Bound,
        peer: &AgentPeer,
        slot: &AgentSlot,
    ) -> Option<Started> {
        let agent_id = Arc::clone(&metadata.agent_id);
        tracing::info!(
            target: "v2", agentID = %Peer(&agent_id), serverID = %self.server_id, %peer,
            "Connect request from agent"
        );
        // Before the agent can be chosen for a dial.
        if !slot.admit() {
            self.metrics.refused_connects.count(RefusedConnect::AgentLimit);
            request.refuse(Code::ResourceExhausted, "the server's connection limit for agents is reached");
            return None;
        }
        let (mut handle, commands) = LinkHandle::new();
        handle.address = Some(peer.address.ip().to_canonical());
        let offer = Capabilities::read(&request.metadata);
        let lanes = slot.has_room_for_lanes().then_some(capabilities::MAX_LANES);
        let answer = self.flow.capabilities.with_lanes(lanes).and(offer);
        handle.traces = answer.traces;
        let (party, live) = (Arc::clone(bound.identity.key()), LiveStreams::read(&request.metadata));
        let vouched = bound.identity.is_vouched();
        handle.facts = Arc::new(LinkFacts {
            identity: if vouched { bound.identity.to_string() } else { String::new() },
            party: Arc::clone(&party),
            name: live.as_ref().map(|live| live.name),
            address: SocketAddr::new(peer.address.ip().to_canonical(), peer.address.port()).to_string(),
            version: version(&request.metadata),
            native: answer.pings,
            since: Some(serve::statusz::now()),
            keepalive: Some(Arc::clone(&request.keepalive)),
            traffic: SharedTraffic::default(),
        });
        let mut backend = Backend {
            agent_id: metadata.agent_id,
            identifiers: metadata.identifiers,
            process: offer.lanes,
            handle: handle.clone(),
        };
        let lane = self.backends.lanes_beside(&backend).iter().find_map(|lane| lane.counted.upgrade());
        let counted = lane.unwrap_or_else(|| Arc::new(bound.open));
        backend.handle.counted = Arc::downgrade(&counted);
        let registration = match self.backends.register(backend) {
            Ok(registration) => registration,
            Err(error) => {
                if let Some(suppressed) = self.log_due("registration", peer) {
                    tracing::error!(err = %error, agentID = %Peer(&agent_id), %peer, suppressed, "agent refused");
                }
                let (reason, code) = (RefusedConnect::Registration, Code::ResourceExhausted);
                return self.refuse(request, peer, reason, code, &error.to_string());
            }
        };
        let keepalive = Arc::clone(&request.keepalive);
        let mut greeting = self.greeting.clone();
        greeting.insert("servercount", HeaderValue::from(self.server_count.get()));
        greeting.extend(answer.header().map(|value| (CAPABILITIES, value)));
        keepalive.set_keepalive(self.flow.keepalive);
        keepalive.measure(capabilities::RTT_PROBES);
        let stream = match request.accept(greeting) {
            Ok(stream) => stream,
            Err(error) => {
                if let Some(suppressed) = self.log_due("greeting", peer) {
                    tracing::error!(
                        err = %error, agentID = %Peer(&agent_id), %peer, suppressed,
                        "Failed to send server count back to agent"
                    );
                }
                return None;
            }
        };
        tracing::info!(
            target: "v2", agentID = %Peer(&agent_id), serverID = %self.server_id, %peer,
            identity = %Peer(&bound.identity.to_string()), "Agent connected"
        );
        // The agent may have reconnected because another stream of its id is half-open. A lane that lives answers the ping.
        for sibling in self.backends.siblings(registration.id()) {
            if !live.as_ref().is_some_and(|live| sibling.end_lost(&party, live)) {
                sibling.supersede();
            }
        }
        self.warn_of_missing_identifiers();
        self.warn_of_empty_zone();
        let began = Instant::now();
        let watch = tokio::spawn(steer(
            self.backends.clone(),
            self.metrics.clone(),
            registration.id(),
            keepalive.unresponsive(),
            Arc::clone(&agent_id),
            self.gate.toggles.clone(),
        ));
        let shared_id =
            Arc::clone(&self).watch_shared_id(handle.clone(), registration.id(), Arc::clone(&agent_id));
        let watches = [watch, tokio::spawn(shared_id)].map(AbortOnDropHandle::new);
        let meter =
            LinkMeter::new(&self.metrics, Arc::clone(&agent_id), &registration, handle.facts.traffic.clone());
        let observer = Observer {
            backends: self.backends.clone(),
            metrics: self.metrics.clone(),
            keepalive,
            lane: registration.lane().clone(),
            registration: Some(registration),
            stuck: false,
            owned: bound.owned,
            agent_id: Arc::clone(&agent_id),
            logs: self.gate.toggles.clone(),
        };
        let servers = answer.pings.then(|| self.server_count.clone());
        let handler = ServerLinkHandler::new(commands, &handle, servers, observer);
        let driver = Driver::<Server, _, _, _>::new(
            &self.flow.bounds,
            answer.negotiated(offer),
            stream,
            handler,
            meter,
        );
        Some(Started {
            driver: Box::pin(driver),
            handle,
            recheck: bound.recheck,
            agent_id,
            began,
            _counted: counted,
            _watches: watches,
        })
    }

    /// Logs, once a minute, that the agents do not serve the first strategy.
    fn warn_of_missing_identifiers(&self) {
        let lacking = self.backends.lacking(ReadinessPolicy::FirstStrategy);
        let Some(strategy) = lacking.first().map(|strategy| strategy.name()) else { return };
        let Some(suppressed) = self.gate.refusals.due("identifiers", Ipv4Addr::UNSPECIFIED.into()) else {
            return;
        };
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
        if let Some(suppressed) = self.gate.refusals.due("zone", Ipv4Addr::UNSPECIFIED.into()) {
            let agents = self.backends.agent_count();
            tracing::warn!(%zone, agents, suppressed, "no connected agent is in the zone of --prefer-zone");
        }
    }

    /// Logs that two agents seem to have one id. A duplicate connection has ended by then.
    async fn watch_shared_id(self: Arc<Self>, handle: LinkHandle, link: LinkId, agent_id: Arc<str>) {
        tokio::time::sleep(SHARED_ID_AFTER).await;
        let Some(address) = handle.address else { return };
        let Some(other) = rival_address(&self.backends.rivals(link), &handle) else { return };
        let Some(suppressed) = self.gate.refusals.due("shared id", address) else { return };
        let text = format!("agent id {} is also used by an agent at {other}", Peer(&agent_id));
        let text = format!("{text} (both serve; give each its own --agent-id)");
        self.metrics.journal.refused(Port::Agent.listener(), address, &text);
        tracing::warn!(
            agentID = %Peer(&agent_id), %address, %other, suppressed,
            "two agents use one agent id: give each its own --agent-id"
        );
    }

    /// Runs the driver in this task; at shutdown, or when the agent's token is refused, ends the stream in order.
    async fn run(&self, started: Started, peer: &AgentPeer) {
        let Started { driver, handle, recheck, agent_id, began, _counted, _watches } = started;
        let mut driver = unconstrained(driver);
        let refused = async {
            match &recheck {
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
                    agentID = %Peer(&agent_id), why = %Peer(&why), "token refused, closing agent stream"
                );
                handle.finish();
                driver.await
            }
        };
        self.metrics.backend_duration.observe(began.elapsed());
        log_end(&end, &agent_id, peer, began.elapsed());
    }
}

/// An agent stream that is a backend.
struct Started {
    /// Boxed, because a task keeps several copies of what is moved into it.
    driver: Pin<Box<dyn Future<Output = LinkEnd> + Send>>,
    handle: LinkHandle,
    recheck: Option<Recheck>,
    agent_id: Arc<str>,
    began: Instant,
    /// Counts the lanes of the agent.
    _counted: Arc<LiveGuard>,
    _watches: [AbortOnDropHandle<()>; 2],
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
    rivals.iter().filter(|rival| rival.address.is_some()).find(is_other)?.address
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

/// What belongs to one agent stream since it was authenticated.
struct Bound {
    identity: Arc<Identity>,
    recheck: Option<Recheck>,
    owned: Option<Owned>,
    /// Counts the stream.
    open: LiveGuard,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_agent_with_the_same_id_is_reported() {
        let at = |address: Option<&str>, native| {
            let (mut handle, _) = LinkHandle::new();
            handle.address = address.map(|address| address.parse().unwrap());
            handle.facts = Arc::new(LinkFacts { native, ..LinkFacts::default() });
            handle
        };
        let (go, native) = (at(Some("10.0.0.1"), false), at(Some("10.0.0.1"), true));
        let mut rivals = vec![at(Some("10.0.0.1"), false), at(None, false)];
        assert_eq!(rival_address(&rivals, &go), None, "the duplicate connection of a Go agent");
        assert_eq!(rival_address(std::slice::from_ref(&native), &native), native.address);
        rivals.push(at(Some("10.0.0.2"), false));
        assert_eq!(rival_address(&rivals, &go), Some("10.0.0.2".parse().unwrap()));
    }
}
