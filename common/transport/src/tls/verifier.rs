//! Verification of servers for connections other than an agent's: those to the Kubernetes API.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::CertificateDer;

use super::legacy::{Report, ServerCerts};
use super::{LegacyPkiObserver, TlsError, shared_provider, system};

/// Verifies servers with `roots` as [`super::ClientTls`] does: by webpki, and by Go's rules where those accept more.
///
/// # Errors
/// If there is no usable authority.
pub fn server_verifier(
    roots: Vec<CertificateDer<'static>>,
    observer: LegacyPkiObserver,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    Ok(Arc::new(ServerCerts::new(roots, shared_provider(), Report::new(observer))?))
}

/// The system's authorities.
///
/// # Errors
/// If there are none.
pub fn system_roots() -> Result<Vec<CertificateDer<'static>>, TlsError> {
    system::roots()
}
