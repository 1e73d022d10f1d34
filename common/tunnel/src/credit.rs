//! Credits: how much either end may still send on one connection.
//!
//! Between own peers a receiver grants each connection a window, and renews it as its local end takes the bytes. A
//! connection whose reader has stopped holds back its own source and nothing else: what is in flight for it fits
//! into its window, so the stream never has to stand still for it. Grants are absolute offsets from the connection's
//! start: one that comes twice or late does no harm, and a sum that went wrong shows at once.

use std::time::Duration;

use crate::conn::State;
use crate::event::{Cause, Dropped, Verdict};
use crate::limits::in_flight;
use crate::link::{Link, Side};
use crate::packet::ConnectId;
use crate::table::ConnKey;
use crate::terms::Windows;
use crate::time::Time;

/// Half windows in a row that a local end must take before its window doubles.
const SMOOTH: u8 = 16;

/// The same where the way is long: two come with each round trip, and until the window is wide it is what bounds the speed.
const SMOOTH_FAR: u8 = 2;

/// Behind a peer's FIN a GRANT brings no credit. It tells, each time that so many bytes were taken, and when all were, that
/// the local end is not silent but slow: the peer waits on for its answer.
const SIGN_OF_LIFE: u32 = 64 << 10;

/// Both directions of one connection's credit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Credit {
    pub(crate) outflow: Outflow,
    pub(crate) inflow: Inflow,
}

impl Credit {
    pub(crate) fn new(windows: Windows) -> Self {
        Credit {
            outflow: Outflow { sent: 0, allowed: windows.theirs.into(), parked: false },
            inflow: Inflow {
                received: 0,
                taken: 0,
                granted: windows.ours.into(),
                window: windows.ours,
                first: windows.ours,
                smooth: 0,
                beside: 0,
                unrested: 0,
                listed: false,
            },
        }
    }
}

/// What we send. `sent <= allowed` always.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Outflow {
    sent: u64,
    allowed: u64,
    /// The source had its turn and no credit: it is read again when there is.
    pub(crate) parked: bool,
}

impl Outflow {
    /// Bytes that may be sent.
    pub(crate) fn room(&self) -> usize {
        usize::try_from(self.allowed - self.sent).unwrap_or(usize::MAX)
    }

    pub(crate) fn send(&mut self, len: usize) {
        self.sent = self.allowed.min(self.sent.saturating_add(len as u64));
    }

    /// True if a parked source may be read again.
    fn allow(&mut self, offset: u64) -> bool {
        self.allowed = self.allowed.max(offset);
        self.room() > 0 && std::mem::take(&mut self.parked)
    }
}

/// What we receive. `taken <= received <= granted` always.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Inflow {
    received: u64,
    taken: u64,
    granted: u64,
    /// How far ahead of `taken` grants go: doubles for a local end that keeps up.
    window: u32,
    first: u32,
    /// Half windows that were taken in a row, and what was taken beside them, in bytes.
    smooth: u8,
    beside: u32,
    /// What was taken since nothing waited, in bytes; as much as the window says all.
    unrested: u32,
    /// Stands in the line of those that owe a GRANT.
    listed: bool,
}

impl Inflow {
    /// Whether so many bytes were granted.
    fn receive(&mut self, len: usize) -> bool {
        self.received = self.received.saturating_add(len as u64);
        self.received <= self.granted
    }

    /// `smooth`: so many half windows taken in a row double the window. Over a long way they come in bursts: who has taken
    /// one before the next keeps up.
    fn take(&mut self, len: usize, widest: u32, smooth: u8) {
        let before = self.taken;
        self.taken = self.received.min(self.taken.saturating_add(len as u64));
        let len = u32::try_from(self.taken - before).unwrap_or(u32::MAX);
        let (half, waiting) = ((self.window / 2).max(1), self.received - self.taken);
        // The way may turn out to be shorter.
        self.window = self.window.min(widest.max(self.first));
        self.beside = self.beside.saturating_add(len).min(self.window);
        self.unrested = self.unrested.saturating_add(len).min(self.window);
        if waiting == 0 {
            self.unrested = 0;
            self.rest(half, widest, smooth);
        } else if waiting >= u64::from(half) && self.unrested > half {
            // It cannot keep up: what is granted stays granted, but less is from now on.
            (self.smooth, self.beside, self.unrested) = (0, 0, 0);
            self.window = (self.window / 2).max(self.first);
        }
    }

