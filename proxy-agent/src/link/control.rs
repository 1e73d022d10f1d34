//! Signals between a stream and its owner.

use std::sync::Arc;
use std::time::Duration;

use driver::LinkEnd;
use grpc::KeepaliveHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// A server with a higher RTT gets more lanes: one lost packet holds up a lane for an RTT.
const HIGH_RTT: Duration = Duration::from_millis(10);

/// How often a new stream is asked for its RTT until it is measured.
const RTT_EVERY: Duration = Duration::from_secs(1);

/// Serves a stream until it ends.
pub trait LinkRunner<S>: Send + Sync + 'static {
    /// Runs until the stream and its connections have ended; controlled by `control`.
    fn run(
        self: Arc<Self>,
        server_id: Arc<str>,
        stream: S,
        control: LinkControl,
    ) -> impl Future<Output = LinkEnd> + Send + 'static;
}

/// What a stream shows about its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It answers pings again.
    Responsive,
    /// It does not answer pings.
    Unresponsive,
    /// It has sent GOAWAY, or a proxy before it has: the stream continues, but may end soon.
    GoingAway,
    /// Its RTT is high.
    Distant,
    /// It tells this number of servers.
    Servers(usize),
}

/// The controls of one stream. Cheap to clone.
#[derive(Clone)]
pub struct LinkControl {
    /// Asks the server once for no new dials (DRAIN).
    pub drain: CancellationToken,
    /// Another stream has replaced this one: after its drain it ends in order once it is idle.
    pub retire: CancellationToken,
    /// Ends the stream in order.
    pub stop: CancellationToken,
    /// Called at each change of the server's state.
    pub observer: Arc<dyn Fn(ServerState) + Send + Sync>,
}

/// Reports the states of the server, so that the set opens a replacement stream. Once it is open, the silence of this one means
/// that its connection is half-open.
pub(super) async fn watch_server(
    keepalive: Arc<KeepaliveHandle>,
    going_away: CancellationToken,
    control: LinkControl,
) {
    let mut unresponsive = keepalive.unresponsive();
    // A change before the first `changed` call must count, too.
    unresponsive.mark_changed();
    let (mut known, mut replaced) = (ServerState::Responsive, false);
    let (measured, mut is_measured) = (sleep(RTT_EVERY), false);
    tokio::pin!(measured);
    loop {
        let state = tokio::select! {
            () = control.retire.cancelled(), if !replaced => {
                replaced = true;
                keepalive.supersede();
                continue;
            }
            () = &mut measured, if !is_measured => {
                measured.as_mut().reset(Instant::now() + RTT_EVERY);
                let rtt = keepalive.rtt();
                is_measured = rtt.is_some();
                if rtt.is_some_and(|rtt| rtt > HIGH_RTT) {
                    (control.observer)(ServerState::Distant);
                }
                continue;
            }
            () = going_away.cancelled(), if known != ServerState::GoingAway => ServerState::GoingAway,
            Ok(()) = unresponsive.changed(), if known != ServerState::GoingAway => {
                match *unresponsive.borrow_and_update() {
                    true => ServerState::Unresponsive,
                    false => ServerState::Responsive,
                }
            }
            else => return,
        };
        if std::mem::replace(&mut known, state) != state {
            (control.observer)(state);
        }
    }
}
