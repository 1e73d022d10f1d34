//! `--tls-min-version`: Go's names for protocol versions.

use super::{Accepted, TlsFlagError};

/// The lowest TLS version that a listener or the agent speaks.
///
/// TLS 1.0 and 1.1 do not exist in rustls; their names are accepted and mean 1.2, because refusing to
/// start would break a swap of images while no released peer needs less than 1.2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2 and newer (the default).
    #[default]
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

impl TlsVersion {
    /// Parses Go's name (`VersionTLS12`); empty is the default.
    ///
    /// # Errors
    /// Any other text.
    pub fn parse(name: &str) -> Result<Accepted<Self>, TlsFlagError> {
        match name {
            "" | "VersionTLS12" => Ok(Accepted::plain(Self::Tls12)),
            "VersionTLS13" => Ok(Accepted::plain(Self::Tls13)),
            "VersionTLS10" | "VersionTLS11" => Ok(Accepted {
                value: Self::Tls12,
                warnings: vec![format!(
                    "{name}: TLS below 1.2 is insecure (RFC 8996) and not offered; 1.2 it is"
                )],
            }),
            _ => Err(TlsFlagError {
                value: name.to_owned(),
                want: "it must be VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13",
            }),
        }
    }

    /// The protocol versions to offer, newest first; TLS 1.2 only if a suite for it is left.
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
