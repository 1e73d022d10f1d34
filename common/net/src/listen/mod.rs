//! Listening sockets: TCP and Unix, bound with clear errors, accepted from without busy loops.
//!
//! A [`TcpListener`](tokio::net::TcpListener) from [`bind_tcp`] or a [`UnixSocket`] goes into an [`AcceptLoop`], which
//! survives a lack of descriptors or memory.
//!
//! Never here: the protocol on a connection.

#[cfg(test)]
mod abstract_tests;
mod accept;
mod descriptors;
mod link_socket;
mod tcp;
#[cfg(test)]
mod tests;
mod unix;

use std::fmt::Display;

pub use accept::{AcceptLoop, Source};
pub use descriptors::{Priority, descriptor_limit, raise_descriptor_limit};
pub use link_socket::LinkSocket;
pub use tcp::{NOTSENT_LOWAT, bind_links, bind_tcp, tune};
pub use unix::{Reach, UnixSocket};

/// The longest time from accept to the end of the TLS handshake. At an RTT of 300 ms a handshake takes about one
/// second.
pub const HANDSHAKE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BindError(String);

impl BindError {
    fn new(address: impl Display, why: impl Display) -> Self {
        Self(format!("cannot listen on {address}: {why}"))
    }
}
