//! The agent port: from a TCP connection to its agent streams, and the slots of connections.

use std::future::pending;
use std::sync::Arc;

use grpc::{ConnectionError, Keepalive, KeepaliveFlags, Request, ServerSettings, serve_connection};
use net::kernel::bound_silence;
use net::listen::{AcceptLoop, Priority, descriptor_limit};
use net::tls::{ALPN_H2, Gathering, PeerIdentity, READ_AHEAD, ServerTls};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::accept::AgentService;
use crate::accept;
use crate::auth::AgentPeer;
use crate::limits::{agent_connections_within, unauthenticated_within};
use crate::metrics::{Port, UnauthenticatedCloseReason};
use crate::unauthenticated::{Arrived, ConnectionSet, Handshakes, Slot};

/// The agent port: bound, not yet accepting.
pub struct AgentListener {
    /// Was bound on `handshakes`.
    pub listener: TcpListener,
    /// The runtime of the TLS handshakes.
    pub handshakes: Handle,
    /// Certificate, key and authorities.
    pub tls: ServerTls,
    /// Serves the streams.
    pub service: Arc<AgentService>,
}

impl AgentListener {
    /// Accepts agents until the server stops, then waits for the accepted connections to end.
    /// Dropping the future ends the connections.
    pub async fn serve(self) {
        let name = self.listener.local_addr().map_or_else(|_| "agent port".to_owned(), |at| at.to_string());
        tracing::info!(target: "v0", port = "agent", address = name, "Listening");
        let Self { listener, handshakes, tls, service } = self;
        let mut settings = ServerSettings::for_agents();
        let KeepaliveFlags { half_open_timeout: timeout, .. } = service.keepalive;
        // The pings before a stream is accepted.
        settings.keepalive = Keepalive { timeout, ..service.keepalive.to_agent() };
        let (settings, descriptors) = (Arc::new(settings), descriptor_limit());
        let agents = AgentSlots::new(agent_connections_within(descriptors));
        let unauthenticated = unauthenticated_within(descriptors);
        let unauthenticated = ConnectionSet::new(Port::Agent, unauthenticated, service.metrics.clone());
        let tls = (tls, ALPN_H2);
        let arriving =
            Handshakes::start(&handshakes, listener, name.clone(), tls, unauthenticated, Priority::Agent);
        let serve = |arrived: Arrived| {
            serve(arrived, Arc::clone(&agents), Arc::clone(&settings), Arc::clone(&service))
        };
        accept::each(AcceptLoop::new(arriving, name), &service.lifetimes.stop, serve).await;
    }
}

/// Serves one connection and its streams.
async fn serve(
    mut arrived: Arrived,
    agents: Arc<AgentSlots>,
    settings: Arc<ServerSettings>,
    service: Arc<AgentService>,
) {
    let moved = arrived.move_here(READ_AHEAD, Priority::Agent);
    let socket = arrived.stream.get_mut().0.get_mut();
    socket.bound_unsent();
    let moved = moved.and_then(|()| bound_silence(socket.stream()));
    let kernel = match moved {
        Ok(kernel) => kernel.map(Arc::new),
        Err(error) => {
            if let Some(suppressed) = arrived.slot.log_due("socket") {
                tracing::warn!(peer = %arrived.address, %error, suppressed, "agent connection not accepted");
            }
            return;
        }
    };
    let Arrived { stream: io, address, slot } = arrived;
    let certificate = PeerIdentity::of(io.get_ref().1.peer_certificates());
    // The stream leaves its box, which is freed with this statement.
    let io = Gathering::new(*{ io });
    let peer = Arc::new(AgentPeer::new(address, certificate));
    let slot = Arc::new(AgentSlot::new(slot, agents));
    let mut streams = JoinSet::new();
    let on_stream = |request: Request| {
        if let Some(kernel) = &kernel {
            request.keepalive.watch_kernel(Arc::clone(kernel) as _);
        }
        while streams.try_join_next().is_some() {}
        streams.spawn(Arc::clone(&service).serve(request, Arc::clone(&peer), Arc::clone(&slot)));
    };
    let served = tokio::select! {
        served = serve_connection(io, &settings, on_stream, pending()) => served,
        () = slot.evicted.cancelled() => return,
    };
    match served {
        Ok(()) => tracing::trace!(%peer, "agent connection ended"),
        Err(error) if error.is_closed_by_peer() => tracing::trace!(%peer, "the agent closed its connection"),
        Err(error @ (ConnectionError::NotAdmitted | ConnectionError::NotHttp2)) => {
            slot.closed(UnauthenticatedCloseReason::NotAdmitted, &error)
        }
        Err(error @ ConnectionError::UnadmittedMemory) => {
            slot.closed(UnauthenticatedCloseReason::SentTooMuch, &error)
        }
        Err(error) => tracing::debug!(%peer, %error, "agent connection lost"),
    }
    drop(slot);
    // Bytes that agents sent before their connection ended are still delivered to frontends, within the core's limits.
    while streams.join_next().await.is_some() {}
}

