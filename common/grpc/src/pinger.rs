//! The driver's part of a connection's [`super::keepalive`]: sends pings, and finds out that the peer is lost.
//!
//! The kernel is asked only while the peer is silent, see [`net::kernel`].
//!
//! A ping beside data measures the queue that the data makes. If such a ping suggests a longer path, the path is drained, as
//! BBR does in its state ProbeRTT (draft-cardwell-iccrg-bbr-congestion-control): for a moment the connection's streams return no
//! window to the peer, send no data if they were sending, and pings follow each other. Those without data before them measure the
//! path.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep_until};

use super::backlog::{Backlog, Paused};
use super::keepalive::{
    Keepalive, KeepaliveHandle, Requests, UNRESPONSIVE_AFTER, UNRESPONSIVE_AFTER_WITH_EVIDENCE,
};
use super::settings::stream_window;
use net::kernel::{HOST_TIMEOUT, HostSilence};

/// The interval of samples of the peer's kernel while a ping is unanswered, or after a sample that showed a silent kernel.
const KERNEL_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// The same while the connection is idle.
const IDLE_KERNEL_SAMPLE_INTERVAL: Duration = Duration::from_secs(4);

/// The longest time that a path is drained.
const MAX_PATH_DRAIN: Duration = Duration::from_millis(1_500);
/// The limits of a drain in RTTs of the ping that suggests a longer path. Data in flight arrives during the first RTT. The other
/// three are for two pings without data, which show whether a busy machine delayed that ping.
const MAX_PATH_DRAIN_RTTS: u32 = 6;
const MIN_PATH_DRAIN_RTTS: u32 = 4;

/// The longest check of a path with an RTT so high that [`MAX_PATH_DRAIN`] does not suffice to drain it.
const MAX_CHECK_WITHOUT_DRAIN: Duration = Duration::from_secs(6);

/// A ping counts as one without data if at most this many bytes are read and written from the previous ping until its answer.
/// They take [`MIN_RISEN_RTT`](super::keepalive) at 16 Mbit/s.
const MAX_QUIET_BYTES: u64 = 16 << 10;

/// See the module.
pub(super) struct Pinger {
    pings: Option<PingPong>,
    keepalive: Arc<KeepaliveHandle>,
    timer: Pin<Box<Sleep>>,
    /// The driver's count of bytes read at its last change, and the time of that change.
    read: u64,
    last_read: Instant,
    /// When the unanswered ping was sent.
    ping_sent: Option<Instant>,
    /// The bytes that were read and written before each of the last two pings, the later one first.
    moved: [BytesMoved; 2],
    /// The unanswered ping checks whether the RTT rose.
    checking: bool,
    drain: Option<Drain>,
    backlog: Arc<Backlog>,
    /// Since when the peer answers on another connection, while a ping is unanswered on this one.
    superseded: Option<Instant>,
    /// The streams' window, in bytes.
    window: u32,
    /// The evaluation of the kernel's samples, and the time of the last one.
    host: HostSilence,
    last_kernel_sample: Instant,
    /// The last sample showed that the peer's kernel acknowledged neither the unanswered ping nor a retransmission.
    unacknowledged: bool,
}

/// Bytes on the connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BytesMoved {
    pub(super) read: u64,
    pub(super) written: u64,
}

impl BytesMoved {
    fn total(self) -> u64 {
        self.read + self.written
    }
}

/// A check whether the path became longer: pings follow each other while this exists. The path is drained, unless its RTT is too
/// high.
struct Drain {
    backlog: Arc<Backlog>,
    until: Instant,
    /// The streams are paused.
    pauses: bool,
    /// How many pings had no data before them, and their lowest RTT. All until the end count, because another lane to the same process
    /// may be drained later than this one.
    quiet: (u8, Duration),
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.backlog.pause(Paused::Nothing);
    }
}

/// Why the peer counts as lost, which ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerLost {
    /// No answer within [`Keepalive::timeout`]: the peer's program is stopped.
    #[error("keepalive: no answer to a ping in time")]
    Program,
    /// No answer within [`Keepalive::half_open_timeout`], but on another connection; or the peer said there that it has lost this
    /// one.
    #[error("keepalive: the connection is half-open, its peer answers on another one")]
    HalfOpen,
    /// The peer's kernel acknowledged nothing in time: its host, or the path to it, is lost.
    #[error("keepalive: the peer's host acknowledged nothing for {}s", HOST_TIMEOUT.as_secs())]
    Host,
}

