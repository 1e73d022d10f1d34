//! One task per agent stream, which joins the core ([`tunnel::Link`]), the wire and the local sockets.
//!
//! The shell that server and agent share. It reads, writes, flushes and sets timers; the core makes every decision. The
//! relay knows neither frontends nor endpoints: each is a [`Local`], and the program's own part is its [`Owner`].
//!
//! Run the future under `tokio::task::coop::unconstrained`: it limits its own turns, and serves many sockets in one
//! turn.

mod conns;
mod local;
mod memory;
mod owner;
mod queue;
mod ready;
mod receive;
mod relay;
mod runtime;
mod transmit;
mod waste;

pub use conns::Conns;
pub use local::{Ending, Local, Read};
pub use memory::{Bounds, Ceiling};
pub use owner::{Meter, Owner};
pub use queue::Queue;
pub use relay::{LinkEnd, Relay};
pub use runtime::{Turns, data_runtime};
pub use waste::{Linger, throw_away};
