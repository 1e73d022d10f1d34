//! Typed reasons of failed dials, and their texts on the wire.
//!
//! The text is part of the protocol: servers map it to HTTP status codes by substrings (`i/o timeout`, `too many open files`),
//! and operators know Go's texts. So `Display` produces Go's texts, checked against Go 1.26's `net` package. They are rendered
//! only here.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use super::address::Network;
use super::policy::Denied;

/// A failed dial. `Display` is the text of a DIAL_RSP.
#[derive(Debug, thiserror::Error)]
#[error("dial{}{}: {failure}", word(.network), word(.address))]
pub struct DialError {
    /// The protocol, as the peer sent it.
    pub network: String,
    /// The address that was tried or denied first, in Go's form (with the name of an IPv6 zone). Empty if there is none.
    pub address: String,
    /// What failed.
    pub failure: Failure,
}

/// What failed in a dial.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The protocol is not tcp, tcp4 or tcp6. Go would also dial `unix` and `udp`; an agent relays TCP only, so these get Go's
    /// text for unknown names.
    #[error("unknown network {0}")]
    UnknownNetwork(String),
    /// The address is not `host:port`, or has no valid port. Go has further texts for this.
    #[error("address {0}")]
    Address(String),
    /// The name could not be resolved.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The host resolved to no address of the requested family.
    #[error("address {0}: no suitable address found")]
    NoSuitableAddress(String),
    /// The destination policy denies every resolved address.
    #[error("connect: {0}")]
    Denied(Denied),
    /// A system call failed at the first address tried.
    #[error("{step}: {}", errno_text(.error))]
    Os {
        /// The system call, by its name in Go.
        step: &'static str,
        /// Its error.
        error: io::Error,
    },
    /// The first address did not answer within its share of the time.
    #[error("i/o timeout")]
    Timeout,
    /// A limit of the agent refuses the dial.
    #[error("{0}")]
    Limit(String),
    /// The dial's task panicked.
    #[error("the dial has panicked")]
    Panicked,
}

impl DialError {
    /// A failure before the target was parsed.
    pub(crate) fn bare(failure: Failure) -> Self {
        Self { network: String::new(), address: String::new(), failure }
    }

    pub(super) fn new(network: Network, address: &str, failure: impl Into<Failure>) -> Self {
        Self { network: network.name().to_owned(), address: address.to_owned(), failure: failure.into() }
    }

    /// Whether time ran out: the `timeout` of `endpoint_dial_failure_total`, else `unknown`.
    pub fn is_timeout(&self) -> bool {
        match &self.failure {
            Failure::Timeout => true,
            Failure::Lookup(error) => matches!(error.cause, LookupCause::Unanswered(_)),
            Failure::Os { error, .. } => error.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }
}

/// A word with a space before it; nothing for an empty word, as in Go.
fn word(word: &str) -> String {
    if word.is_empty() { String::new() } else { format!(" {word}") }
}

/// Why a name has no addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupError {
    /// The requested name.
    pub host: String,
    /// What happened.
    pub cause: LookupCause,
}

/// What happened to a lookup, at the server that was asked last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupCause {
    /// The name does not exist or has no address of the requested family; without a server if none was asked.
    NoSuchHost(Option<SocketAddr>),
    /// The server answered, but with an error code.
    Misbehaving(SocketAddr),
    /// No server answered in time; without a server if the dial's deadline passed first.
    Unanswered(Option<SocketAddr>),
    /// The server cannot be reached: the system's error number.
    Io(SocketAddr, i32),
}

impl LookupCause {
    /// The value of the metric's label.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::NoSuchHost(_) => "no_such_host",
            Self::Misbehaving(_) => "misbehaving",
            Self::Unanswered(_) => "unanswered",
            Self::Io(..) => "unreachable",
        }
    }
}

impl std::error::Error for LookupError {}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use LookupCause::{Io, Misbehaving, NoSuchHost, Unanswered};
        write!(f, "lookup {}", self.host)?;
        match self.cause {
            NoSuchHost(Some(server)) => write!(f, " on {server}: no such host"),
            NoSuchHost(None) => f.write_str(": no such host"),
            Misbehaving(server) => write!(f, " on {server}: server misbehaving"),
            Unanswered(Some(server)) => write!(f, " on {server}: read udp {server}: i/o timeout"),
            Unanswered(None) => f.write_str(": i/o timeout"),
            Io(server, errno) => {
                // Go distinguishes a failed send from a failed receive; only a receive can report a refused connection.
                let (operation, step) = match Errno::from_raw_os_error(errno) {
                    Errno::CONNREFUSED => ("read", "read"),
                    Errno::MFILE | Errno::NFILE => ("dial", "socket"),
                    _ => ("dial", "connect"),
                };
                let text = errno_text(&io::Error::from_raw_os_error(errno));
                write!(f, " on {server}: {operation} udp {server}: {step}: {text}")
            }
        }
    }
}

