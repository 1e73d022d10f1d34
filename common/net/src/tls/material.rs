//! TLS from files: they are read together, so that the bytes that were checked are the bytes in use, and may be read
//! again while the TLS is in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::pem::{Contents, ValidityCheck};
use super::{LegacyPkiObserver, TlsError, Validity, pem};

/// The contents of all files of a client or server. Equal if every byte is equal.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// Certificate chain and key.
    pub(super) pair: Option<(Contents, Contents)>,
    /// The peers' authorities.
    pub(super) authorities: Option<Contents>,
}

impl Material {
    /// Reads the given files.
    pub(super) fn read(pair: Option<(&Path, &Path)>, authorities: Option<&Path>) -> Result<Self, TlsError> {
        let read = |(cert, key)| Ok::<_, TlsError>((Contents::read(cert)?, Contents::read(key)?));
        Ok(Self {
            pair: pair.map(read).transpose()?,
            authorities: authorities.map(Contents::read).transpose()?,
        })
    }

    /// The certificates of its files.
    fn certificates(&self) -> Vec<CertificateFacts> {
        let pair = self.pair.iter().map(|(cert, _)| (cert, true));
        let authorities = self.authorities.iter().map(|file| (file, false));
        pair.chain(authorities).flat_map(|(file, presented)| describe(file, presented)).collect()
    }
}

fn describe(file: &Contents, presented: bool) -> Vec<CertificateFacts> {
    // The file was parsed before it came into use.
    let certs = pem::certificates(file).unwrap_or_default();
    let parsed = certs.iter().filter_map(|der| Some(X509Certificate::from_der(der).ok()?.1));
    let facts = |cert: X509Certificate<'_>| CertificateFacts {
        presented,
        path: file.path.clone(),
        subject: cert.subject().to_string(),
        issuer: cert.issuer().to_string(),
        validity: Validity::from(cert.validity()),
    };
    parsed.map(facts).collect()
}

/// One certificate of a file in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// It is presented to peers; otherwise it is an authority for peers' certificates.
    pub presented: bool,
    /// The file.
    pub path: PathBuf,
    /// Its subject, in the form of RFC 4514.
    pub subject: String,
    /// Its issuer.
    pub issuer: String,
    /// When it is valid.
    pub validity: Validity,
}

/// The validity of the certificates in a client's or server's files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validities {
    /// Of the own chain, if there is one.
    pub own: Option<Validity>,
    /// Of the peers' authorities, if they come from a file.
    pub authorities: Option<Validity>,
}

/// The settings of a client's or server's TLS.
pub trait Options: Clone + Send + Sync + 'static {
    /// The configuration of handshakes.
    type Config: Send + Sync + 'static;

    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn read(&self) -> Result<Material, TlsError>;

    /// Builds the configuration from the files.
    ///
    /// # Errors
    /// If a file is malformed, files do not match, or `check` refuses a certificate.
    fn build(
        &self,
        material: &Material,
        observer: &LegacyPkiObserver,
        check: ValidityCheck,
    ) -> Result<(Self::Config, Validities), TlsError>;
}

/// The TLS of a client or server from files, which may change while it is in use. Clones share one configuration and its
/// reloads.
#[derive(Clone)]
pub struct Tls<O: Options>(Arc<Shared<O>>);

struct Shared<O: Options> {
    options: O,
    observer: LegacyPkiObserver,
    current: ArcSwap<Generation<O>>,
}

/// One generation of the configuration, and its source.
struct Generation<O: Options> {
    material: Material,
    validities: Validities,
    config: Arc<O::Config>,
}

impl<O: Options> Generation<O> {
    fn new(
        options: &O,
        observer: &LegacyPkiObserver,
        material: Material,
        check: ValidityCheck,
    ) -> Result<Self, TlsError> {
        let (config, validities) = options.build(&material, observer, check)?;
        Ok(Self { material, validities, config: Arc::new(config) })
    }
}

impl<O: Options> Tls<O> {
    /// Reads the files.
    ///
    /// # Errors
    /// If files are missing, unreadable, malformed or do not match, or another setting is invalid.
    pub fn load(options: O, observer: LegacyPkiObserver) -> Result<Self, TlsError> {
        let generation = Generation::new(&options, &observer, options.read()?, ValidityCheck::AtStart)?;
        Ok(Self(Arc::new(Shared { options, observer, current: ArcSwap::from_pointee(generation) })))
    }

    pub(super) fn options(&self) -> &O {
        &self.0.options
    }

    /// The configuration for a new handshake.
    pub(super) fn config(&self) -> Arc<O::Config> {
        Arc::clone(&self.0.current.load().config)
    }

    /// Reads the files. May block.
    pub(super) fn read(&self) -> Result<Material, TlsError> {
        self.0.options.read()
    }

    /// Whether `material` is in use.
    pub(super) fn uses(&self, material: &Material) -> bool {
        self.0.current.load().material == *material
    }

    /// Uses `material` for handshakes from now on.
    ///
    /// # Errors
    /// If it is invalid, or not valid now; the current material stays.
    pub(super) fn take(&self, material: &Material) -> Result<(), TlsError> {
        let Shared { options, observer, current } = &*self.0;
        // A pair that is in use already does not prevent the use of new authorities.
        let check = if current.load().material.pair == material.pair {
            ValidityCheck::AtStart
        } else {
            ValidityCheck::AtReload
        };
        current.store(Arc::new(Generation::new(options, observer, material.clone(), check)?));
        Ok(())
    }

    /// The validities of the material in use.
    pub fn validities(&self) -> Validities {
        self.0.current.load().validities
    }

    /// The certificates of the material in use.
    pub fn certificates(&self) -> Vec<CertificateFacts> {
        self.0.current.load().material.certificates()
    }
}
