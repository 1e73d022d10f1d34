//! The last failures of a process, and its dials of the last minutes.
//!
//! A success costs one atomic addition; a failure or a refusal also a short lock. The size is bounded, whatever peers do.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use status::{FAILURES, Failure, INTERVAL_SECONDS, INTERVALS, Interval, Refused, Status, Totals};

use super::{now, rfc3339};
use crate::logs::{Peer, shown_error};

/// Failed dials, refused peers, and counts of dials. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    dials: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    failures: Mutex<VecDeque<Failure>>,
    refusals: Mutex<VecDeque<Refused>>,
    history: Mutex<History>,
    /// The last failed request to the Kubernetes API.
    api_error: Mutex<String>,
}

#[derive(Debug, Default)]
struct History {
    /// Complete intervals, the oldest first.
    past: VecDeque<Interval>,
    /// The counts of dials and failures when the present interval began.
    began: (u64, u64),
}

impl Journal {
    /// A dial has succeeded.
    pub fn dialed(&self) {
        self.0.dials.fetch_add(1, Ordering::Relaxed);
    }

    /// A dial by `peer` has failed after `took`, for the reason of the metrics' label.
    pub fn failed(&self, target: &str, peer: &str, reason: &str, error: &str, took: Duration) {
        self.0.failed.fetch_add(1, Ordering::Relaxed);
        let failure = Failure {
            time: rfc3339(now()),
            target: Peer(target).to_string(),
            peer: Peer(peer).to_string(),
            reason: reason.to_owned(),
            error: shown_error(error),
            seconds: took.as_secs_f64(),
        };
        push(&mut self.0.failures.lock(), failure);
    }

    /// A peer was refused at this listener. Repetitions count as one entry.
    pub fn refused(&self, listener: &str, peer: IpAddr, error: &str) {
        self.refused_at(listener, &peer.to_canonical().to_string(), error);
    }

    /// The same for a peer whose address may be a name.
    pub fn refused_at(&self, listener: &str, peer: &str, error: &str) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        let error = shown_error(error);
        let mut refusals = self.0.refusals.lock();
        let is_same =
            |known: &Refused| known.listener == listener && known.peer == peer && known.error == error;
        let known = refusals.iter().position(is_same).and_then(|at| refusals.remove(at));
        let count = known.map_or(1, |known| known.count + 1);
        let (listener, peer) = (listener.to_owned(), Peer(peer).to_string());
        push(&mut refusals, Refused { time: rfc3339(now()), listener, peer, error, count });
    }

    /// A request to the Kubernetes API has failed.
    pub fn api_failed(&self, error: &str) {
        *self.0.api_error.lock() = format!("{} {}", rfc3339(now()), Peer(error));
    }

    /// The time and error of the last failed request to the Kubernetes API; empty if none has failed.
    pub fn api_error(&self) -> String {
        self.0.api_error.lock().clone()
    }

    /// Begins a new interval every [`INTERVAL_SECONDS`]; never returns.
    pub async fn keep_history(self) {
        loop {
            tokio::time::sleep(Duration::from_secs(INTERVAL_SECONDS)).await;
            self.0.history.lock().turn(self.counts());
        }
    }

    /// Adds the journal to a document.
    pub fn fill(&self, status: &mut Status) {
        status.failures = self.0.failures.lock().iter().rev().cloned().collect();
        status.refused = self.0.refusals.lock().iter().rev().cloned().collect();
        let history = self.0.history.lock();
        let counts = self.counts();
        let present = history.since(counts);
        status.history = history.past.iter().copied().chain([present]).collect();
        drop(history);
        let refused = self.0.refused.load(Ordering::Relaxed);
        status.totals = Totals { dials: counts.0, failed_dials: counts.1, refused, ..status.totals };
    }

    fn counts(&self) -> (u64, u64) {
        (self.0.dials.load(Ordering::Relaxed), self.0.failed.load(Ordering::Relaxed))
    }
}

impl History {
    /// The dials since the present interval began.
    fn since(&self, (dials, failed): (u64, u64)) -> Interval {
        let since = |now: u64, before: u64| u32::try_from(now - before).unwrap_or(u32::MAX);
        Interval { dials: since(dials, self.began.0), failures: since(failed, self.began.1) }
    }

    fn turn(&mut self, counts: (u64, u64)) {
        let interval = self.since(counts);
        self.began = counts;
        self.past.push_back(interval);
        // The present interval is one of them.
        while self.past.len() >= INTERVALS {
            self.past.pop_front();
        }
    }
}

fn push<T>(ring: &mut VecDeque<T>, entry: T) {
    if ring.len() >= FAILURES {
        ring.pop_front();
    }
    ring.push_back(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(journal: &Journal) -> Status {
        let mut status = Status::default();
        journal.fill(&mut status);
        status
    }

    #[test]
    fn last_failures_are_kept_newest_first_and_shortened() {
        let journal = Journal::default();
        for number in 0..FAILURES + 5 {
            let error = "e".repeat(10_000);
            journal.failed(
                &format!("pod-{number}:80"),
                "agent",
                "error_response",
                &error,
                Duration::from_millis(5),
            );
        }
        let status = document(&journal);
        assert_eq!((status.failures.len(), status.totals.failed_dials), (FAILURES, 105));
        assert_eq!(status.failures[0].target, "pod-104:80");
        assert_eq!(status.failures[99].target, "pod-5:80");
        assert!(status.failures[0].error.len() < 540 && status.failures[0].seconds == 0.005);
    }

    #[test]
    fn repeated_refusals_are_one_entry() {
        let journal = Journal::default();
        let peers: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "::ffff:10.0.0.1".parse().unwrap()];
        for peer in peers {
            journal.refused("agents", peer, "no certificate");
            journal.refused("agents", peer, "bad certificate");
        }
        for number in 0..FAILURES - 2 {
            journal.refused_at("agents", &format!("10.1.0.{number}"), "no certificate");
        }
        journal.refused("agents", peers[0], "no certificate");
        let status = document(&journal);
        assert_eq!((status.refused.len(), status.totals.refused), (FAILURES, 103));
        let first = &status.refused[0];
        assert_eq!(
            (first.peer.as_str(), first.error.as_str(), first.count),
            ("10.0.0.1", "no certificate", 3)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn history_counts_dials_by_interval() {
        let journal = Journal::default();
        let history = tokio::spawn(journal.clone().keep_history());
        tokio::task::yield_now().await;
        for minute in 0..20 {
            (0..minute).for_each(|_| journal.dialed());
            journal.failed("a:1", "", "no_agent", "", Duration::ZERO);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        journal.dialed();
        let intervals = document(&journal).history;
        assert_eq!(intervals.len(), INTERVALS);
        assert_eq!(intervals.iter().map(|interval| interval.dials).max(), Some(19));
        assert_eq!(intervals.iter().map(|interval| interval.failures).sum::<u32>(), 14);
        assert_eq!(intervals[INTERVALS - 1].dials, 1, "the present interval is the last one");
        history.abort();
    }
}
