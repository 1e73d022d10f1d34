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
    /// The socket's path belongs to a file that is not a socket. It is not deleted.
    #[error("cannot listen on {}: the file exists and is not a socket: remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A socket exists and may not be deleted.
    #[error("cannot listen on {}: the socket exists already: remove it or allow its deletion", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// Another process listens on the abstract socket's name.
    #[error("cannot listen on {}: address already in use: stop the process that listens there or choose another name", path.display())]
    NameTaken {
        /// `@name`.
        path: PathBuf,
    },
    /// The directory is missing.
    #[error("cannot listen on {}: its directory does not exist", path.display())]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// The path does not fit into a socket address.
    #[error("cannot listen on {}: a socket's path must be shorter than 108 bytes", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
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

impl BindError {
    /// The system's error, if there is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Tcp { source, .. } | Self::Unix { source, .. } => Some(source),
            _ => None,
        }
    }
}
