//! The verification of a peer's certificate: a listener's of its clients, an agent's of its server.
//!
//! webpki is asked first, then the authority that it found is checked; refusals for a reason in [`LegacyPki`] are judged
//! again. A certificate is always required.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};

use super::authorities::Authorities;
use super::certificate::{Certificate, Purpose};
use super::{LegacyPki, LegacyPkiObserver, Report, ignore_legacy_pki};
use crate::tls::{HandshakeError, TlsError, provider};

/// The most certificates of a peer besides its own. Each may cost a check of a signature, and anybody may send them: 150 cost
/// 12 ms of the handshakes' thread.
const MAX_INTERMEDIATES: usize = 8;
/// The most intermediate certificates with the same subject. webpki tries every order of certificates whose names fit before it
/// checks a signature: 8 of one name take 110,000 steps, 3, 3 and 2 of three names some 200.
const MAX_NAMESAKES: usize = 3;

tokio::task_local! {
    /// The issuer that a peer's certificate names, and the trusted authorities, if the handshake fails for them: an error of
    /// rustls cannot contain it without another alert.
    static UNKNOWN: Cell<Option<String>>;
}

/// Runs a handshake. If no trusted authority issued the peer's certificate, the error names the issuer, and the authorities of
/// `ca`.
///
/// # Errors
/// If the handshake fails.
pub async fn explained<T>(
    handshake: impl Future<Output = io::Result<T>>,
    ca: impl FnOnce() -> String,
) -> Result<T, HandshakeError> {
    let explained = async {
        handshake.await.map_err(|error| match (error.into(), UNKNOWN.with(Cell::take)) {
            (HandshakeError::Tls(error), Some(authorities)) => {
                HandshakeError::UnknownIssuer { error, authorities: format!("{}: {authorities}", ca()) }
            }
            (error, _) => error,
        })
    };
    UNKNOWN.scope(Cell::default(), explained).await
}

type SignatureResult = Result<HandshakeSignatureValid, Error>;

/// Verifies peers: webpki's verifier, and what is added to it.
#[derive(Debug)]
struct Verifier<V> {
    webpki: V,
    authorities: Authorities,
    report: Report,
}

/// Verifies clients.
type ClientCerts = Verifier<Arc<dyn ClientCertVerifier>>;

/// Verifies servers; without webpki it accepts any certificate.
type ServerCerts = Verifier<Option<Arc<WebPkiServerVerifier>>>;

/// Verifies servers by the authorities `roots`.
///
/// # Errors
/// If there is no usable authority.
pub fn server_verifier(
    roots: Vec<CertificateDer<'static>>,
    observer: LegacyPkiObserver,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let provider = provider();
    let authorities = Authorities::new(roots, Purpose::Server, &provider);
    let webpki = WebPkiServerVerifier::builder_with_provider(authorities.store(), provider)
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    Ok(Arc::new(Verifier { webpki: Some(webpki), authorities, report: Report::new(observer) }))
}

/// Accepts any certificate. The only check is that the server has its key: the signature of the handshake.
pub fn any_server() -> Arc<dyn ServerCertVerifier> {
    let authorities = Authorities::new(Vec::new(), Purpose::Server, &provider());
    Arc::new(Verifier { webpki: None, authorities, report: Report::new(ignore_legacy_pki()) })
}

/// Verifies a listener's clients by the authorities `roots`.
///
/// # Errors
/// If there is no usable authority.
pub(in crate::tls) fn client_verifier(
    roots: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
    observer: LegacyPkiObserver,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let authorities = Authorities::new(roots, Purpose::Client, &provider);
    let webpki = WebPkiClientVerifier::builder_with_provider(authorities.store(), provider)
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    Ok(Arc::new(Verifier { webpki, authorities, report: Report::new(observer) }))
}