    /// Nothing waits: counts the half windows that were taken.
    fn rest(&mut self, half: u32, widest: u32, smooth: u8) {
        let halves = u8::try_from(self.beside / half).unwrap_or(u8::MAX);
        if halves == 0 {
            return;
        }
        self.beside = 0;
        self.smooth = self.smooth.saturating_add(halves).min(SMOOTH);
        if self.smooth >= smooth && self.window < widest {
            self.smooth = 0;
            self.window = widest.min(self.window.saturating_mul(2));
        }
    }

    /// By how much what the peer was granted, or will be, is wider than that, and than the window was at first.
    pub(crate) fn beyond(&self, near: u32) -> usize {
        let reach = u64::from(self.window).max(self.granted.saturating_sub(self.taken));
        usize::try_from(reach.saturating_sub(near.max(self.first).into())).unwrap_or(usize::MAX)
    }

    /// Whether half a window is to be granted; or, where the peer sends no more, a sign of life.
    fn due(&self, finished: bool) -> bool {
        let half = (self.window / 2).max(1);
        let step = if finished { half.min(SIGN_OF_LIFE) } else { half };
        let goal = self.goal();
        goal >= self.granted + u64::from(step)
            || (finished && self.taken == self.received && goal > self.granted)
    }

    fn goal(&self) -> u64 {
        self.taken + u64::from(self.window)
    }

    /// The offset to be told.
    fn grant(&mut self) -> u64 {
        self.granted = self.granted.max(self.goal());
        self.granted
    }
}

