//! The judgement of servers, for connections that are not an agent's own: those to the Kubernetes API.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::CertificateDer;

use super::odd::{Report, ServerCerts};
use super::{OddPkiObserver, TlsError, shared_provider, system};

/// Judges servers by `roots` as [`super::ClientTls`] does: by webpki, and by Go's rules where those are wider.
///
/// # Errors
/// No usable authority.
pub fn server_verifier(
    roots: Vec<CertificateDer<'static>>,
    observer: OddPkiObserver,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    Ok(Arc::new(ServerCerts::new(roots, shared_provider(), Report::new(observer))?))
}

/// The system's authorities.
///
/// # Errors
/// There are none.
pub fn system_roots() -> Result<Vec<CertificateDer<'static>>, TlsError> {
    system::roots()
}
