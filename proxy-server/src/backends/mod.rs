//! The agent streams, and the strategies over them: [`BackendManager`].
//!
//! Nothing here dials or waits: a choice is a look-up under a lock that is held for microseconds. Only while few of many agents
//! are ready, it searches all of them.
//!
//! # How an agent is chosen
//! 1. Streams with an unanswered ping or probe are **unresponsive**. Of the others those that drain (DRAIN was received) or whose
//!    agent is ejected ([`outlier`]) are a **fallback**, all others **ready**. Excluded streams are skipped.
//! 2. The strategies are asked in the order of the flag for a ready stream; the first one that has a stream decides:
//!    - `default`: every agent id suits; of an agent the first registered ready stream counts.
//!    - `destHost`: a stream suits if an `ipv4`, `ipv6` or `host` identifier equals the target's host byte by byte
//!      (case-sensitive; `::1` does not equal `0:0:0:0:0:0:0:1`). Otherwise, if the host is an address, the streams with the
//!      longest `cidr` prefix that contains it suit.
//!    - `defaultRoute`: like `default`, among streams that announced `default-route=true`.
//! 3. `default` and `defaultRoute` ask for an agent of `--prefer-zone` first.
//! 4. Of several suitable ones two random ones are compared ([`load`]) and the less loaded one is taken; if they are alike, the
//!    first one. With `--agent-selection=random` a random one is taken, for `destHost` the first registered one.
//! 5. Of the lanes of the found agent process [`mux::choose_lane`] chooses one. For all other steps lanes are one agent.
//! 6. Only if no strategy has a ready stream, the strategies are asked again for a fallback, then for an unresponsive one.
//!
//! Two intended differences from Go. In Go a draining match of one strategy wins over a healthy agent of the next, so that an
//! unresponsive agent or one that asked for no new dials gets them although another agent could serve them; here draining
//! streams come last over all strategies. An operator who lists a second strategy permits its agents to serve these targets.
//! And in Go `cidr` identifiers never match, although agents accept and announce them. This changes one route: with
//! `destHost,default` a target inside an announced network went to a random agent, and now goes to the agent that announced the
//! network. Exact identifiers still come first, and agents that announce no network are chosen as before. Because networks
//! route, they count among destHost's identifiers for readiness and gauges.
//!
//! # Invariants
//! - A stream leaves the tables only by its [`LinkId`], which is never reused: the end of a stale stream cannot evict its
//!   successor (ARCHITECTURE.md, invariant 3).
//! - A new stream never displaces an existing one: it comes after it in every list, or is refused.

pub mod identifiers;

mod lane;
mod load;
mod manager;
mod outlier;
mod stats;
mod table;

#[cfg(test)]
mod ejection_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod simulation;

use std::sync::Arc;

use serve::metrics::{Family, Gauge};

pub use self::identifiers::Identifiers;
pub use self::lane::{LaneGuard, LaneTraffic};
pub(crate) use self::manager::AgentDescription;
pub use self::manager::{AgentView, BackendManager, OutlierMetrics, Registration, keep_sweeping};
pub(crate) use self::outlier::{is_slow, median_dial_time};
pub use self::stats::{AgentStats, PendingDial};
use crate::auth::Party;
use crate::limits::{MAX_AGENTS, MAX_STREAMS_PER_AGENT};

serve::label! {
    /// A strategy to choose an agent for a dial, by its name in flags and metrics.
    pub enum Strategy in "proxy_strategy" {
        /// A random agent.
        Default => "default",
        /// The agent that announced the target's host among its identifiers.
        DestHost => "destHost",
        /// An agent that announced `default-route=true`.
        DefaultRoute => "defaultRoute",
    }
}

/// How one of several suitable agents is chosen: `--agent-selection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// Of two random agents the one with the lower expected dial time, then with less waiting bytes.
    #[default]
    LeastLoaded,
    /// A random agent; for destHost the first registered one.
    Random,
}

/// Which strategies must have an agent for the server to be ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadinessPolicy {
    /// The first strategy, as in Go.
    #[default]
    FirstStrategy,
    /// At least one strategy.
    Any,
    /// Every strategy.
    All,
}

/// The id of one agent stream on this server, from its registration on. Never reused in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// An agent stream to register.
#[derive(Debug, Clone)]
pub struct Backend<L> {
    /// The agent's id. Several streams may share it.
    pub agent_id: Arc<str>,
    /// The hosts and networks that the agent serves.
    pub identifiers: Identifiers,
    /// The random number of the agent's process, if it may open lanes.
    pub process: Option<u64>,
    /// The party that claims the agent id, if identities are enforced.
    pub owner: Option<Party>,
    /// The handle to dial through the stream.
    pub handle: L,
}

impl<L> Backend<L> {
    /// Whether both are lanes of one agent process.
    fn is_lane_of(&self, other: &Self) -> bool {
        self.process.is_some()
            && self.process == other.process
            && self.agent_id == other.agent_id
            && self.identifiers == other.identifiers
    }
}

/// A stream that [`BackendManager::choose`] found.
#[derive(Debug)]
pub struct Choice<L> {
    /// The stream's id, to exclude it from the next choice.
    pub link: LinkId,
    /// The agent's id.
    pub agent_id: Arc<str>,
    /// Counts the dial at the agent from the choice on.
    pub pending: PendingDial,
    /// The traffic of the stream.
    pub lane: LaneTraffic,
    /// The handle to dial through the stream.
    pub handle: L,
    /// The strategy that found it.
    pub strategy: Strategy,
}

/// Why a stream was not registered. Its Connect is refused with `ResourceExhausted`; existing streams stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The agent id belongs to another party, which came at the same time; one that came before is found by
    /// [`BackendManager::belongs_to_another`].
    #[error("the agent ID belongs to another agent that is connected")]
    ForeignId,
    /// The agent id already has [`MAX_STREAMS_PER_AGENT`] streams.
    #[error("this agent ID already has {MAX_STREAMS_PER_AGENT} streams, is it used by several agents?")]
    TooManyStreams,
    /// The server already has [`MAX_AGENTS`] agents.
    #[error("the server already has {MAX_AGENTS} agents")]
    TooManyAgents,
}

serve::families! {
    /// The gauges of the route tables. They are set with the tables locked, so that the last value is correct.
    pub struct RouteMetrics {
        /// Agent ids; for destHost hosts and networks. Draining and unresponsive streams count.
        pub(crate) ready_backends: Family<Strategy, Gauge> = "ready_backends",
            "Number of konnectivity agent connected to the proxy server";
        pub(crate) ready_backend_connections: Gauge = "ready_backend_connections",
            "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends";
        /// Ours. Whatever their strategy.
        pub(crate) connected_agents: Gauge = "connected_agents", "Agent ids with an open stream";
    }
}

impl RouteMetrics {
    pub(crate) fn set(&self, strategy: Strategy, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.ready_backends.get_or_create(&strategy).set(count);
        self.ready_backend_connections.set(count);
    }
}
