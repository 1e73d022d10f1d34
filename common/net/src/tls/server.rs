//! A listener's TLS: the frontend's mTLS and the agent port.
//!
//! Sessions are never resumed. On resumption rustls does not verify the client's certificate again, so a client with an
//! expired certificate would be accepted until the session is forgotten. Neither kube-apiserver nor a Go agent resumes
//! (they have no session cache), and agents connect rarely, so nothing is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{Acceptor, NoServerSessionStorage};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;

use super::legacy::{client_verifier, explained};
use super::material::{Material, Options, Tls};
use super::pem::ValidityCheck;
use super::{
    CipherSuites, HandshakeError, LegacyPkiObserver, ReadAhead, TlsError, TlsVersion, Validities, Validity,
    pem,
};

/// The limit of a ClientHello in bytes, with record headers: one record. Real ones have 200 to 2,000, including
/// post-quantum key shares.
const MAX_HELLO_BYTES: usize = 16 << 10;

/// The limit of the bytes that a client sends after its ClientHello until its handshake is complete. rustls accepts a
/// certificate chain of at most 64 KiB.
const MAX_FLIGHT_BYTES: usize = 80 << 10;

/// A listener's TLS stream.
pub type ServerStream<IO> = tokio_rustls::server::TlsStream<IO>;

/// The settings of a listener's TLS.
#[derive(Debug, Clone)]
pub struct ServerTlsOptions {
    /// PEM file: the certificate, then its intermediates.
    pub cert: PathBuf,
    /// PEM file: the certificate's key.
    pub key: PathBuf,
    /// PEM file of the clients' authorities. If set, a client certificate is required and verified; otherwise none is
    /// requested.
    pub client_ca: Option<PathBuf>,
    /// The lowest TLS version.
    pub min_version: TlsVersion,
    /// The TLS 1.2 suites.
    pub suites: CipherSuites,
}

/// A listener's TLS.
pub type ServerTls = Tls<ServerTlsOptions>;

impl ServerTls {
    /// Performs the handshake on an accepted connection. The caller sets the time-out, see
    /// [`crate::listen::HANDSHAKE_TIMEOUT`]. `alpn` are the port's application protocols, the preferred one first. Calls
    /// `on_hello` when the ClientHello is complete, before any cryptography.
    ///
    /// # Errors
    /// If the peer disconnects, does not speak TLS, sends too much, or fails verification (it was sent an alert).
    pub async fn accept_with<IO: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: IO,
        alpn: &[&[u8]],
        on_hello: impl FnOnce(),
    ) -> Result<ServerStream<ReadAhead<IO>>, HandshakeError> {
        let io = ReadAhead::bounded(io, MAX_HELLO_BYTES);
        let mut hello = LazyConfigAcceptor::new(Acceptor::default(), io).await?;
        on_hello();
        hello.io.allow(MAX_FLIGHT_BYTES);
        let ca = || self.options().client_ca.as_deref().unwrap_or(Path::new("")).display().to_string();
        let mut config = ServerConfig::clone(&self.config());
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        explained(hello.into_stream(Arc::new(config)), ca).await
    }
}

impl Options for ServerTlsOptions {
    type Config = ServerConfig;

    fn read(&self) -> Result<Material, TlsError> {
        let pair = (self.cert.as_path(), self.key.as_path());
        Material::read(Some(pair), self.client_ca.as_deref())
    }

    fn build(
        &self,
        material: &Material,
        observer: &LegacyPkiObserver,
        check: ValidityCheck,
    ) -> Result<(ServerConfig, Validities), TlsError> {
        let mut provider = super::provider();
        self.suites.select(&mut Arc::make_mut(&mut provider).cipher_suites);
        let (cert, key) = material.pair.as_ref().expect("a listener's material has a pair");
        let pair = pem::certified_key(cert, key, &provider)?;
        check.chain(cert, &pair.cert)?;
        let mut validities = Validities { own: Validity::of(&pair.cert), authorities: None };
        let protocols = self.min_version.protocols(self.suites.has_tls12());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(protocols)?;
        let builder = match &material.authorities {
            Some(file) => {
                let roots = pem::certificates(file)?;
                validities.authorities = Validity::of(&roots);
                builder.with_client_cert_verifier(client_verifier(roots, provider, Arc::clone(observer))?)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        // Disables session ids (TLS 1.2) and tickets (TLS 1.3).
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        super::judged(super::FIPS, config.fips(), "the TLS configuration")?;
        Ok((config, validities))
    }
}
