//! The system's CA certificates, for clients without a CA file.

use std::path::{Path, PathBuf};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::TlsError;

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
