//! Reads certificates and keys from PEM files, and the system's certificates for clients without a CA file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

use super::error::read_failure;
use super::validity::now;
use super::{TlsError, Validity};

/// One file's contents at the time of the read.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl Contents {
    /// Reads the file.
    pub(super) fn read(path: &Path) -> Result<Self, TlsError> {
        let path = path.to_owned();
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Self { path, bytes }),
            Err(error) => {
                let text = format!("cannot read {}: {}", path.display(), read_failure(&error));
                Err(TlsError::file(text, &[&path]))
            }
        }
    }

    /// The error for contents that cannot be used.
    pub(super) fn fault(&self, why: impl fmt::Display) -> TlsError {
        TlsError::file(format!("{}: {why}", self.path.display()), &[&self.path])
    }
}

/// All certificates of a file, in order: at least one, all well-formed.
pub(super) fn certificates(file: &Contents) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let numbered = CertificateDer::pem_slice_iter(&file.bytes).zip(1..);
    let found: Vec<_> = numbered
        .map(|(der, number)| der.map_err(|error| broken(file, &format!("block number {number}"), &error)))
        .collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(file.fault(if is_key(&file.bytes) { SWAPPED } else { NO_CERTIFICATE }));
    }
    for (number, der) in (1..).zip(&found) {
        well_formed(der).map_err(|why| unusable(file, number, why))?;
    }
    Ok(found)
}

/// The error for a certificate, by its position in the file from 1.
fn unusable(file: &Contents, number: usize, why: &str) -> TlsError {
    file.fault(format!("certificate number {number} is not usable: {why}"))
}

/// How strictly a chain's validity is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidityCheck {
    /// At the start there is no better certificate: an invalid one is used, with a warning, as in Go.
    AtStart,
    /// At a reload the current certificate may be better: it stays.
    AtReload,
}

impl ValidityCheck {
    /// Checks the first certificate, which peers verify. `file` is its source.
    pub(super) fn chain(self, file: &Contents, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
        let fault = chain.first().and_then(Validity::of_one).and_then(|leaf| leaf.fault_at(now()));
        let Some(why) = fault else { return Ok(()) };
        let error = unusable(file, 1, &why);
        if self == Self::AtReload {
            return Err(error);
        }
        tracing::warn!(%error, "a certificate that peers will refuse is in use");
        Ok(())
    }
}

/// The files' certificate chain with its key, after a check that they match.
pub(super) fn certified_key(
    cert: &Contents,
    key: &Contents,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, TlsError> {
    let pair = key_pair(certificates(cert)?, private_key(key)?, provider)
        .map_err(|error| key.fault(format!("the private key is not usable: {error} ({SHORTEST_RSA})")))?;
    pair.ok_or_else(|| {
        let (key, cert) = (&key.path, &cert.path);
        let text =
            format!("the private key {} does not match the certificate {}", key.display(), cert.display());
        TlsError::file(text, &[cert, key])
    })
}

/// A certificate chain with its key; `None` if they do not match, or the chain has no X.509 certificate. Accepts what Go accepts of our own certificate, such as
/// X.509 version 1, and leaves the verdict to the peer: [`CertifiedKey::from_der`] refuses what webpki cannot parse.
///
/// # Errors
/// If the key is not usable.
pub fn key_pair(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<Option<Arc<CertifiedKey>>, rustls::Error> {
    let pair = Arc::new(CertifiedKey::new(chain, provider.key_provider.load_private_key(key)?));
    Ok((matches(&pair) == Some(true)).then_some(pair))
}

/// AWS-LC's limit, which Go does not have.
pub const SHORTEST_RSA: &str = "RSA keys below 2048 bits are not supported: issue a new one";

const NO_CERTIFICATE: &str = "no certificate in it (a PEM block BEGIN CERTIFICATE is expected)";
const SWAPPED: &str = "a private key is in it, and no certificate: are certificate and key swapped?";
const ENCRYPTED: &str =
    "the private key is encrypted: store it without a password (openssl pkey -in KEY -out PLAIN)";
const NO_KEY: &str =
    "no private key in it (a PEM block BEGIN PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY is expected)";

/// The first key of a file: PKCS#1, PKCS#8 or SEC1.
fn private_key(file: &Contents) -> Result<PrivateKeyDer<'static>, TlsError> {
    if is_encrypted(&file.bytes) {
        return Err(file.fault(ENCRYPTED));
    }
    PrivateKeyDer::from_pem_slice(&file.bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => file.fault(NO_KEY),
        other => broken(file, "a block", &other),
    })
}

/// `block` names the malformed block. Blocks that are not certificates have no number.
fn broken(file: &Contents, block: &str, error: &pem::Error) -> TlsError {
    let why = match error {
        pem::Error::MissingSectionEnd { .. } => format!("{block} has no END line (is the file cut off?)"),
        pem::Error::IllegalSectionStart { .. } => format!("the BEGIN line of {block} is malformed"),
        pem::Error::Base64Decode(_) => format!("{block} is not valid base64"),
        other => format!("{block}: {other}"),
    };
    file.fault(format!("not valid PEM: {why}"))
}

fn is_key(text: &[u8]) -> bool {
    String::from_utf8_lossy(text).contains("PRIVATE KEY-----")
}

/// PKCS#8 marks encryption in the label, the older forms in a header inside the block.
fn is_encrypted(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----")
        || text.lines().any(|line| line.starts_with("Proc-Type:") && line.contains("ENCRYPTED"))
}

fn well_formed(der: &CertificateDer<'_>) -> Result<(), &'static str> {
    match X509Certificate::from_der(der) {
        Ok(([], _)) => Ok(()),
        Ok(_) => Err("bytes follow the certificate"),
        Err(_) => Err("it is not an X.509 certificate"),
    }
}

/// Compares the public keys bit by bit, without their algorithm parameters, which may be omitted.
fn matches(pair: &CertifiedKey) -> Option<bool> {
    let ours = pair.key.public_key()?;
    let (_, ours) = SubjectPublicKeyInfo::from_der(&ours).ok()?;
    let (_, cert) = X509Certificate::from_der(pair.cert.first()?).ok()?;
    Some(cert.public_key().subject_public_key == ours.subject_public_key)
}

/// Where Linux distributions keep their bundle (the same places as in Go's `crypto/x509`). The first file with a
/// certificate is used.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The system's CA certificates; `SSL_CERT_FILE` replaces the usual places. Malformed entries are skipped: one of them
/// does not invalidate a bundle of a hundred.
///
/// # Errors
/// If there are none.
pub fn system_roots() -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let own = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty());
    let places = match own {
        Some(path) => vec![PathBuf::from(path)],
        None => BUNDLES.iter().map(PathBuf::from).collect(),
    };
    let found = places.iter().map(|path| bundle(path)).find(|found| !found.is_empty());
    let none = "no CA certificates found on this system: name a CA file";
    found.ok_or_else(|| TlsError::file(none, &[]))
}

fn bundle(path: &Path) -> Vec<CertificateDer<'static>> {
    let text = std::fs::read(path).unwrap_or_default();
    CertificateDer::pem_slice_iter(&text).filter_map(Result::ok).collect()
}
