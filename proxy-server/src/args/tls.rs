//! Names of TLS versions and cipher suites, as Go's crypto/tls spells them.
//!
//! The names are only judged here: which of them mean anything to the TLS library is the listeners' business.

use flags::Refusal;

/// A TLS version by its Go name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.0, which is not offered; the same as 1.2.
    Tls10,
    /// 1.1, which is not offered; the same as 1.2.
    Tls11,
    /// 1.2, the default.
    Tls12,
    /// 1.3.
    Tls13,
}

impl TlsVersion {
    pub(super) fn from_flag(name: &str, notices: &mut Vec<String>) -> Result<Self, Refusal> {
        let version = match name {
            "VersionTLS10" => Self::Tls10,
            "VersionTLS11" => Self::Tls11,
            "VersionTLS12" | "" => Self::Tls12,
            "VersionTLS13" => Self::Tls13,
            other => {
                let want = "it must be VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13";
                return Err(Refusal::value("tls-min-version", format_args!("{other:?}"), want));
            }
        };
        if version < Self::Tls12 {
            notices.push(format!(
                "--tls-min-version={name}: TLS below 1.2 is insecure (RFC 8996) and not offered; 1.2 it is"
            ));
        }
        Ok(version)
    }
}

/// What becomes of a suite that Go accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suite {
    /// Of TLS 1.2, and can be chosen.
    Offered,
    /// Of TLS 1.3, where suites cannot be chosen.
    Fixed,
    /// CBC: accepted by name, never offered.
    Dropped,
}

/// Go's `tls.CipherSuites()`, 1.26. Those of `tls.InsecureCipherSuites()` are refused there and here.
const SUITES: [(&str, Suite); 13] = [
    ("TLS_AES_128_GCM_SHA256", Suite::Fixed),
    ("TLS_AES_256_GCM_SHA384", Suite::Fixed),
    ("TLS_CHACHA20_POLY1305_SHA256", Suite::Fixed),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", Suite::Dropped),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", Suite::Dropped),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", Suite::Dropped),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", Suite::Dropped),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", Suite::Offered),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", Suite::Offered),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", Suite::Offered),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", Suite::Offered),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", Suite::Offered),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", Suite::Offered),
];

/// Refuses names that Go refuses, and notes those that have no effect.
pub(super) fn check_suites(names: &[String], notices: &mut Vec<String>) -> Result<(), Refusal> {
    for name in names {
        let known = SUITES.iter().find(|(known, _)| known == name).map(|(_, suite)| *suite);
        let Some(suite) = known else {
            let want =
                "it is unknown or insecure; the names are Go's, as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
            return Err(Refusal::value("cipher-suites", format_args!("{name:?}"), want));
        };
        match suite {
            Suite::Offered => {}
            Suite::Fixed => {
                notices.push(format!("--cipher-suites: {name} has no effect, TLS 1.3 has them all"))
            }
            Suite::Dropped => {
                notices.push(format!("--cipher-suites: {name} is not offered, as CBC is insecure"))
            }
        }
    }
    Ok(())
}
