//! Finds dead peers: a PING when nothing was read for a while, and an end when nothing answers.
//!
//! Anything that is read counts as a sign of life, as in grpc-go: a peer that is busy sending is never
//! pinged. Unread stream data does not delay an answer, since h2 reads on whatever streams do.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::{Ping, PingPong};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

/// How silent peers are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence after which a ping is sent.
    pub interval: Duration,
    /// How long the answer, or anything else, may take.
    pub timeout: Duration,
    /// Whether connections without a stream are asked too.
    pub while_idle: bool,
}

impl Keepalive {
    /// grpc-go's server: every two hours, 20 s for the answer.
    pub const DEFAULT: Keepalive =
        Keepalive { interval: Duration::from_secs(7200), timeout: Duration::from_secs(20), while_idle: true };
}

/// The keepalive of one connection as others see it: adjusted and asked at run time.
#[derive(Debug)]
pub struct Pulse(Mutex<State>);

#[derive(Debug)]
struct State {
    keepalive: Keepalive,
    probe: bool,
    /// Since when a ping is out and nothing was read.
    silent_since: Option<Instant>,
    driver: Option<Waker>,
}

impl Pulse {
    pub(super) fn new(keepalive: Keepalive) -> Arc<Self> {
        Arc::new(Pulse(Mutex::new(State { keepalive, probe: false, silent_since: None, driver: None })))
    }

    /// Takes effect at once, also for the silence so far.
    pub fn set_keepalive(&self, keepalive: Keepalive) {
        let mut state = self.0.lock();
        state.keepalive = keepalive;
        Self::wake(&mut state);
    }

    /// Sends a ping now, unless one is out.
    pub fn probe(&self) {
        let mut state = self.0.lock();
        state.probe = true;
        Self::wake(&mut state);
    }

    /// How long a ping has been out without anything being read; `None` while none is out.
    pub fn unanswered_for(&self) -> Option<Duration> {
        self.0.lock().silent_since.map(|since| since.elapsed())
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
}

/// No answer within [`Keepalive::timeout`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dead;

impl Pinger {
    pub(super) fn new(pings: Option<PingPong>, pulse: Arc<Pulse>) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(later(now, pulse.0.lock().keepalive.interval)));
        Pinger { pings, pulse, timer, read: 0, heard: now, asked: None }
    }

    /// Once per turn of the driver. `read`: bytes read in the connection's life; `idle`: it has no stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, read: u64, idle: bool) -> Poll<Dead> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        let now = Instant::now();
        if self.read != read {
            self.read = read;
            self.heard = now;
        }
        if self.asked.is_some() && pings.poll_pong(cx).is_ready() {
            self.asked = None;
        }
        let (keepalive, probe) = self.look(cx);
        if self.asked.is_none() && (probe || now >= later(self.heard, keepalive.interval)) {
            self.ask(now, idle && !keepalive.while_idle && !probe);
        }
        let silent_since = self.asked.map(|asked| asked.max(self.heard));
        self.pulse.0.lock().silent_since = silent_since;
        let due = match silent_since {
            Some(since) => later(since, keepalive.timeout),
            None => later(self.heard, keepalive.interval),
        };
        if silent_since.is_some() && now >= due {
            return Poll::Ready(Dead);
        }
        self.arm(cx, now, due);
        Poll::Pending
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
        let mut state = self.pulse.0.lock();
        match &mut state.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        (state.keepalive, std::mem::take(&mut state.probe))
    }
}

/// Periods are kept between a millisecond and a year: none busies the driver, none overflows the clock.
fn later(from: Instant, by: Duration) -> Instant {
    from + by.clamp(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600))
}
