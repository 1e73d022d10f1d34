//! Finds peers that do not answer, by a PING when nothing was read for a while. Pings also measure the RTT: streams
//! with a high RTT get a wider window.
//!
//! Any read counts as an answer, as in grpc-go: a peer that is sending is pinged only for the RTT. Unread stream data does
//! not delay an answer, because h2 continues to read the connection.
//!
//! | the peer | noticed | consequence |
//! |---|---|---|
//! | does not answer a ping | after [`UNRESPONSIVE_AFTER`], or 1 s if its kernel does not acknowledge it | [`KeepaliveHandle::unresponsive`] reports it; the connection continues |
//! | and answers on another connection | [`Keepalive::half_open_timeout`] after that | the connection ends: it is half-open |
//! | says on another connection that it has lost this one | at once | the connection ends: it is half-open |
//! | and its kernel acknowledges | [`Keepalive::timeout`] after the regular ping | the connection ends: the program is stopped |
//! | and its kernel does not | after [`HOST_TIMEOUT`](net::kernel::HOST_TIMEOUT) | the connection ends: host or path lost |
//!
//! [`super::pinger`] carries this out.

use std::sync::{Arc, LazyLock, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::WireError;
use super::pinger::PeerLost;
use super::settings::{needs_wide_window, stream_window};
use net::kernel::{Acknowledgment, TcpPeer};

/// How long a ping may be unanswered, while nothing else is read, before the peer counts as unresponsive (or
/// [`Keepalive::half_open_timeout`], if it is shorter). A dial requests a ping after a quarter of a second, so it goes to another agent within three seconds.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(2_500);

/// The same if there is evidence that the path is lost, and the program is not merely stopped: the peer answers on another
/// connection, or its kernel acknowledges neither the ping nor its retransmissions.
pub(super) const UNRESPONSIVE_AFTER_WITH_EVIDENCE: Duration = Duration::from_secs(1);

/// The interval of the pings that measure the RTT. A busy machine would delay all pings of one moment.
const RTT_PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// How often a ping checks whether the RTT rose.
const RTT_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The lowest RTT that counts as risen. A busy machine rarely delays a ping for as long.
const MIN_RISEN_RTT: Duration = Duration::from_millis(8);

/// When idle peers are pinged, and how long they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time after which a ping is sent.
    pub interval: Duration,
    /// How long the answer, or any other read, may take before the connection ends.
    pub timeout: Duration,
    /// The same once the peer answers on another connection, see [`KeepaliveHandle::supersede`].
    pub half_open_timeout: Duration,
}

impl Keepalive {
    /// grpc-go's server: every two hours, 20 s for the answer.
    pub const DEFAULT: Keepalive = Keepalive {
        interval: Duration::from_secs(7200),
        timeout: Duration::from_secs(20),
        half_open_timeout: Duration::from_secs(20),
    };
}

/// Idle time after which a server pings an agent: an unresponsive agent is noticed within 13 s, or sooner if dials wait.
const TO_AGENT: Duration = Duration::from_secs(10);

/// Idle time after which an agent pings a native server. Shorter, because a server without agents depends on it: if only the
/// agent's end is half-open, the agent looks for another stream after 3 s.
const TO_NATIVE_SERVER: Duration = Duration::from_secs(2);

/// The same for a Go server, which closes a connection at the third ping that comes less than 30 s after the previous
/// one (`too_many_pings`), and forgets earlier ones only when it sends something else.
const TO_UPSTREAM_SERVER: Duration = Duration::from_secs(35);

/// The flags of both programs about keepalive between agents and servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepaliveFlags {
    /// `--keepalive-time`: idle time before a ping.
    pub time: Duration,
    /// `--keepalive-timeout`: how long a ping may be unanswered while the peer answers on another connection.
    pub half_open_timeout: Duration,
    /// `--unresponsive-timeout`: how long a ping may be unanswered while the peer's kernel acknowledges.
    pub unresponsive_timeout: Duration,
}

impl KeepaliveFlags {
    /// From a server to a native or Go agent.
    pub fn to_agent(self) -> Keepalive {
        self.every(self.time.min(TO_AGENT))
    }

    /// From an agent to a native server.
    pub fn to_native_server(self) -> Keepalive {
        self.every(TO_NATIVE_SERVER)
    }

    /// From an agent to a Go server.
    pub fn to_upstream_server(self) -> Keepalive {
        self.every(TO_UPSTREAM_SERVER)
    }

    /// From an agent to a server that has not answered yet: it is given up early, because it keeps the agent from the others.
    pub fn connecting(self) -> Keepalive {
        Keepalive { timeout: self.half_open_timeout, ..self.to_upstream_server() }
    }

