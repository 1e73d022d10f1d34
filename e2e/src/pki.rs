//! A throw-away PKI: two authorities (frontend side, agent side) and the four certificates that a pair needs.
//!
//! The two sides trust nothing of each other, as in a real cluster, so that a mix-up of files fails loudly.

use std::fs::write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The names that every server certificate carries.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// A certificate with its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate's file.
    pub cert: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

/// The files of one throw-away PKI. They live as long as the folder that the caller owns.
#[derive(Clone, Debug)]
pub struct Pki {
    /// The authority of the frontend side: its server and its clients.
    pub front_ca: PathBuf,
    /// The server's certificate towards frontends.
    pub front_server: Identity,
    /// A frontend's client certificate.
    pub front_client: Identity,
    /// The authority of the agent side.
    pub cluster_ca: PathBuf,
    /// The server's certificate towards agents.
    pub cluster_server: Identity,
    /// An agent's client certificate.
    pub agent: Identity,
}

impl Pki {
    /// Makes keys and certificates and writes them below `folder`.
    pub fn create(folder: &Path) -> Result<Self> {
        let front = Authority::create(folder, "front")?;
        let cluster = Authority::create(folder, "cluster")?;
        Ok(Self {
            front_server: front.issue("front-server", ExtendedKeyUsagePurpose::ServerAuth)?,
            front_client: front.issue("front-client", ExtendedKeyUsagePurpose::ClientAuth)?,
            front_ca: front.file,
            cluster_server: cluster.issue("cluster-server", ExtendedKeyUsagePurpose::ServerAuth)?,
            agent: cluster.issue("agent", ExtendedKeyUsagePurpose::ClientAuth)?,
            cluster_ca: cluster.file,
        })
    }

    /// The PKI that was created below `folder` before.
    pub fn open(folder: &Path) -> Self {
        let identity = |name: &str| Identity {
            cert: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        Self {
            front_ca: folder.join("front-ca.crt"),
            front_server: identity("front-server"),
            front_client: identity("front-client"),
            cluster_ca: folder.join("cluster-ca.crt"),
            cluster_server: identity("cluster-server"),
            agent: identity("agent"),
        }
    }

    /// The TLS configuration of a frontend that shows the client certificate and offers `alpn`.
    pub fn frontend_client(&self, alpn: &[&str]) -> Result<Arc<ClientConfig>> {
        client(&self.front_ca, &self.front_client, alpn)
    }

    /// The TLS configuration of an agent that shows its certificate and offers `h2`.
    pub fn agent_client(&self) -> Result<Arc<ClientConfig>> {
        client(&self.cluster_ca, &self.agent, &["h2"])
    }

    /// The TLS configuration of a server towards agents that asks for no client certificate.
    pub fn agent_server(&self) -> Result<Arc<ServerConfig>> {
        let (certs, key) = self.cluster_server.read()?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(certs, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

impl Identity {
    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let certs = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .with_context(|| format!("cannot read {}", self.key.display()))?;
        Ok((certs, key))
    }
}

struct Authority {
    folder: PathBuf,
    file: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn create(folder: &Path, name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, format!("throw-away {name} authority"));
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let file = folder.join(format!("{name}-ca.crt"));
        write(&file, issuer.pem()).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { folder: folder.to_path_buf(), file, issuer })
    }

    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(NAMES.map(String::from).to_vec())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let cert = params.signed_by(&key, &self.issuer)?;
        let identity = Identity {
            cert: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        };
        write(&identity.cert, cert.pem())?;
        write(&identity.key, key.serialize_pem())?;
        Ok(identity)
    }
}

fn client(ca: &Path, identity: &Identity, alpn: &[&str]) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(ca)? {
        roots.add(cert)?;
    }
    let (certs, key) = identity.read()?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(certs, key)?;
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .with_context(|| format!("cannot read {}", path.display()))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
