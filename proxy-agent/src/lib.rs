//! The proxy-agent: one stream to every server replica, and the endpoints that it dials for them.
//!
//! The data's way through the folders: [`servers`] open streams, [`link`] carries one, [`endpoint`] dials.
//! [`leases`] tells how many servers there are.

pub mod args;
pub mod boot;
mod certificates;
pub mod endpoint;
pub mod leases;
pub mod link;
pub mod metrics;
pub mod servers;
