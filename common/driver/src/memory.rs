//! The process's memory limit for payload that waits for slow readers.
//!
//! It counts the bytes that each link holds. Near the limit, server and agent refuse new dials. After a refused dial, and above
//! the memory limit, the link that holds the most bytes resets its largest stalled connections. So stalled readers neither get the
//! process killed for its memory nor keep new dials out. A link without stalled connections passes the request on to the
//! next link. A link resets connections that still drain only when the sum exceeds the memory limit by a quarter.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use mux::{Limits, Negotiated};
use parking_lot::Mutex;
use slab::Slab;
use tokio::time::Instant;

/// The largest default limit without a cgroup limit, in bytes, because other programs share the machine.
const MAX_DEFAULT_LIMIT: u64 = 2 << 30;

/// How long the memory limit does not ask a link again that could not free enough: the link then knows which connections stalled.
const COOLDOWN: Duration = Duration::from_secs(2);

/// How long after its last DATA a connection through an upstream agent is closed. The agent's packet loop passes DATA to a goroutine
/// of the connection; CLOSE_REQ closes the endpoint even if the goroutine has not written it.
const UPSTREAM_CLOSE_PAUSE: Duration = Duration::from_millis(5);

/// The memory limits of a driver.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The limits of each link.
    pub limits: Limits,
    /// The limit of the process.
    pub memory: MemoryLimiter,
}

impl Bounds {
    /// Limits for one connection and for the process, in bytes. `None`: 40 % of the container's limit or, without one, a quarter of
    /// the machine's memory and at most 2 GiB, or less if a cgroup has less.
    pub fn new(per_connection: u64, in_all: Option<u64>) -> Self {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let (hard_cap, standard) = (bytes(per_connection), Limits::default());
        let memory = MemoryLimiter::new(in_all.map_or_else(default_memory_limit, bytes));
        let widest = u32::try_from(hard_cap).unwrap_or(u32::MAX);
        let limits = Limits {
            soft_cap: standard.soft_cap.min(hard_cap / 2),
            hard_cap,
            link_budget: standard.link_budget.min(memory.limit()),
            window_max: standard.window_max.min(widest),
            window_high_bdp: standard.window_high_bdp.min(widest),
            high_bdp_budget: standard.high_bdp_budget.min(memory.limit() / 4),
            close_pause: UPSTREAM_CLOSE_PAUSE,
            ..standard
        };
        Bounds { limits, memory }
    }

    /// The limits of a link with these terms. If each connection has its own flow-control window, no connection can use up the
    /// link's budget: only the process's memory limit applies. The window then limits a connection's payload, and the additional
    /// charged bytes must not stop the link. Such an agent also writes what it has received before a close.
    pub(crate) fn limits_for(&self, negotiated: Negotiated) -> Limits {
        let mut limits = self.limits.clone();
        if negotiated.credits.is_some() {
            limits.link_budget = limits.link_budget.max(self.memory.limit());
            limits.hard_cap = limits.hard_cap.saturating_mul(2);
            limits.close_pause = Duration::ZERO;
        }
        limits
    }
}

/// The memory limit of a process. Cheap to clone; clones share one limit.
#[derive(Debug, Clone)]
pub struct MemoryLimiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    total: AtomicUsize,
    /// A dial was refused: memory must be freed for the next one.
    wanted: AtomicBool,
    links: Mutex<Slab<Arc<LinkUsage>>>,
}

/// The share of one link.
#[derive(Debug, Default)]
struct LinkUsage {
    held: AtomicUsize,
    /// The link must free memory.
    asked: AtomicBool,
    /// The link was asked, and its remaining connections had not stalled: it is not asked again before this time.
    cooldown_until: Mutex<Option<Instant>>,
    /// The link's task. Set when the link first holds bytes.
    task: Mutex<Option<Waker>>,
}

/// A link's membership. Dropping it releases the bytes that the link holds.
#[derive(Debug)]
pub(crate) struct LinkAccount {
    limiter: MemoryLimiter,
    slot: usize,
    usage: Arc<LinkUsage>,
}

/// The memory that a link must free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShedRequest {
    /// Charged bytes.
    pub(crate) bytes: usize,
    /// The link also resets connections that drain well.
    pub(crate) urgent: bool,
}

