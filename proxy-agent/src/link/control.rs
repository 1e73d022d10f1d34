//! Signals between a stream and its owner.

use std::sync::Arc;
use std::time::Duration;

use driver::LinkEnd;
use grpc::KeepaliveHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// A server with a higher RTT gets more lanes: one lost packet holds up a lane for an RTT.
const HIGH_RTT: Duration = Duration::from_millis(10);

/// Interval of the checks of a new stream's RTT until it is measured.
const RTT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The same after the measurement, because a path may become longer.
const RTT_RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// How long a stream that has seen GOAWAY waits for another stream to replace it: longer than the default --sync-interval-cap. A Go
/// server that stops waits for all its streams.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(15);

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerState {
    /// It answers pings again.
    Responsive,
    /// It does not answer pings.
    Unresponsive,
    /// It has sent GOAWAY, or a proxy before it has: the stream continues, but may end soon.
    GoingAway,
    /// No other stream has replaced this one after that: it must drain.
    Unreplaced,
    /// Its RTT is high.
    HighRtt,
    /// It tells this number of servers.
    Servers(usize),
    /// The stream has ended so, not by us. Endpoints may still take what had arrived.
    Lost(LinkEnd),
}

/// The controls of one stream. Cheap to clone.
#[derive(Clone)]
pub struct LinkControl {
    /// Asks the server once for no new dials (DRAIN).
    pub drain: CancellationToken,
    /// Another stream has replaced this one, or none can after GOAWAY: after its drain it ends in order once it is idle.
    pub retire: CancellationToken,
    /// Ends the stream in order.
    pub stop: CancellationToken,
    /// Called at each change of the server's state.
    pub observer: Arc<dyn Fn(ServerState) + Send + Sync>,
}

/// Reports the states of the server, so that the set opens a replacement stream. Once it is open, the silence of this one means
/// that its connection is half-open. After GOAWAY the stream ends once it is idle, replaced or not.
pub(super) async fn watch_server(
    keepalive: Arc<KeepaliveHandle>,
    going_away: CancellationToken,
    control: LinkControl,
) {
    let mut unresponsive = keepalive.unresponsive();
    // A change before the first `changed` call must count, too.
    unresponsive.mark_changed();
    let (mut known, mut replaced) = (ServerState::Responsive, false);
    let rtt = || keepalive.rtt().map(|rtt| path_rtt(rtt, keepalive.rtt_between_kernels()));
    let (high_rtt, mut has_high_rtt) = (until_high_rtt(rtt), false);
    let unreplaced = async {
        going_away.cancelled().await;
        sleep(SUCCESSOR_TIMEOUT).await;
    };
    tokio::pin!(high_rtt, unreplaced);
    loop {
        let state = tokio::select! {
            () = control.retire.cancelled(), if !replaced => {
                replaced = true;
                keepalive.supersede();
                continue;
            }
            () = &mut high_rtt, if !has_high_rtt => {
                has_high_rtt = true;
                (control.observer)(ServerState::HighRtt);
                continue;
            }
            () = &mut unreplaced, if !replaced => {
                // Without another stream, this one's silence does not mean that its connection is half-open.
                replaced = true;
                (control.observer)(ServerState::Unreplaced);
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
        if known != state {
            known = state.clone();
            (control.observer)(state);
        }
    }
}

/// The RTT of the path. A server that lacks CPU answers pings late, but its kernel does not: twice that RTT is the limit. A proxy near
/// the agent looks the same.
fn path_rtt(rtt: Duration, between_kernels: Option<Duration>) -> Duration {
    between_kernels.map_or(rtt, |kernels| rtt.min(kernels * 2))
}

/// Resolves once the RTT is high. A later rise counts if two looks see it, because an overloaded machine delays pings, too.
async fn until_high_rtt(rtt: impl Fn() -> Option<Duration>) {
    let (mut was_low, mut was_high) = (false, false);
    loop {
        match rtt() {
            None => {
                sleep(RTT_POLL_INTERVAL).await;
                continue;
            }
            Some(rtt) if rtt <= HIGH_RTT => (was_low, was_high) = (true, false),
            Some(_) if was_high || !was_low => return,
            Some(_) => was_high = true,
        }
        sleep(RTT_RECHECK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rtt_of_a_server_may_rise_later() {
        let began = Instant::now();
        until_high_rtt(|| match began.elapsed().as_secs() {
            0..2 => None,
            2..100 => Some(HIGH_RTT),
            _ => Some(Duration::from_millis(80)),
        })
        .await;
        assert!((130..=160).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_cpu_has_no_high_rtt() {
        const MS: Duration = Duration::from_millis(1);
        let is_high = async |between_kernels| {
            let high = until_high_rtt(|| Some(path_rtt(80 * MS, between_kernels)));
            tokio::time::timeout(3_600_000 * MS, high).await.is_ok()
        };
        assert!(!is_high(Some(MS / 20)).await, "its kernel answers at once");
        assert!(is_high(Some(40 * MS)).await && is_high(None).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_minute_raises_no_rtt() {
        let began = Instant::now();
        let rtt = || match began.elapsed().as_secs() {
            100..=130 => Duration::from_millis(80),
            0..=500 => HIGH_RTT,
            _ => Duration::from_millis(80),
        };
        until_high_rtt(|| Some(rtt())).await;
        assert!((530..=565).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }
}
