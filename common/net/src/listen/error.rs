//! Why a listener could not be bound. Every text is one line and names the address.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A listener that could not be bound.
#[derive(Debug, Error)]
pub enum BindError {
    /// TCP: the address is in use, is not local, or is not permitted.
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        /// `host:port`, as configured.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The bind address is a name that does not resolve.
    #[error("cannot listen on {address}: {host:?} is neither an IP address nor a known name")]
    Host {
        /// `host:port`, as configured.
        address: String,
        /// The name.
        host: String,
    },
    /// The socket's path cannot be used as it is.
    #[error("cannot listen on {}: {why}", path.display())]
    Path {
        /// The path, or `@name`.
        path: PathBuf,
        /// The fault, and the fix.
        why: &'static str,
    },
    /// Any other error of the socket file.
    #[error("cannot listen on {}: {source}", path.display())]
    Unix {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}
