//! `--cipher-suites`: Go's names for cipher suites.

use std::fmt;

use rustls::{CipherSuite, SupportedCipherSuite};

use super::{Accepted, TlsFlagError};

/// How a suite that Go accepts is treated.
#[derive(Clone, Copy)]
enum Suite {
    /// A suite of TLS 1.2, selectable.
    Offered(CipherSuite),
    /// A suite of TLS 1.3, where suites are not selectable, as in Go.
    Fixed,
    /// CBC: accepted by name, absent in rustls.
    Dropped,
}

/// Go's `tls.CipherSuites()`, 1.26. Those of `tls.InsecureCipherSuites()` are refused, as in Go.
const SUITES: [(&str, Suite); 13] = [
    ("TLS_AES_128_GCM_SHA256", Suite::Fixed),
    ("TLS_AES_256_GCM_SHA384", Suite::Fixed),
    ("TLS_CHACHA20_POLY1305_SHA256", Suite::Fixed),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", Suite::Dropped),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", Suite::Dropped),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", Suite::Dropped),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", Suite::Dropped),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        Suite::Offered(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        Suite::Offered(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        Suite::Offered(CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        Suite::Offered(CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        Suite::Offered(CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        Suite::Offered(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ),
];

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
            match lookup(name)? {
                Suite::Offered(suite) if offered.contains(&suite) => {}
                Suite::Offered(suite) => offered.push(suite),
                Suite::Fixed => warnings.push(format!("{name} has no effect, TLS 1.3 has them all")),
                Suite::Dropped => warnings.push(format!("{name} is not offered, as CBC is insecure")),
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

impl fmt::Display for CipherSuites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tls12.as_deref() {
            None => f.write_str("all"),
            Some([]) => f.write_str("those of TLS 1.3"),
            Some(suites) => {
                let names: Vec<_> = suites.iter().filter_map(CipherSuite::as_str).collect();
                f.write_str(&names.join(" "))
            }
        }
    }
}

fn lookup(name: &str) -> Result<Suite, TlsFlagError> {
    let known = SUITES.iter().find(|(known, _)| *known == name).map(|(_, suite)| *suite);
    known.ok_or_else(|| TlsFlagError {
        value: name.to_owned(),
        want: "it is unknown or insecure; the names are Go's, as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    })
}
