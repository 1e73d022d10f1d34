//! Where a port listens.

use std::fmt;
use std::io;

use tokio::net::TcpListener;

/// A host and a port, as two flags give them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// An IP address, with or without brackets, or a name; empty for all addresses of both families.
    pub host: String,
    /// 0 for any.
    pub port: u16,
}

/// Why a port cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {bind}: {source}")]
pub struct BindError {
    /// What was wanted.
    pub bind: Bind,
    /// Why not.
    pub source: io::Error,
}

impl Bind {
    /// Listens, or says why not.
    pub async fn listen(&self) -> Result<TcpListener, BindError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let result = if host.is_empty() {
            match TcpListener::bind(("::", self.port)).await {
                // Without IPv6 in the kernel, or without an IPv6 address on this machine.
                Err(error) if lacks_ipv6(&error) => TcpListener::bind(("0.0.0.0", self.port)).await,
                result => result,
            }
        } else {
            TcpListener::bind((host, self.port)).await
        };
        result.map_err(|source| BindError { bind: self.clone(), source })
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    let errnos = [rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|raw| errnos.iter().any(|errno| errno.raw_os_error() == raw))
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        if host.contains(':') {
            write!(f, "[{host}]:{}", self.port)
        } else {
            write!(f, "{host}:{}", self.port)
        }
    }
}
