//! Errors of TLS files and handshakes. Every text is one line.

use std::io;
use std::time::Duration;

use rustls::CertificateError;
use thiserror::Error;

use super::{TooLarge, validity};

/// TLS files that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be used, or there is none. The text names it.
    #[error("{0}")]
    File(String),
    /// A server name is neither a DNS name nor an IP address.
    #[error("{0:?} is not a server name: a DNS name or an IP address is expected, without a port")]
    ServerName(String),
    /// rustls refuses the configuration.
    #[error("TLS configuration: {0}")]
    Config(#[from] rustls::Error),
}

/// The operator's words, without the error number.
pub(super) fn read_failure(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
        _ => error.to_string(),
    }
}

/// A handshake that failed.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The peer exceeded the time-out.
    #[error("TLS handshake timed out after {} s", .0.as_secs())]
    Timeout(Duration),
    /// The peer disconnected during the handshake (as TCP health checks do).
    #[error("connection closed during the TLS handshake")]
    Closed,
    /// The peer sent more bytes than any real peer.
    #[error("TLS handshake: {TooLarge}")]
    TooLarge,
    /// A protocol error, or an invalid certificate of the peer.
    #[error("TLS handshake: {}", words(.0))]
    Tls(rustls::Error),
    /// No trusted authority issued the server's certificate.
    #[error("TLS handshake: {}", words(.error))]
    UnknownIssuer {
        /// The TLS error.
        error: rustls::Error,
        /// The issuer that the certificate names, and the authorities that are trusted.
        authorities: String,
    },
    /// A socket error.
    #[error("TLS handshake: {0}")]
    Io(io::Error),
}

/// The error's text, with dates that an operator can read.
fn words(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(invalid) = error else { return error.to_string() };
    let (what, now, limit) = match invalid {
        CertificateError::ExpiredContext { time, not_after } => {
            ("expired: it was valid until", time, not_after)
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            ("not valid yet: it is valid from", time, not_before)
        }
        _ => return error.to_string(),
    };
    let (now, limit) = (validity::rfc3339(now.as_secs()), validity::rfc3339(limit.as_secs()));
    format!("invalid peer certificate: certificate {what} {limit}, and the clock says {now}")
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(tls) => Self::Tls(tls.clone()),
            None if error.get_ref().is_some_and(|inner| inner.is::<TooLarge>()) => Self::TooLarge,
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::Closed,
            None => Self::Io(error),
        }
    }
}
