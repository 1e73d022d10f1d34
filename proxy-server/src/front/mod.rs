//! Where clients come in: the gRPC frontend and the HTTP-CONNECT frontend, over a Unix socket or TCP with TLS.
//!
//! Both are adapters over one dial-and-relay path (ARCHITECTURE.md, invariant 7): they read what a client wants,
//! [`Dial`] it, say what came of it in their own words, and hand their end to the link ([`Attach`]), whose task
//! moves the bytes from there on. No task and no channel lives per connection after that. Nothing here chooses an
//! agent, retries, or touches another connection than the client's own.

pub mod account;
pub mod barrier;
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

use relay::Local;

pub use self::listen::{FrontendListener, Mode, serve_frontend};
pub use self::meters::Meters;
use crate::dial::{DialFailure, DialLink, Dialed, Dialer, Target};
use crate::link::OpenConnection;

/// What a client may still send after a refusal, in bytes, so that it can read why.
const WASTE: usize = 256 * 1024;

/// Finds an agent and has it dial. [`Dialer`] in production.
pub trait Dial: Clone + Send + Sync + 'static {
    /// What a successful dial brings. Dropping it closes it.
    type Connection: Attach;

    /// Ends within a deadline of its own. Dropping the future cancels the dial.
    fn dial(
        &self,
        target: &Target,
    ) -> impl Future<Output = Result<Dialed<Self::Connection>, DialFailure>> + Send;
}

/// An open connection that waits for its frontend's end.
pub trait Attach: Send + 'static {
    /// Hands the frontend's end over.
    fn attach(self, local: Box<dyn Local>);
}

impl Attach for OpenConnection {
    fn attach(self, local: Box<dyn Local>) {
        OpenConnection::attach(self, local);
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
