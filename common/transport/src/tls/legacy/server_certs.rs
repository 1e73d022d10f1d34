//! The agent's verification of a server's certificate.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::authorities::Authorities;
use super::certificate::{Certificate, Purpose};
use super::{Report, signature};
use crate::tls::TlsError;

/// Asks webpki first, then checks the authority that it found; refusals for a reason in [`super::LegacyPki`] are judged again.
#[derive(Debug)]
pub(in crate::tls) struct ServerCerts {
    webpki: Arc<WebPkiServerVerifier>,
    authorities: Authorities,
    report: Report,
}

impl ServerCerts {
    pub(in crate::tls) fn new(
        roots: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
        report: Report,
    ) -> Result<Self, TlsError> {
        let algorithms = provider.signature_verification_algorithms;
        let authorities = Authorities::new(roots, Purpose::Server, algorithms);
        let webpki = WebPkiServerVerifier::builder_with_provider(authorities.store(), provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { webpki, authorities, report })
    }
}

impl ServerCertVerifier for ServerCerts {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        presented: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self.webpki.verify_server_cert(leaf, presented, name, ocsp, now);
        let confirm = |verified| self.authorities.confirm(leaf, presented, now).map(|()| verified);
        let right_name = || match Certificate::parse(leaf) {
            Some(parsed) if parsed.is_for(name) => Ok(()),
            _ => Err(CertificateError::NotValidForName.into()),
        };
        verdict.and_then(confirm).or_else(|refused| {
            let by_go = || self.authorities.by_go(leaf, presented, now).and_then(|()| right_name());
            self.report.judge_again(refused, leaf, by_go).map(|()| ServerCertVerified::assertion())
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
