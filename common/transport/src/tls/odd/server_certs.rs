//! The agent's judgement of a server's certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::certificate::Purpose;
use super::{OddPki, Report, chain};
use crate::tls::TlsError;

/// webpki first; its refusals for odd reasons are judged again.
#[derive(Debug)]
pub(in crate::tls) struct ServerCerts {
    webpki: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
    report: Report,
}

impl ServerCerts {
    pub(in crate::tls) fn new(
        roots: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
        report: Report,
    ) -> Result<Self, TlsError> {
        let algorithms = provider.signature_verification_algorithms;
        let webpki = WebPkiServerVerifier::builder_with_provider(super::root_store(&roots), provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self {
            webpki,
            roots,
            algorithms,
            report,
        })
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
        let refused = match self.webpki.verify_server_cert(leaf, presented, name, ocsp, now) {
            Ok(verified) => return Ok(verified),
            Err(refused) => refused,
        };
        let Some(why) = OddPki::of(&refused) else {
            return Err(refused);
        };
        // A certificate of version 1 fails here: it has no alternative names, and common names do not count.
        let parsed = ParsedCertificate::try_from(leaf)?;
        match chain::verify(leaf, presented, &self.roots, Purpose::Server, now, self.algorithms) {
            Ok(()) => verify_server_name(&parsed, name)?,
            Err(_) if why.is_guess() => return Err(refused),
            Err(error) => return Err(error),
        }
        self.report.accepted(why, leaf);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
