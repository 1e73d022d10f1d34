//! The benchmark: the same cases over a pair, another pair, and a bare relay as the limit of what this machine can do.
//!
//! Clients and endpoint live in the benchmark's own process and share the processors with what is measured: figures
//! compare implementations on one machine, in one run, and mean little elsewhere.

mod beside;
mod cases;
mod endpoint;
mod relay;
mod report;
mod rig;

pub use self::cases::{Load, measure};
pub use self::endpoint::CommandEndpoint;
pub use self::relay::{far, near};
pub use self::report::{Report, Unit};
pub use self::rig::{Rig, Subject};
