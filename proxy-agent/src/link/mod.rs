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
#[cfg(test)]
mod stream_tests;

use std::sync::Arc;
use std::time::Duration;

use driver::{Bounds, Driver, LinkEnd};
use grpc::{ConnectionHandle, WireStream};
use mux::{Agent, ConnectId, Negotiated};
use serve::logs::{ConnectionLogWriter, Peer};
use serve::traces::Tracer;
use tokio::task::coop::unconstrained;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::endpoint::{Dialer, Resolve};
use crate::metrics::Metrics;

pub use self::control::{LinkControl, LinkRunner, ServerState};
pub use self::in_flight::InFlight;
pub(crate) use self::report::OpenLink;
pub use self::report::OpenLinks;

use self::connect_ids::ConnectIdSpace;
use self::control::watch_server;
use self::handler::{AgentLinkHandler, Server};
use self::meter::LinkMeter;

/// How long the connection below a finished stream may take to end by itself.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The same for a replaced stream. A congested path may still hold its last bytes. Meanwhile the set still names the stream to
/// servers, which cut streams that are no longer named.
const REPLACED_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A gRPC stream, and the connection that carries only this stream.
#[derive(Debug)]
pub struct GrpcStream {
    /// The stream.
    pub wire: WireStream,
    /// The server is a native peer.
    pub native: bool,
    /// The server's address with its port.
    pub address: String,
    /// The negotiated terms.
    pub negotiated: Negotiated,
    /// The connection; it ends when this is dropped.
    pub connection: ConnectionHandle,
}

/// The state that all links of the agent share.
#[derive(Debug)]
pub struct Links<R> {
    agent_id: Arc<str>,
    dialer: Arc<Dialer<R>>,
    bounds: Bounds,
    metrics: Metrics,
    records: ConnectionLogWriter,
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
        (records, tracer): (ConnectionLogWriter, Tracer),
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
}

impl<R: Resolve> LinkRunner<GrpcStream> for Links<R> {
    async fn run(self: Arc<Self>, server_id: Arc<str>, stream: GrpcStream, control: LinkControl) -> LinkEnd {
        let GrpcStream { wire, native, address, negotiated, connection } = stream;
        let (keepalive, stop) = (Arc::clone(&connection.keepalive), control.stop.clone());
        let watch = watch_server(Arc::clone(&keepalive), connection.going_away.clone(), control.clone());
        let _watch = AbortOnDropHandle::new(tokio::spawn(watch));
        let range = (!native).then(|| self.connect_ids.enter(&server_id));
        let beyond = range.as_ref().map_or(ConnectId(0), |range| range.beyond);
        tracing::info!(target: "v2", serverID = %Peer(&server_id), agentID = %self.agent_id, "Start serving");
        let drain = control.drain.clone();
        let (link, reports) = OpenLink::new(Arc::clone(&server_id), address, keepalive, native, drain);
        let meter = LinkMeter::new(&self.metrics, link.traffic.clone());
        let open = self.open.enter(link);
        let server = Server { id: server_id, native, beyond };
        let handler = AgentLinkHandler::new(Arc::clone(&self), server, control, (open, reports));
        let driver = Driver::<Agent, _, _, _>::new(&self.bounds, negotiated, wire, handler, meter);
        let end = unconstrained(driver).await;
        drop(range);
        match end {
            LinkEnd::Stopped => {
                let stopped = async {
                    stop.cancelled().await;
                    sleep(CLOSE_TIMEOUT).await;
                };
                tokio::select! {
                    () = connection.close(REPLACED_CLOSE_TIMEOUT) => {}
                    () = stopped => {}
                }
            }
            LinkEnd::Finished | LinkEnd::Failed(_) => connection.close(CLOSE_TIMEOUT).await,
        }
        end
    }
}
