//! Who an agent is, and what it may say of itself.
//!
//! An agent is authenticated before anything else of its Connect is read: by the certificate of its connection, or by
//! the token in its metadata, which [`reviewer`] shows to the Kubernetes API. What comes of it is an [`Identity`];
//! [`binding`] judges by it what the agent claims to be and to serve. [`names`] are the lists of peers that may come
//! in at all.
//!
//! Nothing here logs, shows or keeps a token: caches are keyed by its SHA-256.

mod bearer;
mod binding;
mod cache;
mod identity;
mod judge;
mod names;
mod owners;
mod reviewer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use serve::logs::Peer;
use tokio::sync::Semaphore;
use transport::tls::PeerIdentity;
use transport::wire::Code;

pub use binding::{Binding, Claim, Claims};
pub use identity::Identity;
pub use judge::{Doubt, Expected};
pub use names::AllowedNames;
pub use owners::{Owned, Owners};
pub use reviewer::{ApiReview, Review, Reviewer, Verdict};

/// How long behind a review that went wrong, for a stream that lives, the next one is. Above the time that a no holds.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Reviews at once for the streams of one connection, those that were reset meanwhile included: who shows tokens of which none
/// is an agent's does not take up what there is for all. (Agents have one stream on a connection; who ends it before us may put
/// several agents on one.)
const REVIEWS: usize = 16;

/// Where an agent's stream comes from.
#[derive(Debug, Clone)]
pub struct AgentPeer {
    /// Its address.
    pub address: SocketAddr,
    /// What its certificate says, if it showed one that was verified.
    pub certificate: Option<PeerIdentity>,
    /// For the log.
    pub shown: Arc<str>,
    /// For those of its streams whose token is being reviewed.
    reviews: Arc<Semaphore>,
}

/// Why a Connect is refused: a gRPC status, and a text that the agent logs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    /// The status. Go answers with `Unknown` whatever it was.
    pub code: Code,
    /// Go's words, where Go has any.
    pub text: String,
}

impl Refused {
    fn unknown(text: impl Into<String>) -> Self {
        Self { code: Code::Unknown, text: text.into() }
    }
}

/// What authenticates agents. Cheap to clone.
pub struct AgentAuth<R = ApiReview> {
    method: Method<R>,
    names: Arc<AllowedNames>,
}

enum Method<R> {
    Nothing,
    Certificate,
    Token(Arc<Reviewer<R>>),
}

/// An agent that was let in.
#[derive(Debug)]
pub struct Admitted<R = ApiReview> {
    /// Who it is.
    pub identity: Arc<Identity>,
    /// Its token, to be shown again from time to time, if that was asked for.
    pub recheck: Option<Recheck<R>>,
}

/// Shows an agent's token again, for as long as its stream lives.
#[derive(Debug)]
pub struct Recheck<R = ApiReview> {
    reviewer: Arc<Reviewer<R>>,
    token: bearer::Token,
    every: Duration,
}

impl<R: Review> AgentAuth<R> {
    /// Anybody is an agent.
    pub fn nobody() -> Self {
        Self { method: Method::Nothing, names: Arc::default() }
    }

    /// Agents show certificates, which TLS has verified, with one of these names.
    pub fn certificates(names: AllowedNames) -> Self {
        Self { method: Method::Certificate, names: Arc::new(names) }
    }

    /// Agents show tokens.
    pub fn tokens(reviewer: Reviewer<R>) -> Self {
        Self { method: Method::Token(Arc::new(reviewer)), names: Arc::default() }
    }

    /// Judges who connects. Reads nothing of the metadata but the token, and takes that out.
    ///
    /// # Errors
    /// Why it may not; `Unavailable` if nobody can tell now, so that it tries again.
    pub async fn admit(&self, metadata: &mut HeaderMap, peer: &AgentPeer) -> Result<Admitted<R>, Refused> {
        let shown = bearer::take(metadata);
        match &self.method {
            Method::Nothing => Ok(Admitted { identity: Arc::new(Identity::nobody()), recheck: None }),
            Method::Certificate => {
                let certificate = peer.certificate.clone().unwrap_or_default();
                if !self.names.allow(&certificate) {
                    let text = "the agent's certificate bears no allowed name";
                    return Err(Refused { code: Code::PermissionDenied, text: text.into() });
                }
                Ok(Admitted { identity: Arc::new(Identity::of_certificate(&certificate)), recheck: None })
            }
            Method::Token(reviewer) => {
                let token = shown?;
                let place = peer.reviews.try_acquire();
                if place.is_err() && !reviewer.remembers(&token) {
                    return Err(unavailable("too many tokens of this connection are being reviewed"));
                }
                let identity = match reviewer.ask(&token).await {
                    Verdict::Yes(identity) => identity,
                    Verdict::No(Doubt { why, .. }) => {
                        let why = format!("Failed to validate authentication token, err:{why}");
                        return Err(Refused::unknown(why));
                    }
                    Verdict::NobodyCanTell => {
                        return Err(unavailable("the Kubernetes API cannot be asked now"));
                    }
                };
                let every = reviewer.recheck_every();
                let recheck = every.map(|every| Recheck { reviewer: Arc::clone(reviewer), token, every });
                Ok(Admitted { identity, recheck })
            }
        }
    }
}

fn unavailable(why: &str) -> Refused {
    let text =
        format!("Failed to validate authentication token, err:Failed to authenticate request. err:{why}");
    Refused { code: Code::Unavailable, text }
}

impl<R: Review> Recheck<R> {
    /// Ends when the token is refused, and says why. An API that cannot be asked changes nothing, and where something
    /// went wrong while it looked it is asked once more: a moment's trouble of the API's must not end every stream.
    pub async fn refused(&self) -> Arc<str> {
        let mut doubted = false;
        loop {
            tokio::time::sleep(if doubted { ASK_AGAIN } else { self.every }).await;
            match self.reviewer.ask(&self.token).await {
                Verdict::No(doubt) if doubt.certain || doubted => return doubt.why,
                Verdict::No(_) => doubted = true,
                Verdict::Yes(_) => doubted = false,
                Verdict::NobodyCanTell => {}
            }
        }
    }
}

impl<R> Clone for AgentAuth<R> {
    fn clone(&self) -> Self {
        let method = match &self.method {
            Method::Nothing => Method::Nothing,
            Method::Certificate => Method::Certificate,
            Method::Token(reviewer) => Method::Token(Arc::clone(reviewer)),
        };
        Self { method, names: Arc::clone(&self.names) }
    }
}

impl<R> std::fmt::Debug for AgentAuth<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.method {
            Method::Nothing => "AgentAuth(nothing)",
            Method::Certificate => "AgentAuth(certificate)",
            Method::Token(_) => "AgentAuth(token)",
        })
    }
}

impl AgentPeer {
    /// A peer, with its name for the log.
    pub fn new(address: SocketAddr, certificate: Option<PeerIdentity>) -> Self {
        let shown = match &certificate {
            Some(identity) => format!("{identity} at {address}").into(),
            None => address.to_string().into(),
        };
        Self { address, certificate, shown, reviews: Arc::new(Semaphore::new(REVIEWS)) }
    }
}

impl std::fmt::Display for AgentPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Peer(&self.shown).fmt(f)
    }
}

#[cfg(test)]
mod tests;
