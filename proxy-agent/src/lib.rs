//! The proxy-agent: one stream to every server replica, and the endpoints that it dials for them.
//!
//! Data passes through the folders: [`client_set`] opens streams, [`link`] serves one stream, [`endpoint`] dials. [`leases`]
//! counts the servers.

pub mod args;
pub mod boot;
#[cfg(test)]
#[path = "../../common/serve/tests/captured_log/mod.rs"]
mod captured_log;
pub mod client_set;
pub mod endpoint;
pub mod leases;
pub mod link;
pub mod metrics;
mod statusz;
