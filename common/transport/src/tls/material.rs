//! The files of a client or server, read together: the bytes that were checked are the bytes in use.
//!
//! Never here: the interpretation of the files.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{TlsError, Validity};

/// One file's contents at the time of the read.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl Contents {
    /// Reads the file.
    pub(super) fn read(path: &Path) -> Result<Self, TlsError> {
        let path = path.to_owned();
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Self { path, bytes }),
            Err(source) => Err(TlsError::Read { path, source }),
        }
    }

    /// The error for contents that cannot be used.
    pub(super) fn fault(&self, why: impl Into<String>) -> TlsError {
        TlsError::File { path: self.path.clone(), why: why.into() }
    }
}

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
        let pair = match pair {
            Some((cert, key)) => Some((Contents::read(cert)?, Contents::read(key)?)),
            None => None,
        };
        Ok(Self { pair, authorities: authorities.map(Contents::read).transpose()? })
    }
}

impl fmt::Debug for Material {
    /// Without the contents: one of the files is a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pair = self.pair.as_ref().map(|(cert, key)| (&cert.path, &key.path));
        let authorities = self.authorities.as_ref().map(|ca| &ca.path);
        f.debug_struct("Material").field("pair", &pair).field("authorities", &authorities).finish()
    }
}

/// The validity of the certificates in a client's or server's files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validities {
    /// Of the own chain, if there is one.
    pub own: Option<Validity>,
    /// Of the peers' authorities, if they come from a file.
    pub authorities: Option<Validity>,
}

/// TLS from files that may change while it is in use.
pub trait Rotating: Send + Sync + 'static {
    /// The contents of the files at one time.
    type Material: Clone + PartialEq + Send + 'static;

    /// Reads the files. May block.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn read(&self) -> Result<Self::Material, TlsError>;

    /// Whether `material` is in use.
    fn uses(&self, material: &Self::Material) -> bool;

    /// Uses `material` for handshakes from now on.
    ///
    /// # Errors
    /// If it is invalid, or not valid now; the current material stays.
    fn take(&self, material: &Self::Material) -> Result<(), TlsError>;

    /// The validities of the material in use.
    fn validities(&self) -> Validities;
}
