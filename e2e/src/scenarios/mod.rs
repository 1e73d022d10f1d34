//! The faults that production has seen between agents and servers, injected in network namespaces, and their figures.
//!
//! ```text
//!   near 10.231.0.2: servers, clients ──── router 10.231.255.1: balancer, endpoint ──┬── far 10.231.1.2: agent
//!                                                                                    └── far 10.231.2.2: agent ...
//! ```
//!
//! Needs root and `ip`; scenarios with half-open connections need `nft`.

mod balancer;
mod load;
mod observed;
mod picture;
mod report;
mod rest;
mod run;
mod starve;
mod world;

pub use picture::picture;
pub use report::{Curve, Figure, Outcome, Panel, Row, Value, table};
pub use run::{ALL, Scenario, Timing, end_on_signals, in_network, run, signaled, unless_signaled};
pub use world::{Mix, Sizes};
