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
mod error;
mod limits;
mod link_socket;
mod tcp;
#[cfg(test)]
mod tests;
mod unix;

pub use accept::{AcceptLoop, Source};
pub use descriptors::DescriptorLimit;
pub use error::BindError;
pub use limits::{
    ACCEPT_BACKOFF_FIRST, ACCEPT_BACKOFF_MOST, BACKLOG, HANDSHAKE_LIMIT, UNIX_MODE, UNIX_WATCH,
};
pub use link_socket::LinkSocket;
pub use tcp::{SocketKeepalive, bind_links, bind_tcp, tune};
pub use unix::UnixSocket;
