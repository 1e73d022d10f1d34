//! Finds peers that do not answer: a PING when nothing was read for a while. Pings tell how long the way is, too: streams
//! over a long one get a wider window.
//!
//! Anything that is read counts as an answer, as in grpc-go: a peer that is busy sending is never pinged. Unread stream
//! data does not delay an answer, since h2 reads on whatever streams do.
//!
//! | the peer | is noticed | and then |
//! |---|---|---|
//! | does not answer a ping | after [`UNRESPONSIVE_AFTER`] | [`Pulse::unresponsive`] says so; the connection goes on |
//! | and its kernel acknowledges | [`Keepalive::timeout`] after the ping that was due by itself | the connection ends: its program stands still |
//! | and its kernel does not | after [`HOST_TIMEOUT`](crate::kernel::HOST_TIMEOUT) | the connection ends: its host or the path is lost |
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

/// How long a ping may be unanswered, while nothing else is read, before the peer counts as unresponsive. With the quarter of
/// a second that a dial waits before it asks for a ping, a dial goes elsewhere within three seconds.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(2_500);

/// Between looks at what the peer's kernel acknowledges: while a ping is unanswered or the kernel was silent, and while nothing is
/// read for other reasons.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_WHILE_QUIET: Duration = Duration::from_secs(4);

/// How silent peers are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence after which a ping is sent.
    pub interval: Duration,
    /// How long the answer, or anything else, may take before the connection ends.
    pub timeout: Duration,
    /// Whether connections without a stream are asked too.
    pub while_idle: bool,
}

impl Keepalive {
    /// grpc-go's server: every two hours, 20 s for the answer.
    pub const DEFAULT: Keepalive =
        Keepalive { interval: Duration::from_secs(7200), timeout: Duration::from_secs(20), while_idle: true };
}

/// What the kernel knows of a connection's other end.
pub trait PeerKernel: std::fmt::Debug + Send + Sync {
    /// What it knows now; `None` if that cannot be had.
    fn look(&self) -> Option<Acknowledgment>;
}

impl PeerKernel for TcpPeer {
    fn look(&self) -> Option<Acknowledgment> {
        TcpPeer::look(self).ok()
    }
}

/// The keepalive of one connection as others see it: adjusted and asked at run time.
#[derive(Debug)]
pub struct Pulse {
    state: Mutex<State>,
    /// A ping is unanswered for [`UNRESPONSIVE_AFTER`].
    unresponsive: watch::Sender<bool>,
    kernel: OnceLock<Arc<dyn PeerKernel>>,
    /// In nanoseconds; zero before the first.
    round_trip: AtomicU64,
}

#[derive(Debug)]
struct State {
    keepalive: Keepalive,
    probe: bool,
    /// Pings that are still to be sent to measure the round trip; `None` where nobody wants it.
    samples: Option<u8>,
    driver: Option<Waker>,
}

impl Pulse {
    pub(super) fn new(keepalive: Keepalive) -> Arc<Self> {
        Arc::new(Pulse {
            state: Mutex::new(State { keepalive, probe: false, samples: None, driver: None }),
            unresponsive: watch::Sender::new(false),
            kernel: OnceLock::new(),
            round_trip: AtomicU64::new(0),
        })
    }

    /// Takes effect at once, also for the silence so far.
    pub fn set_keepalive(&self, keepalive: Keepalive) {
        let mut state = self.state.lock();
        state.keepalive = keepalive;
        Self::wake(&mut state);
    }

    /// Sends a ping now, unless one is out.
    pub fn probe(&self) {
        let mut state = self.state.lock();
        state.probe = true;
        Self::wake(&mut state);
    }

    /// Measures the way to the peer by so many pings, one after the other, from now on.
    pub fn measure(&self, pings: u8) {
        let mut state = self.state.lock();
        state.samples = Some(pings);
        Self::wake(&mut state);
    }

