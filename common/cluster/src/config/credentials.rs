//! Our credentials for the API: a bearer token, a plug-in's credentials, or (with TLS only) none.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use http::header::InvalidHeaderValue;
use tokio::task::spawn_blocking;

use super::exec::Exec;
use super::tls::Pem;

/// The longest token, in bytes.
const TOKEN_LIMIT: usize = 64 * 1024;

/// Our credentials. `Display` shows no secret.
pub enum Credentials {
    /// None besides a client certificate.
    None,
    /// The `authorization` header of a constant token, marked sensitive.
    Token(HeaderValue),
    /// A file with a token, read for each request because kubelet rotates it.
    TokenFile(PathBuf),
    /// The credentials of a plug-in.
    Exec(Exec),
}

/// The credentials of one request or connection.
#[derive(Clone)]
pub(crate) struct PresentedCredentials {
    /// The `authorization` header, marked sensitive.
    pub(crate) header: Option<HeaderValue>,
    /// A certificate and its key, from a plug-in.
    pub(crate) identity: Option<(Pem, Pem)>,
}

impl Credentials {
    /// Whether the token file can be read now; its contents are checked at each use.
    pub(super) fn check_file(&self) -> Result<(), String> {
        let Self::TokenFile(path) = self else { return Ok(()) };
        std::fs::read(path).map(drop).map_err(|error| format!("token file {path:?}: {error}"))
    }

    /// The current credentials.
    ///
    /// # Errors
    /// Why they are not available now, without a secret.
    pub(crate) async fn present(&self) -> Result<PresentedCredentials, String> {
        let header = match self {
            Self::None => None,
            Self::Token(header) => Some(header.clone()),
            Self::TokenFile(path) => {
                // On a blocking thread: a network file system may hang.
                let file = path.clone();
                let read = spawn_blocking(move || read_token(&file, TOKEN_LIMIT));
                let header = read.await.map_err(io::Error::from).flatten();
                Some(header.map_err(|error| format!("token file {path:?}: {error}"))?)
            }
            Self::Exec(exec) => return exec.present().await,
        };
        Ok(PresentedCredentials { header, identity: None })
    }

    /// The API refused the credentials. Returns true if a second attempt could use others.
    pub(crate) fn refused(&self) -> bool {
        match self {
            Self::None | Self::Token(_) => false,
            // The file may have been rotated between the read and the answer.
            Self::TokenFile(_) => true,
            Self::Exec(exec) => exec.invalidate(),
        }
    }
}

/// Reads a file with a token of at most `limit` bytes, for an `authorization` header, which is marked sensitive.
///
/// # Errors
/// If the file cannot be read, or holds no such token. The error shows no secret.
pub fn read_token(path: &Path, limit: usize) -> io::Result<HeaderValue> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    if token.is_empty() || token.len() > limit {
        return Err(bad(&format!("contains a token of {} bytes, expected 1 to {limit}", token.len())));
    }
    bearer(token).map_err(|_| bad("holds characters no token has"))
}

pub(super) fn bearer(token: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no credentials"),
            Self::Token(_) => f.write_str("token"),
            Self::TokenFile(path) => write!(f, "token file {}", path.display()),
            Self::Exec(exec) => write!(f, "plug-in {exec}"),
        }
    }
}
