//! Finds peers that do not answer, by a PING when nothing was read for a while. Pings also measure the RTT: streams
//! with a high RTT get a wider window.
//!
//! Any read counts as an answer, as in grpc-go: a peer that is sending is never pinged. Unread stream data does not
//! delay an answer, because h2 continues to read the connection.
//!
//! | the peer | noticed | consequence |
//! |---|---|---|
//! | does not answer a ping | after [`UNRESPONSIVE_AFTER`] | [`KeepaliveHandle::unresponsive`] reports it; the connection continues |
//! | and its kernel acknowledges | [`Keepalive::timeout`] after the regular ping | the connection ends: the program is stopped |
//! | and its kernel does not | after [`HOST_TIMEOUT`](crate::kernel::HOST_TIMEOUT) | the connection ends: host or path lost |
//!
//! The kernel is asked only while the peer is silent, see [`crate::kernel`].

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::{Ping, PingPong};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::settings::stream_window;
use crate::kernel::{Acknowledgment, HostSilence, TcpPeer};

/// How long a ping may be unanswered, while nothing else is read, before the peer counts as unresponsive. A dial
/// requests a ping after a quarter of a second, so it goes to another agent within three seconds.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(2_500);

/// The time between samples of the peer's kernel: while a ping is unanswered or the kernel was silent, and while
/// nothing is read for other reasons.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_WHILE_IDLE: Duration = Duration::from_secs(4);

/// When idle peers are pinged, and how long they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time after which a ping is sent.
    pub interval: Duration,
    /// How long the answer, or any other read, may take before the connection ends.
    pub timeout: Duration,
    /// Whether connections without a stream are pinged too.
    pub while_idle: bool,
}

impl Keepalive {
    /// grpc-go's server: every two hours, 20 s for the answer.
    pub const DEFAULT: Keepalive =
        Keepalive { interval: Duration::from_secs(7200), timeout: Duration::from_secs(20), while_idle: true };
}

/// The kernel's view of a connection's peer.
pub trait PeerKernel: std::fmt::Debug + Send + Sync {
    /// The current acknowledgment state; `None` if it is not available.
    fn look(&self) -> Option<Acknowledgment>;
}

impl PeerKernel for TcpPeer {
    fn look(&self) -> Option<Acknowledgment> {
        TcpPeer::look(self).ok()
    }
}

/// The handle of one connection's keepalive: adjusted and queried at run time.
#[derive(Debug)]
pub struct KeepaliveHandle {
    state: Mutex<State>,
    /// A ping has been unanswered for [`UNRESPONSIVE_AFTER`].
    unresponsive: watch::Sender<bool>,
    kernel: OnceLock<Arc<dyn PeerKernel>>,
    /// In nanoseconds; zero before the first sample.
    rtt: AtomicU64,
}

#[derive(Debug)]
struct State {
    keepalive: Keepalive,
    probe: bool,
    /// How many pings are still to be sent to measure the RTT; `None` if it is not measured.
    samples: Option<u8>,
    driver: Option<Waker>,
}

impl KeepaliveHandle {
    pub(super) fn new(keepalive: Keepalive) -> Arc<Self> {
        Arc::new(KeepaliveHandle {
            state: Mutex::new(State { keepalive, probe: false, samples: None, driver: None }),
            unresponsive: watch::Sender::new(false),
            kernel: OnceLock::new(),
            rtt: AtomicU64::new(0),
        })
    }

    /// Takes effect at once, including the idle time so far.
    pub fn set_keepalive(&self, keepalive: Keepalive) {
        let mut state = self.state.lock();
        state.keepalive = keepalive;
        Self::wake(&mut state);
    }

    /// Sends a ping now, unless one is unanswered.
    pub fn probe(&self) {
        let mut state = self.state.lock();
        state.probe = true;
        Self::wake(&mut state);
    }

    /// Measures the RTT by `pings` pings, one after the other, from now on.
    pub fn measure(&self, pings: u8) {
        let mut state = self.state.lock();
        state.samples = Some(pings);
        Self::wake(&mut state);
    }

    /// The lowest RTT measured so far.
    pub fn rtt(&self) -> Option<Duration> {
        let nanos = self.rtt.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Records the RTT of a ping. It is ignored unless a measurement was requested, as for frontends.
    fn sampled(&self, took: Duration) {
        if self.state.lock().samples.is_none() {
            return;
        }
        let took = took.min(self.rtt().unwrap_or(Duration::MAX));
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.rtt.store(nanos, Ordering::Relaxed);
    }

    /// Whether a ping has been unanswered for [`UNRESPONSIVE_AFTER`], with notification of changes.
    pub fn unresponsive(&self) -> watch::Receiver<bool> {
        self.unresponsive.subscribe()
    }

    /// From now on ends the connection once `kernel` shows that the peer's host is silent. Only the first call has an
    /// effect.
    pub fn watch_kernel(&self, kernel: Arc<dyn PeerKernel>) {
        self.kernel.get_or_init(|| kernel);
        Self::wake(&mut self.state.lock());
    }

    fn wake(state: &mut State) {
        if let Some(driver) = state.driver.take() {
            driver.wake();
        }
    }
}

/// The driver's part.
pub(super) struct Pinger {
    pings: Option<PingPong>,
    keepalive: Arc<KeepaliveHandle>,
    timer: Pin<Box<Sleep>>,
    /// The driver's count of bytes read at its last change, and the time of that change.
    read: u64,
    last_read: Instant,
    /// When the unanswered ping was sent.
    ping_sent: Option<Instant>,
    /// The streams' window, in bytes.
    window: u32,
    /// The evaluation of the kernel's samples, and the time of the last one.
    host: HostSilence,
    looked: Instant,
    /// Whether the peer was last reported as unresponsive.
    unresponsive: bool,
}

/// Why a connection to a peer is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dead {
    /// No answer within [`Keepalive::timeout`].
    Program,
    /// The peer's host acknowledges nothing.
    Host,
}

