//! The proxy-agent: one stream to every server replica, and the endpoints that it dials for them.

pub mod args;
pub mod endpoint;
pub mod metrics;
pub mod link;
pub mod servers;
