//! The proxy-server: frontends, routes and agent links.
//!
//! Data passes through the folders [`frontend`], [`dial`], [`backends`] and [`agent_stream`], and then through the crate `driver`. [`auth`]
//! authenticates agents, and [`leases`] announces this replica to agents.

pub mod accept;
pub mod agent_stream;
pub mod args;
pub mod auth;
pub mod backends;
pub mod boot;
#[cfg(test)]
#[path = "../../common/serve/tests/captured_log/mod.rs"]
mod captured_log;
pub mod dial;
pub mod frontend;
pub mod leases;
pub mod limits;
pub mod metrics;
mod probe;
mod readiness;
pub mod server_count;
mod statusz;
pub mod unauthenticated;
