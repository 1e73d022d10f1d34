//! A client's TLS: the agent's towards a server, and that of our other clients.
//!
//! Sessions are never resumed: a resumption does not verify the server's certificate again, which may have expired.
//! (The Go agent does not resume either.)

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::legacy::{explained, server_verifier};
use super::material::{Material, Options, Tls};
use super::pem::ValidityCheck;
use super::{ALPN_H2, HandshakeError, LegacyPkiObserver, TlsError, TlsVersion, Validities, Validity, pem};
use crate::host_port::unbracketed;

/// The agent's TLS stream.
pub type ClientStream<IO> = tokio_rustls::client::TlsStream<IO>;

/// The settings of the agent's TLS.
#[derive(Debug, Clone)]
pub struct ClientTlsOptions {
    /// PEM file of the servers' authorities; `None` for the system's (our extension: Go exits without a CA file).
    pub ca: Option<PathBuf>,
    /// PEM files of the agent's certificate and key, if any.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The DNS names or IP addresses of servers; a server's certificate must contain the one that it is connected by.
    pub server_names: Vec<String>,
    /// Protocols offered before `h2`.
    pub alpn_extras: Vec<Vec<u8>>,
}

/// The agent's TLS.
pub type ClientTls = Tls<ClientTlsOptions>;

impl ClientTls {
    /// Performs the handshake on a connection to the server of this name (an index of
    /// [`ClientTlsOptions::server_names`]), or through a proxy's tunnel. The server may select any of the offered protocols,
    /// or none. Has no time-out.
    ///
    /// # Errors
    /// If the server disconnects, does not speak TLS, or fails verification; if there is no such name.
    pub async fn connect<IO>(&self, name: usize, io: IO) -> Result<ClientStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let current = self.config();
        let (config, names) = &*current;
        let name = names.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let connect = TlsConnector::from(Arc::clone(config)).connect(name.clone(), io);
        let ca = || match &self.options().ca {
            Some(path) => path.display().to_string(),
            None => "the system's CA certificates".to_owned(),
        };
        explained(connect, ca).await
    }
}

impl Options for ClientTlsOptions {
    type Config = (Arc<ClientConfig>, Vec<ServerName<'static>>);

    fn read(&self) -> Result<Material, TlsError> {
        let pair = self.identity.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()));
        Material::read(pair, self.ca.as_deref())
    }

    fn build(
        &self,
        material: &Material,
        observer: &LegacyPkiObserver,
        check: ValidityCheck,
    ) -> Result<(Self::Config, Validities), TlsError> {
        let names = self.server_names.iter().map(|name| server_name(name)).collect::<Result<_, _>>()?;
        let mut validities = Validities::default();
        let mut identity: Option<Arc<dyn ResolvesClientCert>> = None;
        let roots = match &material.authorities {
            Some(file) => {
                let roots = pem::certificates(file)?;
                validities.authorities = Validity::of(&roots);
                roots
            }
            None => pem::system_roots()?,
        };
        let verifier = server_verifier(roots, Arc::clone(observer))?;
        if let Some((cert, key)) = &material.pair {
            let pair = pem::certified_key(cert, key, &super::provider())?;
            check.chain(cert, &pair.cert)?;
            validities.own = Validity::of(&pair.cert);
            identity = Some(Arc::new(ByIssuer(pair)));
        }
        let mut alpn = self.alpn_extras.clone();
        if !alpn.iter().any(|name| name == ALPN_H2) {
            alpn.push(ALPN_H2.to_vec());
        }
        Ok(((client_config(verifier, identity, alpn)?, names), validities))
    }
}

/// Sends the certificate if the server names no authorities, or names the issuer of a certificate of the chain, as crypto/tls
/// does (`SupportsCertificate`): a server that admits clients without a certificate refuses one of an unknown authority.
#[derive(Debug)]
pub(super) struct ByIssuer(pub(super) Arc<CertifiedKey>);

impl ResolvesClientCert for ByIssuer {
    fn resolve(&self, authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let is_named = |der: &CertificateDer<'_>| {
            X509Certificate::from_der(der)
                .is_ok_and(|(_, cert)| authorities.contains(&cert.issuer().as_raw()))
        };
        (authorities.is_empty() || self.0.cert.iter().any(is_named)).then(|| Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The configuration of a client that presents `identity`, if given, and offers the protocols `alpn`.
///
/// # Errors
/// The build requires FIPS, and the configuration does not comply.
pub fn client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<Arc<dyn ResolvesClientCert>>,
    alpn: Vec<Vec<u8>>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(super::provider())
        .with_protocol_versions(TlsVersion::Tls12.protocols(true))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.alpn_protocols = alpn;
    super::judged(super::FIPS, config.fips(), "the TLS configuration")?;
    Ok(Arc::new(config))
}

/// A name, or an address with or without brackets. An IPv4-mapped address becomes the IPv4 address: certificates
/// contain that one, and Go treats both as equal.
fn server_name(text: &str) -> Result<ServerName<'static>, TlsError> {
    if let Ok(ip) = unbracketed(text).parse::<IpAddr>() {
        return Ok(ServerName::from(ip.to_canonical()));
    }
    ServerName::try_from(text.to_owned()).map_err(|_| TlsError::ServerName(text.to_owned()))
}
