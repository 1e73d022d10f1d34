//! An agent that presents a service account token.

use anyhow::{Result, bail};
use tonic::Status;

use super::agent::{AdversarialAgent, AgentMeta};
use crate::pair::Pair;

/// Connects to a pair's first server as an agent with this token; a refusal is the inner error.
pub async fn connect_with_token(
    pair: &Pair,
    id: &str,
    identifiers: &str,
    token: &str,
) -> Result<Result<AdversarialAgent, Status>> {
    let meta = AgentMeta::new(id, identifiers).with("authorization", &format!("Bearer {token}"));
    AdversarialAgent::try_connect(pair.server().agent_port(), &pair.pki, &meta).await
}

/// The status of a Connect that must have been refused.
pub fn refused(outcome: Result<AdversarialAgent, Status>) -> Result<Status> {
    match outcome {
        Ok(_) => bail!("the agent was let in"),
        Err(status) => Ok(status),
    }
}
