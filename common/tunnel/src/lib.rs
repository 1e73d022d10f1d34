//! The core: the life of all connections of one agent stream, as data.
//!
//! Nothing here has a socket, a clock, a task or a payload. Time is an argument, packets go in and come out,
//! and the shell around it (crate `relay`) reads, feeds, flushes and sets timers.

mod packet;

pub use packet::{ConnectId, DialId, Packet, PacketKind};
