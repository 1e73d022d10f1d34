//! The gRPC frontend: one Proxy stream, one connection.
//!
//! One task for each stream reads until DIAL_REQ, dials and answers. It ends when the stream is attached to its link, whose
//! task polls the stream from then on. The [`machine`] decides the replies; this module waits.

mod chunk_sizer;
pub mod local_io;
pub mod machine;
pub mod stream;

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serve::logs::Peer;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use transport::wire::Wire;

use self::local_io::GrpcIo;
use self::machine::Order;
use self::stream::Stream;
use super::connection_log::{ConnectionLog, Identity};
use super::meters::Meters;
use super::{Attach, DISCARD_LIMIT, Dial, next_id};
use crate::dial::{DialFailure, Dialed, Target};

/// Time between a CLOSE_RSP and the end of its stream. The end wakes a reader of the Go client that missed the CLOSE_RSP; a
/// reader that received it has returned long before.
const LINGER: Duration = Duration::from_millis(100);
/// Time limit for a stream's DIAL_REQ. Released clients send it at once.
const FIRST_DIAL: Duration = Duration::from_secs(300);

/// The state that all streams of this frontend share.
#[derive(Debug, Clone)]
pub struct GrpcFrontend<D> {
    dialer: D,
    meters: Meters,
    lifetimes: TaskTracker,
}

impl<D: Dial> GrpcFrontend<D> {
    /// A frontend that dials through `dialer`. `lifetimes` counts the tasks that a shutdown waits for: from before a dial until
    /// the client's stream is closed.
    pub fn new(dialer: D, meters: Meters, lifetimes: TaskTracker) -> Self {
        GrpcFrontend { dialer, meters, lifetimes }
    }

    /// Serves one Proxy stream until it is attached to its link or has ended. `peer` is for the log.
    pub async fn serve<W: Wire + Send + 'static>(&self, wire: W, peer: Arc<str>) {
        let live = self.meters.proxy_stream();
        let mut stream = Stream::new(wire, self.meters.clone());
        let Some(target) = first_dial(&mut stream).await else {
            return end(stream).await;
        };
        let lifetime = self.lifetimes.token();
        let id = next_id();
        let (dial_id, address) = (target.dial_id, Peer(&target.address).to_string());
        tracing::debug!(dialID = dial_id, dialAddress = address, connection = id, %peer, "Received DIAL_REQ");
        match dial(&self.dialer, &target, &mut stream).await {
            Ok(dialed) => {
                let Dialed { connection, agent_id: agent, slot, .. } = dialed;
                let Some(Ok(())) = stream.machine().handle_dialed().map(|answer| stream.pass_on(answer))
                else {
                    tracing::error!(
                        dialID = dial_id, agentID = %Peer(&agent), connectionID = connection.connect_id(), %peer,
                        "DIAL_RSP send to frontend stream failure"
                    );
                    self.meters.answer_not_delivered();
                    return; // dropping the connection closes it
                };
                let connect_id = connection.connect_id();
                let identity = Identity { id, frontend: "grpc", peer, target, agent, connect_id };
                let log = ConnectionLog::open(identity, self.meters.clone(), live, slot, lifetime);
                connection.attach(Box::new(GrpcIo::new(stream, log)));
            }
            Err(failure) => {
                log_dial_failure(&target, &failure, stream.has_ended());
                if refuse(&mut stream, &failure) {
                    return stream.finish();
                }
                end(stream).await;
            }
        }
    }
}

/// Logs a dial that failed before an agent took part.
fn log_dial_failure(target: &Target, failure: &DialFailure, ended: bool) {
    let (dial_id, address) = (target.dial_id, Peer(&target.address));
    match failure {
        DialFailure::Cancelled if ended => {
            tracing::info!(target: "v2", dialID = dial_id, "frontend stream shutdown, cleaning dial");
        }
        DialFailure::Cancelled => {
            tracing::error!(dialID = dial_id, dialAddress = %address, "Dial cancelled (DIAL_CLS) by frontend");
        }
        DialFailure::NoAgent | DialFailure::NoMemory => {
            tracing::error!(err = %failure, dialID = dial_id, dialAddress = %address, "Failed to get a backend");
        }
        // The dialer logs these, with the agent.
        _ => {}
    }
}

/// The dial that the client requests, or `None` if the stream has ended.
async fn first_dial<W: Wire>(stream: &mut Stream<W>) -> Option<Target> {
    match timeout(FIRST_DIAL, poll_fn(|cx| stream.poll_order(cx))).await {
        Ok(Order::Dial { protocol, address }) => {
            let random = stream.machine().dial_id().map_or(0, |random| random.0);
            Some(Target::new(protocol, address).numbered(random))
        }
        Ok(_) => None,
        Err(_) => {
            tracing::debug!("no DIAL_REQ on a frontend stream for {FIRST_DIAL:?}");
            None
        }
    }
}

/// Dials while the client waits, and watches for its cancellation.
async fn dial<D: Dial, W: Wire>(
    dialer: &D,
    target: &Target,
    stream: &mut Stream<W>,
) -> Result<Dialed<D::Connection>, DialFailure> {
    let mut dialing = pin!(dialer.dial(target));
    // Before its DIAL_RSP the machine gives only one order: to cancel.
    tokio::select! {
        outcome = &mut dialing => outcome,
        _cancel = poll_fn(|cx| stream.poll_order(cx)) => Err(DialFailure::Cancelled),
    }
}

/// Sends the dial's failure to the client; false if the client no longer waits for it.
fn refuse<W: Wire>(stream: &mut Stream<W>, failure: &DialFailure) -> bool {
    let Some(answer) = stream.machine().handle_refused(failure.to_string()) else {
        return false;
    };
    let _lost = match failure {
        DialFailure::Refused(_) => stream.pass_on(answer),
        _ => stream.send(answer),
    };
    true
}

/// Ends a stream [`LINGER`] after its last packet, or as soon as the client ends it.
async fn end<W: Wire>(mut stream: Stream<W>) {
    if !stream.is_lost() {
        let mut allowance = DISCARD_LIMIT;
        let _in_time = timeout(LINGER, poll_fn(|cx| stream.poll_drained(cx, &mut allowance))).await;
        stream.finish();
    }
}