    fn every(self, interval: Duration) -> Keepalive {
        let (timeout, half_open_timeout) = (self.unresponsive_timeout, self.half_open_timeout);
        Keepalive { interval, timeout, half_open_timeout }
    }
}

/// The kernel's view of a connection's peer.
pub trait PeerKernel: std::fmt::Debug + Send + Sync {
    /// The current acknowledgment state; `None` if it is not available.
    fn acknowledgment(&self) -> Option<Acknowledgment>;
}

impl PeerKernel for TcpPeer {
    fn acknowledgment(&self) -> Option<Acknowledgment> {
        TcpPeer::acknowledgment(self).ok()
    }
}

/// The handle of one connection's keepalive: adjusted and queried at run time.
#[derive(Debug)]
pub struct KeepaliveHandle {
    state: Mutex<State>,
    /// A ping has been unanswered for [`UNRESPONSIVE_AFTER`].
    pub(super) unresponsive: watch::Sender<bool>,
    pub(super) kernel: OnceLock<Arc<dyn PeerKernel>>,
    /// Why the keepalive has ended the connection.
    pub(super) lost: OnceLock<PeerLost>,
}

#[derive(Debug)]
struct State {
    keepalive: Keepalive,
    probe: bool,
    superseded: bool,
    lost_by_peer: bool,
    measurement: Option<Measurement>,
    /// The lowest RTT since the measurement began, or since it rose, once the measurement is done.
    rtt: Option<Duration>,
    /// The RTTs of the last two pings, measurement or not.
    last_rtts: [Option<Duration>; 2],
    driver: Option<Waker>,
}

/// The measurement of the RTT by several pings.
#[derive(Debug)]
struct Measurement {
    /// How many pings it takes at most.
    pings: u8,
    /// How many pings are still to be sent, and when the next one.
    left: u8,
    next: Instant,
    lowest: Duration,
    /// When a ping checks whether the RTT rose.
    check: Instant,
}

impl KeepaliveHandle {
    /// The handle of a connection that begins. Public for tests of what holds one.
    pub fn new(keepalive: Keepalive) -> Arc<Self> {
        Arc::new(KeepaliveHandle {
            state: Mutex::new(State {
                keepalive,
                probe: false,
                superseded: false,
                lost_by_peer: false,
                measurement: None,
                rtt: None,
                last_rtts: [None; 2],
                driver: None,
            }),
            unresponsive: watch::Sender::new(false),
            kernel: OnceLock::new(),
            lost: OnceLock::new(),
        })
    }

    /// `error`, which h2's `cause` led to, with the keepalive's reason if it has ended the connection: h2 only tells of a broken
    /// pipe.
    pub(super) fn explain(&self, cause: &h2::Error, error: WireError) -> WireError {
        match self.lost.get().filter(|_| cause.is_io()) {
            Some(lost) => WireError::new(error.code, lost.to_string()),
            None => error,
        }
    }

    /// Takes effect at once, including the idle time so far.
    pub fn set_keepalive(&self, keepalive: Keepalive) {
        self.update(|state| state.keepalive = keepalive);
    }

    pub(super) fn settings(&self) -> Keepalive {
        self.state.lock().keepalive
    }

    /// Sends a ping now, unless one is unanswered.
    pub fn probe(&self) {
        self.update(|state| state.probe = true);
    }

    /// The peer answers on another connection. If a ping is unanswered on this one, the connection ends after
    /// [`Keepalive::half_open_timeout`] unless something is read: the peer's program lives, so the path does not.
    pub fn supersede(&self) {
        self.update(|state| state.superseded = true);
    }

    /// The peer says on another connection that it has lost this one, which ends at once.
    pub fn lost_by_peer(&self) {
        self.update(|state| state.lost_by_peer = true);
    }

    /// Measures the RTT from now on, by at most `pings` pings. A low RTT, or a high one that the kernels measure too, needs only
    /// one: the others find out whether a busy machine delayed it. Unless one ping is all, pings check later whether the RTT rose.
    ///
    /// `lanes`: the number of a process with several connections to this one. They are checked at the same time, because data on one
    /// delays pings on the others.
    pub fn measure(&self, pings: u8, lanes: Option<u64>) {
        let (next, lowest) = (Instant::now(), Duration::MAX);
        let check = next + lanes.map_or(RTT_CHECK_INTERVAL, |lanes| until_check(next, lanes));
        let measurement = Measurement { pings, left: pings, next, lowest, check };
        self.update(|state| state.measurement = Some(measurement));
    }

    /// The lowest RTT since the last measurement, once there is one.
    pub fn rtt(&self) -> Option<Duration> {
        self.state.lock().rtt
    }

