//! The process's ceiling over payload that waits for slow readers.
//!
//! Every link holds its share. Near the ceiling new dials are refused; then, and at the ceiling, the link that holds most
//! resets its largest stalled connections, so that the process is not killed for the memory of those who do not read,
//! nor keeps others out for it. A link where nothing has stalled passes that on to the next. What is still moving is
//! reset only when that brought nothing and the sum goes a quarter beyond the ceiling.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::time::Instant;
use tunnel::{Limits, Terms};

/// What may wait, in bytes, where nobody says how much, however large the machine is: others are on it.
const MOST: u64 = 2 << 30;

/// How long a link is left alone that was asked in vain: what has stalled by then shows it.
const IN_VAIN: Duration = Duration::from_secs(2);

/// What bounds a relay.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Of each link.
    pub limits: Limits,
    /// Of the process.
    pub memory: Ceiling,
}

impl Bounds {
    /// So many bytes for one connection, and for the process; `None`: 40 % of the cgroup's limit, else a quarter of the machine's
    /// memory and at most 2 GiB.
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

    /// Where each connection has a window of its own, none can take the link's budget from the others: only the
    /// process's ceiling counts. The window is a connection's bound then, in payload; what that is charged beside it
    /// must not hold up the link.
    pub(crate) fn limits_on(&self, terms: Terms) -> Limits {
        let mut limits = self.limits.clone();
        if terms.credits.is_some() {
            limits.link_budget = limits.link_budget.max(self.memory.limit());
            limits.hard_cap = limits.hard_cap.saturating_mul(2);
        }
        limits
    }
}

/// The ceiling of a process. Cheap to clone; clones count as one.
#[derive(Debug, Clone)]
pub struct Ceiling(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    total: AtomicUsize,
    /// A dial was refused: there is to be room for the next one.
    wanted: AtomicBool,
    links: Mutex<Slab<Arc<Share>>>,
}

/// What one link holds.
#[derive(Debug, Default)]
struct Share {
    held: AtomicUsize,
    /// It is to let go of something.
    asked: AtomicBool,
    /// It was, and what was left had not stalled: until then it is not asked again.
    left_alone: Mutex<Option<Instant>>,
    /// Known as soon as it holds anything, and from then on.
    task: Mutex<Option<Waker>>,
}

/// A link's place below the ceiling. Dropping it gives back what it holds.
#[derive(Debug)]
pub(crate) struct Member {
    ceiling: Ceiling,
    place: usize,
    share: Arc<Share>,
}

/// How much is to be let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Charged bytes.
    pub(crate) bytes: usize,
    /// Whoever it is.
    pub(crate) urgent: bool,
}

impl Ceiling {
    /// A ceiling of so many charged bytes.
    pub fn new(limit: usize) -> Self {
        let (total, wanted) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ceiling(Arc::new(Inner { limit, total, wanted, links: Mutex::default() }))
    }

    /// Bytes that may wait.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Whether a dial must be refused: nine tenths are used up. What has stalled is reset then, for the next dial.
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

    /// A dial was refused.
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
            // Down to nine tenths, so that it is not asked for each packet.
            return Some(Excess { bytes: total - limit / 10 * 9, urgent: total / 5 > limit / 4 });
        }
        let wanted = self.0.wanted.load(Ordering::Relaxed) && self.is_near();
        wanted.then(|| Excess { bytes: total - limit / 10 * 8, urgent: false })
    }

    /// The sum has become less: there may be room again.
    fn eased(&self) {
        if self.0.wanted.load(Ordering::Relaxed) && !self.is_near() {
            self.0.wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Asks the link that holds most, of those that were not asked in vain just now: all of them if it is urgent.
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
    /// The link holds so much now. What is to be let go of it, if it is this link's turn.
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

    /// Whether the ceiling is near: no dial should be taken on.
    pub(crate) fn is_pressed(&self) -> bool {
        self.ceiling.is_near()
    }

    /// A dial was refused for that: there is to be room for the next one.
    pub(crate) fn make_room(&self) {
        self.ceiling.make_room();
    }

    /// What is left on this link moves: others are asked for a while, until [`Member::ask_again`] at the latest.
    pub(crate) fn pass_on(&self) {
        *self.share.left_alone.lock() = Some(Instant::now() + IN_VAIN);
        self.ceiling.ask();
    }

    /// A while after it was asked: what has stalled since may be asked for, if it is still too much.
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

/// What may wait where the operator says nothing: 40 % of the cgroup's limit, else a quarter of the machine's memory, [`MOST`] at
/// most.
fn default_memory_limit() -> usize {
    let cgroup = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = cgroup.into_iter().find_map(|path| number(&std::fs::read_to_string(path).ok()?));
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_memory(&text));
    share_of(limit, machine)
}

fn share_of(cgroup: Option<u64>, machine: Option<u64>) -> usize {
    /// Where nothing can be read.
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

/// `MemTotal:       24674404 kB`
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

    /// How often a task was woken.
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
        // What the first held has gone; what the second holds is all that there is now, and stalls.
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
