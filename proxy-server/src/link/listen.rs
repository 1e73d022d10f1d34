//! The agent port: from a TCP connection to the streams that it carries.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use transport::listen::{AcceptLoop, HandshakeGate, KeepAlive, LinkSocket, tune};
use transport::tls::{Gathering, PeerIdentity, READ_AHEAD, ReadAhead, ServerTls};
use transport::wire::{ServerSettings, serve_connection};

use super::accept::AgentService;
use crate::accept;
use crate::auth::AgentPeer;
use crate::room::Room;

/// How long bytes that we sent may stay unacknowledged: grpc-go sets its keepalive time-out, 20 s.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// What the log says when there is no room.
const FULL: &str =
    "The agent port is full: newcomers are closed. Raise the limit of open files, or look who connects";

/// What serves the agent port.
pub struct AgentListener {
    listener: TcpListener,
    tls: ServerTls,
    service: AgentService,
    settings: ServerSettings,
    room: Room,
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
        AgentListener { listener, tls, service, settings, room: Room::new(most, FULL) }
    }

    /// Accepts agents until `stop` falls, then waits for the connections of those that were accepted. Dropping
    /// the future ends them.
    pub async fn serve(self, stop: CancellationToken) {
        let name = self.listener.local_addr().map_or_else(|_| "agent port".to_owned(), |at| at.to_string());
        let (gate, settings) = (HandshakeGate::default(), Arc::new(self.settings));
        let serve = |(stream, address): (TcpStream, SocketAddr)| {
            let place = self.room.enter();
            let (tls, gate) = (self.tls.clone(), gate.clone());
            let served = serve(stream, address, tls, gate, Arc::clone(&settings), self.service.clone());
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
    settings: Arc<ServerSettings>,
    service: AgentService,
) {
    let handshake = async {
        tune(&stream, KeepAlive::default(), Some(USER_TIMEOUT))?;
        gate.run(tls.accept(ReadAhead::new(LinkSocket::new(stream)))).await
    };
    let mut io = match handshake.await {
        Ok(io) => io,
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
    let on_stream = |request| {
        while let Some(ended) = streams.try_join_next() {
            ended.unwrap_or_else(|error| report(&error));
        }
        streams.spawn(service.clone().serve(request, Arc::clone(&peer)));
    };
    match serve_connection(Gathering::new(io), &settings, on_stream).await {
        Ok(()) => tracing::debug!(%peer, "agent connection ended"),
        Err(error) => tracing::debug!(%peer, %error, "agent connection lost"),
    }
    // What agents sent before they left is still delivered to frontends, within the core's bounds.
    while let Some(ended) = streams.join_next().await {
        ended.unwrap_or_else(|error| report(&error));
    }
}
