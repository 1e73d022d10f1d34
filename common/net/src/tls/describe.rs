//! Certificates in use, as an operator sees them.

use std::path::PathBuf;

use x509_parser::prelude::{FromDer, X509Certificate};

use super::material::Material;
use super::pem::Contents;
use super::{Validity, pem};

/// One certificate of a file in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// It is presented to peers; otherwise it is an authority for peers' certificates.
    pub presented: bool,
    /// The file.
    pub path: PathBuf,
    /// Its subject, in the form of RFC 4514.
    pub subject: String,
    /// Its issuer.
    pub issuer: String,
    /// When it is valid.
    pub validity: Validity,
}

impl Material {
    /// The certificates of its files.
    pub(super) fn certificates(&self) -> Vec<CertificateFacts> {
        let pair = self.pair.iter().map(|(cert, _)| (cert, true));
        let authorities = self.authorities.iter().map(|file| (file, false));
        pair.chain(authorities).flat_map(|(file, presented)| describe(file, presented)).collect()
    }
}

fn describe(file: &Contents, presented: bool) -> Vec<CertificateFacts> {
    // The file was parsed before it came into use.
    let certs = pem::certificates(file).unwrap_or_default();
    let parsed = certs.iter().filter_map(|der| Some(X509Certificate::from_der(der).ok()?.1));
    let facts = |cert: X509Certificate<'_>| CertificateFacts {
        presented,
        path: file.path.clone(),
        subject: cert.subject().to_string(),
        issuer: cert.issuer().to_string(),
        validity: Validity::from(cert.validity()),
    };
    parsed.map(facts).collect()
}
