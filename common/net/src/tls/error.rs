//! Errors of TLS files and handshakes. Every text is one line.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::CertificateError;
use thiserror::Error;

use super::{TooLarge, validity};

/// TLS files that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be used, or there is none.
    #[error("{text}")]
    File {
        /// The cause; it names the files.
        text: String,
        /// The files.
        files: Vec<PathBuf>,
    },
    /// A server name is neither a DNS name nor an IP address.
    #[error("{0:?} is not a server name: a DNS name or an IP address is expected")]
    ServerName(String),
    /// rustls refuses the configuration.
    #[error("TLS configuration: {0}")]
    Config(#[from] rustls::Error),
}

impl TlsError {
    pub(super) fn file(text: impl Into<String>, files: &[&Path]) -> Self {
        Self::File { text: text.into(), files: files.iter().map(|file| file.to_path_buf()).collect() }
    }

    /// The flags whose files this error is about, joined by commas; all `flags` if it names no file.
    pub fn flags(&self, flags: &[(&str, Option<&Path>)]) -> String {
        let named: &[PathBuf] = if let Self::File { files, .. } = self { files } else { &[] };
        let is_named = |file: &Option<&Path>| file.is_some_and(|file| named.iter().any(|path| *path == file));
        let about: Vec<&str> =
            flags.iter().filter(|(_, file)| is_named(file)).map(|(flag, _)| *flag).collect();
        let all = || flags.iter().map(|(flag, _)| *flag).collect();
        (if about.is_empty() { all() } else { about }).join(", ")
    }
}

/// Why a file cannot be read, and the fix, in the operator's words, without the error number.
pub fn read_failure(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => {
            let user = rustix::process::geteuid();
            format!("permission denied: make it readable for user {user}")
        }
        io::ErrorKind::IsADirectory => "it is a directory: name a file".to_owned(),
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
    /// No trusted authority issued the peer's certificate.
    #[error("TLS handshake: {}", words(.error))]
    UnknownIssuer {
        /// The TLS error.
        error: rustls::Error,
        /// The file of the trusted authorities, the issuer that the certificate names, and the authorities' names.
        authorities: String,
    },
    /// A socket error.
    #[error("TLS handshake: {0}")]
    Io(io::Error),
}

/// The error's text, with names and dates that an operator can read. The clock is shown to the day, so that the text stays the same
/// from one attempt to the next.
fn words(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(invalid) = error else { return error.to_string() };
    let (what, now, limit) = match invalid {
        CertificateError::ExpiredContext { time, not_after } => {
            ("expired: it was valid until", time, not_after)
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            ("not valid yet: it is valid from", time, not_before)
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let (expected, names) = (expected.to_str(), plain_names(presented));
            return format!("invalid peer certificate: not valid for name {expected}, only for {names}");
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. } => {
            let what =
                "a certificate of its chain is signed with an algorithm that is not accepted, such as SHA-1";
            return format!("invalid peer certificate: {what}: issue that one with SHA-256");
        }
        CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            return "invalid peer certificate: a signature's algorithm does not suit the issuer's key"
                .to_owned();
        }
        _ => return error.to_string(),
    };
    let (now, limit) = (validity::rfc3339(now.as_secs()), validity::rfc3339(limit.as_secs()));
    let day = now.get(..10).unwrap_or_default();
    format!("invalid peer certificate: certificate {what} {limit}, and this clock is at {day}")
}

/// The names in webpki's debug form, `DnsName("a")` or `IpAddress(10.0.0.1)`.
fn plain_names(presented: &[String]) -> String {
    let plain = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        let plain = inner.unwrap_or(name).trim_matches('"');
        if name.starts_with("DnsName") && plain.parse::<IpAddr>().is_ok() {
            return format!("{plain} (a DNS SAN: issue it as an IP SAN)");
        }
        plain.to_owned()
    };
    match presented {
        [] => "no name (it has no subjectAltName)".to_owned(),
        names => names.iter().map(plain).collect::<Vec<_>>().join(", "),
    }
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
