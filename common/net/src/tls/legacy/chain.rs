//! A chain check by Go's rules, without names: from a peer's certificate to one of the authorities.

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::{CertificateError, Error};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::certificate::{Certificate, Purpose, seconds};
use crate::tls::Validity;

/// The limit of signature checks per chain, against chains built to be slow (Go's limit).
const MAX_SIGNATURES: usize = 100;
/// Intermediates between the peer and the authority, as in webpki.
const MAX_INTERMEDIATES: usize = 6;
/// How many certificates of a peer are considered.
const MAX_PRESENTED: usize = 16;

/// Checks that a path leads from `leaf` to one of `roots`: signatures, validity, purposes, CA flags, path lengths,
/// critical extensions. The leaf may be a CA, may be one of the roots, and may be of version 1.
pub(super) fn verify(
    leaf: &CertificateDer<'_>,
    presented: &[CertificateDer<'_>],
    roots: &[CertificateDer<'_>],
    purpose: Purpose,
    now: UnixTime,
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let leaf = Certificate::parse(leaf).ok_or(CertificateError::BadEncoding)?;
    usable(&leaf, purpose, now)?;
    if roots.iter().any(|root| root.as_ref() == leaf.der) {
        return Ok(());
    }
    let presented: Vec<_> = presented.iter().take(MAX_PRESENTED).filter_map(Certificate::parse).collect();
    let roots: Vec<_> = roots.iter().filter_map(Certificate::parse).collect();
    let mut search = Search {
        presented: &presented,
        roots: &roots,
        purpose,
        now,
        algorithms,
        signatures_left: MAX_SIGNATURES,
    };
    if search.leads_to_root(&mut vec![&leaf]) {
        return Ok(());
    }
    Err(CertificateError::UnknownIssuer.into())
}

/// The checks for every certificate of a chain.
fn usable(certificate: &Certificate<'_>, purpose: Purpose, now: UnixTime) -> Result<(), Error> {
    let (now, Validity { not_before, not_after }) = (seconds(now), certificate.validity());
    let fault = if now > not_after {
        CertificateError::Expired
    } else if now < not_before {
        CertificateError::NotValidYet
    } else if !certificate.permits(purpose) {
        CertificateError::InvalidPurpose
    } else if !certificate.understood() {
        CertificateError::UnhandledCriticalExtension
    } else {
        return Ok(());
    };
    Err(fault.into())
}

/// A depth-first search upwards.
struct Search<'a, 'd> {
    presented: &'a [Certificate<'d>],
    roots: &'a [Certificate<'d>],
    purpose: Purpose,
    now: UnixTime,
    algorithms: WebPkiSupportedAlgorithms,
    /// Never grows: limits the search.
    signatures_left: usize,
}

impl<'a, 'd> Search<'a, 'd> {
    /// `path` is the chain so far, leaf first. It is unchanged after the call.
    fn leads_to_root<'c>(&mut self, path: &mut Vec<&'c Certificate<'d>>) -> bool
    where
        'a: 'c,
    {
        let (roots, presented) = (self.roots, self.presented);
        if roots.iter().any(|root| self.may_extend(path, root, true)) {
            return true;
        }
        if path.len() > MAX_INTERMEDIATES {
            return false;
        }
        presented.iter().any(|next| {
            if path.iter().any(|passed| passed.same_entity(next)) || !self.may_extend(path, next, false) {
                return false;
            }
            path.push(next);
            let found = self.leads_to_root(path);
            path.pop();
            found
        })
    }

    /// True if `issuer` signed the last certificate of `path` and was allowed to.
    fn may_extend(&mut self, path: &[&Certificate<'d>], issuer: &Certificate<'d>, root: bool) -> bool {
        let Some(last) = path.last() else { return false };
        let entitled = last.names_issuer(issuer)
            && issuer.may_issue(root, path.len() - 1)
            && usable(issuer, self.purpose, self.now).is_ok();
        if !entitled || self.signatures_left == 0 {
            return false;
        }
        self.signatures_left -= 1;
        last.signed_by(issuer, self.algorithms)
    }
}
