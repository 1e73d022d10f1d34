//! Agent streams, as the rest of the server sees them: a handle to dial through, an open connection to attach.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use relay::Local;

/// A handle to one agent stream. Cheap to clone; does not keep the stream alive.
#[derive(Debug, Clone)]
pub struct LinkHandle {}

/// Why a dial on one link brought no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkDialError {
    /// The agent answered with an error: its text, as it came. Final.
    #[error("{0}")]
    Refused(String),
    /// The link was lost before it answered (or before the request was written).
    #[error("agent stream lost")]
    Lost,
    /// The link already carries as many dials or connections as it may.
    #[error("too many connections on this agent")]
    Full,
}

/// A dial under way: resolves once. Dropping it cancels the dial at the agent.
#[derive(Debug)]
pub struct PendingDial {}

/// An established connection whose frontend end is not attached yet. Bytes from the agent wait (bounded).
/// Dropping it closes the connection.
#[derive(Debug)]
pub struct OpenConnection {}

impl LinkHandle {
    /// Sends a DIAL_REQ on this link.
    pub fn dial(&self, protocol: &str, address: &str) -> PendingDial {
        let _ = (protocol, address);
        PendingDial {}
    }
}

impl Future for PendingDial {
    type Output = Result<OpenConnection, LinkDialError>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

impl OpenConnection {
    /// Hands the frontend's end to the link's task, which moves bytes from here on.
    pub fn attach(self, local: Box<dyn Local>) {
        let _ = local;
    }
}
