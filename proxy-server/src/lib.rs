//! The proxy-server: frontends, routes and agent links.
//!
//! The data's way through the folders: [`front`], [`dial`], [`route`], [`link`], and out through the crate `relay`.
//! Beside it [`auth`] says who an agent is, and [`leases`] tells agents of this replica.

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
