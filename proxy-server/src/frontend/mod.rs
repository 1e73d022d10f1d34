//! The gRPC frontend and the HTTP CONNECT frontend, over a Unix socket or TCP with TLS.
//!
//! Both are adapters over one dial and relay path (ARCHITECTURE.md, invariant 7): they read a client's request, dial the
//! target, answer in their own protocol, and hand their socket to the link, whose task moves the bytes from then
//! on. After that no connection has a task or a channel of its own. Nothing here chooses an agent, retries, or touches another
//! connection than the client's own.

pub mod barrier;
pub mod connect;
pub mod connection_log;
pub mod grpc;
pub mod listen;

#[cfg(test)]
mod listen_tests;
#[cfg(test)]
mod testing;

use std::os::fd::AsFd;
use std::sync::Arc;

pub use commands::probe::Protocol;
use net::listen::{Priority, descriptor_limit};
use serve::logs::{ConnectionLogWriter, LogLimit};
use serve::metrics::LiveGuard;
use tokio::sync::Semaphore;

pub use self::listen::{FrontendListener, TlsPort, serve_frontend};
use crate::accept::Lifetimes;
use crate::dial::{DialFailure, Dialer};
use crate::metrics::{FrontendName, Metrics, Port};

/// Bytes that are read and discarded after a refusal, so that the client can read the answer.
const DISCARD_LIMIT: usize = 256 * 1024;

/// The state that all connections of a frontend share. Cheap to clone.
#[derive(Clone)]
pub struct Frontend {
    /// Dials for the clients.
    pub dialer: Dialer,
    /// The server's metrics.
    pub metrics: Metrics,
    /// What a shutdown waits for, and what it ends.
    pub lifetimes: Lifetimes,
    /// The connection log.
    pub records: ConnectionLogWriter,
    /// Its name in logs and metrics if the process has several frontends.
    pub name: Option<FrontendName>,
    /// Limits the Proxy streams of all frontends; further ones are refused.
    pub streams: Arc<Semaphore>,
    /// Limits the lines about peers with another protocol, and about refused clients.
    pub logs: LogLimit,
}

impl Frontend {
    /// This frontend for one client. If the client's socket has a reserved descriptor, it refuses every dial and stream, and asks an
    /// HTTP/2 client for another connection.
    fn serving(mut self, socket: &impl AsFd) -> Self {
        if Priority::Connection.may_keep(socket) {
            return self;
        }
        if let Some(suppressed) = self.logs.due_for("descriptors", ()) {
            let limit = descriptor_limit();
            tracing::warn!(limit, suppressed, "clients are refused, because file descriptors are short");
        }
        self.dialer.refusal = Some(DialFailure::NoDescriptors);
        self
    }

    fn enter(&self, by_protocol: LiveGuard) -> OpenGuard {
        (by_protocol, self.name.map(|name| self.metrics.frontend_connections.enter(name)))
    }

    /// Remembers and logs, once a minute for each cause and address, a peer with another protocol.
    fn wrong_protocol(&self, peer: &str, cause: &'static str) {
        let address = peer.rsplit_once(':').map_or(peer, |(address, _port)| address);
        self.metrics.journal.refused_at(Port::Frontend.listener(), address, cause);
        if let Some(suppressed) = self.logs.due_for(cause, address) {
            tracing::warn!(peer, frontend = self.name.map(FrontendName::name), suppressed, "{cause}");
        }
    }
}

/// Counts a client's connection in the gauge of its protocol and, with several frontends, in that of its frontend.
type OpenGuard = (LiveGuard, Option<LiveGuard>);
