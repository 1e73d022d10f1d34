//! One stream to one server replica: the relay task with the agent's part, which dials endpoints.
//!
//! It connects the client set, which opens streams and needs to know when one ends, with the endpoints. Payload passes through
//! the relay only.

mod activity;
mod life;
mod meter;
mod owner;
mod ranges;

use std::sync::Arc;

use relay::{Bounds, LinkEnd, Relay};
use serve::logs::Peer;
use tokio::task::coop::unconstrained;
use transport::wire::Wire;
use tunnel::{Agent, ConnectId, Terms};

use crate::endpoint::{Dialer, Resolve};
use crate::metrics::Metrics;

pub use self::activity::{Activity, Busy};
pub use self::life::{Life, SuspectObserver};

use self::meter::LinkMeter;
use self::owner::{AgentOwner, Server};
use self::ranges::Ranges;

/// The state that all links of the agent share. Cheap to clone.
#[derive(Debug)]
pub struct Links<R> {
    agent_id: Arc<str>,
    dialer: Arc<Dialer<R>>,
    bounds: Bounds,
    metrics: Metrics,
    activity: Activity,
    /// The connect id ranges of streams to upstream servers.
    ranges: Ranges,
}

impl<R> Clone for Links<R> {
    fn clone(&self) -> Self {
        Links {
            agent_id: Arc::clone(&self.agent_id),
            dialer: Arc::clone(&self.dialer),
            bounds: self.bounds.clone(),
            metrics: self.metrics.clone(),
            activity: self.activity.clone(),
            ranges: self.ranges.clone(),
        }
    }
}

impl<R: Resolve> Links<R> {
    /// Links of the agent with this id; they dial endpoints by `dialer`, within `bounds`.
    pub fn new(agent_id: &str, dialer: Dialer<R>, bounds: Bounds, metrics: Metrics) -> Self {
        let (dialer, ranges) = (Arc::new(dialer), Ranges::default());
        Links { agent_id: agent_id.into(), dialer, bounds, metrics, activity: Activity::default(), ranges }
    }

    /// The dials and connections of all links.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Serves an open stream on the negotiated terms, until it ends by itself or by `life`. `own`: the server is a native peer.
    pub async fn run<W: Wire + Unpin>(
        &self,
        server_id: Arc<str>,
        wire: W,
        own: bool,
        terms: Terms,
        life: Life,
    ) -> LinkEnd {
        let dialer = Arc::clone(&self.dialer);
        let range = (!own).then(|| self.ranges.enter(&server_id));
        let beyond = range.as_ref().map_or(ConnectId(0), |range| range.beyond);
        let agent_id = Arc::clone(&self.agent_id);
        tracing::info!(target: "v2", serverID = %Peer(&server_id), agentID = %agent_id, "Start serving");
        let server = Server { id: server_id, agent_id, own, beyond };
        let owner = AgentOwner::new(server, dialer, self.metrics.clone(), self.activity.part(), life);
        let meter = LinkMeter::new(&self.metrics);
        unconstrained(Relay::<Agent, _, _, _>::new(&self.bounds, terms, wire, owner, meter)).await
    }
}
