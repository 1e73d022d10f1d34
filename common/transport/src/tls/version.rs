//! `--tls-min-version`: Go's names for protocol versions.

use super::{Accepted, TlsFlagError};

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
    pub(super) fn protocols(
        self,
        tls12_suites: bool,
    ) -> &'static [&'static rustls::SupportedProtocolVersion] {
        static BOTH: &[&rustls::SupportedProtocolVersion] =
            &[&rustls::version::TLS13, &rustls::version::TLS12];
        static NEW: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
        match self {
            Self::Tls12 if tls12_suites => BOTH,
            Self::Tls12 | Self::Tls13 => NEW,
        }
    }
}
