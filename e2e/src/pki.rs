//! A temporary PKI: two CAs (frontend side, agent side) and the four certificates of a pair.
//!
//! As in a real cluster, neither side trusts the other's CA, so that swapped files fail. The files are stored as Kubernetes
//! mounts a secret: each is a symbolic link through `..data`, and a rotation replaces that one link.

use std::fs::{create_dir, read_dir, read_link, rename, write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The names in every certificate; `servers.test` is for tests with a name server, and the last three are the near sides' and the
/// router's of [`crate::netns`].
const NAMES: [&str; 7] =
    ["localhost", "servers.test", "127.0.0.1", "::1", "10.231.0.2", "10.231.1.2", "10.231.255.1"];

/// A certificate with its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate's file.
    pub cert: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

/// The link that a rotation replaces.
const DATA: &str = "..data";

/// A certificate and its key as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub cert: String,
    /// The key.
    pub key: String,
}

/// The files of one temporary PKI. They exist as long as the caller's folder.
#[derive(Clone, Debug)]
pub struct Pki {
    /// The CA of the frontend side, for its server and its clients.
    pub front_ca: PathBuf,
    /// The server's certificate for frontends.
    pub front_server: Identity,
    /// A frontend's client certificate.
    pub front_client: Identity,
    /// The CA of the agent side.
    pub cluster_ca: PathBuf,
    /// The server's certificate for agents.
    pub cluster_server: Identity,
    /// An agent's client certificate.
    pub agent: Identity,
    folder: PathBuf,
    /// The CAs with their keys, if this process created the PKI.
    front: Option<Arc<Authority>>,
    cluster: Option<Arc<Authority>>,
}

impl Pki {
    /// Creates keys and certificates, and writes them into `folder`.
    pub fn create(folder: &Path) -> Result<Self> {
        let pki = Self {
            front: Some(Arc::new(Authority::create("front")?)),
            cluster: Some(Arc::new(Authority::create("cluster")?)),
            ..Self::open(folder)
        };
        let data = folder.join("..0");
        create_dir(&data)?;
        pki.write_authorities(&data)?;
        pki.front()?
            .leaf("front-client", ExtendedKeyUsagePurpose::ClientAuth, LONG)?
            .write(&data, "front-client")?;
        pki.write_leaves(&data)?;
        symlink("..0", folder.join(DATA))?;
        for entry in read_dir(&data)? {
            let name = entry?.file_name();
            symlink(Path::new(DATA).join(&name), folder.join(&name))?;
        }
        Ok(pki)
    }

    /// Replaces the certificates and keys of servers and agents with the same CAs, as kubelet does: a new folder next to the
    /// old one, and one link replaced. Frontend clients keep theirs.
    pub fn rotate(&self) -> Result<()> {
        self.swap(|data| self.write_leaves(data))
    }

    /// Also replaces the CA of the agent side, so that earlier certificates are not trusted any more.
    pub fn rotate_cluster_authority(&mut self) -> Result<()> {
        self.cluster = Some(Arc::new(Authority::create("cluster")?));
        self.swap(|data| {
            self.write_authorities(data)?;
            self.write_leaves(data)
        })
    }

    /// Replaces single files at once. A name is that of a file in the folder.
    pub fn replace(&self, files: &[(&str, &str)]) -> Result<()> {
        self.swap(|data| {
            for (name, text) in files {
                write(data.join(name), text)?;
            }
            Ok(())
        })
    }

    /// A certificate of the agent side with this validity, in seconds from now.
    pub fn cluster_leaf(&self, usage: ExtendedKeyUsagePurpose, from: i64, until: i64) -> Result<Pair> {
        self.cluster()?.leaf("made to order", usage, (from, until))
    }

    /// A copy of a certificate and its key that rotations do not change.
    pub fn kept(&self, identity: &Identity, name: &str) -> Result<Identity> {
        let path = |kind: &str| self.folder.join(format!("{name}.{kind}"));
        let kept = Identity { cert: path("crt"), key: path("key") };
        std::fs::copy(&identity.cert, &kept.cert)?;
        std::fs::copy(&identity.key, &kept.key)?;
        Ok(kept)
    }

    fn swap(&self, change: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let current = read_link(self.folder.join(DATA))?;
        let number: u32 = current.to_string_lossy().trim_start_matches('.').parse()?;
        let name = format!("..{}", number + 1);
        let data = self.folder.join(&name);
        create_dir(&data)?;
        for entry in read_dir(self.folder.join(&current))? {
            let entry = entry?;
            std::fs::copy(entry.path(), data.join(entry.file_name()))?;
        }
        change(&data)?;
        let fresh = self.folder.join("..fresh");
        symlink(&name, &fresh)?;
        rename(&fresh, self.folder.join(DATA)).context("cannot swap the link")
    }

