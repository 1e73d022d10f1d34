//! `AgentService/Connect`: an agent's stream is a backend while it is open.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use driver::{Bounds, Driver, LinkEnd, SharedTraffic};
use grpc::capabilities::{self, CAPABILITIES, Capabilities};
use grpc::live_streams::LiveStreams;
use grpc::{Code, KeepaliveFlags, Request, WireStream};
use http::{HeaderMap, HeaderValue};
use mux::{Negotiated, Server};
use serve::logs::Peer;
use serve::metrics::LiveGuard;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::gate::{AgentGate, ConnectMetadata, agent_id};
use super::handle::{Command, LinkFacts, LinkHandle};
use super::handler::{Living, ServerLinkHandler};
use super::listen::AgentSlot;
use super::meter::LinkMeter;
use crate::accept::Lifetimes;
use crate::auth::{Admitted, AgentPeer, Party, Recheck, Refused};
use crate::backends::{Backend, BackendManager, LinkId, ReadinessPolicy, RegisterError};
use crate::metrics::{Metrics, PeerKind, Port, RefusedConnect, ServiceMethod};
use crate::server_count::ServerCount;

/// Time for clients to read the bytes that have arrived when the server stops with open connections. These connections are cut
/// anyway, so the server does not wait for a client's own end as it does after an orderly end.
const LAST_BYTES_GRACE: Duration = Duration::from_millis(50);

/// The path of the agents' method.
pub(crate) const AGENT_PATH: &str = "/AgentService/Connect";

/// Serves agent streams.
pub struct AgentService {
    /// The agents that have a stream.
    pub backends: BackendManager<LinkHandle>,
    /// The server's metrics.
    pub metrics: Metrics,
    /// The id that agents are told: printable ASCII.
    pub server_id: Arc<str>,
    /// The number of servers that agents are told.
    pub server_count: ServerCount,
    /// The pings to agents.
    pub keepalive: KeepaliveFlags,
    /// The capabilities that the server offers to agents.
    pub capabilities: Capabilities,
    /// Memory limits of each stream, and of all streams together.
    pub bounds: Bounds,
    /// What ends the streams.
    pub lifetimes: Lifetimes,
    /// Admits agents.
    pub gate: AgentGate,
}

impl AgentService {
    /// Serves one stream to its end. The memory of the stream's start is freed before the stream is served.
    pub(super) fn serve(
        self: Arc<Self>,
        request: Request,
        peer: Arc<AgentPeer>,
        slot: Arc<AgentSlot>,
    ) -> impl Future<Output = ()> + Send {
        let start = Box::pin(Arc::clone(&self).start(request, peer, slot));
        async move {
            let Some(mut started) = start.await else { return };
            self.run(&mut started).await;
        }
    }

