//! Certificates that Go accepts and webpki refuses.
//!
//! Clusters run for years with home-made certificates: a CA's own certificate as the server's, a leaf pinned as its own
//! authority, `anyExtendedKeyUsage`, X.509 v1 client certificates. All of them worked with the Go images, so they work
//! here: if webpki refuses a chain for one of the reasons in [`LegacyPki`], [`chain`] judges it again by Go's rules. The
//! observer counts each acceptance and a warning is logged, so that operators can repair their PKI.
//!
//! Conversely, Go checks the certificates of the CA file and webpki does not: [`authorities`] refuses chains that those
//! certificates had no right to issue.
//!
//! Never here: a second opinion on expiry, on bad signatures, or on names except wildcards. Go also refuses what webpki
//! refuses for those reasons.

mod authorities;
mod certificate;
mod chain;
mod verifiers;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustls::{CertificateError, Error};
use rustls_pki_types::CertificateDer;

use super::PeerIdentity;

pub(super) use verifiers::client_verifier;
pub use verifiers::{any_server, explained, server_verifier};

/// Why webpki refused a chain that Go's rules accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegacyPki {
    /// The peer's own certificate is a CA certificate.
    CaAsLeaf,
    /// The certificate is itself in the CA file, and no CA in the file issued it.
    PinnedLeaf,
    /// The certificate has `anyExtendedKeyUsage` instead of the required purpose.
    AnyPurpose,
    /// X.509 version 1 or 2, without extensions.
    OldVersion,
    /// A critical extension that Go understands and webpki does not (certificate policies).
    CriticalExtension,
    /// A wildcard in front of a single label (`*.local`).
    ShortWildcard,
}

impl LegacyPki {
    /// The value of the metric's label.
    pub fn label(self) -> &'static str {
        self.words().0
    }

    /// The label, and the reason in a sentence.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::CaAsLeaf => ("ca_as_leaf", "it is a CA certificate"),
            Self::PinnedLeaf => {
                ("pinned_leaf", "it is listed in the CA file itself and no CA there vouches for it")
            }
            Self::AnyPurpose => ("any_purpose", "its extended key usage is anyExtendedKeyUsage"),
            Self::OldVersion => ("old_version", "it is X.509 version 1 or 2"),
            Self::CriticalExtension => ("critical_extension", "it has a critical policy extension"),
            Self::ShortWildcard => ("short_wildcard", "its name is a wildcard in front of a single label"),
        }
    }

    /// True if webpki's refusal for this reason is usually justified: its error is then the better answer if Go's rules
    /// refuse too.
    fn is_guess(self) -> bool {
        matches!(self, Self::PinnedLeaf | Self::AnyPurpose | Self::ShortWildcard)
    }

    /// The reason in webpki's error, if Go does not share it.
    fn of(error: &Error) -> Option<Self> {
        let Error::InvalidCertificate(error) = error else { return None };
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

/// Called for each handshake that was accepted by Go's rules only, to count it.
pub type LegacyPkiObserver = Arc<dyn Fn(LegacyPki) + Send + Sync>;

/// An observer that does nothing.
pub fn ignore_legacy_pki() -> LegacyPkiObserver {
    Arc::new(|_| {})
}

/// Reports every acceptance to the observer, and logs a warning for the first of each kind.
struct Report {
    observer: LegacyPkiObserver,
    warned: AtomicU8,
}

impl Report {
    fn new(observer: LegacyPkiObserver) -> Self {
        Self { observer, warned: AtomicU8::new(0) }
    }

    /// Judges `refused`, webpki's error about the certificate `leaf`, again: `by_go` is the verdict by Go's rules.
    ///
    /// # Errors
    /// Go refuses the certificate too; or Go shares the reason, and is not asked.
    fn judge_again(
        &self,
        refused: Error,
        leaf: &CertificateDer<'_>,
        by_go: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(why) = LegacyPki::of(&refused) else { return Err(refused) };
        match by_go() {
            Ok(()) => {
                self.accepted(why, leaf);
                Ok(())
            }
            Err(_) if why.is_guess() => Err(refused),
            Err(error) => Err(error),
        }
    }

    fn accepted(&self, why: LegacyPki, cert: &CertificateDer<'_>) {
        (self.observer)(why);
        let bit = 1 << why as u8;
        if self.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            let peer = PeerIdentity::from_der(cert).unwrap_or_default();
            tracing::warn!(%peer, reason = why.label(), "accepted an unusual certificate: {}; please issue a new one", why.words().1);
        }
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Report")
    }
}
