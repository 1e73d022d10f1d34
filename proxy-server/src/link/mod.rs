//! Agent streams: from `AgentService/Connect` to a link that can be dialled through.
//!
//! [`accept`] checks what an agent says of itself and registers it; [`owner`] is what the server adds to the relay
//! task of the stream; [`LinkHandle`] is how the rest of the server sees it: dial, then attach a frontend's end.
//! Payload passes through the relay alone.

mod accept;
mod gate;
mod handle;
mod hello;
mod listen;
mod meter;
mod owner;
mod slot;

pub use accept::{AgentService, Lifetimes, LinkFlow};
pub use gate::AgentGate;
pub use handle::{LinkHandle, OpenConnection, PendingDial};
pub use listen::{AgentListener, ConnectionLimits};
