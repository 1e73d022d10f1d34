//! The benchmark: the same cases over a pair, another pair, and a bare relay as the limit of what this machine can do.
//!
//! Clients and endpoint live in the benchmark's own process and share the processors with what is measured: figures
//! compare implementations on one machine, in one run, and mean little elsewhere. (The endpoint of twelve thousand
//! connections has a process of its own, for its descriptors.)

mod beside;
mod bulk;
mod cases;
mod connects;
mod endpoint;
mod pin;
mod plot;
mod relay;
mod report;
mod rig;
mod small;
mod stalls;

pub use self::cases::{Case, Load, measure};
pub use self::endpoint::{CommandEndpoint, endpoint};
pub use self::plot::svg;
pub use self::relay::{far, near};
pub use self::report::{Report, Unit};
pub use self::rig::{Rig, Subject};
