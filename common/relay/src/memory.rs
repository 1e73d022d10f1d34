//! The process's memory limit (the ceiling) for payload that waits for slow readers.
//!
//! The ceiling counts the bytes that each link holds. Near the ceiling, links refuse new dials. After a refused dial, and above
//! the ceiling, the link that holds the most bytes resets its largest stalled connections. So stalled readers neither get the
//! process killed for its memory nor keep new dials out. A link without stalled connections passes the request on to the
//! next link. A link resets connections that still drain only when the sum exceeds the ceiling by a quarter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::time::Instant;
use tunnel::{Limits, Terms};

/// The largest default limit without a cgroup limit, in bytes, because other programs share the machine.
const MOST: u64 = 2 << 30;

/// How long the ceiling does not ask a link again that could not free enough: the link then knows which connections stalled.
const IN_VAIN: Duration = Duration::from_secs(2);

/// The memory limits of a relay.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The limits of each link.
    pub limits: Limits,
    /// The limit of the process.
    pub memory: Ceiling,
}

impl Bounds {
    /// Limits for one connection and for the process, in bytes. `None`: 40 % of the cgroup's limit or, without one, a quarter of
    /// the machine's memory and at most 2 GiB.
    pub fn new(per_connection: u64, in_all: Option<u64>) -> Self {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let (hard_cap, standard) = (bytes(per_connection), Limits::default());
        let memory = Ceiling::new(in_all.map_or_else(default_memory_limit, bytes));
        let widest = u32::try_from(hard_cap).unwrap_or(u32::MAX);
        let limits = Limits {
            soft_cap: standard.soft_cap.min(hard_cap / 2),
            hard_cap,
            link_budget: standard.link_budget.min(memory.limit()),
            window_max: standard.window_max.min(widest),
            window_far: standard.window_far.min(widest),
            far_budget: standard.far_budget.min(memory.limit() / 4),
            ..standard
        };
        Bounds { limits, memory }
    }

    /// The limits of a link with these terms. If each connection has its own flow-control window, no connection can use up the
    /// link's budget: only the process's ceiling applies. The window then limits a connection's payload, and the additional
    /// charged bytes must not stop the link.
    pub(crate) fn limits_on(&self, terms: Terms) -> Limits {
        let mut limits = self.limits.clone();
        if terms.credits.is_some() {
            limits.link_budget = limits.link_budget.max(self.memory.limit());
            limits.hard_cap = limits.hard_cap.saturating_mul(2);
        }
        limits
    }
}

/// The memory limit of a process. Cheap to clone; clones share one limit.
#[derive(Debug, Clone)]
pub struct Ceiling(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    total: AtomicUsize,
    /// A link refused a dial: memory must be freed for the next one.
    wanted: AtomicBool,
    links: Mutex<Slab<Arc<Share>>>,
}

/// The share of one link.
#[derive(Debug, Default)]
struct Share {
    held: AtomicUsize,
    /// The link must free memory.
    asked: AtomicBool,
    /// The link was asked, and its remaining connections had not stalled: it is not asked again before this time.
    left_alone: Mutex<Option<Instant>>,
    /// The link's task. Set when the link first holds bytes.
    task: Mutex<Option<Waker>>,
}

/// A link's membership. Dropping it releases the bytes that the link holds.
#[derive(Debug)]
pub(crate) struct Member {
    ceiling: Ceiling,
    place: usize,
    share: Arc<Share>,
}

/// The memory that a link must free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Charged bytes.
    pub(crate) bytes: usize,
    /// The link also resets connections that drain well.
    pub(crate) urgent: bool,
}

impl Ceiling {
    /// A ceiling of `limit` charged bytes.
    pub fn new(limit: usize) -> Self {
        let (total, wanted) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ceiling(Arc::new(Inner { limit, total, wanted, links: Mutex::default() }))
    }

    /// The limit, in charged bytes.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Whether the caller must refuse a dial: 90 % of the limit are used. If so, asks a link to reset stalled connections, to
    /// free memory for the next dial.
    pub fn turn_away(&self) -> bool {
        let near = self.is_near();
        if near {
            self.make_room();
        }
        near
    }

    fn is_near(&self) -> bool {
        self.0.total.load(Ordering::Relaxed) > self.0.limit / 10 * 9
    }

    /// Asks for memory after a refused dial.
    fn make_room(&self) {
        self.0.wanted.store(true, Ordering::Relaxed);
        self.ask();
    }

    pub(crate) fn join(&self) -> Member {
        let share = Arc::new(Share::default());
        let place = self.0.links.lock().insert(Arc::clone(&share));
        Member { ceiling: self.clone(), place, share }
    }

