//! The gRPC frontend and the HTTP CONNECT frontend, over a Unix socket or TCP with TLS.
//!
//! Both are adapters over one dial and relay path (ARCHITECTURE.md, invariant 7): they read a client's request, [`Dial`] the
//! target, answer in their own protocol, and hand their socket to the link ([`Attach`]), whose task moves the bytes from then
//! on. After that no connection has a task or a channel of its own. Nothing here chooses an agent, retries, or touches another
//! connection than the client's own.

pub mod barrier;
pub mod connection_log;
pub mod grpc;
pub mod http_connect;
pub mod listen;
pub mod meters;

#[cfg(test)]
mod listen_tests;
#[cfg(test)]
mod testing;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use driver::LocalIo;

pub use self::listen::{FrontendListener, Protocol, serve_frontend};
pub use self::meters::Meters;
use crate::dial::{DialFailure, DialLink, Dialed, Dialer, Target};
use crate::link::OpenConnection;

/// Bytes that are read and discarded after a refusal, so that the client can read the answer.
const DISCARD_LIMIT: usize = 256 * 1024;

/// Finds an agent and dials through it. [`Dialer`] in production.
pub trait Dial: Clone + Send + Sync + 'static {
    /// A dialed connection. Dropping it closes it.
    type Connection: Attach;

    /// Dials the target, within its own deadline. Dropping the future cancels the dial.
    fn dial(
        &self,
        target: &Target,
    ) -> impl Future<Output = Result<Dialed<Self::Connection>, DialFailure>> + Send;
}

/// An open connection that waits for the frontend's socket.
pub trait Attach: Send + 'static {
    /// Hands the frontend's socket or stream to the link.
    fn attach(self, local: Box<dyn LocalIo>);

    /// The agent's connect id, for the log.
    fn connect_id(&self) -> i64;
}

impl Attach for OpenConnection {
    fn attach(self, local: Box<dyn LocalIo>) {
        OpenConnection::attach(self, local);
    }

    fn connect_id(&self) -> i64 {
        OpenConnection::connect_id(self).0
    }
}

impl<L: DialLink> Dial for Dialer<L>
where
    L::Connection: Attach,
{
    type Connection = L::Connection;

    async fn dial(&self, target: &Target) -> Result<Dialed<L::Connection>, DialFailure> {
        Dialer::dial(self, target).await
    }
}

/// A number for the log, counted over all frontends of this process, from 1.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