/// An operating system error in Go's words: glibc's text in lower case.
fn errno_text(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error().and_then(|_| text.split_once(" (os error ")) {
        Some((text, _)) => text.to_ascii_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(step: &'static str, errno: Errno) -> String {
        DialError::new(Network::Tcp, "1.2.3.4:9", Failure::Os { step, error: errno.into() }).to_string()
    }

    #[test]
    fn system_calls_read_as_in_go() {
        assert_eq!(os("connect", Errno::CONNREFUSED), "dial tcp 1.2.3.4:9: connect: connection refused");
        assert_eq!(os("connect", Errno::HOSTUNREACH), "dial tcp 1.2.3.4:9: connect: no route to host");
        assert_eq!(os("connect", Errno::NETUNREACH), "dial tcp 1.2.3.4:9: connect: network is unreachable");
        assert_eq!(os("socket", Errno::MFILE), "dial tcp 1.2.3.4:9: socket: too many open files");
        assert_eq!(os("connect", Errno::INVAL), "dial tcp 1.2.3.4:9: connect: invalid argument");
    }

    /// Servers map some of these texts to HTTP statuses. Fails with a C library that has others, such as musl.
    #[test]
    fn errors_of_the_system_read_as_in_go() {
        for (errno, text) in [
            (Errno::CONNREFUSED, "connection refused"),
            (Errno::HOSTUNREACH, "no route to host"),
            (Errno::NETUNREACH, "network is unreachable"),
            (Errno::NETDOWN, "network is down"),
            (Errno::HOSTDOWN, "host is down"),
            (Errno::TIMEDOUT, "connection timed out"),
            (Errno::CONNRESET, "connection reset by peer"),
            (Errno::CONNABORTED, "software caused connection abort"),
            (Errno::MFILE, "too many open files"),
            (Errno::NFILE, "too many open files in system"),
            (Errno::ACCESS, "permission denied"),
            (Errno::PERM, "operation not permitted"),
            (Errno::INVAL, "invalid argument"),
            (Errno::ADDRNOTAVAIL, "cannot assign requested address"),
            (Errno::ADDRINUSE, "address already in use"),
            (Errno::AFNOSUPPORT, "address family not supported by protocol"),
            (Errno::NOBUFS, "no buffer space available"),
            (Errno::NOMEM, "cannot allocate memory"),
            (Errno::PIPE, "broken pipe"),
        ] {
            assert_eq!(errno_text(&errno.into()), text);
        }
        let other = io::Error::other("Not of the system");
        assert_eq!(errno_text(&other), "Not of the system");
    }

    #[test]
    fn lookups_read_as_in_go() {
        let text =
            |cause| DialError::new(Network::Tcp, "", LookupError { host: "a.b".into(), cause }).to_string();
        let server: SocketAddr = "10.9.9.1:53".parse().unwrap();
        assert_eq!(
            text(LookupCause::NoSuchHost(Some(server))),
            "dial tcp: lookup a.b on 10.9.9.1:53: no such host"
        );
        assert_eq!(text(LookupCause::NoSuchHost(None)), "dial tcp: lookup a.b: no such host");
        assert_eq!(
            text(LookupCause::Misbehaving(server)),
            "dial tcp: lookup a.b on 10.9.9.1:53: server misbehaving"
        );
        assert_eq!(
            text(LookupCause::Unanswered(Some(server))),
            "dial tcp: lookup a.b on 10.9.9.1:53: read udp 10.9.9.1:53: i/o timeout"
        );
        assert_eq!(text(LookupCause::Unanswered(None)), "dial tcp: lookup a.b: i/o timeout");
        assert_eq!(
            text(LookupCause::Io(server, Errno::NETUNREACH.raw_os_error())),
            "dial tcp: lookup a.b on 10.9.9.1:53: dial udp 10.9.9.1:53: connect: network is unreachable"
        );
        assert_eq!(
            text(LookupCause::Io("[::1]:53".parse().unwrap(), Errno::CONNREFUSED.raw_os_error())),
            "dial tcp: lookup a.b on [::1]:53: read udp [::1]:53: read: connection refused"
        );
    }

    #[test]
    fn unknown_networks_read_as_in_go() {
        let text = |network: &str| Network::parse(network).unwrap_err().to_string();
        assert_eq!(text("unix"), "dial unix: unknown network unix");
        assert_eq!(text(""), "dial: unknown network ");
    }
}
