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
use std::sync::Arc;
use std::time::Duration;

use flags::GoDuration;
use grpc::Wire;
use serve::logs::Peer;
use tokio::time::timeout;

use self::local_io::GrpcIo;
use self::machine::Order;
use self::stream::Stream;
use super::connection_log::{ConnInfo, ConnectionLog};
use super::{DISCARD_LIMIT, Frontend, Protocol};
use crate::dial::{DialFailure, Dialed, FailureReason, Target};
use crate::metrics::{FrontendName, ServiceMethod};

/// Time between a CLOSE_RSP and the end of its stream. The end wakes a reader of the Go client that missed the CLOSE_RSP; a
/// reader that received it has returned long before.
const LINGER: Duration = Duration::from_millis(100);
/// Time limit for a stream's DIAL_REQ. Released clients send it at once.
const FIRST_DIAL: Duration = Duration::from_secs(300);

impl Frontend {
    /// Serves one Proxy stream until it is attached to its link or has ended. `peer` is for the log. Each wait polls the stream, so
    /// that it ends with the client's connection.
    pub(super) async fn serve_stream<W: Wire + Send + 'static>(&self, wire: W, peer: Arc<str>) {
        let live = self.enter(self.metrics.grpc_connections.enter(ServiceMethod::Proxy));
        let mut stream = Stream::new(wire, self.metrics.clone());
        let Some(target) = first_dial(&mut stream).await else {
            return end(stream).await;
        };
        let lifetime = self.lifetimes.connections.token();
        let (dial_id, address) = (target.dial_id, Peer(&target.address).to_string());
        let mut identity = ConnInfo::new(self, Protocol::Grpc, Arc::clone(&peer), target);
        let frontend = self.name.map(FrontendName::name);
        tracing::debug!(
            dialID = dial_id, dialAddress = address, connection = identity.id, frontend, %peer, "Received DIAL_REQ"
        );
        let outcome = tokio::select! {
            outcome = self.dialer.dial(&identity.target, &mut identity.stages) => outcome,
            // Before its DIAL_RSP the machine gives only one order: to cancel.
            _cancel = poll_fn(|cx| stream.poll_order(cx)) => {
                identity.canceled();
                if stream.ended {
                    tracing::info!(target: "v2", dialID = dial_id, "frontend stream shutdown, cleaning dial");
                } else {
                    let took = GoDuration::from(identity.stages.total());
                    tracing::error!(
                        dialID = dial_id, dialAddress = %address, dialDuration = %took,
                        "Dial cancelled (DIAL_CLS) by frontend"
                    );
                }
                return end(stream).await;
            }
        };
        match outcome {
            Ok(Dialed { connection, place }) => {
                let connect_id = connection.id.0;
                let sent = stream.machine.handle_dialed().map(|answer| stream.pass_on(answer));
                let Some(Ok(())) = sent else {
                    let err = sent.and_then(Result::err);
                    tracing::error!(
                        err = err.as_ref().map(tracing::field::display), dialID = dial_id,
                        agentID = %identity.agent(), connectionID = connect_id, %peer,
                        "DIAL_RSP send to frontend stream failure"
                    );
                    identity.not_established(FailureReason::SendRsp, &"the client left before its DIAL_RSP");
                    return; // dropping the connection closes it
                };
                identity.connect_id = connect_id;
                let log = ConnectionLog::open(identity, live, place, lifetime);
                connection.attach(Box::new(GrpcIo::new(stream, log)));
            }
            Err(failure) => {
                identity.not_established(failure.metric(), &failure);
                // The dialer logs the other failures.
                if let DialFailure::NoAgent = failure {
                    tracing::error!(err = %failure, dialID = dial_id, dialAddress = %address, "Failed to get a backend");
                }
                if let Some(answer) = stream.machine.handle_refused(failure.to_string()) {
                    let _lost = match failure {
                        DialFailure::Refused(_) => stream.pass_on(answer),
                        _ => stream.send(answer),
                    };
                }
                stream.wire.finish();
            }
        }
    }
}

/// The dial that the client requests, or `None` if the stream has ended.
async fn first_dial<W: Wire>(stream: &mut Stream<W>) -> Option<Target> {
    match timeout(FIRST_DIAL, poll_fn(|cx| stream.poll_order(cx))).await {
        Ok(Order::Dial { protocol, address }) => {
            let dial_id = stream.machine.dial_id().map_or(0, |random| random.0);
            Some(Target { dial_id, ..Target::new(protocol, address) })
        }
        Ok(_) => None,
        Err(_) => {
            tracing::debug!("no DIAL_REQ on a frontend stream for {FIRST_DIAL:?}");
            None
        }
    }
}

/// Ends a stream [`LINGER`] after its last packet, or as soon as the client ends it.
async fn end<W: Wire>(mut stream: Stream<W>) {
    if !stream.lost {
        let mut allowance = DISCARD_LIMIT;
        let _in_time = timeout(LINGER, poll_fn(|cx| stream.poll_drained(cx, &mut allowance))).await;
        stream.wire.finish();
    }
}