impl<S: Side> Link<S> {
    /// Tells how long the way to the peer is. Over a long one windows grow wider, and sooner.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.widest = in_flight(round_trip, self.limits.window_max, self.limits.window_far);
    }

    /// The local end took so many bytes of payload. To be called before [`Link::queued`] tells what is left.
    pub fn taken(&mut self, key: ConnKey, bytes: usize) {
        // Memory that is short is not promised away.
        let spacious = self.total_queued <= self.limits.link_budget / 4;
        let near = self.limits.window_max;
        let smooth = if self.widest > near { SMOOTH_FAR } else { SMOOTH };
        let left = self.limits.far_budget.saturating_sub(self.far_windows);
        let Some(conn) = self.table.get_mut(key) else { return };
        let (flows, finished) = (conn.grants(), !conn.peer_open);
        let Some(credit) = conn.credit.as_mut().filter(|_| flows) else { return };
        let inflow = &mut credit.inflow;
        let before = inflow.beyond(near);
        // Who comes later finds something, too.
        let far = near.saturating_add(u32::try_from(before + left / 2).unwrap_or(u32::MAX));
        // Behind a FIN nothing comes that a wider window would be for.
        let grows = spacious && !finished;
        inflow.take(bytes, if grows { self.widest.min(far) } else { inflow.window }, smooth);
        self.far_windows = self.far_windows - before + inflow.beyond(near);
        if inflow.due(finished) && !std::mem::replace(&mut inflow.listed, true) {
            self.grants.push_back(key);
        }
    }

    /// The next GRANT that is owed.
    pub(crate) fn next_grant(&mut self) -> Option<(ConnectId, u64)> {
        while let Some(key) = self.grants.pop_front() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            let grants = conn.grants();
            let (Some(credit), Some(id)) = (&mut conn.credit, conn.id) else { continue };
            credit.inflow.listed = false;
            if grants {
                return Some((id, credit.inflow.grant()));
            }
        }
        None
    }

    /// DATA that is about to be delivered; a sender that was not granted so much loses the connection.
    pub(crate) fn charge_credit(&mut self, now: Time, key: ConnKey, len: usize) -> Verdict {
        let Some(conn) = self.table.get_mut(key) else { return Verdict::Late };
        if conn.credit.as_mut().is_none_or(|credit| credit.inflow.receive(len)) {
            return Verdict::Deliver(key);
        }
        self.break_off(now, key, Cause::Overrun);
        Verdict::Dropped(Dropped::Overrun)
    }

    pub(crate) fn handle_grant(&mut self, now: Time, id: ConnectId, offset: u64) -> Verdict {
        if self.terms.credits.is_none() {
            return Verdict::Dropped(Dropped::NotAgreed);
        }
        // It may be late: the connection has gone meanwhile.
        let Some(&key) = self.by_id.get(&id) else { return Verdict::Handled };
        let Some(conn) = self.table.get_mut(key) else { return Verdict::Handled };
        conn.hear(now);
        if let Some(credit) = &mut conn.credit
            && credit.outflow.allow(offset)
            && conn.state == State::Open
            && conn.source_open
            && !conn.in_ring
        {
            conn.in_ring = true;
            self.rings.push_busy(key);
        }
        Verdict::Handled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(ours: u32, theirs: u32) -> Credit {
        Credit::new(Windows { ours, theirs })
    }

    #[test]
    fn a_sender_stays_within_what_it_was_allowed() {
        let mut out = credit(1, 100).outflow;
        out.send(60);
        assert_eq!(out.room(), 40);
        out.send(40);
        out.parked = true;
        assert!(!out.allow(100), "an old grant brings nothing");
        assert!(!out.allow(50), "nor one that goes back");
        assert!(out.allow(101));
        assert!(!out.allow(102), "only a parked source is told");
        assert_eq!(out.room(), 2);
    }

    #[test]
    fn a_grant_is_due_at_half_a_window() {
        let mut inflow = credit(100, 1).inflow;
        assert!(inflow.receive(60));
        inflow.take(49, 100, SMOOTH);
        assert!(!inflow.due(false));
        inflow.take(1, 100, SMOOTH);
        assert!(inflow.due(false));
        assert_eq!(inflow.grant(), 150);
        assert!(!inflow.due(false), "told once");
        assert!(inflow.receive(90), "up to 150");
        assert!(!inflow.receive(1), "not a byte more");
    }

    #[test]
    fn a_window_grows_for_who_keeps_up_and_shrinks_for_who_does_not() {
        let mut inflow = credit(100, 1).inflow;
        for _ in 0..SMOOTH {
            assert_eq!(inflow.window, 100);
            assert!(inflow.receive(50));
            inflow.take(50, 400, SMOOTH);
            assert!(inflow.due(false));
            inflow.grant();
        }
        assert_eq!(inflow.window, 200);
        for _ in 0..200 {
            let half = (inflow.window / 2) as usize;
            assert!(inflow.receive(half));
            inflow.take(half, 400, SMOOTH);
            inflow.grant();
        }
        assert_eq!(inflow.window, 400, "never wider than the widest");
        for _ in 0..100 {
            assert!(inflow.receive(1));
            inflow.take(1, 800, SMOOTH);
        }
        assert_eq!(inflow.window, 400, "pieces count by their bytes");
    }

    #[test]
    fn a_burst_that_is_taken_before_the_next_is_no_lag_and_more_is() {
        let mut inflow = credit(400, 1).inflow;
        assert!(inflow.receive(400));
        for _ in 0..4 {
            assert_eq!(inflow.window, 400);
            inflow.take(100, 800, SMOOTH_FAR);
        }
        inflow.grant();
        assert_eq!(inflow.window, 800, "two halves");
        assert!(inflow.receive(800));
        inflow.take(399, 800, SMOOTH_FAR);
        inflow.take(2, 800, SMOOTH_FAR);
        let granted = inflow.grant();
        assert!(inflow.receive(300));
        assert_eq!(inflow.window, 800, "399 wait, and 300 more");
        inflow.take(1, 800, SMOOTH_FAR);
        assert_eq!(inflow.window, 400, "half a window taken without a rest, and half a window waits");
        assert_eq!(inflow.grant(), granted, "what was granted stays granted");
    }
}
