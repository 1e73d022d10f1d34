//! A listener's TLS: the frontend's mTLS and the agent port.
//!
//! Sessions are never resumed. rustls takes the client's certificate out of a resumed session without another look at
//! it, so that one which has expired would get in until the session is forgotten. Neither kube-apiserver nor an agent
//! written in Go resumes (they have no session cache), and agents connect rarely: there is nothing to gain.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{Acceptor, NoServerSessionStorage};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;

use super::material::Material;
use super::odd::{ClientCerts, Report};
use super::validity::Judge;
use super::{
    ALPN_H2, ALPN_HTTP1, CipherSuites, HandshakeError, OddPkiObserver, ReadAhead, Reloadable, Rotating,
    TlsError, TlsVersion, Validities, Validity, pem,
};

/// Bytes of a ClientHello, its records' heads included: one record. Real ones have 200 to 2,000, with key shares of
/// post-quantum cryptography.
const HELLO_LIMIT: usize = 16 << 10;

/// Bytes of what a client sends behind its hello until its handshake is over. rustls takes a chain of certificates of 64 KiB at
/// most.
const FLIGHT_LIMIT: usize = 80 << 10;

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
    /// What it was made from.
    material: Material,
    validities: Validities,
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
        let configs = Reloadable::new(configs(&options, &observer, options.read()?, Judge::AtStart)?);
        Ok(Self { shared: Arc::new(Shared { options, observer, configs }) })
    }

    /// Reads the files again. Handshakes from now on use them, and no session outlives them: a client whose authority
    /// was removed has to show another certificate.
    ///
    /// # Errors
    /// As [`ServerTls::load`], and a certificate that is not valid now; the configuration in use stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.take(&self.read()?)
    }

    /// The files and settings this was made from.
    pub fn options(&self) -> &ServerTlsOptions {
        &self.shared.options
    }

    /// Shakes hands on an accepted connection. The caller bounds the time, see [`crate::listen::HANDSHAKE_LIMIT`].
    ///
    /// # Errors
    /// Peers that leave, do not speak TLS, or fail verification (they were sent an alert), and those that send too much.
    pub async fn accept<IO>(&self, io: IO) -> Result<ServerStream<ReadAhead<IO>>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.accept_with(io, || ()).await
    }

    /// Like [`ServerTls::accept`], and calls `on_hello` when the ClientHello is whole: all cryptography comes behind that.
    ///
    /// # Errors
    /// Those of [`ServerTls::accept`].
    pub async fn accept_with<IO>(
        &self,
        io: IO,
        on_hello: impl FnOnce(),
    ) -> Result<ServerStream<ReadAhead<IO>>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let io = ReadAhead::bounded(io, HELLO_LIMIT);
        let mut hello = LazyConfigAcceptor::new(Acceptor::default(), io).await?;
        on_hello();
        hello.io.allow(FLIGHT_LIMIT);
        let configs = self.shared.configs.load();
        let offered = hello.client_hello().alpn();
        let ignored = offered.is_some_and(|offered| ignores_alpn(&self.shared.options.alpn, offered));
        let config = if ignored { &configs.without_alpn } else { &configs.usual };
        Ok(hello.into_stream(Arc::clone(config)).await?)
    }
}

impl Rotating for ServerTls {
    type Material = Material;

    fn read(&self) -> Result<Material, TlsError> {
        self.shared.options.read()
    }

    fn uses(&self, material: &Material) -> bool {
        self.shared.configs.load().material == *material
    }

    fn take(&self, material: &Material) -> Result<(), TlsError> {
        let Shared { options, observer, configs: current } = &*self.shared;
        current.store(configs(options, observer, material.clone(), Judge::AtReload)?);
        Ok(())
    }

    fn validities(&self) -> Validities {
        self.shared.configs.load().validities
    }
}

impl ServerTlsOptions {
    fn read(&self) -> Result<Material, TlsError> {
        let pair = (self.cert.as_path(), self.key.as_path());
        Material::read(Some(pair), self.client_ca.as_deref())
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

fn configs(
    options: &ServerTlsOptions,
    observer: &OddPkiObserver,
    material: Material,
    judge: Judge,
) -> Result<Configs, TlsError> {
    let mut provider = super::provider();
    options.suites.select(&mut provider.cipher_suites);
    let provider = Arc::new(provider);
    let Some((cert, key)) = &material.pair else {
        return Err(TlsError::NoCertificate { path: options.cert.clone() });
    };
    let pair = pem::certified_key(cert, key, &provider)?;
    judge.chain(cert, &pair.cert)?;
    let mut validities = Validities { own: Validity::of(&pair.cert), authorities: None };
    let protocols = options.min_version.protocols(options.suites.has_tls12());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(protocols)?;
    let builder = match &material.authorities {
        Some(file) => {
            let roots = pem::certificates(file)?;
            validities.authorities = Validity::of(&roots);
            let report = Report::new(Arc::clone(observer));
            builder.with_client_cert_verifier(Arc::new(ClientCerts::new(roots, provider, report)?))
        }
        None => builder.with_no_client_auth(),
    };
    let mut without_alpn = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    // By ids (TLS 1.2) and by tickets (TLS 1.3).
    without_alpn.session_storage = Arc::new(NoServerSessionStorage {});
    without_alpn.send_tls13_tickets = 0;
    super::check_config(without_alpn.fips())?;
    let mut usual = without_alpn.clone();
    usual.alpn_protocols.clone_from(&options.alpn);
    Ok(Configs { material, validities, usual: Arc::new(usual), without_alpn: Arc::new(without_alpn) })
}