/// The methods about signatures, which both kinds of verifiers have.
macro_rules! signatures_by_either {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> SignatureResult {
            self.tls12(message, cert, signed)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> SignatureResult {
            self.tls13(message, cert, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.authorities.algorithms.supported_schemes()
        }
    };
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
        limited(presented)?;
        let verdict = self.webpki.verify_client_cert(leaf, presented, now).map(drop);
        self.judge(verdict, leaf, presented, now, || Ok(()))?;
        Ok(ClientCertVerified::assertion())
    }

    signatures_by_either!();
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
        let Some(webpki) = &self.webpki else { return Ok(ServerCertVerified::assertion()) };
        limited(presented)?;
        let right_name = || match Certificate::parse(leaf) {
            Some(parsed) if parsed.is_for(name) => Ok(()),
            _ => Err(CertificateError::NotValidForName.into()),
        };
        let verdict = webpki.verify_server_cert(leaf, presented, name, ocsp, now).map(drop);
        self.judge(verdict, leaf, presented, now, right_name)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures_by_either!();
}

/// The checks that both kinds of verifiers add to webpki.
impl<V> Verifier<V> {
    /// Confirms webpki's verdict or judges it again; `right_name` is then the check of the peer's name.
    fn judge(
        &self,
        verdict: Result<(), Error>,
        leaf: &CertificateDer<'_>,
        presented: &[CertificateDer<'_>],
        now: UnixTime,
        right_name: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let confirmed = verdict.and_then(|()| self.authorities.confirm(leaf, presented, now));
        let verdict = confirmed.or_else(|refused| {
            let by_go = || self.authorities.by_go(leaf, presented, now).and_then(|()| right_name());
            self.report.judge_again(refused, leaf, by_go)
        });
        // A bad signature is an authority of the same name with another key.
        let unknown = [CertificateError::UnknownIssuer, CertificateError::BadSignature].map(Error::from);
        if verdict.as_ref().is_err_and(|error| unknown.contains(error)) {
            // Other users of the verifiers need no explanation.
            let _ = UNKNOWN.try_with(|cell| {
                cell.set(Some(self.authorities.explain(presented.last().unwrap_or(leaf))));
            });
        }
        verdict
    }

    /// webpki's verdict or, if it does not read the certificate, our own. The rest of the certificate was verified
    /// before; only its key is used here.
    fn tls12(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> SignatureResult {
        let algorithms = &self.authorities.algorithms;
        let verdict = verify_tls12_signature(message, cert, signed, algorithms);
        let Some(key) = unread_key(&verdict, cert)? else { return verdict };
        let key = webpki::RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
        let candidates = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
        candidates
            .flat_map(|(_, candidates)| candidates.iter())
            .any(|candidate| key.verify_signature(*candidate, message, signed.signature()).is_ok())
            .then(HandshakeSignatureValid::assertion)
            .ok_or_else(|| CertificateError::BadSignature.into())
    }

    /// As [`Verifier::tls12`].
    fn tls13(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> SignatureResult {
        let algorithms = &self.authorities.algorithms;
        let verdict = verify_tls13_signature(message, cert, signed, algorithms);
        let Some(key) = unread_key(&verdict, cert)? else { return verdict };
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }
}

/// Refuses more intermediate certificates than a search for their authority may cost.
fn limited(presented: &[CertificateDer<'_>]) -> Result<(), Error> {
    if presented.len() > MAX_INTERMEDIATES {
        let text = format!("the peer sent more than {MAX_INTERMEDIATES} intermediate certificates");
        return Err(Error::General(text));
    }
    let parsed: Vec<_> = presented.iter().map(Certificate::parse).collect();
    let subjects: Vec<_> =
        parsed.iter().map(|certificate| certificate.as_ref().map(Certificate::raw_subject)).collect();
    let namesakes = |subject| subjects.iter().filter(|other| *other == subject).count();
    if subjects.iter().any(|subject| namesakes(subject) > MAX_NAMESAKES) {
        let text = format!(
            "the peer sent more than {MAX_NAMESAKES} intermediate certificates with one subject, or unreadable"
        );
        return Err(Error::General(text));
    }
    Ok(())
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
