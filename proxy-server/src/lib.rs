//! The proxy-server: frontends, routes and agent links.

pub mod args;
pub mod link;
