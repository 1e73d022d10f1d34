//! A listener's TLS: the frontend's mTLS and the agent port.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;

use super::odd::{ClientCerts, Report};
use super::{
    ALPN_H2, ALPN_HTTP1, CipherSuites, HandshakeError, OddPkiObserver, Reloadable, TlsError, TlsVersion, pem,
};

/// A TLS stream as a listener has it.
pub type ServerStream<IO> = tokio_rustls::server::TlsStream<IO>;

/// What a listener's TLS is made of.
#[derive(Debug, Clone)]
pub struct ServerTlsOptions {
    /// PEM file: the certificate, then its intermediates.
    pub cert: PathBuf,
    /// PEM file: the certificate's key.
    pub key: PathBuf,
    /// PEM file of the authorities of clients. With it a client certificate is required and verified,
    /// without it none is asked for.
    pub client_ca: Option<PathBuf>,
    /// Application protocols, the preferred first.
    pub alpn: Vec<Vec<u8>>,
    /// The lowest version to speak.
    pub min_version: TlsVersion,
    /// TLS 1.2 suites to speak.
    pub suites: CipherSuites,
}

/// One generation of configuration.
#[derive(Debug)]
struct Configs {
    /// With the listener's protocols.
    usual: Arc<ServerConfig>,
    /// Without any, see [`ignores_alpn`].
    without_alpn: Arc<ServerConfig>,
}

/// A listener's TLS. Clones share one configuration, and its reloads.
#[derive(Clone)]
pub struct ServerTls {
    shared: Arc<Shared>,
}

struct Shared {
    options: ServerTlsOptions,
    observer: OddPkiObserver,
    configs: Reloadable<Configs>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Files that are missing, unreadable, malformed or do not belong together.
    pub fn load(options: ServerTlsOptions, observer: OddPkiObserver) -> Result<Self, TlsError> {
        let configs = Reloadable::new(configs(&options, &observer)?);
        Ok(Self { shared: Arc::new(Shared { options, observer, configs }) })
    }

    /// Reads the files again. Handshakes from now on use them; sessions of before cannot be resumed,
    /// so a client whose authority was removed has to show a certificate.
    ///
    /// # Errors
    /// As [`ServerTls::load`]; the configuration in use stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.shared.configs.store(configs(&self.shared.options, &self.shared.observer)?);
        Ok(())
    }

    /// The files and settings this was made from.
    pub fn options(&self) -> &ServerTlsOptions {
        &self.shared.options
    }

    /// Shakes hands on an accepted connection. Bound it in time: see [`crate::listen::HandshakeGate`].
    ///
    /// # Errors
    /// Peers that leave, do not speak TLS, or fail verification; they were sent an alert.
    pub async fn accept<IO>(&self, io: IO) -> Result<ServerStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), io).await?;
        let configs = self.shared.configs.load();
        let offered = hello.client_hello().alpn();
        let ignored = offered.is_some_and(|offered| ignores_alpn(&self.shared.options.alpn, offered));
        let config = if ignored { &configs.without_alpn } else { &configs.usual };
        Ok(hello.into_stream(Arc::clone(config)).await?)
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ServerTls").field(&self.shared.options).finish()
    }
}

/// Go's special case: to a server of `h2`, a client that offers `http/1.1` and nothing that matches is
/// served as if it had offered nothing; any other mismatch is a `no_application_protocol` alert.
fn ignores_alpn<'a>(ours: &[Vec<u8>], offered: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut http1 = false;
    for theirs in offered {
        if ours.iter().any(|our| our == theirs) {
            return false;
        }
        http1 |= theirs == ALPN_HTTP1;
    }
    http1 && ours.iter().any(|our| our == ALPN_H2)
}

fn configs(options: &ServerTlsOptions, observer: &OddPkiObserver) -> Result<Configs, TlsError> {
    let mut provider = super::provider();
    options.suites.select(&mut provider.cipher_suites);
    let provider = Arc::new(provider);
    let pair = pem::certified_key(&options.cert, &options.key, &provider)?;
    let protocols = options.min_version.protocols(options.suites.has_tls12());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(protocols)?;
    let builder = match &options.client_ca {
        Some(path) => {
            let roots = pem::certificates(path)?;
            let report = Report::new(Arc::clone(observer));
            builder.with_client_cert_verifier(Arc::new(ClientCerts::new(roots, provider, report)?))
        }
        None => builder.with_no_client_auth(),
    };
    let without_alpn = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    let mut usual = without_alpn.clone();
    usual.alpn_protocols.clone_from(&options.alpn);
    Ok(Configs { usual: Arc::new(usual), without_alpn: Arc::new(without_alpn) })
}
