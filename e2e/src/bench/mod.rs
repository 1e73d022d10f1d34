//! The benchmark: the same cases over one pair, another pair, and a bare relay as the limit of this machine.
//!
//! Clients and endpoint run in the benchmark's own process and share the CPUs with the measured programs: figures compare
//! implementations on one machine in one run, and mean little elsewhere. (The endpoint of twelve thousand connections has a
//! process of its own because of its descriptors.)

mod beside;
mod bulk;
mod cases;
mod connects;
mod endpoint;
mod pin;
pub(crate) mod plot;
mod relay;
mod report;
mod rig;
mod small;
mod stalls;

pub use self::cases::{Case, Load, measure};
pub use self::endpoint::{CommandEndpoint, endpoint};
pub use self::plot::{COST, SPEED, svg};
pub use self::relay::{egress_relay, ingress_relay};
pub use self::report::{Report, Unit};
pub use self::rig::{Rig, Subject};
