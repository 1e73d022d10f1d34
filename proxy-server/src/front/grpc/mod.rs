//! The gRPC frontend: one Proxy stream, one connection.
//!
//! A task per stream reads until DIAL_REQ, dials, answers, and ends when the stream is attached to its link, whose
//! task polls it from there on. What is answered to what is the [`machine`]'s; here are the waits.

pub mod local;
pub mod machine;
mod pieces;
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

use self::local::GrpcLocal;
use self::machine::Order;
use self::stream::Stream;
use super::account::{Account, Identity};
use super::meters::Meters;
use super::{Attach, Dial, WASTE, next_id};
use crate::dial::{DialFailure, Dialed, Target};

/// Between a CLOSE_RSP and the end of its stream: a reader of the Go client that missed the CLOSE_RSP wakes up
/// with the end, one that got it has long left.
const LINGER: Duration = Duration::from_millis(100);
/// For a stream's DIAL_REQ. Released clients send it at once; what waits for minutes has forgotten its stream.
const FIRST_DIAL: Duration = Duration::from_secs(300);

/// What all streams of this frontend share.
#[derive(Debug, Clone)]
pub struct GrpcFrontend<D> {
    dialer: D,
    meters: Meters,
    lifetimes: TaskTracker,
}

impl<D: Dial> GrpcFrontend<D> {
    /// A frontend that dials through `dialer`. `lifetimes` counts what a shutdown waits for: from before a dial
    /// until the client's end is closed.
    pub fn new(dialer: D, meters: Meters, lifetimes: TaskTracker) -> Self {
        GrpcFrontend { dialer, meters, lifetimes }
    }

    /// Serves one Proxy stream, until it is attached to its link or ended. `peer` is for the log.
    pub async fn serve<W: Wire + Send + 'static>(&self, wire: W, peer: Arc<str>) {
        let live = self.meters.proxy_stream();
        let mut stream = Stream::new(wire, self.meters.clone());
        let Some(target) = first_dial(&mut stream).await else {
            return end(stream).await;
        };
        let lifetime = self.lifetimes.token();
        let id = next_id();
        tracing::debug!(connection = id, %peer, address = %Peer(&target.address), "DIAL_REQ");
        match dial(&self.dialer, &target, &mut stream).await {
            Ok(dialed) => {
                let Dialed { connection, agent_id: agent, slot, .. } = dialed;
                let Some(Ok(())) = stream.machine().handle_dialled().map(|answer| stream.pass_on(answer))
                else {
                    tracing::info!(connection = id, %peer, "the client left before it was told of its connection");
                    self.meters.answer_not_delivered();
                    return; // which closes what was dialled
                };
                let identity = Identity { id, frontend: "grpc", peer, address: target.address, agent };
                let account = Account::open(identity, self.meters.clone(), live, slot, lifetime);
                connection.attach(Box::new(GrpcLocal::new(stream, account)));
            }
            Err(failure) => {
                tracing::info!(
                    connection = id, %peer, address = %Peer(&target.address), failure = %Peer(&failure.to_string()), "dial failed"
                );
                if refuse(&mut stream, &failure) {
                    return stream.finish();
                }
                end(stream).await;
            }
        }
    }
}

/// What the stream's client wants, or `None` when the stream is over.
async fn first_dial<W: Wire>(stream: &mut Stream<W>) -> Option<Target> {
    match timeout(FIRST_DIAL, poll_fn(|cx| stream.poll_order(cx))).await {
        Ok(Order::Dial { protocol, address }) => Some(Target::new(protocol, address)),
        Ok(_) => None,
        Err(_) => {
            tracing::debug!("no DIAL_REQ on a frontend stream for {FIRST_DIAL:?}");
            None
        }
    }
}

/// Dials while the client waits.
async fn dial<D: Dial, W: Wire>(
    dialer: &D,
    target: &Target,
    stream: &mut Stream<W>,
) -> Result<Dialed<D::Connection>, DialFailure> {
    let mut dialing = pin!(dialer.dial(target));
    // Before its DIAL_RSP the machine gives one order only, to cancel.
    tokio::select! {
        outcome = &mut dialing => outcome,
        _cancel = poll_fn(|cx| stream.poll_order(cx)) => Err(DialFailure::Cancelled),
    }
}

/// Tells the client of its dial's failure; false if it does not wait for that any more.
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

/// Ends a stream some time after its last packet, or as soon as its client does.
async fn end<W: Wire>(mut stream: Stream<W>) {
    if !stream.is_lost() {
        let mut allowance = WASTE;
        let _in_time = timeout(LINGER, poll_fn(|cx| stream.poll_drained(cx, &mut allowance))).await;
        stream.finish();
    }
}
