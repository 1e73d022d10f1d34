//! Handshake signatures of certificates whose key webpki does not read.
//!
//! The rest of such a certificate was verified before; this module uses only its key.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::{CertificateError, DigitallySignedStruct, Error};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};

use super::LegacyPki;
use super::certificate::Certificate;

type SignatureResult = Result<HandshakeSignatureValid, Error>;

/// webpki's verdict or, if it could not give one, our own.
pub(super) fn tls12(
    verdict: SignatureResult,
    message: &[u8],
    cert: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> SignatureResult {
    let Some(key) = unread_key(&verdict, cert)? else { return verdict };
    let key = webpki::RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
    let candidates = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
    candidates
        .flat_map(|(_, candidates)| candidates.iter())
        .any(|candidate| key.verify_signature(*candidate, message, signed.signature()).is_ok())
        .then(HandshakeSignatureValid::assertion)
        .ok_or_else(|| CertificateError::BadSignature.into())
}

/// webpki's verdict or, if it could not give one, our own.
pub(super) fn tls13(
    verdict: SignatureResult,
    message: &[u8],
    cert: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> SignatureResult {
    let Some(key) = unread_key(&verdict, cert)? else { return verdict };
    verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
}

/// The certificate's key if webpki could not read the certificate; `None` if webpki's verdict counts.
fn unread_key(
    verdict: &SignatureResult,
    cert: &CertificateDer<'_>,
) -> Result<Option<SubjectPublicKeyInfoDer<'static>>, Error> {
    let why = verdict.as_ref().err().and_then(LegacyPki::of);
    if !matches!(why, Some(LegacyPki::OldVersion | LegacyPki::CriticalExtension)) {
        return Ok(None);
    }
    let cert = Certificate::parse(cert).ok_or(CertificateError::BadEncoding)?;
    Ok(Some(SubjectPublicKeyInfoDer::from(cert.public_key_info().to_vec())))
}
