//! TLS as Konnectivity uses it: what a listener or a dialling agent needs, made from files.
//!
//! [`ServerTls`] and [`ClientTls`] are built once from paths and hand out the newest configuration to
//! every new handshake, so that certificates can be reloaded under traffic. Verdicts about peers'
//! certificates follow Go's `crypto/x509` where rustls is stricter (see [`OddPki`]), because an operator
//! who swaps the images keeps the certificates.
//!
//! Never here: sockets, HTTP/2, the process-wide default provider (the provider is always passed).

mod ahead;
mod client;
mod error;
mod gather;
mod identity;
mod material;
mod odd;
mod pem;
mod reload;
mod server;
mod suites;
mod system;
#[cfg(test)]
mod tests;
mod validity;
mod verifier;
mod version;
mod watch;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use ahead::{ReadAhead, TooLarge};
pub use client::{CaSource, ClientStream, ClientTls, ClientTlsOptions};
pub use error::{HandshakeError, TlsError, TlsFlagError};
pub use gather::{Gathering, Session};
pub use identity::PeerIdentity;
pub use material::{Material, Rotating, Validities};
pub use odd::{OddPki, OddPkiObserver, ignore_odd_pki};
pub use pem::short_rsa;
pub use reload::Reloadable;
pub use server::{ServerStream, ServerTls, ServerTlsOptions};
pub use suites::CipherSuites;
pub use validity::{Validity, now as unix_now};
pub use verifier::{server_verifier, system_roots};
pub use version::TlsVersion;
pub use watch::{Rotated, watch};

/// ALPN name of HTTP/2, which gRPC speaks.
pub const ALPN_H2: &[u8] = b"h2";
/// ALPN name of HTTP/1.1, which the HTTP CONNECT frontend speaks.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";

/// [`ReadAhead`] of a link between a server and an agent, in bytes: enough for bulk transfers.
pub const READ_AHEAD: usize = 256 * 1024;

/// What a flag's text became, and what the operator should be told about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted<T> {
    /// The parsed value.
    pub value: T,
    /// One line each, without the flag's name in front of it.
    pub warnings: Vec<String>,
}

impl<T> Accepted<T> {
    fn plain(value: T) -> Self {
        Self { value, warnings: Vec::new() }
    }
}

/// Whether this build has the validated cryptography only (the feature `fips`): no ChaCha20, no X25519 alone, and TLS 1.2
/// with extended master secrets only.
pub const FIPS: bool = cfg!(feature = "fips");

/// Whether this is a build with [`FIPS`], whose provider was asked and is the validated module. For a program's start.
///
/// # Errors
/// It is such a build, and the provider is another.
pub fn verified_fips() -> Result<bool, TlsError> {
    judged(FIPS, provider().fips(), "the cryptography").map(|()| FIPS)
}

/// Refuses a configuration that a build with [`FIPS`] must not use: `approved` is what rustls says of it.
///
/// # Errors
/// The build is for FIPS 140-3, and the configuration is not.
pub fn check_config(approved: bool) -> Result<(), TlsError> {
    judged(FIPS, approved, "the TLS configuration")
}

fn judged(wanted: bool, approved: bool, what: &'static str) -> Result<(), TlsError> {
    if wanted && !approved { Err(TlsError::NotFips(what)) } else { Ok(()) }
}

/// The cryptography of this process, with every suite that rustls has.
fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

/// The same, shared, for the sides on which no flag narrows the suites.
fn shared_provider() -> Arc<CryptoProvider> {
    Arc::new(provider())
}
