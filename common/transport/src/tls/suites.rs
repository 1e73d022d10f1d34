//! `--cipher-suites`: Go's names for cipher suites.

use rustls::{CipherSuite, SupportedCipherSuite};

use super::{Accepted, TlsFlagError};

/// What Go calls a suite, and what becomes of it here.
enum Known {
    /// A TLS 1.2 suite that rustls has.
    Usable(CipherSuite),
    /// A TLS 1.3 suite: always on, in Go as here.
    Tls13,
    /// Accepted by Go, absent from rustls (CBC).
    Missing,
}

/// The TLS 1.2 suites to offer. TLS 1.3 suites are not configurable, as in Go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CipherSuites {
    /// `None`: everything that rustls has. Empty: TLS 1.3 only.
    tls12: Option<Vec<CipherSuite>>,
}

impl CipherSuites {
    /// Parses Go's suite names; an empty list is every suite.
    ///
    /// A list without any usable TLS 1.2 suite that names TLS 1.3 suites leaves TLS 1.3 alone, which is
    /// what Go does with it.
    ///
    /// # Errors
    /// Names that are unknown or that Go counts as insecure (`TLS_RSA_*`, RC4, 3DES), and lists of
    /// which nothing usable is left.
    pub fn parse(names: &[String]) -> Result<Accepted<Self>, TlsFlagError> {
        if names.is_empty() {
            return Ok(Accepted::plain(Self::default()));
        }
        let (mut usable, mut missing, mut tls13) = (Vec::new(), Vec::new(), false);
        for name in names {
            match lookup(name)? {
                Known::Usable(suite) if usable.contains(&suite) => {}
                Known::Usable(suite) => usable.push(suite),
                Known::Tls13 => tls13 = true,
                Known::Missing => missing.push(name.as_str()),
            }
        }
        if usable.is_empty() && !tls13 {
            return Err(TlsFlagError::NoUsableSuite(missing.join(",")));
        }
        let warnings = (!missing.is_empty())
            .then(|| format!("CBC suites are not implemented and left out: {}", missing.join(",")));
        Ok(Accepted { value: Self { tls12: Some(usable) }, warnings: warnings.into_iter().collect() })
    }

    /// Keeps of `all` what the list allows.
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

/// Names from `crypto/tls` (`CipherSuites` and `InsecureCipherSuites`), Go 1.26.
fn lookup(name: &str) -> Result<Known, TlsFlagError> {
    Ok(match name {
        "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384" | "TLS_CHACHA20_POLY1305_SHA256" => Known::Tls13,
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => {
            Known::Usable(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)
        }
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => {
            Known::Usable(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)
        }
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" => {
            Known::Usable(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256)
        }
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => {
            Known::Usable(CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256)
        }
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => {
            Known::Usable(CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384)
        }
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" => {
            Known::Usable(CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256)
        }
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"
        | "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"
        | "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"
        | "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA" => Known::Missing,
        _ if is_insecure(name) => return Err(TlsFlagError::InsecureSuite(name.to_owned())),
        _ => return Err(TlsFlagError::UnknownSuite(name.to_owned())),
    })
}

/// Suites that Go knows and does not accept here.
fn is_insecure(name: &str) -> bool {
    name.starts_with("TLS_RSA_WITH_")
        || name.starts_with("TLS_ECDHE_")
            && (name.contains("_RC4_") || name.contains("_3DES_") || name.ends_with("_CBC_SHA256"))
}
