//! The proxy-server: frontends, routes and agent links.

pub mod link;