    fn write_authorities(&self, data: &Path) -> Result<()> {
        write(data.join("front-ca.crt"), self.front()?.issuer.pem())?;
        Ok(write(data.join("cluster-ca.crt"), self.cluster()?.issuer.pem())?)
    }

    fn write_leaves(&self, data: &Path) -> Result<()> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        self.front()?.leaf("front-server", ServerAuth, LONG)?.write(data, "front-server")?;
        self.cluster()?.leaf("cluster-server", ServerAuth, LONG)?.write(data, "cluster-server")?;
        self.cluster()?.leaf("agent", ClientAuth, LONG)?.write(data, "agent")
    }

    fn front(&self) -> Result<&Authority> {
        self.front.as_deref().context("this PKI was made elsewhere")
    }

    fn cluster(&self) -> Result<&Authority> {
        self.cluster.as_deref().context("this PKI was made elsewhere")
    }

    /// The PKI that was created in `folder` before.
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
            folder: folder.to_path_buf(),
            front: None,
            cluster: None,
        }
    }

    /// The TLS configuration of a frontend client that presents its certificate and offers `alpn`.
    pub fn frontend_client(&self, alpn: &[&str]) -> Result<Arc<ClientConfig>> {
        client(&self.front_ca, &self.front_client, alpn)
    }

    /// The TLS configuration of an agent that presents its certificate and offers `h2`.
    pub fn agent_client(&self) -> Result<Arc<ClientConfig>> {
        client(&self.cluster_ca, &self.agent, &["h2"])
    }

    /// The TLS configuration of a server for agents that requests no client certificate.
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

impl Pair {
    /// Writes `NAME.crt` and `NAME.key`, and returns their paths.
    pub fn save(&self, folder: &Path, name: &str) -> Result<Identity> {
        self.write(folder, name)?;
        Ok(Identity { cert: folder.join(format!("{name}.crt")), key: folder.join(format!("{name}.key")) })
    }

    fn write(&self, folder: &Path, name: &str) -> Result<()> {
        write(folder.join(format!("{name}.crt")), &self.cert)?;
        Ok(write(folder.join(format!("{name}.key")), &self.key)?)
    }
}

/// From an hour ago to a year from now.
const LONG: (i64, i64) = (-3_600, 365 * 24 * 3_600);

/// The subject of a certificate.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The common name.
    pub name: &'a str,
    /// The organization: a group, if Kubernetes reads the certificate.
    pub organisation: Option<&'a str>,
    /// Its subject alternative names: DNS names and addresses.
    pub names: &'a [&'a str],
    /// Its extended key usage.
    pub usage: ExtendedKeyUsagePurpose,
}

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    /// Does not show the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// Creates an authority.
    pub fn create(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, format!("throw-away {name} authority"));
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// The authority's own certificate as PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate that is valid for a year.
    pub fn issue(&self, subject: &Subject<'_>) -> Result<Pair> {
        self.sign(subject, LONG)
    }

    fn leaf(&self, name: &str, usage: ExtendedKeyUsagePurpose, span: (i64, i64)) -> Result<Pair> {
        self.sign(&Subject { name, organisation: None, names: &NAMES, usage }, span)
    }

    /// `span` is in seconds from now.
    fn sign(&self, subject: &Subject<'_>, span: (i64, i64)) -> Result<Pair> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = subject.names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, subject.name);
        if let Some(organisation) = subject.organisation {
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        params.extended_key_usages = vec![subject.usage.clone()];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let moment = |seconds: i64| {
            let now = UnixTime::now().as_secs();
            date_time_ymd(1970, 1, 1) + Duration::from_secs(now.saturating_add_signed(seconds))
        };
        (params.not_before, params.not_after) = (moment(span.0), moment(span.1));
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok(Pair { cert: cert.pem(), key: key.serialize_pem() })
    }
}

/// The TLS configuration of a client that trusts `ca`, presents `identity` and offers `alpn`.
pub fn client(ca: &Path, identity: &Identity, alpn: &[&str]) -> Result<Arc<ClientConfig>> {
    client_with(provider(), ca, identity, alpn)
}

/// Like [`client`], without a certificate of its own.
pub fn client_without_certificate(ca: &Path, alpn: &[&str]) -> Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots(ca)?).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

/// Like [`client`], with the cipher suites of `provider`.
pub fn client_with(
    provider: Arc<CryptoProvider>,
    ca: &Path,
    identity: &Identity,
    alpn: &[&str],
) -> Result<Arc<ClientConfig>> {
    let roots = roots(ca)?;
    let (certs, key) = identity.read()?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(certs, key)?;
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

fn roots(ca: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(ca)? {
        roots.add(cert)?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .with_context(|| format!("cannot read {}", path.display()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