impl MemoryLimiter {
    /// A memory limit of `limit` charged bytes.
    pub fn new(limit: usize) -> Self {
        let (total, wanted) = (AtomicUsize::new(0), AtomicBool::new(false));
        MemoryLimiter(Arc::new(Inner { limit, total, wanted, links: Mutex::default() }))
    }

    /// The limit, in charged bytes.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Whether the caller must refuse a dial: 90 % of the limit are used. If so, asks a link to reset stalled connections, to
    /// free memory for the next dial.
    pub fn should_reject(&self) -> bool {
        let near = self.is_near();
        if near {
            self.0.wanted.store(true, Ordering::Relaxed);
            self.shed_largest();
        }
        near
    }

    fn is_near(&self) -> bool {
        self.0.total.load(Ordering::Relaxed) > self.near()
    }

    /// 90 % of the limit.
    fn near(&self) -> usize {
        self.0.limit / 10 * 9
    }

    pub(crate) fn join(&self) -> LinkAccount {
        let usage = Arc::new(LinkUsage::default());
        let slot = self.0.links.lock().insert(Arc::clone(&usage));
        LinkAccount { limiter: self.clone(), slot, usage }
    }

    fn shed_request(&self) -> Option<ShedRequest> {
        let (total, limit) = (self.0.total.load(Ordering::Relaxed), self.0.limit);
        if total > limit {
            // Down to 90 %, so that the next packet does not exceed the limit again.
            return Some(ShedRequest { bytes: total - self.near(), urgent: total / 5 > limit / 4 });
        }
        // Other threads change the sum meanwhile: both comparisons and the difference use the same one.
        let wanted = self.0.wanted.load(Ordering::Relaxed) && total > self.near();
        wanted.then(|| ShedRequest { bytes: total - limit / 10 * 8, urgent: false })
    }

    /// The sum has decreased: clears the request of refused dials once it is below 90 % of the limit.
    fn release_pressure(&self) {
        if self.0.wanted.load(Ordering::Relaxed) && !self.is_near() {
            self.0.wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Asks the link that holds the most bytes. Skips links that recently could not free enough, unless it is urgent.
    fn shed_largest(&self) {
        let Some(shed_request) = self.shed_request() else { return };
        let (links, now) = (self.0.links.lock(), Instant::now());
        let largest = links
            .iter()
            .map(|(_, usage)| (usage.held.load(Ordering::Relaxed), usage))
            .filter(|(held, usage)| *held > 0 && (shed_request.urgent || !usage.in_cooldown(now)))
            .max_by_key(|(held, _)| *held);
        if let Some((_, usage)) = largest
            && !usage.asked.swap(true, Ordering::AcqRel)
            && let Some(task) = &*usage.task.lock()
        {
            task.wake_by_ref();
        }
    }
}

impl LinkUsage {
    fn in_cooldown(&self, now: Instant) -> bool {
        self.cooldown_until.lock().is_some_and(|until| now < until)
    }
}

impl LinkAccount {
    /// Sets the bytes that the link holds. Returns the memory that this link must free, if it was asked.
    pub(crate) fn report(&mut self, held: usize, task: &Waker) -> Option<ShedRequest> {
        let before = self.usage.held.swap(held, Ordering::Relaxed);
        let total = &self.limiter.0.total;
        if held > before {
            total.fetch_add(held - before, Ordering::Relaxed);
        } else if held < before {
            total.fetch_sub(before - held, Ordering::Relaxed);
            self.limiter.release_pressure();
        } else if !self.usage.asked.load(Ordering::Relaxed) {
            return None;
        }
        self.remember(task);
        if held > before {
            self.limiter.shed_largest();
        }
        if self.usage.asked.swap(false, Ordering::AcqRel) { self.limiter.shed_request() } else { None }
    }

    /// The remaining connections of this link drain: the memory limit skips this link for [`COOLDOWN`], or until
    /// [`LinkAccount::end_cooldown`].
    pub(crate) fn skip(&self) {
        *self.usage.cooldown_until.lock() = Some(Instant::now() + COOLDOWN);
        self.limiter.shed_largest();
    }

    /// More connections may have stalled meanwhile: the memory limit may ask this link again, if memory is still short.
    pub(crate) fn end_cooldown(&self) {
        *self.usage.cooldown_until.lock() = None;
        self.limiter.shed_largest();
    }

    fn remember(&self, task: &Waker) {
        let mut known = self.usage.task.lock();
        if known.as_ref().is_none_or(|known| !known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }
}

impl Drop for LinkAccount {
    fn drop(&mut self) {
        let held = self.usage.held.swap(0, Ordering::Relaxed);
        self.limiter.0.total.fetch_sub(held, Ordering::Relaxed);
        self.limiter.release_pressure();
        self.limiter.0.links.lock().try_remove(self.slot);
    }
}

/// The default limit, in bytes: 40 % of the container's limit or, without one, a quarter of the machine's memory and at most
/// [`MAX_DEFAULT_LIMIT`]. It is at most 40 % of the limit of each group that the process is in.
fn default_memory_limit() -> usize {
    let root = Path::new("/sys/fs/cgroup");
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_memory(&text));
    let bytes = default_limit(cgroup_limit(root, "0::/\n1:memory:/"), machine);
    // Other groups than a container's may have other programs, too: they only lower the limit.
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let smallest = cgroup_limit(root, &groups).and_then(|limit| usize::try_from(limit / 10 * 4).ok());
    smallest.map_or(bytes, |smallest| smallest.min(bytes))
}

/// The smallest memory limit of the groups in `groups`, as in `/proc/self/cgroup`, and of those above them, in bytes. In a container
/// `root` is often its own group, and no path from the machine's root exists there: then the limit of `root` counts.
fn cgroup_limit(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (folder, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ => (root.join(controllers), "memory.limit_in_bytes"),
        };
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        groups.filter_map(move |group| number(&std::fs::read_to_string(folder.join(group).join(file)).ok()?))
    });
    limits.min()
}

