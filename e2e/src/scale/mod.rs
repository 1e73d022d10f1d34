//! Many agents at one server: light agents over real TLS, a few processes of them, and the server's cost.
//!
//! A light agent has one stream, answers pings and dials, pings an idle server every 2 s as a native agent does, and connects
//! again after a loss. It has no endpoints: a connection through it carries nothing.

mod light;
mod run;

pub use light::{Auth, Fleet, Plan};
pub use run::{Measured, Options, Point, run};
