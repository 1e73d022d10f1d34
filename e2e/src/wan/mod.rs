//! A wide area network on one machine, and the measurement of a pair of programs over it.
//!
//! Two network namespaces are joined by a program that delays, drops and queues real IP packets, so that the kernel's own TCP
//! and congestion control run over a path with a bandwidth-delay product. Needs root, `ip` and `/dev/net/tun`.
//!
//! ```text
//!   near 10.231.0.2: clients, server ── TUN ── emulator ── TUN ── far 10.231.1.2: agent, endpoint
//! ```

mod cell;
mod emulator;
mod endpoint;
mod line;
mod load;
mod report;
mod rig;

pub use cell::{Bulk, Cell, Event, Timing, measure};
pub use emulator::{Conditions, FAR, WideArea};
pub use line::Line;
pub use report::{Figures, Row, chart, json, table};
pub use rig::Subject;
