//! Values of flags: Go's names for protocol versions (`--tls-min-version`) and cipher suites (`--cipher-suites`).

use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion, version};
use thiserror::Error;

/// A flag's text that is invalid. The caller puts the flag's name in front.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{value:?}: {want}")]
pub struct TlsFlagError {
    /// The text.
    pub value: String,
    /// The expected value.
    pub want: &'static str,
}

/// A flag's parsed value, and warnings for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted<T> {
    /// The parsed value.
    pub value: T,
    /// One line each, without the flag's name.
    pub warnings: Vec<String>,
}

impl<T> Accepted<T> {
    fn plain(value: T) -> Self {
        Self { value, warnings: Vec::new() }
    }
}

/// The lowest TLS version of a listener or the agent.
///
/// rustls has no TLS 1.0 and 1.1. Their names are accepted and mean 1.2: refusing to start would break a swap of
/// images, and no released peer needs less than 1.2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2 and newer (the default).
    #[default]
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

impl TlsVersion {
    /// Parses Go's name (`VersionTLS12`); an empty text means the default.
    ///
    /// # Errors
    /// If the text is anything else.
    pub fn parse(name: &str) -> Result<Accepted<Self>, TlsFlagError> {
        match name {
            "" | "VersionTLS12" => Ok(Accepted::plain(Self::Tls12)),
            "VersionTLS13" => Ok(Accepted::plain(Self::Tls13)),
            "VersionTLS10" | "VersionTLS11" => Ok(Accepted {
                value: Self::Tls12,
                warnings: vec![format!(
                    "{name}: TLS below 1.2 is insecure (RFC 8996) and not offered; using 1.2"
                )],
            }),
            _ => Err(TlsFlagError {
                value: name.to_owned(),
                want: "it must be VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13",
            }),
        }
    }

    /// The protocol versions to offer, newest first; TLS 1.2 only if it has a suite.
    pub(super) fn protocols(self, tls12_suites: bool) -> &'static [&'static SupportedProtocolVersion] {
        static ALL: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
        match self {
            Self::Tls12 if tls12_suites => &ALL,
            Self::Tls12 | Self::Tls13 => &ALL[..1],
        }
    }
}

/// Go's suites with CBC, which rustls lacks. With them, rustls has the suites of Go 1.26's `tls.CipherSuites()`; those of
/// `tls.InsecureCipherSuites()` are refused, as in Go.
const CBC: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

const UNKNOWN_SUITE: &str =
    "it is unknown or insecure; the names are Go's, as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";

/// The TLS 1.2 suites to offer. TLS 1.3 suites are not configurable, as in Go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CipherSuites {
    /// `None`: all suites of rustls. Empty: TLS 1.3 only.
    tls12: Option<Vec<CipherSuite>>,
}

impl CipherSuites {
    /// Parses Go's suite names; an empty list means all suites.
    ///
    /// A list without a usable TLS 1.2 suite leaves TLS 1.3, which Go's lists do not restrict either and every released
    /// peer speaks: refusing to start would break a swap of images.
    ///
    /// # Errors
    /// If a name is unknown, or insecure according to Go (`TLS_RSA_*`, RC4, 3DES).
    pub fn parse(names: &[String]) -> Result<Accepted<Self>, TlsFlagError> {
        if names.is_empty() {
            return Ok(Accepted::plain(Self::default()));
        }
        let (mut offered, mut warnings) = (Vec::new(), Vec::new());
        for name in names {
            // rustls' names of the suites of TLS 1.3 have their version.
            let named = |suite: &&SupportedCipherSuite| {
                suite.suite().as_str().is_some_and(|known| known.replace("TLS13_", "TLS_") == *name)
            };
            match ALL_CIPHER_SUITES.iter().find(named) {
                // Suites of TLS 1.3 are not selectable, as in Go.
                Some(suite) if suite.tls13().is_some() => {
                    warnings.push(format!("{name} has no effect, TLS 1.3 has them all"));
                }
                Some(suite) if offered.contains(&suite.suite()) => {}
                Some(suite) => offered.push(suite.suite()),
                None if CBC.contains(&name.as_str()) => {
                    warnings.push(format!("{name} is not offered, as CBC is insecure"));
                }
                None => return Err(TlsFlagError { value: name.to_owned(), want: UNKNOWN_SUITE }),
            }
        }
        if offered.is_empty() {
            warnings.push("no suite of TLS 1.2 is left, only TLS 1.3 is offered".to_owned());
        }
        Ok(Accepted { value: Self { tls12: Some(offered) }, warnings })
    }

    /// Removes from `all` the TLS 1.2 suites that the list does not contain.
    pub(super) fn select(&self, all: &mut Vec<SupportedCipherSuite>) {
        if let Some(wanted) = &self.tls12 {
            all.retain(|suite| suite.tls13().is_some() || wanted.contains(&suite.suite()));
        }
    }

    /// True if a TLS 1.2 handshake can succeed.
    pub(super) fn has_tls12(&self) -> bool {
        self.tls12.as_ref().is_none_or(|suites| !suites.is_empty())
    }
}