    /// The shortest time in which a ping was answered so far.
    pub fn round_trip(&self) -> Option<Duration> {
        let nanos = self.round_trip.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// A ping was answered in that time. Where nobody asked for the round trip, as of frontends, it stays unknown.
    fn sampled(&self, took: Duration) {
        if self.state.lock().samples.is_none() {
            return;
        }
        let took = took.min(self.round_trip().unwrap_or(Duration::MAX));
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.round_trip.store(nanos, Ordering::Relaxed);
    }

    /// Whether a ping is unanswered for [`UNRESPONSIVE_AFTER`], and every change of that.
    pub fn unresponsive(&self) -> watch::Receiver<bool> {
        self.unresponsive.subscribe()
    }

    /// Ends the connection, from now on, once the peer's host is silent by this word. The first one counts.
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

/// The driver's half.
pub(super) struct Pinger {
    pings: Option<PingPong>,
    pulse: Arc<Pulse>,
    timer: Pin<Box<Sleep>>,
    /// The driver's count of bytes read, when it last changed, and when that was.
    read: u64,
    heard: Instant,
    /// When the ping that is out was sent.
    asked: Option<Instant>,
    /// The streams' window, in bytes.
    window: u32,
    /// What looks at the peer's kernel have shown, and when the last one was.
    host: HostSilence,
    looked: Instant,
    /// Whether the peer was last said to be unresponsive.
    unresponsive: bool,
}

/// Why a peer is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dead {
    /// No answer within [`Keepalive::timeout`].
    Program,
    /// Its host acknowledges nothing.
    Host,
}

impl Pinger {
    /// `window`: that of the connection's streams, in bytes.
    pub(super) fn new(pings: Option<PingPong>, pulse: Arc<Pulse>, window: u32) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(later(now, pulse.state.lock().keepalive.interval)));
        Pinger {
            pings,
            pulse,
            timer,
            read: 0,
            heard: now,
            asked: None,
            window,
            host: HostSilence::default(),
            looked: now,
            unresponsive: false,
        }
    }

    /// Once per turn of the driver. `read`: bytes read in the connection's life; `idle`: it has no stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, read: u64, idle: bool) -> Poll<Dead> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        let now = Instant::now();
        if self.read != read {
            self.read = read;
            self.heard = now;
        }
        if let Some(asked) = self.asked
            && let Poll::Ready(pong) = pings.poll_pong(cx)
        {
            self.asked = None;
            if pong.is_ok() {
                self.pulse.sampled(now - asked);
            }
        }
        let (keepalive, probe) = self.look(cx);
        if self.asked.is_none() && (probe || now >= later(self.heard, keepalive.interval)) {
            self.ask(now, idle && !keepalive.while_idle && !probe);
        }
        let silent_since = self.asked.map(|asked| asked.max(self.heard));
        let ping_due = later(self.heard, keepalive.interval);
        let mut due = match silent_since {
            // A ping that was asked for sooner shows who is unresponsive, and ends nothing sooner.
            Some(since) => later(since.max(ping_due), keepalive.timeout),
            None => ping_due,
        };
        if silent_since.is_some() && now >= due {
            return Poll::Ready(Dead::Program);
        }
        due = due.min(self.tell_unresponsive(now, silent_since).unwrap_or(due));
        match self.look_at_host(now, silent_since) {
            Ok(next) => due = due.min(next.unwrap_or(due)),
            Err(dead) => return Poll::Ready(dead),
        }
        self.arm(cx, now, due);
        Poll::Pending
    }

    /// Tells whether the peer is unresponsive. Yields when it will be, unless something is read.
    fn tell_unresponsive(&mut self, now: Instant, silent_since: Option<Instant>) -> Option<Instant> {
        let from = silent_since.map(|since| since + UNRESPONSIVE_AFTER);
        let unresponsive = from.is_some_and(|from| now >= from);
        if std::mem::replace(&mut self.unresponsive, unresponsive) != unresponsive {
            self.pulse.unresponsive.send_replace(unresponsive);
        }
        from.filter(|from| now < *from)
    }

    /// Asks the kernel, where there is one to ask and it is time to. Yields the next time.
    fn look_at_host(&mut self, now: Instant, silent_since: Option<Instant>) -> Result<Option<Instant>, Dead> {
        let Some(kernel) = self.pulse.kernel.get() else { return Ok(None) };
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
            None => self.looked.max(self.heard) + LOOK_WHILE_QUIET,
        }
    }

    /// Sets the window of the connection's streams, by `set`, to what the path is known to need, and to `unmeasured` bytes where
    /// that is not known.
    pub(super) fn fit_window<E>(
        &mut self,
        cx: &mut Context<'_>,
        unmeasured: u32,
        set: impl FnOnce(u32) -> Result<(), E>,
    ) {
        let window = self.pulse.round_trip().map_or(unmeasured, stream_window);
        // Refused while an earlier change is not acknowledged: tried again with the next turn.
        if self.window != window && set(window).is_ok() {
            self.window = window;
            cx.waker().wake_by_ref();
        }
    }

    fn ask(&mut self, now: Instant, spare: bool) {
        if spare {
            // The next stream arrives by a read, which restarts the silence anyway.
            self.heard = now;
        } else if let Some(pings) = &mut self.pings
            && pings.send_ping(Ping::opaque()).is_ok()
        {
            self.asked = Some(now);
        } else {
            // The connection is closing by itself.
            self.pings = None;
        }
    }

    /// A timer that fires early costs one turn; setting it anew for each read would cost more.
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
        let mut state = self.pulse.state.lock();
        match &mut state.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        let mut probe = std::mem::take(&mut state.probe);
        if self.asked.is_none()
            && let Some(left) = state.samples.as_mut().filter(|left| **left > 0)
        {
            *left -= 1;
            probe = true;
        }
        (state.keepalive, probe)
    }
}

/// Periods are kept between a millisecond and a year: none busies the driver, none overflows the clock.
fn later(from: Instant, by: Duration) -> Instant {
    from + by.clamp(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600))
}