/// The slot of a connection: first one for unauthenticated peers, then one for admitted agents.
#[derive(Debug)]
pub(super) struct AgentSlot {
    /// Slots of admitted agents.
    agents: Arc<AgentSlots>,
    /// Canceled when the connection is evicted for a new one; never for an admitted agent.
    pub(super) evicted: CancellationToken,
    holds: Mutex<Holds>,
}

/// The slots of admitted agents' connections.
#[derive(Debug)]
pub(super) struct AgentSlots {
    free: Arc<Semaphore>,
    most: usize,
}

impl AgentSlots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(AgentSlots { free: Arc::new(Semaphore::new(most)), most })
    }
}

#[derive(Debug)]
enum Holds {
    Unauthenticated(Slot),
    Admitted { _permit: OwnedSemaphorePermit },
}

impl AgentSlot {
    pub(super) fn new(slot: Slot, agents: Arc<AgentSlots>) -> Self {
        let evicted = slot.evicted.clone();
        AgentSlot { agents, evicted, holds: Mutex::new(Holds::Unauthenticated(slot)) }
    }

    /// Exchanges the slot for one of admitted agents; false if their connection limit is reached, or if this connection was
    /// evicted.
    pub(super) fn admit(&self) -> bool {
        let mut holds = self.holds.lock();
        let Holds::Unauthenticated(slot) = &*holds else { return true };
        let Ok(permit) = Arc::clone(&self.agents.free).try_acquire_owned() else {
            slot.closed(
                UnauthenticatedCloseReason::AgentLimit,
                &"the connection limit for agents is reached",
            );
            return false;
        };
        let admitted = slot.leave();
        if admitted {
            *holds = Holds::Admitted { _permit: permit };
        }
        admitted
    }

    /// Whether agents may open lanes: half of the slots are free. Otherwise lanes could take the slots of agents without any.
    pub(super) fn has_room_for_lanes(&self) -> bool {
        self.agents.free.available_permits() >= self.agents.most.div_ceil(2)
    }

    /// Counts the close of the connection, unless it belongs to an admitted agent.
    pub(super) fn closed(&self, reason: UnauthenticatedCloseReason, error: &dyn std::fmt::Display) {
        if let Holds::Unauthenticated(slot) = &*self.holds.lock() {
            slot.closed(reason, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use serve::metrics::Registry;

    use super::*;
    use crate::metrics::register;

    #[tokio::test]
    async fn an_admitted_agent_is_not_evicted_and_leaves_its_slot_to_others() {
        let unauthenticated = ConnectionSet::new(Port::Agent, 1, register(&mut Registry::default()));
        let agents = AgentSlots::new(1);
        let slot =
            |last| AgentSlot::new(unauthenticated.enter(([10, 0, 0, last], 1).into()), Arc::clone(&agents));
        let agent = slot(1);
        assert!(agent.admit() && agent.admit(), "its further streams need no slot");
        let second = slot(2);
        assert!(!agent.evicted.is_cancelled(), "it has no slot that could be taken");
        assert!(!second.admit(), "the agents' slots are taken");
        let third = slot(3);
        second.evicted.cancelled().await;
        drop(agent);
        assert!(third.admit());
    }

    #[tokio::test]
    async fn lanes_leave_half_of_the_slots_to_other_agents() {
        let unauthenticated = ConnectionSet::new(Port::Agent, 9, register(&mut Registry::default()));
        let agents = AgentSlots::new(4);
        let slot = || AgentSlot::new(unauthenticated.enter(([10, 0, 0, 1], 1).into()), Arc::clone(&agents));
        let (one, two, three) = (slot(), slot(), slot());
        assert!(one.admit() && two.admit() && one.has_room_for_lanes());
        assert!(three.admit() && !one.has_room_for_lanes());
        drop(two);
        assert!(one.has_room_for_lanes());
    }
}
