//! A listener's verification of a client's certificate.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::authorities::Authorities;
use super::certificate::Purpose;
use super::{Report, signature};
use crate::tls::TlsError;

/// Asks webpki first, then checks the authority that it found; refusals for a reason in [`super::LegacyPki`] are judged again. A
/// certificate is always required.
#[derive(Debug)]
pub(in crate::tls) struct ClientCerts {
    webpki: Arc<dyn ClientCertVerifier>,
    authorities: Authorities,
    report: Report,
}

impl ClientCerts {
    pub(in crate::tls) fn new(
        roots: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
        report: Report,
    ) -> Result<Self, TlsError> {
        let algorithms = provider.signature_verification_algorithms;
        let authorities = Authorities::new(roots, Purpose::Client, algorithms);
        let webpki = WebPkiClientVerifier::builder_with_provider(authorities.store(), provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { webpki, authorities, report })
    }
}

impl ClientCertVerifier for ClientCerts {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        presented: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verdict = self.webpki.verify_client_cert(leaf, presented, now);
        let confirm = |verified| self.authorities.confirm(leaf, presented, now).map(|()| verified);
        verdict.and_then(confirm).or_else(|refused| {
            let by_go = || self.authorities.by_go(leaf, presented, now);
            self.report.judge_again(refused, leaf, by_go).map(|()| ClientCertVerified::assertion())
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verdict = self.webpki.verify_tls12_signature(message, cert, signed);
        signature::tls12(verdict, message, cert, signed, &self.authorities.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verdict = self.webpki.verify_tls13_signature(message, cert, signed);
        signature::tls13(verdict, message, cert, signed, &self.authorities.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