    /// Starts a stream; `None` if it was refused, or lost during its admission.
    async fn start(
        self: Arc<Self>,
        mut request: Request,
        peer: Arc<AgentPeer>,
        slot: Arc<AgentSlot>,
    ) -> Option<Started> {
        let open = self.metrics.grpc_connections.enter(ServiceMethod::Connect);
        let mut metadata = std::mem::take(&mut request.metadata);
        let is_agent = request.path == AGENT_PATH;
        let admitted = tokio::select! {
            // A refusal that is known at once is counted.
            biased;
            admitted = self.admit(is_agent, &mut metadata, &peer) => admitted,
            () = request.lost() => return None,
        };
        request.metadata = metadata;
        let link = match admitted.and_then(|agent| self.register(agent, &request, &peer, &slot, open)) {
            Ok(link) => link,
            Err(refused) => {
                self.refuse(request, &peer, &refused);
                return None;
            }
        };
        let stream = self.accept_stream(request, &link, &peer)?;
        self.probe_siblings(&link);
        self.warn_of_unsuitable_agents();
        let AgentLink { id, recheck, negotiated, handle, handler, meter, .. } = link;
        let watch = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&self).watch(handle.clone(), id)));
        let driver = Driver::<Server, _, _, _>::new(&self.bounds, negotiated, stream, handler, meter);
        Some(Started { driver: Box::pin(driver), handle, recheck, _watch: watch })
    }

    /// Authenticates an agent before it reads the rest of the metadata, and checks the agent's claims.
    async fn admit(
        &self,
        is_agent: bool,
        metadata: &mut HeaderMap,
        peer: &AgentPeer,
    ) -> Result<Agent, Refused> {
        if !is_agent {
            let text = "unknown service or method, agents use /AgentService/Connect";
            return Err(Refused::new(RefusedConnect::Path, Code::Unimplemented, text));
        }
        let admitted = self.gate.auth.admit(metadata, peer).await?;
        // Go's server answers with `Unknown` and its error text.
        let metadata = ConnectMetadata::read(metadata)
            .map_err(|text| Refused::new(RefusedConnect::Metadata, Code::Unknown, text))?;
        let owner = self
            .judge(&admitted.identity, &metadata, peer)
            .map_err(|text| Refused::new(RefusedConnect::Identity, Code::PermissionDenied, text))?;
        tracing::info!(
            target: "v2", agentID = %Peer(&metadata.agent_id), serverID = %self.server_id, %peer,
            "Connect request from agent"
        );
        Ok((metadata, admitted, owner))
    }

    /// Takes a slot of admitted agents, and then makes the stream a backend.
    fn register(
        &self,
        (metadata, admitted, owner): Agent,
        request: &Request,
        peer: &Arc<AgentPeer>,
        slot: &AgentSlot,
        open: LiveGuard,
    ) -> Result<AgentLink, Refused> {
        let full = |reason, text: String| Refused::new(reason, Code::ResourceExhausted, text);
        if !slot.admit() {
            let text = "the server's connection limit for agents is reached";
            return Err(full(RefusedConnect::AgentLimit, text.to_owned()));
        }
        let Admitted { identity, recheck } = admitted;
        let offer = Capabilities::read(&request.metadata);
        let lanes = slot.has_room_for_lanes().then_some(capabilities::MAX_LANES);
        let answer = self.capabilities.with_lanes(lanes).and(offer);
        let live = LiveStreams::read(&request.metadata);
        let (handle, commands) = LinkHandle::new(LinkFacts {
            agent_id: metadata.agent_id,
            identity: if identity.is_vouched() { identity.to_string() } else { String::new() },
            party: Arc::clone(identity.key()),
            name: live.as_ref().map(|live| live.name),
            address: peer.address,
            version: version(&request.metadata),
            native: answer.pings,
            traces: answer.traces,
            since: serve::statusz::now(),
            keepalive: Arc::clone(&request.keepalive),
            traffic: SharedTraffic::default(),
        });
        let backend = Backend {
            agent_id: Arc::clone(&handle.facts.agent_id),
            identifiers: metadata.identifiers,
            process: offer.lanes,
            owner,
            handle: handle.clone(),
        };
        let registration = self.backends.register_counted(backend, open).map_err(|error| {
            let agent_id = &handle.facts.agent_id;
            if error == RegisterError::ForeignId {
                // The other agent came since the gate looked.
                let text = self.foreign_id(agent_id, peer);
                return Refused::new(RefusedConnect::Identity, Code::PermissionDenied, text);
            }
            full(RefusedConnect::Registration, format!("agent ID {}: {error}", Peer(agent_id)))
        })?;
        let id = registration.id;
        let meter = LinkMeter::new(&self.metrics, Arc::clone(&handle.facts), &registration);
        let reviewed = CancellationToken::new();
        let living = Living {
            registration,
            _reviewed: reviewed.clone().drop_guard(),
            began: Instant::now(),
            peer: Arc::clone(peer),
            metrics: self.metrics.clone(),
        };
        let handler = ServerLinkHandler::new(
            (&handle, commands),
            answer.pings.then(|| self.server_count.clone()),
            living,
            self.gate.toggles.clone(),
        );
        let negotiated = answer.negotiated(offer);
        let recheck = recheck.map(|recheck| (recheck, reviewed));
        Ok(AgentLink { id, recheck, live, answer, negotiated, handle, handler, meter })
    }

    /// Refuses a Connect, counts and logs it, and remembers it for the status.
    fn refuse(&self, request: Request, peer: &AgentPeer, Refused { reason, cause, code, text }: &Refused) {
        self.metrics.refused_connects.count(*reason);
        let ip = peer.address.ip();
        // The slot has remembered that it is refused.
        if *reason != RefusedConnect::AgentLimit {
            self.metrics.journal.refused(Port::Agent.listener(), ip, text);
        }
        if *reason == RefusedConnect::Authentication && *code == Code::PermissionDenied {
            self.metrics.name_refusals.count(PeerKind::Agent);
        }
        if let Some(suppressed) = self.gate.refusals.due(cause, ip) {
            let err = Peer(text);
            match reason {
                RefusedConnect::Path => tracing::warn!(
                    %peer, path = %Peer(&request.path), suppressed,
                    "a client that is no agent came to --agent-port; frontends have their own"
                ),
                RefusedConnect::Authentication => {
                    let id = Peer(agent_id(&request.metadata).unwrap_or_default());
                    tracing::error!(%err, agentID = %id, %peer, suppressed, "Client authentication failed");
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
    fn accept_stream(&self, request: Request, link: &AgentLink, peer: &AgentPeer) -> Option<WireStream> {
        let agent_id = Peer(&link.handle.facts.agent_id);
        let server_id = HeaderValue::from_str(&self.server_id).expect("the flag takes printable ASCII only");
        let mut greeting = HeaderMap::new();
        greeting.insert("serverid", server_id);
        greeting.insert("servercount", HeaderValue::from(self.server_count.get()));
        greeting.extend(link.answer.header().map(|value| (CAPABILITIES, value)));
        request.keepalive.set_keepalive(self.keepalive.to_agent());
        let lanes = Capabilities::read(&request.metadata).lanes;
        request.keepalive.measure(capabilities::RTT_PROBES, lanes);
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
                sibling.send(Command::Supersede);
            }
        }
    }

    /// Logs, once a minute, that the agents do not serve the first strategy, and that none is in the zone of `--prefer-zone`.
    fn warn_of_unsuitable_agents(&self) {
        let (agents, due) = (self.backends.agent_count(), |cause| self.gate.refusals.due_for(cause, ()));
        if let Some(strategy) = self.backends.lacking(ReadinessPolicy::FirstStrategy).first()
            && let Some(suppressed) = due("identifiers")
        {
            let text = "no connected agent has --agent-identifiers for the first of --proxy-strategies";
            tracing::warn!(agents, strategy = strategy.name(), suppressed, "{text}");
        }
        if let Some(zone) = self.backends.empty_zone()
            && let Some(suppressed) = due("zone")
        {
            tracing::warn!(%zone, agents, suppressed, "no connected agent is in the zone of --prefer-zone");
        }
    }

    /// Runs the driver in this task; at shutdown, or when the agent's token is refused, ends the stream in order.
    async fn run(&self, started: &mut Started) {
        let Started { driver, handle, recheck, .. } = started;
        let mut driver = unconstrained(driver);
        let refused = async {
            if let Some((recheck, lost)) = recheck
                && let Some(why) = lost.run_until_cancelled(recheck.refused()).await
            {
                tracing::warn!(
                    agentID = %Peer(&handle.facts.agent_id), why = %Peer(&why), "token refused, closing agent stream"
                );
                handle.send(Command::Finish);
            }
            pending::<()>().await;
        };
        tokio::select! {
            _ = &mut driver => {}
            () = refused => {}
            () = self.lifetimes.stop.cancelled() => {
                handle.send(Command::Finish);
                let _ = timeout(LAST_BYTES_GRACE, driver).await;
            }
        }
    }
}

/// An authenticated agent, and the party that owns its agent id.
type Agent = (ConnectMetadata, Admitted, Option<Party>);

/// An agent stream that is a backend and not accepted yet.
struct AgentLink {
    id: LinkId,
    recheck: Option<(Recheck, CancellationToken)>,
    /// The agent's other streams.
    live: Option<LiveStreams>,
    answer: Capabilities,
    negotiated: Negotiated,
    handle: LinkHandle,
    handler: ServerLinkHandler,
    meter: LinkMeter,
}

/// An accepted agent stream.
struct Started {
    /// Boxed, because a task keeps several copies of what is moved into it.
    driver: Pin<Box<dyn Future<Output = LinkEnd> + Send>>,
    handle: LinkHandle,
    /// Reviews the agent's token until the stream is lost.
    recheck: Option<(Recheck, CancellationToken)>,
    _watch: AbortOnDropHandle<()>,
}

/// The agent's program and version: `konnectivity/0.36.0`, or `grpc-go/1.72.0` of a Go agent.
fn version(metadata: &HeaderMap) -> String {
    let text = metadata.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
    Peer(text.unwrap_or_default()).to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use cluster::api::User;
    use cluster::{Clock, TokenReview};
    use grpc::{Keepalive, ServerSettings, connect, serve_connection};
    use serve::metrics::Registry;

    use super::*;
    use crate::agent_stream::IdentityBinding;
    use crate::agent_stream::listen::AgentSlots;
    use crate::args::TokenAuth;
    use crate::auth::{AgentAuth, Binding, Review, Reviewer};
    use crate::backends::Strategy;
    use crate::unauthenticated::ConnectionSet;

    pub(in crate::agent_stream) fn service() -> AgentService {
        service_with(AgentAuth::Anonymous)
    }

    fn service_with(auth: AgentAuth) -> AgentService {
        let metrics = crate::metrics::register(&mut Registry::default());
        let binding = Binding { wide: Vec::new(), source_address: false };
        let time = Duration::from_secs(60);
        let keepalive = KeepaliveFlags { time, half_open_timeout: time, unresponsive_timeout: time };
        AgentService {
            backends: BackendManager::new(&[Strategy::Default], metrics.routes.clone()),
            metrics,
            server_id: "s".into(),
            server_count: ServerCount::new(1),
            keepalive,
            capabilities: Capabilities::supported(true),
            bounds: Bounds::new(1 << 20, Some(1 << 20)),
            lifetimes: Lifetimes::default(),
            gate: AgentGate::new(auth, IdentityBinding::Off, binding),
        }
    }

    /// Admits agents that this API accepts.
    fn token_auth(review: Box<Review>) -> AgentAuth {
        let expected = TokenAuth {
            namespace: "kube-system".into(),
            service_account: "agent".into(),
            audience: "aud".into(),
            review_every: Some(Duration::from_secs(60)),
        };
        let metrics = crate::metrics::register(&mut Registry::default());
        AgentAuth::Token(Reviewer::new(review, expected, Clock::system(), metrics))
    }

    fn token() -> HeaderMap {
        HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static("Bearer t"))])
    }

    fn peer() -> AgentPeer {
        AgentPeer::new(([10, 0, 0, 1], 1).into(), None)
    }

    /// A recheck whose token is refused after a minute.
    async fn revoked() -> Recheck {
        let began = Instant::now();
        let auth = token_auth(Box::new(move |_, _| {
            let username = "system:serviceaccount:kube-system:agent".into();
            let review = TokenReview {
                authenticated: began.elapsed().is_zero(),
                user: User { username, ..User::default() },
                audiences: vec!["aud".into()],
                error: String::new(),
            };
            Box::pin(async { Ok(review) })
        }));
        auth.admit(&mut token(), &peer()).await.unwrap().recheck.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_is_not_awaited_after_its_connection_has_gone() {
        let (asked, mut reviews) = tokio::sync::mpsc::unbounded_channel();
        let auth = token_auth(Box::new(move |_, _| {
            asked.send(()).unwrap();
            Box::pin(pending())
        }));
        let service = Arc::new(service_with(auth));
        let slots = ConnectionSet::new(Port::Agent, 1, service.metrics.clone());
        let slot = AgentSlot::new(slots.enter(peer().address), AgentSlots::new(1));
        let (slot, agent) = (Arc::new(slot), Arc::new(peer()));
        let (client, server) = tokio::io::duplex(1 << 16);
        let mut streams = tokio::task::JoinSet::new();
        let settings = ServerSettings::for_agents();
        let on_stream = |request| {
            streams.spawn(Arc::clone(&service).serve(request, Arc::clone(&agent), Arc::clone(&slot)));
        };
        let serving = serve_connection(server, &settings, on_stream, pending());
        let began = Instant::now();
        let client = async {
            let deadline = began + Duration::from_secs(60);
            let connecting = connect(client, Keepalive::DEFAULT, ("s", AGENT_PATH), token(), None, deadline);
            tokio::select! {
                _ = connecting => panic!("there is no answer"),
                asked = reviews.recv() => asked.expect("a review"),
            }
        };
        let (served, ()) = tokio::join!(serving, client);
        drop(served);
        streams.join_all().await;
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_for_a_stream_whose_token_was_refused() {
        let (service, (handle, mut commands)) = (service(), LinkHandle::new(LinkFacts::default()));
        let mut started = Started {
            driver: Box::pin(pending()),
            handle,
            recheck: Some((revoked().await, CancellationToken::new())),
            _watch: AbortOnDropHandle::new(tokio::spawn(async {})),
        };
        let stop = async {
            assert!(
                matches!(commands.recv().await.as_deref(), Some(Command::Finish)),
                "the token is refused"
            );
            service.lifetimes.stop.cancel();
        };
        let ended = async { tokio::join!(service.run(&mut started), stop) };
        timeout(Duration::from_secs(120), ended).await.expect("an end");
    }
}