impl Pinger {
    /// `window`: the window of the connection's streams, in bytes.
    pub(super) fn new(
        pings: Option<PingPong>,
        keepalive: Arc<KeepaliveHandle>,
        window: u32,
        backlog: Arc<Backlog>,
    ) -> Self {
        let now = Instant::now();
        let interval = keepalive.settings().interval;
        let timer = Box::pin(sleep_until(later(now, interval)));
        Pinger {
            pings,
            keepalive,
            timer,
            read: 0,
            last_read: now,
            ping_sent: None,
            moved: [BytesMoved::default(); 2],
            checking: false,
            drain: None,
            backlog,
            superseded: None,
            window,
            host: HostSilence::default(),
            last_kernel_sample: now,
            unacknowledged: false,
        }
    }

    /// Called once per turn of the driver, which ends the connection with the result. `moved`: bytes so far.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, moved: BytesMoved) -> Poll<PeerLost> {
        self.turn(cx, moved).map(|lost| *self.keepalive.lost.get_or_init(|| lost))
    }

    fn turn(&mut self, cx: &mut Context<'_>, moved: BytesMoved) -> Poll<PeerLost> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        let now = Instant::now();
        if self.read != moved.read {
            self.read = moved.read;
            self.last_read = now;
            self.superseded = None;
        }
        if let Some(ping_sent) = self.ping_sent
            && let Poll::Ready(pong) = pings.poll_pong(cx)
        {
            self.ping_sent = None;
            if pong.is_ok() {
                self.answered(now, now - ping_sent, moved);
            }
        }
        if let Some(Drain { quiet: (2.., lowest), .. }) = self.drain.take_if(|drain| now >= drain.until) {
            self.keepalive.rose(lowest);
        }
        let Requests { keepalive, mut probe, check, next_sample, superseded, lost_by_peer } =
            self.keepalive.take_requests(cx, now, self.ping_sent.is_some());
        if lost_by_peer {
            return Poll::Ready(PeerLost::HalfOpen);
        }
        self.checking |= check;
        probe |= check || self.drain.is_some();
        if self.ping_sent.is_none() && (probe || now >= later(self.last_read, keepalive.interval)) {
            self.send_ping(now, moved);
        }
        let silent_since = self.ping_sent.map(|ping_sent| ping_sent.max(self.last_read));
        if silent_since.is_none() {
            self.superseded = None;
        } else if superseded {
            self.superseded.get_or_insert(now);
        }
        let (mut due, dead) = self.due(&keepalive, silent_since);
        if let Some(dead) = dead.filter(|_| now >= due) {
            return Poll::Ready(dead);
        }
        match self.sample_kernel(now, silent_since) {
            Ok(next) => due = due.min(next.unwrap_or(due)),
            Err(dead) => return Poll::Ready(dead),
        }
        due = due.min(next_sample.unwrap_or(due));
        due = self.drain.as_ref().map_or(due, |drain| due.min(drain.until));
        let evident = self.superseded.is_some() || self.unacknowledged && silent_since.is_some();
        let usual = if evident { UNRESPONSIVE_AFTER_WITH_EVIDENCE } else { UNRESPONSIVE_AFTER };
        let patience = usual.min(keepalive.half_open_timeout);
        due =
            due.min(self.notify_unresponsive(now, silent_since.map(|since| since + patience)).unwrap_or(due));
        self.arm(cx, now, due);
        Poll::Pending
    }

    /// A ping was answered after `took`. `moved`: bytes so far.
    fn answered(&mut self, now: Instant, took: Duration, moved: BytesMoved) {
        let rose = self.keepalive.sampled(took);
        let checking = std::mem::take(&mut self.checking);
        let sending = moved.written - self.moved[0].written > MAX_QUIET_BYTES;
        match &mut self.drain {
            None if checking && rose => {
                // At a higher RTT the data in flight would arrive until the end of the drain. Then only pings on an idle path count.
                let pauses = took * MIN_PATH_DRAIN_RTTS <= MAX_PATH_DRAIN;
                if pauses {
                    self.backlog.pause(if sending { Paused::WindowAndData } else { Paused::Window });
                }
                let time = took * MAX_PATH_DRAIN_RTTS;
                let until = now + time.min(if pauses { MAX_PATH_DRAIN } else { MAX_CHECK_WITHOUT_DRAIN });
                let (backlog, quiet) = (Arc::clone(&self.backlog), (0, Duration::MAX));
                self.drain = Some(Drain { backlog, until, pauses, quiet });
            }
            Some(_) if !rose => self.drain = None,
            // The peer has read the previous ping, so only what was sent later can be before this one and its answer.
            Some(drain) if moved.total() - self.moved[1].total() <= MAX_QUIET_BYTES => {
                let (pings, lowest) = drain.quiet;
                drain.quiet = (pings.saturating_add(1), lowest.min(took));
            }
            Some(Drain { pauses: true, .. }) if sending => self.backlog.pause(Paused::WindowAndData),
            _ => {}
        }
    }

    /// The time of the next ping or, while one is unanswered, of the connection's end and its reason.
    fn due(&self, keepalive: &Keepalive, silent_since: Option<Instant>) -> (Instant, Option<PeerLost>) {
        let ping_due = later(self.last_read, keepalive.interval);
        let Some(since) = silent_since else { return (ping_due, None) };
        // An early ping on request shows whether the peer is unresponsive, but does not end the connection earlier.
        let stopped = later(since.max(ping_due), keepalive.timeout);
        match self.superseded.map(|from| later(from.max(since), keepalive.half_open_timeout)) {
            Some(half_open) if half_open < stopped => (half_open, Some(PeerLost::HalfOpen)),
            _ => (stopped, Some(PeerLost::Program)),
        }
    }

    /// Reports whether the peer is unresponsive, which it is `from` that time on. Returns the time if it is to come.
    fn notify_unresponsive(&self, now: Instant, from: Option<Instant>) -> Option<Instant> {
        let unresponsive = from.is_some_and(|from| now >= from);
        let report = |last: &mut bool| std::mem::replace(last, unresponsive) != unresponsive;
        self.keepalive.unresponsive.send_if_modified(report);
        from.filter(|from| now < *from)
    }

    /// Samples the peer's kernel when it is time. Returns the time of the next sample.
    fn sample_kernel(
        &mut self,
        now: Instant,
        silent_since: Option<Instant>,
    ) -> Result<Option<Instant>, PeerLost> {
        let Some(kernel) = self.keepalive.kernel.get() else { return Ok(None) };
        if now >= self.next_kernel_sample(silent_since) {
            self.last_kernel_sample = now;
            let seen = kernel.acknowledgment();
            self.unacknowledged = seen.zip(silent_since).is_some_and(|(seen, since)| {
                seen.outstanding && seen.last_received >= now.saturating_duration_since(since)
            });
            if seen.is_some_and(|seen| self.host.is_over(now, seen)) {
                return Err(PeerLost::Host);
            }
        }
        Ok(Some(self.next_kernel_sample(silent_since)))
    }

    fn next_kernel_sample(&self, silent_since: Option<Instant>) -> Instant {
        match silent_since {
            Some(since) => self.last_kernel_sample.max(since) + KERNEL_SAMPLE_INTERVAL,
            None if self.host.is_silent() => self.last_kernel_sample + KERNEL_SAMPLE_INTERVAL,
            None => self.last_kernel_sample.max(self.last_read) + IDLE_KERNEL_SAMPLE_INTERVAL,
        }
    }

    /// Widens the window of the connection's streams, by `set`, to the size for the measured RTT, or to `unmeasured`
    /// bytes without a measurement. It never narrows one, even if the first RTT was measured under load: the peer may have sent
    /// more than the narrower window, and h2 returns window only when it hands out bytes, so neither end would send again.
    pub(super) fn fit_window<E>(
        &mut self,
        cx: &mut Context<'_>,
        unmeasured: u32,
        set: impl FnOnce(u32) -> Result<(), E>,
    ) {
        let window = self.keepalive.rtt().map_or(unmeasured, stream_window);
        // Fails while an earlier change is not acknowledged; the next turn tries again.
        if window > self.window && set(window).is_ok() {
            self.window = window;
            cx.waker().wake_by_ref();
        }
    }

    fn send_ping(&mut self, now: Instant, moved: BytesMoved) {
        if let Some(pings) = &mut self.pings
            && pings.send_ping(Ping::opaque()).is_ok()
        {
            self.ping_sent = Some(now);
            self.moved = [moved, self.moved[0]];
        } else {
            // The connection is already closing.
            (self.pings, self.drain) = (None, None);
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
}

/// Limits periods to between 1 ms and one year: short ones would keep the driver busy, long ones overflow the clock.
fn later(from: Instant, by: Duration) -> Instant {
    from + by.clamp(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600))
}
