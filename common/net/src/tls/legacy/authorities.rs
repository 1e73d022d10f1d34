//! The certificates of a CA file, and what each of them may issue.
//!
//! webpki reads the name, the key and the name constraints of an authority's certificate and ignores the rest. Go reads
//! the rest: an authority that has expired, is not a CA, may not sign, is for another purpose or exceeds its path
//! length is not accepted. So this module checks again every chain that webpki accepts, unless all certificates of the
//! file may issue it. The same applies to the key usage of intermediates.
//!
//! Never here: names, purposes and validity of the peer's certificates. webpki or [`chain`] checks those.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, VerifiedPath};

use super::certificate::{Certificate, Purpose, seconds};
use super::chain;
use crate::tls::Validity;

/// The most authorities that an error names.
const MAX_NAMED_AUTHORITIES: usize = 3;

/// The authorities that the operator trusts, for one purpose.
#[derive(Debug)]
pub(super) struct Authorities {
    certs: Vec<CertificateDer<'static>>,
    purpose: Purpose,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
    /// The certificates that may issue for the purpose, for webpki.
    anchors: Vec<TrustAnchor<'static>>,
    /// The terms of each of `anchors`, in the same order.
    constraints: Vec<Constraints>,
    /// Within these terms webpki's verdict is right, whatever path it finds. `None` if it never is.
    common: Option<Constraints>,
}

/// When, and for how long a path, an authority is valid.
#[derive(Debug, Clone, Copy)]
struct Constraints {
    validity: Validity,
    /// The highest number of intermediates.
    depth: usize,
}

impl Authorities {
    pub(super) fn new(
        certs: Vec<CertificateDer<'static>>,
        purpose: Purpose,
        provider: &CryptoProvider,
    ) -> Self {
        let algorithms = provider.signature_verification_algorithms;
        let (mut anchors, mut constraints, mut useless) = (Vec::new(), Vec::new(), 0_usize);
        for der in &certs {
            let Ok(anchor) = webpki::anchor_from_trusted_cert(der) else { continue };
            match Certificate::parse(der).and_then(|cert| Constraints::of(&cert, purpose)) {
                Some(found) => {
                    anchors.push(anchor.to_owned());
                    constraints.push(found);
                }
                None => useless += 1,
            }
        }
        let mut common = None;
        if useless == 0 {
            common = constraints.iter().copied().reduce(Constraints::and);
        } else {
            tracing::debug!(
                useless,
                of = certs.len(),
                purpose = purpose.name(),
                "some authorities may not issue certificates"
            );
        }
        Self { certs, purpose, algorithms, anchors, constraints, common }
    }

    /// All certificates, for rustls. Those that webpki cannot use are left out (Go's rules may accept them).
    pub(super) fn store(&self) -> Arc<RootCertStore> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(self.certs.iter().cloned());
        Arc::new(store)
    }

    /// Confirms a chain that webpki has accepted with [`Authorities::store`], for the same purpose.
    ///
    /// # Errors
    /// If no path leads to an authority that may issue it: outside the authority's validity, or `UnknownIssuer`.
    pub(super) fn confirm(
        &self,
        leaf: &CertificateDer<'_>,
        presented: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let holds = |constraints: Constraints| {
            constraints.met(presented.len(), now).is_ok() && presented.iter().all(may_sign)
        };
        if self.common.is_some_and(holds) {
            return Ok(());
        }
        let end = EndEntityCert::try_from(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let paths = end.verify_for_usage(
            self.algorithms.all,
            &self.anchors,
            presented,
            now,
            self.purpose.required(),
            None,
            Some(&|path| self.allow(path, now)),
        );
        let Err(refused) = paths else { return Ok(()) };
        Err(match refused {
            // The leaf is in the CA file itself and needs no issuer: `by_go` decides.
            _ if self.certs.contains(leaf) => CertificateError::UnknownIssuer,
            webpki::Error::CertExpired { time, not_after } => {
                CertificateError::ExpiredContext { time, not_after }
            }
            webpki::Error::CertNotValidYet { time, not_before } => {
                CertificateError::NotValidYetContext { time, not_before }
            }
            _ => CertificateError::UnknownIssuer,
        }
        .into())
    }

    /// Verifies by Go's rules alone, without names.
    pub(super) fn by_go(
        &self,
        leaf: &CertificateDer<'_>,
        presented: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        chain::verify(leaf, presented, &self.certs, self.purpose, now, self.algorithms)
    }

    /// For an operator: the issuer that `top` names, the end of the presented chain, and the authorities that are trusted.
    pub(super) fn explain(&self, top: &CertificateDer<'_>) -> String {
        let Some(top) = Certificate::parse(top) else { return "the certificate is malformed".to_owned() };
        let trusted: Vec<_> = self.certs.iter().filter_map(|cert| Certificate::parse(cert)).collect();
        let mut names: Vec<String> =
            trusted.iter().take(MAX_NAMED_AUTHORITIES).map(Certificate::subject).collect();
        if trusted.len() > MAX_NAMED_AUTHORITIES {
            names.push(format!("{} more", trusted.len() - MAX_NAMED_AUTHORITIES));
        }
        let same = match trusted.iter().any(|authority| top.names_issuer(authority)) {
            true => " (an authority of that name with another key, or without the right to issue)",
            false => "",
        };
        format!("the certificate was issued by {}; trusted: {}{same}", top.issuer(), names.join(", "))
    }

    /// Several certificates may have the same anchor, such as those of a renewed CA: any of them suffices.
    fn allow(&self, path: &VerifiedPath<'_>, now: UnixTime) -> Result<(), webpki::Error> {
        if !path.intermediate_certificates().all(|cert| may_sign(&cert.der())) {
            return Err(webpki::Error::UnknownIssuer);
        }
        let intermediates = path.intermediate_certificates().count();
        let same = self.anchors.iter().zip(&self.constraints).filter(|(anchor, _)| *anchor == path.anchor());
        same.map(|(_, constraints)| constraints.met(intermediates, now))
            .reduce(Result::or)
            .unwrap_or(Err(webpki::Error::UnknownIssuer))
    }
}

impl Constraints {
    /// `None` if the certificate may never issue for that purpose.
    fn of(cert: &Certificate<'_>, purpose: Purpose) -> Option<Self> {
        let issues = cert.may_issue(true, 0) && cert.permits(purpose) && cert.understood_as_authority();
        issues.then(|| Self { validity: cert.validity(), depth: cert.path_length().unwrap_or(usize::MAX) })
    }

    /// The intersection of both terms.
    fn and(self, other: Self) -> Self {
        Self { validity: self.validity.and(other.validity), depth: self.depth.min(other.depth) }
    }

    fn met(self, intermediates: usize, now: UnixTime) -> Result<(), webpki::Error> {
        let Validity { not_before, not_after } = self.validity;
        let seconds = seconds(now);
        if intermediates > self.depth {
            Err(webpki::Error::PathLenConstraintViolated)
        } else if seconds > not_after {
            Err(webpki::Error::CertExpired { time: now, not_after: time(not_after) })
        } else if seconds < not_before {
            Err(webpki::Error::CertNotValidYet { time: now, not_before: time(not_before) })
        } else {
            Ok(())
        }
    }
}

/// Whether an intermediate may sign certificates, which webpki does not check.
fn may_sign(der: &CertificateDer<'_>) -> bool {
    Certificate::parse(der).is_some_and(|cert| cert.may_issue(false, 0))
}

/// Times before 1970 become 1970.
fn time(seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}
