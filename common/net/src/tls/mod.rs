//! TLS for listeners and for dialing agents, from files.
//!
//! [`ServerTls`] and [`ClientTls`] are built once from paths and use the newest configuration for every handshake, so
//! that certificates can be reloaded under traffic. Where rustls is stricter than Go's `crypto/x509`, peers'
//! certificates are judged by Go's rules (see [`LegacyPki`]), because an operator who swaps the images keeps the
//! certificates.
//!
//! Never here: sockets, HTTP/2, the process-wide default provider (the provider is always passed).

mod ahead;
mod client;
mod error;
mod flags;
mod gather;
mod identity;
mod legacy;
mod material;
mod pem;
mod server;
#[cfg(test)]
mod tests;
mod validity;
mod watch;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use ahead::{ReadAhead, TooLarge};
pub use client::{ClientStream, ClientTls, ClientTlsOptions, client_config};
pub use error::{HandshakeError, TlsError, read_failure};
pub use flags::{Accepted, CipherSuites, TlsFlagError, TlsVersion};
pub use gather::Gathering;
pub use identity::{PeerIdentity, subject};
pub use legacy::{LegacyPki, LegacyPkiObserver, any_server, explained, ignore_legacy_pki, server_verifier};
pub use material::{CertificateFacts, Material, Options, Tls, Validities};
pub use pem::{SHORTEST_RSA, key_pair, system_roots};
pub use server::{ServerStream, ServerTls, ServerTlsOptions};
pub use validity::{Validity, now as unix_now};
pub use watch::{Rotated, watch};

/// ALPN name of HTTP/2, which gRPC speaks.
pub const ALPN_H2: &[u8] = b"h2";
/// ALPN name of HTTP/1.1, which the HTTP CONNECT frontend speaks.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The [`ReadAhead`] of a link between a server and an agent, in bytes: enough for bulk transfers.
pub const READ_AHEAD: usize = 256 * 1024;

/// Whether this build uses only validated cryptography (feature `fips`): no ChaCha20, no X25519 alone, and TLS 1.2 only
/// with extended master secrets.
pub const FIPS: bool = cfg!(feature = "fips");

/// Whether this is a build with [`FIPS`] whose provider reports the validated module. Called at a program's start.
///
/// # Errors
/// If it is such a build with another provider.
pub fn verified_fips() -> Result<bool, TlsError> {
    judged(FIPS, provider().fips(), "the cryptography").map(|()| FIPS)
}

/// Refuses what a build for FIPS must not use; `approved` is rustls's answer.
///
/// # Errors
/// If FIPS is wanted, and `what` is not approved.
fn judged(wanted: bool, approved: bool, what: &'static str) -> Result<(), TlsError> {
    if approved || !wanted {
        return Ok(());
    }
    let why = "not approved by FIPS 140-3, and this build (feature fips) must not use anything else";
    Err(TlsError::file(format!("{what}: {why}"), &[]))
}

/// The cryptography of this process, with all suites of rustls.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
