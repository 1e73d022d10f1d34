//! The proxy-server: frontends, routes and agent links.
//!
//! Data passes through the folders [`front`], [`dial`], [`route`] and [`link`], and then through the crate `driver`. [`auth`]
//! authenticates agents, and [`leases`] announces this replica to agents.

mod accept;
pub mod args;
pub mod auth;
pub mod boot;
mod certificates;
pub mod dial;
pub mod front;
pub mod leases;
pub mod limits;
pub mod link;
pub mod metrics;
mod readiness;
pub mod route;
pub mod unauthenticated;