    /// The lowest RTT that the kernels measured recently, if known: to a proxy, if one is in between.
    pub fn rtt_between_kernels(&self) -> Option<Duration> {
        self.kernel.get()?.acknowledgment()?.min_rtt
    }

    /// The lower RTT of the last two pings that were answered: a busy machine delays single ones.
    pub fn last_rtt(&self) -> Option<Duration> {
        self.state.lock().last_rtts.into_iter().flatten().min()
    }

    /// Records the RTT of a ping. It counts for [`Self::rtt`] only if a measurement was requested, which frontends do not.
    /// Returns whether the RTT rose, and needs a wider window, if no queue delayed the ping.
    pub(super) fn sampled(&self, took: Duration) -> bool {
        let mut state = self.state.lock();
        state.last_rtts = [Some(took), state.last_rtts[0]];
        let rose = |rtt| took >= MIN_RISEN_RTT && stream_window(took) > stream_window(rtt);
        let rose = state.rtt.is_some_and(rose);
        let measuring = state.measurement.as_ref().is_some_and(|measurement| measurement.left > 0);
        drop(state);
        let by_kernels = if measuring && needs_wide_window(took) { self.rtt_between_kernels() } else { None };
        let mut state = self.state.lock();
        let Some(measurement) = &mut state.measurement else { return false };
        measurement.lowest = measurement.lowest.min(took);
        let lowest = measurement.lowest;
        if !needs_wide_window(lowest) || by_kernels.is_some_and(|rtt| rtt >= lowest / 2) {
            measurement.left = 0;
        }
        if measurement.left == 0 {
            state.rtt = Some(lowest);
        }
        rose
    }

    /// Sets a higher RTT.
    pub(super) fn rose(&self, rtt: Duration) {
        let mut state = self.state.lock();
        if let Some(measurement) = &mut state.measurement {
            measurement.lowest = rtt;
            state.rtt = Some(rtt);
        }
    }

    /// Whether a ping has been unanswered for [`UNRESPONSIVE_AFTER`], with notification of changes.
    pub fn unresponsive(&self) -> watch::Receiver<bool> {
        self.unresponsive.subscribe()
    }

    /// From now on ends the connection once `kernel` shows that the peer's host is silent. Only the first call has an
    /// effect.
    pub fn watch_kernel(&self, kernel: Arc<dyn PeerKernel>) {
        self.kernel.get_or_init(|| kernel);
        self.update(|_| {});
    }

    /// The driver's view at the start of its turn. `pinging`: a ping is unanswered.
    pub(super) fn take_requests(&self, cx: &Context<'_>, now: Instant, pinging: bool) -> Requests {
        let mut state = self.state.lock();
        match &mut state.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        let mut probe = std::mem::take(&mut state.probe);
        let (mut check, mut next_sample) = (false, None);
        match state.measurement.as_mut().filter(|_| !pinging) {
            Some(measurement) if measurement.left > 0 => {
                if now >= measurement.next {
                    measurement.left -= 1;
                    measurement.next = now + RTT_PROBE_INTERVAL;
                    probe = true;
                }
                next_sample = (measurement.left > 0).then_some(measurement.next);
            }
            Some(measurement) if measurement.pings > 1 => {
                while now >= measurement.check {
                    measurement.check += RTT_CHECK_INTERVAL;
                    check = true;
                }
                next_sample = Some(measurement.check);
            }
            _ => {}
        }
        let superseded = std::mem::take(&mut state.superseded);
        let State { keepalive, lost_by_peer, .. } = *state;
        Requests { keepalive, probe, check, next_sample, superseded, lost_by_peer }
    }

    /// Changes the state, and wakes the driver.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        if let Some(driver) = state.driver.take() {
            driver.wake();
        }
    }
}

/// The time from `now` to the next check of the connections of these lanes. Those of different processes are spread.
fn until_check(now: Instant, lanes: u64) -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let every = RTT_CHECK_INTERVAL.as_millis() as u64;
    let since_start = now.saturating_duration_since(*START).as_millis() as u64;
    Duration::from_millis(every - (since_start % every + lanes % every) % every)
}

/// What the driver must do, besides the settings.
pub(super) struct Requests {
    pub(super) keepalive: Keepalive,
    /// Send a ping now.
    pub(super) probe: bool,
    /// Check now, by a ping, whether the RTT rose.
    pub(super) check: bool,
    /// When the next ping of a measurement, or a check, is due.
    pub(super) next_sample: Option<Instant>,
    /// See [`KeepaliveHandle::supersede`].
    pub(super) superseded: bool,
    /// See [`KeepaliveHandle::lost_by_peer`].
    pub(super) lost_by_peer: bool,
}
