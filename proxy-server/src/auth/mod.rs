//! Authentication of agents, and the check of their claims.
//!
//! The server authenticates an agent before it reads the rest of its Connect: by the certificate of its connection, or by the
//! token in its metadata, which [`reviewer`] sends to the Kubernetes API. The result is an [`Identity`]; [`binding`] checks the
//! agent's claims against it. [`AllowedNames`] are lists of admitted certificate names.
//!
//! Nothing here logs, shows or stores a token: caches are keyed by its SHA-256.

mod bearer;
mod binding;
mod cache;
mod identity;
mod reviewer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use grpc::Code;
use http::HeaderMap;
use net::tls::PeerIdentity;
use serve::logs::Peer;

pub use binding::{Binding, Claim, Claims};
pub use identity::{AllowedNames, Identity, Party};
pub use reviewer::{Review, ReviewOutcome, Reviewer, TokenRejection, api_review};

use crate::metrics::RefusedConnect;

/// Pause between a failed review of an open stream's token and the next one. Longer than a refusal is cached.
const REVIEW_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The peer that opened an agent stream.
#[derive(Debug, Clone)]
pub struct AgentPeer {
    /// Its address.
    pub address: SocketAddr,
    /// Its verified certificate, if it presented one.
    pub certificate: Option<PeerIdentity>,
    /// The peer's description in the log.
    pub shown: Arc<str>,
}

/// Why a Connect is refused: a gRPC status, and a text that the agent logs.
#[derive(Debug)]
pub struct Refused {
    /// The reason in metrics.
    pub reason: RefusedConnect,
    /// The cause for the log's limit.
    pub cause: &'static str,
    /// The status. Go always answers with `Unknown`.
    pub code: Code,
    /// Go's text, if Go has one.
    pub text: String,
}

impl Refused {
    /// A refusal with all of its parts.
    pub fn new(reason: RefusedConnect, code: Code, text: impl Into<String>) -> Self {
        Self { reason, cause: reason.name(), code, text: text.into() }
    }

    fn unauthenticated(cause: &'static str, code: Code, text: impl Into<String>) -> Self {
        Self { cause, ..Self::new(RefusedConnect::Authentication, code, text) }
    }

    fn unknown(cause: &'static str, text: impl Into<String>) -> Self {
        Self::unauthenticated(cause, Code::Unknown, text)
    }
}

/// How agents are authenticated. Cheap to clone.
#[derive(Debug, Clone)]
pub enum AgentAuth {
    /// Every peer is admitted as an agent.
    Anonymous,
    /// Agents present certificates that TLS has verified, with one of these names.
    Certificate(AllowedNames),
    /// Agents present tokens.
    Token(Reviewer),
}

/// An admitted agent.
#[derive(Debug)]
pub struct Admitted {
    /// The agent's identity.
    pub identity: Arc<Identity>,
    /// Reviews the agent's token again from time to time, if the operator asked for it.
    pub recheck: Option<Recheck>,
}

/// Reviews an agent's token repeatedly while its stream is open.
#[derive(Debug)]
pub struct Recheck {
    reviewer: Reviewer,
    token: bearer::Token,
    every: Duration,
}

impl AgentAuth {
    /// Authenticates a peer. Reads only the token from the metadata, and removes it.
    ///
    /// # Errors
    /// Why the peer is refused; `Unavailable` if the API cannot decide now, so that the agent tries again.
    pub async fn admit(&self, metadata: &mut HeaderMap, peer: &AgentPeer) -> Result<Admitted, Refused> {
        let shown = bearer::take(metadata);
        match self {
            AgentAuth::Anonymous => Ok(Admitted { identity: Arc::default(), recheck: None }),
            AgentAuth::Certificate(names) => {
                let certificate = peer.certificate.clone().unwrap_or_default();
                if !names.allow(&certificate) {
                    let text = "the agent's certificate has no allowed name";
                    return Err(Refused::unauthenticated("certificate", Code::PermissionDenied, text));
                }
                Ok(Admitted { identity: Arc::new(Identity::of_certificate(&certificate)), recheck: None })
            }
            AgentAuth::Token(reviewer) => {
                let token = shown?;
                let verdict = reviewer.review(&token, Some(peer.address.ip())).await;
                let verdict = verdict.ok_or_else(|| unavailable("the Kubernetes API cannot be asked now"))?;
                let identity = verdict.map_err(|TokenRejection { cause, why, .. }| {
                    Refused::unknown(cause, format!("Failed to validate authentication token, err:{why}"))
                })?;
                let every = reviewer.recheck_every();
                let recheck = every.map(|every| Recheck { reviewer: reviewer.clone(), token, every });
                Ok(Admitted { identity, recheck })
            }
        }
    }
}

fn unavailable(why: &str) -> Refused {
    let text =
        format!("Failed to validate authentication token, err:Failed to authenticate request. err:{why}");
    Refused::unauthenticated("no review", Code::Unavailable, text)
}

impl Recheck {
    /// Resolves with the reason when the token is refused. If the API cannot be reached, nothing changes; if a review fails,
    /// the token is reviewed once more, so that a short failure of the API does not end every stream.
    pub async fn refused(&self) -> Arc<str> {
        let mut doubted = false;
        loop {
            tokio::time::sleep(if doubted { REVIEW_RETRY_INTERVAL } else { self.every }).await;
            match self.reviewer.review(&self.token, None).await {
                Some(Err(rejection)) if rejection.certain || doubted => return rejection.why,
                Some(verdict) => doubted = verdict.is_err(),
                None => {}
            }
        }
    }
}

impl AgentPeer {
    /// A peer at this address, with this certificate.
    pub fn new(address: SocketAddr, certificate: Option<PeerIdentity>) -> Self {
        let shown = shown(certificate.as_ref(), address);
        Self { address, certificate, shown }
    }
}

/// The description of a peer in the log: the certificate's name and the source address.
pub(crate) fn shown(certificate: Option<&PeerIdentity>, address: SocketAddr) -> Arc<str> {
    match certificate {
        Some(identity) => format!("certificate {identity} at {address}").into(),
        None => address.to_string().into(),
    }
}

impl std::fmt::Display for AgentPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Peer(&self.shown).fmt(f)
    }
}

#[cfg(test)]
mod tests;
