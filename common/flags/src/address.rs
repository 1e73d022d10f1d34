//! Values that several binaries check in the same way: ports, files, key pairs, bind addresses, identities, time-outs.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::{FlagError, GoDuration};

/// The address of a listener, without its port: an IP address, a name to be resolved at the bind, as in Go (`localhost`), or an
/// address with a zone. Empty for all interfaces, IPv6 and IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindHost(String);

impl BindHost {
    /// Parses a flag's value; brackets around an IPv6 address are optional.
    pub fn parse(text: &str) -> Self {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        // Equal addresses have equal texts.
        Self(bare.parse::<IpAddr>().map_or_else(|_| bare.to_owned(), |address| address.to_string()))
    }

    /// Whether it means all interfaces.
    pub fn is_all(&self) -> bool {
        self.0.is_empty() || self.address().is_some_and(|address| address.is_unspecified())
    }

    /// The address; none for a name, or for all interfaces by an empty flag.
    pub fn address(&self) -> Option<IpAddr> {
        self.0.parse().ok()
    }

    /// The host for a listener: empty for all interfaces.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// A host and a port to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The host.
    pub host: BindHost,
    /// The port. Never 0 from a flag.
    pub port: u16,
}

impl fmt::Display for BindHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "all interfaces" } else { &self.0 })
    }
}

/// [`BindHost::parse`] as a check.
///
/// # Errors
/// Never.
#[expect(clippy::needless_pass_by_value, reason = "a check gets the value of its flag")]
pub fn bind_host(_flag: &'static str, text: String) -> Result<BindHost, FlagError> {
    Ok(BindHost::parse(&text))
}

/// A port from 1 to 65535. (Go accepts larger ones at the start, and then can neither bind nor dial them.)
pub fn port(flag: &'static str, value: i64) -> Result<u16, FlagError> {
    let usable = u16::try_from(value).ok().filter(|port| *port > 0);
    usable.ok_or_else(|| FlagError::value(flag, value, "it must be a port from 1 to 65535"))
}

/// The path of a file that must exist; `None` for an empty flag.
///
/// Only a missing file is an error, as in Go: the code that reads the file reports other errors.
pub fn existing_file(flag: &'static str, path: PathBuf) -> Result<Option<PathBuf>, FlagError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(FlagError(format!("--{flag}: {path:?} does not exist: give the path of an existing file")))
        }
        _ => Ok(Some(path)),
    }
}

/// A certificate and its key: both, or neither. Each argument is a flag's name and its value.
///
/// # Errors
/// If one is missing.
pub fn pair(
    (cert_flag, cert): (&'static str, Option<PathBuf>),
    (key_flag, key): (&'static str, Option<PathBuf>),
) -> Result<Option<(PathBuf, PathBuf)>, FlagError> {
    let fix = "give both, or neither";
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(FlagError::needs(key_flag, cert_flag, fix)),
        (Some(_), None) => Err(FlagError::needs(cert_flag, key_flag, fix)),
    }
}

/// Text in gRPC metadata must be printable ASCII: Go programs accept other bytes at the start, and then every stream
/// fails.
///
/// # Errors
/// If it is not.
pub fn header_text(flag: &'static str, text: String) -> Result<String, FlagError> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(text);
    }
    let want = "it travels in a gRPC header: use printable ASCII only";
    Err(FlagError::value(flag, format_args!("{text:?}"), want))
}

/// A whole number above 0.
///
/// # Errors
/// If it is not.
pub fn above_zero(flag: &'static str, value: i64) -> Result<usize, FlagError> {
    let usable = usize::try_from(value).ok().filter(|value| *value > 0);
    usable.ok_or_else(|| FlagError::value(flag, value, "it must be above 0"))
}

/// The id of this process among its peers: the flag, otherwise the environment's value, otherwise `fresh`.
///
/// An empty flag or variable counts as absent. (Go accepts an empty id, and then treats two such peers as one.)
pub fn identity(
    flag: &'static str,
    given: String,
    environment: Option<OsString>,
    fresh: impl FnOnce() -> String,
) -> Result<String, FlagError> {
    let id = if given.is_empty() {
        let inherited = environment.map(|value| value.to_string_lossy().into_owned());
        inherited.filter(|id| !id.is_empty()).unwrap_or_else(fresh)
    } else {
        given
    };
    header_text(flag, id)
}

/// The minimum of `--unresponsive-timeout`: a peer counts as unresponsive after three seconds.
const MIN_UNRESPONSIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// `--unresponsive-timeout` of both programs.
///
/// # Errors
/// If it is below 10 s.
pub fn unresponsive_timeout(flag: &'static str, given: GoDuration) -> Result<Duration, FlagError> {
    if given.or_zero() < MIN_UNRESPONSIVE_TIMEOUT {
        return Err(FlagError::value(flag, given, "it must not be below 10s"));
    }
    Ok(given.or_zero())
}

/// `--keepalive-timeout` of both programs. As in grpc-go, 0 means 20 s.
///
/// # Errors
/// None; values below 1 s are raised to it.
pub fn keepalive_timeout(_flag: &'static str, given: GoDuration) -> Result<Duration, FlagError> {
    match given {
        GoDuration::ZERO => Ok(Duration::from_secs(20)),
        given => Ok(given.or_zero().max(Duration::from_secs(1))),
    }
}

/// A duration; 0 means none.
///
/// # Errors
/// If it is below 0.
pub fn optional_duration(flag: &'static str, given: GoDuration) -> Result<Option<Duration>, FlagError> {
    if given < GoDuration::ZERO {
        return Err(FlagError::value(flag, given, "it must not be below 0"));
    }
    Ok(Some(given.or_zero()).filter(|span| !span.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_hosts() {
        for (given, text, address, is_all) in [
            ("", "", None, true),
            ("::", "::", Some("::"), true),
            ("0.0.0.0", "0.0.0.0", Some("0.0.0.0"), true),
            ("[::1]", "::1", Some("::1"), false),
            ("0:0::1", "::1", Some("::1"), false),
            ("localhost", "localhost", None, false),
            ("fe80::1%eth0", "fe80::1%eth0", None, false),
        ] {
            let host = BindHost::parse(given);
            assert_eq!((host.text(), host.is_all()), (text, is_all), "{given}");
            assert_eq!(host.address(), address.map(|address| address.parse().unwrap()), "{given}");
        }
    }

    #[test]
    fn an_identity_comes_from_the_flag_then_the_environment_then_chance() {
        let id = |flag: &str, env: Option<&str>| {
            identity("server-id", flag.into(), env.map(OsString::from), || "fresh".into()).unwrap()
        };
        assert_eq!(id("flag", Some("env")), "flag");
        assert_eq!(id("", Some("env")), "env");
        assert_eq!(id("", Some("")), "fresh");
        assert_eq!(id("", None), "fresh");
        assert!(identity("server-id", "zoë".into(), None, String::new).is_err());
    }
}
