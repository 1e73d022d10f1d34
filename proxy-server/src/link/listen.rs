//! The agent port: from a TCP connection to the streams that it carries.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use transport::kernel::bound_silence;
use transport::listen::{AcceptLoop, HandshakeGate, KeepAlive, Pacing, tune};
use transport::tls::{
    Gathering, HandshakeError, PeerIdentity, READ_AHEAD, ReadAhead, ServerStream, ServerTls,
};
use transport::wire::{Request, ServerSettings, serve_connection};

use super::accept::AgentService;
use crate::accept;
use crate::auth::AgentPeer;
use crate::room::Room;

/// What the log says when there is no room.
const FULL: &str =
    "The agent port is full: newcomers are closed. Raise the limit of open files, or look who connects";

type TlsConnection = Gathering<ServerStream<ReadAhead<TcpStream>>>;

/// What serves the agent port.
pub struct AgentListener {
    listener: TcpListener,
    tls: ServerTls,
    service: AgentService,
    settings: ServerSettings,
    room: Room,
    /// What is kept off the listener.
    pacing: Option<Pacing>,
}

impl AgentListener {
    /// A listener that is bound, and not accepting yet. Agents that say nothing for `keepalive` are pinged; there are
    /// `most` connections at once.
    pub fn new(
        listener: TcpListener,
        tls: ServerTls,
        service: AgentService,
        keepalive: Duration,
        most: usize,
    ) -> Self {
        let mut settings = ServerSettings::for_agents();
        settings.keepalive.interval = keepalive;
        AgentListener { listener, tls, service, settings, room: Room::new(most, FULL), pacing: None }
    }

    /// Gives this, which was kept off the listener, to the connections of agents that are far.
    pub fn pacing_far_only(mut self, pacing: Option<Pacing>) -> Self {
        self.pacing = pacing;
        self
    }

    /// Accepts agents until `stop` falls, then waits for the connections of those that were accepted. Dropping
    /// the future ends them.
    pub async fn serve(self, stop: CancellationToken) {
        let name = self.listener.local_addr().map_or_else(|_| "agent port".to_owned(), |at| at.to_string());
        let (gate, settings) = (HandshakeGate::default(), Arc::new(self.settings));
        let serve = |(stream, address): (TcpStream, SocketAddr)| {
            let place = self.room.enter();
            let (tls, gate, pacing) = (self.tls.clone(), gate.clone(), self.pacing.clone());
            let served =
                serve(stream, address, tls, gate, pacing, Arc::clone(&settings), self.service.clone());
            async move {
                if let Some(_place) = place {
                    served.await;
                }
            }
        };
        accept::each(AcceptLoop::new(self.listener, name), &stop, serve, report).await;
    }
}

fn report(error: &JoinError) {
    tracing::error!(%error, "an agent connection's task failed; the agent will reconnect");
}

/// Serves one connection and the streams on it.
async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    tls: ServerTls,
    gate: HandshakeGate,
    pacing: Option<Pacing>,
    settings: Arc<ServerSettings>,
    service: AgentService,
) {
    let handshake = async {
        tune(&stream, KeepAlive::default(), None)?;
        let kernel = bound_silence(&stream)?.map(Arc::new);
        Ok::<_, HandshakeError>((kernel, gate.run(tls.accept(ReadAhead::new(stream))).await?))
    };
    let (kernel, mut io) = match handshake.await {
        Ok(accepted) => accepted,
        // Port checks end here; they are no news.
        Err(error) => {
            tracing::debug!(%address, %error, "agent connection not accepted");
            return;
        }
    };
    io.get_mut().0.begin(READ_AHEAD);
    let certificate = PeerIdentity::of(io.get_ref().1.peer_certificates());
    let peer = Arc::new(AgentPeer::new(address, certificate));
    let mut streams = JoinSet::new();
    let on_stream = |request: Request| {
        if let Some(kernel) = &kernel {
            request.pulse.watch_kernel(Arc::clone(kernel) as _);
        }
        while let Some(ended) = streams.try_join_next() {
            ended.unwrap_or_else(|error| report(&error));
        }
        streams.spawn(service.clone().serve(request, Arc::clone(&peer)));
    };
    let on_measured = |io: &TlsConnection, way| {
        if let Some(pacing) = pacing {
            pacing.resume(io.get_ref().get_ref().0.get_ref(), way);
        }
    };
    match serve_connection(Gathering::new(io), &settings, on_stream, on_measured).await {
        Ok(()) => tracing::trace!(%peer, "agent connection ended"),
        Err(error) if error.is_closed_by_peer() => tracing::trace!(%peer, "the agent closed its connection"),
        Err(error) => tracing::debug!(%peer, %error, "agent connection lost"),
    }
    // What agents sent before they left is still delivered to frontends, within the core's bounds.
    while let Some(ended) = streams.join_next().await {
        ended.unwrap_or_else(|error| report(&error));
    }
}
