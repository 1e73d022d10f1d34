//! One task per agent stream: the core ([`tunnel::Link`]), the wire and the local sockets joined.
//!
//! The shell that both halves share. It reads, feeds, flushes and sets timers; every decision is the core's.
//! It knows neither frontends nor endpoints: those are a [`Local`], and what a half adds is its [`Owner`].
//!
//! Run the future under `tokio::task::coop::unconstrained`: it bounds its own turns, and serves many sockets in
//! one of them.

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
