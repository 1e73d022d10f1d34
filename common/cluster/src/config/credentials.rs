//! Our credentials for the API: a bearer token, a plug-in's credentials, or (with TLS only) none.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use http::header::InvalidHeaderValue;

use super::exec::Exec;
use super::tls::Pem;

/// The longest token, in bytes.
const TOKEN_LIMIT: usize = 64 * 1024;

/// Our credentials. `Debug` and `Display` show no secret.
pub struct Credentials(Source);

enum Source {
    None,
    Token(HeaderValue),
    TokenFile(PathBuf),
    Exec(Exec),
}

/// Why credentials are not available now. No text contains a secret.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct CredentialError(pub(super) String);

impl CredentialError {
    #[expect(clippy::needless_pass_by_value, reason = "map_err hands the error in")]
    fn of_file(path: &Path, error: io::Error) -> Self {
        Self(format!("token file {path:?}: {error}"))
    }
}

/// The credentials of one request or connection.
#[derive(Clone, Default)]
pub(crate) struct PresentedCredentials {
    /// The `authorization` header, marked sensitive.
    pub(crate) header: Option<HeaderValue>,
    /// A certificate and its key, from a plug-in.
    pub(crate) identity: Option<(Pem, Pem)>,
}

impl Credentials {
    /// None besides a client certificate.
    pub fn none() -> Self {
        Self(Source::None)
    }

    /// A constant token.
    ///
    /// # Errors
    /// If it has characters that are invalid in a header.
    pub fn token(token: &str) -> Result<Self, InvalidHeaderValue> {
        Ok(Self(Source::Token(bearer(token.trim())?)))
    }

    /// A file with a token, read for each request because kubelet rotates it.
    pub fn token_file(path: PathBuf) -> Self {
        Self(Source::TokenFile(path))
    }

    /// The credentials of a plug-in.
    pub(crate) fn exec(exec: Exec) -> Self {
        Self(Source::Exec(exec))
    }

    /// Whether the token file can be read now; its contents are checked at each use.
    pub(super) fn check_file(&self) -> Result<(), CredentialError> {
        let Source::TokenFile(path) = &self.0 else { return Ok(()) };
        std::fs::read(path).map(drop).map_err(|error| CredentialError::of_file(path, error))
    }

    /// The current credentials.
    pub(crate) async fn show(&self) -> Result<PresentedCredentials, CredentialError> {
        match &self.0 {
            Source::None => Ok(PresentedCredentials::default()),
            Source::Token(header) => Ok(header_alone(header.clone())),
            Source::TokenFile(path) => {
                let header = read(path).map_err(|error| CredentialError::of_file(path, error))?;
                Ok(header_alone(header))
            }
            Source::Exec(exec) => exec.show().await,
        }
    }

    /// The API refused the credentials. Returns true if a second attempt could use others.
    pub(crate) fn refused(&self) -> bool {
        match &self.0 {
            Source::None | Source::Token(_) => false,
            // The file may have been rotated between the read and the answer.
            Source::TokenFile(_) => true,
            Source::Exec(exec) => exec.invalidate(),
        }
    }
}

fn header_alone(header: HeaderValue) -> PresentedCredentials {
    PresentedCredentials { header: Some(header), identity: None }
}

fn read(path: &PathBuf) -> io::Result<HeaderValue> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    let bad = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
    if token.is_empty() || token.len() > TOKEN_LIMIT {
        return Err(bad("it is empty or too long for a token"));
    }
    bearer(token).map_err(|_| bad("it has characters that are invalid in a token"))
}

pub(super) fn bearer(token: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::None => f.write_str("client certificate or nothing"),
            Source::Token(_) => f.write_str("token"),
            Source::TokenFile(path) => write!(f, "token file {}", path.display()),
            Source::Exec(exec) => write!(f, "plug-in {exec}"),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({self})")
    }
}
