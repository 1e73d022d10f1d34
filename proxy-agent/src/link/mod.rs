//! One stream to one server replica: the driver task with the agent's part, which dials endpoints.
//!
//! It connects the client set, which opens streams and needs to know when one ends, with the endpoints. Payload passes through
//! the driver only.

mod connect_ids;
mod control;
mod handler;
mod in_flight;
mod meter;
mod report;

use std::sync::Arc;

use driver::{Bounds, Driver, LinkEnd};
use grpc::Wire;
use mux::{Agent, ConnectId, Negotiated};
use serve::logs::{Peer, Records};
use serve::traces::Tracer;
use tokio::task::coop::unconstrained;

use crate::endpoint::{Dialer, Resolve};
use crate::metrics::Metrics;

pub use self::control::{LinkControl, ServerObserver, ServerState};
pub use self::in_flight::{InFlight, InFlightGuard};
pub(crate) use self::report::OpenLink;
pub use self::report::{OpenLinks, Origin};

use self::connect_ids::ConnectIdSpace;
use self::handler::{AgentLinkHandler, Server};
use self::meter::LinkMeter;

/// The state that all links of the agent share.
#[derive(Debug)]
pub struct Links<R> {
    agent_id: Arc<str>,
    dialer: Arc<Dialer<R>>,
    bounds: Bounds,
    metrics: Metrics,
    records: Records,
    tracer: Tracer,
    pub(crate) in_flight: InFlight,
    /// The connect id ranges of streams to upstream servers.
    connect_ids: ConnectIdSpace,
    pub(crate) open: OpenLinks,
}

impl<R: Resolve> Links<R> {
    /// Links of the agent with this id; they dial endpoints by `dialer`, within `bounds`, and record connections and traces.
    pub fn new(
        agent_id: &str,
        dialer: Dialer<R>,
        bounds: Bounds,
        metrics: Metrics,
        (records, tracer): (Records, Tracer),
    ) -> Self {
        let (dialer, connect_ids) = (Arc::new(dialer), ConnectIdSpace::default());
        Links {
            agent_id: agent_id.into(),
            dialer,
            bounds,
            metrics,
            records,
            tracer,
            in_flight: InFlight::default(),
            connect_ids,
            open: OpenLinks::default(),
        }
    }

    /// Serves an open stream on the negotiated terms, until it ends by itself or by `control`. `native`: the server is a native peer.
    pub async fn run<W: Wire + Unpin>(
        &self,
        server_id: Arc<str>,
        wire: W,
        native: bool,
        negotiated: Negotiated,
        origin: Origin,
        control: LinkControl,
    ) -> LinkEnd {
        let range = (!native).then(|| self.connect_ids.enter(&server_id));
        let beyond = range.as_ref().map_or(ConnectId(0), |range| range.beyond);
        let agent_id = Arc::clone(&self.agent_id);
        tracing::info!(target: "v2", serverID = %Peer(&server_id), agentID = %agent_id, "Start serving");
        let (link, reports) = OpenLink::new(Arc::clone(&server_id), origin, native, control.drain.clone());
        let meter = LinkMeter::new(&self.metrics, link.traffic.clone());
        let _open = self.open.enter(link);
        let server = Server { id: server_id, agent_id, native, beyond };
        let handler = AgentLinkHandler::new(self, server, control, reports);
        unconstrained(Driver::<Agent, _, _, _>::new(&self.bounds, negotiated, wire, handler, meter)).await
    }
}
