//! The files of one side, read together: what was judged is what is put to use.
//!
//! Never here: an opinion about what the files hold.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{TlsError, Validity};

/// One file as it was at some moment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contents {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Contents {
    /// Reads the file.
    pub(super) fn read(path: &Path) -> Result<Self, TlsError> {
        let bytes = std::fs::read(path).map_err(|error| TlsError::read(path, error))?;
        Ok(Self { path: path.to_owned(), bytes })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a side's files held when they were read. Two of them are equal if every byte is.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// Certificate chain and key.
    pub(super) pair: Option<(Contents, Contents)>,
    /// The peers' authorities.
    pub(super) authorities: Option<Contents>,
}

impl Material {
    /// Reads the files that there are.
    pub(super) fn read(pair: Option<(&Path, &Path)>, authorities: Option<&Path>) -> Result<Self, TlsError> {
        let pair = match pair {
            Some((cert, key)) => Some((Contents::read(cert)?, Contents::read(key)?)),
            None => None,
        };
        Ok(Self { pair, authorities: authorities.map(Contents::read).transpose()? })
    }
}

impl fmt::Debug for Material {
    /// Without what the files hold: one of them is a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pair = self.pair.as_ref().map(|(cert, key)| (&cert.path, &key.path));
        let authorities = self.authorities.as_ref().map(|ca| &ca.path);
        f.debug_struct("Material").field("pair", &pair).field("authorities", &authorities).finish()
    }
}

/// When the certificates of a side's files are valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validities {
    /// Of the side's own chain, if it has one.
    pub own: Option<Validity>,
    /// Of the peers' authorities, if they come from a file.
    pub authorities: Option<Validity>,
}

/// TLS made from files that may change while it is in use.
pub trait Rotating: Send + Sync + 'static {
    /// What the files hold at one moment.
    type Material: Clone + PartialEq + Send + 'static;

    /// Reads the files. May block.
    ///
    /// # Errors
    /// Files that cannot be read.
    fn read(&self) -> Result<Self::Material, TlsError>;

    /// Whether this is what is in use.
    fn uses(&self, material: &Self::Material) -> bool;

    /// Puts it to use for handshakes from now on.
    ///
    /// # Errors
    /// What cannot be used, or is not valid now; what is in use stays.
    fn take(&self, material: &Self::Material) -> Result<(), TlsError>;

    /// Of what is in use.
    fn validities(&self) -> Validities;
}