    fn excess(&self) -> Option<Excess> {
        let (total, limit) = (self.0.total.load(Ordering::Relaxed), self.0.limit);
        if total > limit {
            // Down to 90 %, so that the next packet does not exceed the limit again.
            return Some(Excess { bytes: total - limit / 10 * 9, urgent: total / 5 > limit / 4 });
        }
        let wanted = self.0.wanted.load(Ordering::Relaxed) && self.is_near();
        wanted.then(|| Excess { bytes: total - limit / 10 * 8, urgent: false })
    }

    /// The sum has decreased: clears the request of refused dials once it is below 90 % of the limit.
    fn eased(&self) {
        if self.0.wanted.load(Ordering::Relaxed) && !self.is_near() {
            self.0.wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Asks the link that holds the most bytes. Skips links that recently could not free enough, unless it is urgent.
    fn ask(&self) {
        let Some(excess) = self.excess() else { return };
        let (links, now) = (self.0.links.lock(), Instant::now());
        let largest = links
            .iter()
            .map(|(_, share)| (share.held.load(Ordering::Relaxed), share))
            .filter(|(held, share)| *held > 0 && (excess.urgent || !share.is_left_alone(now)))
            .max_by_key(|(held, _)| *held);
        if let Some((_, share)) = largest
            && !share.asked.swap(true, Ordering::AcqRel)
            && let Some(task) = &*share.task.lock()
        {
            task.wake_by_ref();
        }
    }
}

impl Share {
    fn is_left_alone(&self, now: Instant) -> bool {
        self.left_alone.lock().is_some_and(|until| now < until)
    }
}

impl Member {
    /// Sets the bytes that the link holds. Returns the memory that this link must free, if it was asked.
    pub(crate) fn hold(&mut self, held: usize, task: &Waker) -> Option<Excess> {
        let before = self.share.held.swap(held, Ordering::Relaxed);
        let total = &self.ceiling.0.total;
        if held > before {
            total.fetch_add(held - before, Ordering::Relaxed);
        } else if held < before {
            total.fetch_sub(before - held, Ordering::Relaxed);
            self.ceiling.eased();
        } else if !self.share.asked.load(Ordering::Relaxed) {
            return None;
        }
        self.remember(task);
        if held > before {
            self.ceiling.ask();
        }
        if self.share.asked.swap(false, Ordering::AcqRel) { self.ceiling.excess() } else { None }
    }

    /// Whether the sum is near the ceiling: the link must refuse dials.
    pub(crate) fn is_pressed(&self) -> bool {
        self.ceiling.is_near()
    }

    /// Asks for memory after this link refused a dial.
    pub(crate) fn make_room(&self) {
        self.ceiling.make_room();
    }

    /// The remaining connections of this link drain: the ceiling skips this link for [`IN_VAIN`], or until
    /// [`Member::ask_again`].
    pub(crate) fn pass_on(&self) {
        *self.share.left_alone.lock() = Some(Instant::now() + IN_VAIN);
        self.ceiling.ask();
    }

    /// More connections may have stalled meanwhile: the ceiling may ask this link again, if memory is still short.
    pub(crate) fn ask_again(&self) {
        *self.share.left_alone.lock() = None;
        self.ceiling.ask();
    }

    fn remember(&self, task: &Waker) {
        let mut known = self.share.task.lock();
        if known.as_ref().is_none_or(|known| !known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let held = self.share.held.swap(0, Ordering::Relaxed);
        self.ceiling.0.total.fetch_sub(held, Ordering::Relaxed);
        self.ceiling.eased();
        self.ceiling.0.links.lock().try_remove(self.place);
    }
}

/// The default limit, in bytes: 40 % of the cgroup's limit or, without one, a quarter of the machine's memory and at most
/// [`MOST`].
fn default_memory_limit() -> usize {
    let cgroup = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = cgroup.into_iter().find_map(|path| number(&std::fs::read_to_string(path).ok()?));
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_memory(&text));
    share_of(limit, machine)
}

fn share_of(cgroup: Option<u64>, machine: Option<u64>) -> usize {
    /// The assumed memory of the machine if it cannot be read, in bytes.
    const UNKNOWN: u64 = 1 << 30;
    let machine = machine.unwrap_or(UNKNOWN);
    let bytes = match cgroup {
        Some(limit) if limit < machine => limit / 10 * 4,
        _ => (machine / 4).min(MOST),
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The machine's memory in bytes, from a line like `MemTotal:       24674404 kB`.
fn machine_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    number(line.trim().strip_suffix("kB")?)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[test]
    fn who_holds_most_is_asked_and_only_above_the_ceiling() {
        let ceiling = Ceiling::new(1_000);
        let (mut large, mut small) = (ceiling.join(), ceiling.join());
        let task = Waker::noop();
        assert_eq!(large.hold(800, task), None);
        assert!(!ceiling.is_near());
        assert_eq!(small.hold(150, task), None);
        assert!(ceiling.turn_away() && small.is_pressed());
        assert_eq!(small.hold(210, task), None, "another holds more");
        assert_eq!(large.hold(800, task), Some(Excess { bytes: 110, urgent: false }));
        assert_eq!(large.hold(800, task), None, "asked once");
        large.ask_again();
        assert!(large.hold(800, task).is_some());
        assert_eq!(large.hold(1_100, task), Some(Excess { bytes: 410, urgent: true }));
        drop(large);
        assert!(!ceiling.is_near(), "what was held is given back");
        assert_eq!(ceiling.0.total.load(Ordering::Relaxed), 210);
    }

    #[test]
    fn a_link_where_nothing_has_stalled_passes_the_question_on() {
        let ceiling = Ceiling::new(1_000);
        let (mut moving, mut stalled) = (ceiling.join(), ceiling.join());
        let task = Waker::noop();
        assert_eq!(stalled.hold(450, task), None);
        assert!(moving.hold(600, task).is_some());
        moving.pass_on();
        assert_eq!(stalled.hold(450, task), Some(Excess { bytes: 150, urgent: false }));
        assert_eq!(moving.hold(610, task), None, "not for each packet");
        moving.ask_again();
        assert!(moving.hold(610, task).is_some(), "after a while");
    }

    /// Counts how often a task was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_asked_in_vain_is_asked_by_a_later_dial_although_no_timer_runs() {
        let ceiling = Ceiling::new(1_000);
        let (mut first, mut second) = (ceiling.join(), ceiling.join());
        let task = Waker::noop();
        assert_eq!(second.hold(100, task), None);
        assert!(first.hold(950, task).is_some());
        first.pass_on();
        assert!(second.hold(100, task).is_some());
        second.pass_on();
        // The first link's bytes are gone. The second link holds all bytes now, and they have stalled.
        assert_eq!(first.hold(0, task), None);
        assert_eq!(second.hold(950, task), None);
        assert!(ceiling.turn_away());
        assert_eq!(second.hold(950, task), None, "asked in vain just now");
        tokio::time::sleep(IN_VAIN).await;
        assert!(ceiling.turn_away());
        assert_eq!(second.hold(950, task), Some(Excess { bytes: 150, urgent: false }));
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_link_is_woken_each_time_that_it_is_asked() {
        let ceiling = Ceiling::new(1_000);
        let (mut largest, mut other) = (ceiling.join(), ceiling.join());
        let woken = Arc::new(Woken::default());
        let times = || woken.0.load(Ordering::Relaxed);
        let task = Waker::from(Arc::clone(&woken));
        assert!(largest.hold(1_010, &task).is_some());
        assert_eq!(times(), 1);
        assert_eq!(largest.hold(1_010, &task), None, "its turn, in which nothing changes");
        assert_eq!(other.hold(10, Waker::noop()), None);
        assert_eq!(times(), 2, "another link grows");
        assert!(largest.hold(1_010, &task).is_some());
    }

    #[test]
    fn who_holds_nothing_is_not_asked() {
        let ceiling = Ceiling::new(1_000);
        let (mut holds, mut empty) = (ceiling.join(), ceiling.join());
        let task = Waker::noop();
        assert!(holds.hold(1_100, task).is_some());
        holds.pass_on();
        assert_eq!(empty.hold(0, task), None);
        assert!(!empty.share.asked.load(Ordering::Relaxed));
    }

    #[test]
    fn a_refused_dial_asks_for_room() {
        let ceiling = Ceiling::new(1_000);
        let mut link = ceiling.join();
        let task = Waker::noop();
        assert_eq!(link.hold(950, task), None);
        link.ask_again();
        assert_eq!(link.hold(950, task), None, "nobody wants it");
        assert!(ceiling.turn_away());
        assert_eq!(link.hold(950, task), Some(Excess { bytes: 150, urgent: false }));
        assert_eq!(link.hold(800, task), None);
        assert!(!ceiling.turn_away());
        assert_eq!(link.hold(950, task), None, "the next refusal asks anew");
    }

    #[test]
    fn the_default_is_a_share_of_what_there_is() {
        assert_eq!(share_of(None, Some(1_000)), 250);
        assert_eq!(share_of(Some(500), Some(1_000)), 200);
        assert_eq!(share_of(Some(u64::MAX), Some(1_000)), 250, "no limit, as version 1 of cgroups writes it");
        assert_eq!(share_of(None, None), 256 << 20);
        assert_eq!(share_of(None, Some(64 << 30)), 2 << 30, "a large machine is not ours alone");
        assert_eq!(share_of(Some(16 << 30), Some(64 << 30)), (16 << 30) / 10 * 4, "a container is");
        assert_eq!(machine_memory("MemFree: 5 kB\nMemTotal:       24674404 kB\n"), Some(24_674_404 * 1024));
        assert_eq!(number("max\n"), None);
        assert!(default_memory_limit() > 0);
    }
}