fn default_limit(cgroup: Option<u64>, machine: Option<u64>) -> usize {
    /// The assumed memory of the machine if it cannot be read, in bytes.
    const UNKNOWN: u64 = 1 << 30;
    let machine = machine.unwrap_or(UNKNOWN);
    let bytes = match cgroup {
        Some(limit) if limit < machine => limit / 10 * 4,
        _ => (machine / 4).min(MAX_DEFAULT_LIMIT),
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
    fn link_with_most_bytes_is_asked_only_above_the_limit() {
        let limiter = MemoryLimiter::new(1_000);
        let (mut large, mut small) = (limiter.join(), limiter.join());
        let task = Waker::noop();
        assert_eq!(large.report(800, task), None);
        assert!(!limiter.is_near());
        assert_eq!(small.report(150, task), None);
        assert!(limiter.should_reject());
        assert_eq!(small.report(210, task), None, "another holds more");
        assert_eq!(large.report(800, task), Some(ShedRequest { bytes: 110, urgent: false }));
        assert_eq!(large.report(800, task), None, "asked once");
        large.end_cooldown();
        assert!(large.report(800, task).is_some());
        assert_eq!(large.report(1_100, task), Some(ShedRequest { bytes: 410, urgent: true }));
        drop(large);
        assert!(!limiter.is_near(), "what was held is given back");
        assert_eq!(limiter.0.total.load(Ordering::Relaxed), 210);
    }

    #[test]
    fn link_without_stalled_connections_is_skipped() {
        let limiter = MemoryLimiter::new(1_000);
        let (mut moving, mut stalled) = (limiter.join(), limiter.join());
        let task = Waker::noop();
        assert_eq!(stalled.report(450, task), None);
        assert!(moving.report(600, task).is_some());
        moving.skip();
        assert_eq!(stalled.report(450, task), Some(ShedRequest { bytes: 150, urgent: false }));
        assert_eq!(moving.report(610, task), None, "not for each packet");
        moving.end_cooldown();
        assert!(moving.report(610, task).is_some(), "after a while");
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
    async fn link_after_its_cooldown_is_asked_by_a_later_dial_without_a_timer() {
        let limiter = MemoryLimiter::new(1_000);
        let (mut first, mut second) = (limiter.join(), limiter.join());
        let task = Waker::noop();
        assert_eq!(second.report(100, task), None);
        assert!(first.report(950, task).is_some());
        first.skip();
        assert!(second.report(100, task).is_some());
        second.skip();
        // The first link's bytes are gone. The second link holds all bytes now, and they have stalled.
        assert_eq!(first.report(0, task), None);
        assert_eq!(second.report(950, task), None);
        assert!(limiter.should_reject());
        assert_eq!(second.report(950, task), None, "it is in its cooldown");
        tokio::time::sleep(COOLDOWN).await;
        assert!(limiter.should_reject());
        assert_eq!(second.report(950, task), Some(ShedRequest { bytes: 150, urgent: false }));
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_link_is_woken_each_time_that_it_is_asked() {
        let limiter = MemoryLimiter::new(1_000);
        let (mut largest, mut other) = (limiter.join(), limiter.join());
        let woken = Arc::new(Woken::default());
        let times = || woken.0.load(Ordering::Relaxed);
        let task = Waker::from(Arc::clone(&woken));
        assert!(largest.report(1_010, &task).is_some());
        assert_eq!(times(), 1);
        assert_eq!(largest.report(1_010, &task), None, "its turn, in which nothing changes");
        assert_eq!(other.report(10, Waker::noop()), None);
        assert_eq!(times(), 2, "another link grows");
        assert!(largest.report(1_010, &task).is_some());
    }

    #[test]
    fn link_without_bytes_is_not_asked() {
        let limiter = MemoryLimiter::new(1_000);
        let (mut holds, mut empty) = (limiter.join(), limiter.join());
        let task = Waker::noop();
        assert!(holds.report(1_100, task).is_some());
        holds.skip();
        assert_eq!(empty.report(0, task), None);
        assert!(!empty.usage.asked.load(Ordering::Relaxed));
    }

    #[test]
    fn rejected_dial_requests_shedding() {
        let limiter = MemoryLimiter::new(1_000);
        let mut link = limiter.join();
        let task = Waker::noop();
        assert_eq!(link.report(950, task), None);
        link.end_cooldown();
        assert_eq!(link.report(950, task), None, "nobody wants it");
        assert!(limiter.should_reject());
        assert_eq!(link.report(950, task), Some(ShedRequest { bytes: 150, urgent: false }));
        assert_eq!(link.report(800, task), None);
        assert!(!limiter.should_reject());
        assert_eq!(link.report(950, task), None, "the next refusal asks anew");
    }

    #[test]
    fn default_limit_is_a_share_of_the_memory() {
        assert_eq!(default_limit(None, Some(1_000)), 250);
        assert_eq!(default_limit(Some(500), Some(1_000)), 200);
        assert_eq!(
            default_limit(Some(u64::MAX), Some(1_000)),
            250,
            "no limit, as version 1 of cgroups writes it"
        );
        assert_eq!(default_limit(None, None), 256 << 20);
        assert_eq!(default_limit(None, Some(64 << 30)), 2 << 30, "a large machine is not ours alone");
        assert_eq!(default_limit(Some(16 << 30), Some(64 << 30)), (16 << 30) / 10 * 4, "a container is");
        assert_eq!(machine_memory("MemFree: 5 kB\nMemTotal:       24674404 kB\n"), Some(24_674_404 * 1024));
        assert_eq!(number("max\n"), None);
        assert!(default_memory_limit() > 0);
    }

    #[test]
    fn the_smallest_limit_of_the_own_cgroup_and_those_above_counts() {
        let root = tempfile::tempdir().unwrap();
        let limit = |group: &str, text: &str| {
            let file = root.path().join(group);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let of = |own: &str| cgroup_limit(root.path(), own);
        assert_eq!(of("0::/"), None, "no cgroups");
        limit("system.slice/memory.max", "max\n");
        limit("system.slice/k0s.service/memory.max", "500\n");
        limit("system.slice/k0s.service/konnectivity/memory.max", "900\n");
        assert_eq!(of("0::/system.slice/k0s.service/konnectivity\n"), Some(500));
        assert_eq!(of("0::/system.slice\n"), None);
        limit("memory/memory.limit_in_bytes", "700\n");
        assert_eq!(of("5:cpu:/a\n4:memory:/docker/not-mounted-here\n"), Some(700));
    }
}
