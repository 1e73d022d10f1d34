//! Agent streams: from `AgentService/Connect` to a link that frontends dial through.
//!
//! [`accept`] authenticates and registers an agent; [`handler`] is the server's part of the stream's driver task; the rest of the
//! server uses [`LinkHandle`]: it dials, then attaches a frontend's socket. Payload passes through the driver only.

mod accept;
mod gate;
mod handle;
mod handler;
mod listen;
mod meter;
mod probes;
mod watch;

pub(crate) use accept::AGENT_PATH;
pub use accept::AgentService;
pub use gate::{AgentGate, IdentityBinding};
pub(crate) use handle::LinkFacts;
pub use handle::{LinkHandle, OpenConnection};
pub use listen::AgentListener;

#[cfg(test)]
pub(crate) mod testing {
    pub(crate) use super::handle::{Command, DialReply};
}
