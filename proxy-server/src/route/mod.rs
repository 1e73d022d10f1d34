//! Which agents there are, and the strategies over them: [`BackendManager`].
//!
//! Nothing here dials, waits or reads a clock: a choice is a look-up under a lock that is held for microseconds.
//!
//! # How an agent is chosen
//! 1. Streams that drain (DRAIN was received) or are suspect (a ping is unanswered) are **leaving**, all others
//!    **ready**. Excluded streams do not exist for this choice.
//! 2. The strategies are asked in the order of the flag for a ready stream; the first that has one decides:
//!    - `default`: a random agent id, its first registered ready stream. Agents are equally likely, however many
//!      streams they have.
//!    - `destHost`: the target's host against `ipv4`, `ipv6` and `host` identifiers, byte by byte (upper case is
//!      not lower case, `::1` is not `0:0:0:0:0:0:0:1`), the first registered. Failing that, a host that is an
//!      address against `cidr` identifiers, longest prefix first, the first registered.
//!    - `defaultRoute`: like `default`, among streams that announced `default-route=true`.
//! 3. Only if no strategy has a ready stream, the same once more with leaving streams.
//!
//! Two things differ from Go on purpose. There a draining match of one strategy beats a healthy agent of the next:
//! an agent that asks for no new dials, or is half dead, then gets them although another could serve them; here
//! "draining last" spans all strategies. An operator who lists a second strategy has said that its agents may
//! serve what the first one's do not. And in Go `cidr` identifiers never match, although agents accept and announce
//! them. The one route that this changes in a drop-in: with `destHost,default` a target inside an announced network
//! went to a random agent and now goes to the one that announced it, which is what announcing asks for. Exact
//! identifiers still go first, and agents that announce no network are chosen as ever. Because networks route, they
//! count among destHost's identifiers for readiness and gauges.
//!
//! # Invariants
//! - A stream leaves the tables by its [`LinkId`] alone, which is never used twice: the end of a stale stream
//!   cannot evict its successor (ARCHITECTURE.md, invariant 3).
//! - A newcomer never displaces an incumbent: it comes after it in every list, or is refused.

pub mod identifiers;

mod hosts;
mod manager;
mod members;
mod pool;

#[cfg(test)]
mod model;

use std::fmt;
use std::sync::Arc;

pub use self::identifiers::{Identifiers, IdentifiersError};
pub use self::manager::{BackendManager, Registration};
pub use crate::args::{ProxyStrategy as Strategy, ReadinessPolicy};
use crate::limits::{AgentBudget, MAX_AGENTS, MAX_STREAMS_PER_AGENT};

/// One agent stream's life on this server, from its registration on. Never used twice in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An agent stream to register.
#[derive(Debug, Clone)]
pub struct Backend<L> {
    /// What the agent calls itself. Several streams may share it.
    pub agent_id: Arc<str>,
    /// What it serves.
    pub identifiers: Identifiers,
    /// How to dial through the stream.
    pub handle: L,
}

/// A stream that [`BackendManager::choose`] found.
#[derive(Debug, Clone)]
pub struct Choice<L> {
    /// The stream, to exclude it from the next choice.
    pub link: LinkId,
    /// Its agent.
    pub agent_id: Arc<str>,
    /// What its agent may carry, over all its streams.
    pub budget: AgentBudget,
    /// How to dial through it.
    pub handle: L,
    /// The strategy that found it.
    pub strategy: Strategy,
}

/// Why a stream was not registered. Its Connect is to be refused with `ResourceExhausted`; incumbents stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The agent id has [`MAX_STREAMS_PER_AGENT`] already.
    #[error("this agent ID already has {MAX_STREAMS_PER_AGENT} streams, is it used by several agents?")]
    TooManyStreams,
    /// There are [`MAX_AGENTS`] already.
    #[error("the server already has {MAX_AGENTS} agents")]
    TooManyAgents,
}

/// Told about changes, for metrics. Called with the tables locked, so that the last call is the truth: it must
/// neither block nor call the manager.
pub trait RouteObserver: Send + Sync {
    /// Gauge `ready_backends{proxy_strategy}`: identifiers known to a strategy (agent ids, or hosts and networks
    /// with destHost), leaving ones included. Called with 0 for each configured strategy at the start.
    fn ready_backends(&self, strategy: Strategy, count: usize);

    /// Gauge `ready_backend_connections`, deprecated in Go: the same number, of the strategy that changed last.
    fn ready_backend_connections(&self, count: usize);
}

#[cfg(test)]
impl RouteObserver for () {
    fn ready_backends(&self, _strategy: Strategy, _count: usize) {}

    fn ready_backend_connections(&self, _count: usize) {}
}
