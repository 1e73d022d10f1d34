//! Certificates that Go accepts and webpki refuses.
//!
//! Clusters run for years with home-made certificates: a CA's own certificate as the server's, a leaf
//! pinned as its own authority, `anyExtendedKeyUsage`, X.509 v1 client certificates. Every such
//! certificate worked with the Go images, so it works here: when webpki refuses a chain for one of
//! the reasons in [`OddPki`], [`chain`] judges it again by Go's rules. Such an acceptance is warned of
//! and counted by the observer, so that operators can see it and repair their PKI.
//!
//! The other way round, webpki does not judge the certificates of the CA file, and Go does: [`authorities`]
//! refuses what they had no right to issue.
//!
//! Never here: a second opinion on expiry or bad signatures, and none on names but for wildcards. What
//! webpki refuses for those reasons, Go refuses as well.

mod authorities;
mod certificate;
mod chain;
mod client_certs;
mod server_certs;
mod signature;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustls::{CertificateError, Error};
use rustls_pki_types::CertificateDer;

use super::PeerIdentity;

pub(super) use client_certs::ClientCerts;
pub(super) use server_certs::ServerCerts;

/// Why webpki refused a chain that Go's rules accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OddPki {
    /// The peer's own certificate says that it is a CA.
    CaAsLeaf,
    /// The certificate is itself in the CA file, and no CA in it vouches for it.
    PinnedLeaf,
    /// `anyExtendedKeyUsage` stands for the missing purpose.
    AnyPurpose,
    /// X.509 version 1 or 2, without extensions.
    OldVersion,
    /// A critical extension that Go understands and webpki does not (certificate policies).
    CriticalExtension,
    /// A wildcard in front of a single label (`*.local`).
    ShortWildcard,
}

impl OddPki {
    /// A metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::CaAsLeaf => "ca_as_leaf",
            Self::PinnedLeaf => "pinned_leaf",
            Self::AnyPurpose => "any_purpose",
            Self::OldVersion => "old_version",
            Self::CriticalExtension => "critical_extension",
            Self::ShortWildcard => "short_wildcard",
        }
    }

    /// True if webpki's reason is more often plainly right than odd: its own words are the better answer
    /// when Go's rules refuse as well.
    fn is_guess(self) -> bool {
        matches!(self, Self::PinnedLeaf | Self::AnyPurpose | Self::ShortWildcard)
    }

    /// The reason in webpki's error, if it is one that Go does not share.
    fn of(error: &Error) -> Option<Self> {
        let Error::InvalidCertificate(error) = error else {
            return None;
        };
        match error {
            CertificateError::UnknownIssuer => Some(Self::PinnedLeaf),
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Some(Self::AnyPurpose)
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Some(Self::ShortWildcard)
            }
            CertificateError::Other(other) => match other.0.downcast_ref::<webpki::Error>()? {
                webpki::Error::CaUsedAsEndEntity => Some(Self::CaAsLeaf),
                webpki::Error::UnsupportedCertVersion => Some(Self::OldVersion),
                webpki::Error::UnsupportedCriticalExtension => Some(Self::CriticalExtension),
                _ => None,
            },
            _ => None,
        }
    }
}

impl fmt::Display for OddPki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CaAsLeaf => "it is a CA certificate",
            Self::PinnedLeaf => "it is listed in the CA file itself and no CA there vouches for it",
            Self::AnyPurpose => "its extended key usage is anyExtendedKeyUsage",
            Self::OldVersion => "it is X.509 version 1 or 2",
            Self::CriticalExtension => "it has a critical policy extension",
            Self::ShortWildcard => "its name is a wildcard in front of a single label",
        })
    }
}

/// Called for each handshake that was accepted by Go's rules only; a counter goes here.
pub type OddPkiObserver = Arc<dyn Fn(OddPki) + Send + Sync>;

/// An observer for those who do not count.
pub fn ignore_odd_pki() -> OddPkiObserver {
    Arc::new(|_| {})
}

/// Counts every acceptance, and warns of the first of each kind.
pub(super) struct Report {
    observer: OddPkiObserver,
    warned: AtomicU8,
}

impl Report {
    pub(super) fn new(observer: OddPkiObserver) -> Self {
        Self { observer, warned: AtomicU8::new(0) }
    }

    fn accepted(&self, why: OddPki, cert: &CertificateDer<'_>) {
        (self.observer)(why);
        let bit = 1 << why as u8;
        if self.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            let peer = PeerIdentity::from_der(cert).unwrap_or_default();
            tracing::warn!(%peer, reason = why.label(), "accepted an unusual certificate: {why}; please issue a new one");
        }
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Report")
    }
}