impl Pinger {
    /// `window`: the window of the connection's streams, in bytes.
    pub(super) fn new(pings: Option<PingPong>, keepalive: Arc<KeepaliveHandle>, window: u32) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(later(now, keepalive.state.lock().keepalive.interval)));
        Pinger {
            pings,
            keepalive,
            timer,
            read: 0,
            last_read: now,
            ping_sent: None,
            window,
            host: HostSilence::default(),
            looked: now,
            unresponsive: false,
        }
    }

    /// Called once per turn of the driver. `read`: bytes read so far on the connection; `idle`: it has no stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, read: u64, idle: bool) -> Poll<Dead> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        let now = Instant::now();
        if self.read != read {
            self.read = read;
            self.last_read = now;
        }
        if let Some(ping_sent) = self.ping_sent
            && let Poll::Ready(pong) = pings.poll_pong(cx)
        {
            self.ping_sent = None;
            if pong.is_ok() {
                self.keepalive.sampled(now - ping_sent);
            }
        }
        let (keepalive, probe) = self.look(cx);
        if self.ping_sent.is_none() && (probe || now >= later(self.last_read, keepalive.interval)) {
            self.send_ping(now, idle && !keepalive.while_idle && !probe);
        }
        let silent_since = self.ping_sent.map(|ping_sent| ping_sent.max(self.last_read));
        let ping_due = later(self.last_read, keepalive.interval);
        let mut due = match silent_since {
            // An early ping on request shows whether the peer is unresponsive, but does not end the connection earlier.
            Some(since) => later(since.max(ping_due), keepalive.timeout),
            None => ping_due,
        };
        if silent_since.is_some() && now >= due {
            return Poll::Ready(Dead::Program);
        }
        due = due.min(self.notify_unresponsive(now, silent_since).unwrap_or(due));
        match self.look_at_host(now, silent_since) {
            Ok(next) => due = due.min(next.unwrap_or(due)),
            Err(dead) => return Poll::Ready(dead),
        }
        self.arm(cx, now, due);
        Poll::Pending
    }

    /// Reports whether the peer is unresponsive. Returns when it will be, unless something is read.
    fn notify_unresponsive(&mut self, now: Instant, silent_since: Option<Instant>) -> Option<Instant> {
        let from = silent_since.map(|since| since + UNRESPONSIVE_AFTER);
        let unresponsive = from.is_some_and(|from| now >= from);
        if std::mem::replace(&mut self.unresponsive, unresponsive) != unresponsive {
            self.keepalive.unresponsive.send_replace(unresponsive);
        }
        from.filter(|from| now < *from)
    }

    /// Samples the peer's kernel when it is time. Returns the time of the next sample.
    fn look_at_host(&mut self, now: Instant, silent_since: Option<Instant>) -> Result<Option<Instant>, Dead> {
        let Some(kernel) = self.keepalive.kernel.get() else { return Ok(None) };
        if now >= self.next_look(silent_since) {
            self.looked = now;
            if kernel.look().is_some_and(|seen| self.host.is_over(now, seen)) {
                return Err(Dead::Host);
            }
        }
        Ok(Some(self.next_look(silent_since)))
    }

    fn next_look(&self, silent_since: Option<Instant>) -> Instant {
        match silent_since {
            Some(since) => self.looked.max(since) + LOOK_EVERY,
            None if self.host.is_silent() => self.looked + LOOK_EVERY,
            None => self.looked.max(self.last_read) + LOOK_WHILE_IDLE,
        }
    }

    /// Sets the window of the connection's streams, by `set`, to the size for the measured RTT, or to `unmeasured`
    /// bytes without a measurement.
    pub(super) fn fit_window<E>(
        &mut self,
        cx: &mut Context<'_>,
        unmeasured: u32,
        set: impl FnOnce(u32) -> Result<(), E>,
    ) {
        let window = self.keepalive.rtt().map_or(unmeasured, stream_window);
        // Fails while an earlier change is not acknowledged; the next turn tries again.
        if self.window != window && set(window).is_ok() {
            self.window = window;
            cx.waker().wake_by_ref();
        }
    }

    fn send_ping(&mut self, now: Instant, spare: bool) {
        if spare {
            // The next stream arrives by a read, which restarts the idle time.
            self.last_read = now;
        } else if let Some(pings) = &mut self.pings
            && pings.send_ping(Ping::opaque()).is_ok()
        {
            self.ping_sent = Some(now);
        } else {
            // The connection is already closing.
            self.pings = None;
        }
    }

    /// A timer that fires early costs one turn; resetting it for each read would cost more.
    fn arm(&mut self, cx: &mut Context<'_>, now: Instant, due: Instant) {
        let set = self.timer.deadline();
        if due < set || set <= now {
            self.timer.as_mut().reset(due);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    fn look(&mut self, cx: &Context<'_>) -> (Keepalive, bool) {
        let mut state = self.keepalive.state.lock();
        match &mut state.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        let mut probe = std::mem::take(&mut state.probe);
        if self.ping_sent.is_none()
            && let Some(left) = state.samples.as_mut().filter(|left| **left > 0)
        {
            *left -= 1;
            probe = true;
        }
        (state.keepalive, probe)
    }
}

/// Limits periods to between 1 ms and one year: short ones would keep the driver busy, long ones overflow the clock.
fn later(from: Instant, by: Duration) -> Instant {
    from + by.clamp(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600))
}
