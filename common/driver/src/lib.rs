//! One task per agent stream, which joins the core ([`mux::Link`]), the wire and the local sockets.
//!
//! The task that server and agent share. It reads, writes, flushes and sets timers; the core makes every decision. The
//! driver knows neither frontends nor endpoints: each is a [`LocalIo`], and the program's own part is its [`LinkHandler`].
//!
//! Run the future under `tokio::task::coop::unconstrained`: it limits its own turns, and serves many sockets in one
//! turn.

mod chunks;
mod conns;
mod handler;
mod live;
mod local_io;
mod memory;
mod packets;
mod ready;
mod runtime;
mod task;

pub use chunks::Chunks;
pub use conns::Conns;
pub use handler::{LinkHandler, Meter};
pub use live::{LiveConnection, SharedTraffic, Traffic};
pub use local_io::{Linger, LocalIo, Read, poll_discard};
pub use memory::{Bounds, MemoryLimiter};
pub use mux::{CloseReason, Fill};
pub use runtime::data_runtime;
pub use task::{Driver, LinkEnd};
