//! Credits: how many bytes either end may still send on one connection.
//!
//! Between native peers a receiver grants each connection a flow-control window, and renews it as the local end reads.
//! A stalled reader slows only its own sender: the bytes in flight for it fit into its window, so the stream never has
//! to stop. A grant is an absolute offset from the connection's start: a repeated or late grant is harmless, and an
//! accounting error shows at once.

use crate::limits::Windows;

/// When and how far a window widens.
#[derive(Debug, Clone, Copy)]
struct Widening {
    /// How many half windows in a row the local end must read before its window widens.
    smooth: u8,
    factor: u32,
}

const LOW_RTT: Widening = Widening { smooth: 16, factor: 2 };

/// A small window limits the throughput, and each step takes an RTT.
const HIGH_BDP: Widening = Widening { smooth: 1, factor: 4 };

/// From this multiple of the limit at a low RTT on, the limit at the measured RTT counts as one of a high RTT: above 4 ms. (A
/// busy machine may measure 1 to 4 ms to itself.)
const HIGH_RTT_FACTOR: u32 = 8;

/// A GRANT is due at the latest after the local end has read this many bytes. (At a high RTT a window arrives as one burst, and
/// bytes that are read after its last GRANT are granted only with the next burst. With a GRANT for each half window, those were
/// half of each window.)
const GRANT_STEP: u32 = 512 << 10;

/// How windows may grow now: the same for all connections of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    /// The limit at the measured RTT, in bytes.
    pub(crate) widest: u32,
    /// The limit at a low RTT, in bytes.
    pub(crate) base: u32,
    /// The unused part of the budget for windows above `base`, in bytes.
    pub(crate) budget: usize,
    /// Memory is plentiful.
    pub(crate) spacious: bool,
    /// The open connections of the link.
    pub(crate) connections: usize,
}

impl Growth {
    /// The window of a new connection, in bytes. At a high RTT growth takes long, so it begins with the limit at a low RTT or,
    /// beside many others, with its share of the budget.
    fn first(&self, negotiated: u32) -> u32 {
        if self.widest / HIGH_RTT_FACTOR < self.base || !self.spacious {
            return negotiated;
        }
        let share = self.budget / self.connections.max(1);
        u32::try_from(share).unwrap_or(u32::MAX).clamp(negotiated, self.base.max(negotiated))
    }
}

/// The credit of both directions of one connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Credit {
    pub(super) outflow: Outflow,
    pub(super) inflow: Inflow,
}

impl Credit {
    pub(super) fn new(windows: Windows) -> Self {
        Credit {
            outflow: Outflow { sent: 0, allowed: windows.send.into(), blocked: false },
            inflow: Inflow {
                received: 0,
                taken: 0,
                granted: windows.receive.into(),
                window: windows.receive,
                first: windows.receive,
                smooth: 0,
                beside: 0,
                unrested: 0,
                listed: false,
            },
        }
    }
}

/// The sending direction. `sent <= allowed` always holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Outflow {
    sent: u64,
    allowed: u64,
    /// The source had its turn without credit. It is read again when credit arrives.
    blocked: bool,
}

impl Outflow {
    /// Bytes that may be sent.
    fn room(&self) -> usize {
        usize::try_from(self.allowed - self.sent).unwrap_or(usize::MAX)
    }

    /// The same, for a source whose turn it is. Without credit it is read again when credit arrives.
    pub(super) fn room_now(&mut self) -> usize {
        self.blocked = self.room() == 0;
        self.room()
    }

    pub(super) fn send(&mut self, len: usize) {
        self.sent = self.allowed.min(self.sent.saturating_add(len as u64));
    }

    /// Raises the limit to `offset`. Returns true if a blocked source may be read again.
    pub(super) fn allow(&mut self, offset: u64) -> bool {
        self.allowed = self.allowed.max(offset);
        self.room() > 0 && std::mem::take(&mut self.blocked)
    }
}

/// The receiving direction. `taken <= received <= granted` always holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Inflow {
    received: u64,
    taken: u64,
    granted: u64,
    /// How far grants reach beyond `taken`, in bytes. Widens for a local end that keeps up.
    window: u32,
    first: u32,
    /// Half windows read in a row, and the bytes read that are not counted in them yet.
    smooth: u8,
    beside: u32,
    /// Bytes read since the queue was last empty, at most the window.
    unrested: u32,
    /// The connection is in the list of those that owe a GRANT.
    listed: bool,
}

impl Inflow {
    /// Counts received bytes. Returns false if they exceed the grant.
    pub(super) fn receive(&mut self, len: usize) -> bool {
        self.received = self.received.saturating_add(len as u64);
        self.received <= self.granted
    }

    /// Counts bytes that the local end has read. At a high RTT data comes in bursts: a local end that has read one burst
    /// before the next keeps up.
    fn take(&mut self, len: usize, widest: u32, widening: Widening) {
        let before = self.taken;
        self.taken = self.received.min(self.taken.saturating_add(len as u64));
        let len = u32::try_from(self.taken - before).unwrap_or(u32::MAX);
        let (half, waiting) = ((self.window / 2).max(1), self.received - self.taken);
        // The RTT may have decreased.
        self.window = self.window.min(widest.max(self.first));
        self.beside = self.beside.saturating_add(len).min(self.window);
        self.unrested = self.unrested.saturating_add(len).min(self.window);
        if waiting == 0 {
            self.unrested = 0;
            self.rest(half, widest, widening);
        } else if waiting >= u64::from(half) && self.unrested >= self.window {
            // The local end cannot keep up: it has read a whole window without emptying the queue. Its grant stands, but later grants are
            // smaller.
            (self.smooth, self.beside, self.unrested) = (0, 0, 0);
            self.window = (self.window / 2).max(self.first);
        }
    }

    /// The queue is empty: counts the half windows that were read.
    fn rest(&mut self, half: u32, widest: u32, widening: Widening) {
        let half_windows = u8::try_from(self.beside / half).unwrap_or(u8::MAX);
        if half_windows == 0 {
            return;
        }
        self.beside = 0;
        self.smooth = self.smooth.saturating_add(half_windows).min(widening.smooth);
        if self.smooth >= widening.smooth && self.window < widest {
            self.smooth = 0;
            self.window = widest.min(self.window.saturating_mul(widening.factor));
        }
    }

    /// By how many bytes the current or next grant exceeds both `base` and the initial window.
    pub(super) fn beyond(&self, base: u32) -> usize {
        let reach = u64::from(self.window).max(self.granted.saturating_sub(self.taken));
        usize::try_from(reach.saturating_sub(base.max(self.first).into())).unwrap_or(usize::MAX)
    }

    /// Whether bytes wait and the peer may send no more.
    pub(super) fn is_full(&self) -> bool {
        self.received >= self.granted && self.received > self.taken
    }

    /// Whether a GRANT is due: for half a window, at most [`GRANT_STEP`].
    fn due(&self) -> bool {
        let step = (self.window / 2).clamp(1, GRANT_STEP);
        self.goal() >= self.granted + u64::from(step)
    }

    /// Lists the connection for a GRANT. Returns true if it was not listed before.
    fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.listed, true)
    }

    fn goal(&self) -> u64 {
        self.taken + u64::from(self.window)
    }

    /// The offset of the GRANT that became due.
    pub(super) fn grant(&mut self) -> u64 {
        self.listed = false;
        self.granted = self.granted.max(self.goal());
        self.granted
    }
}

impl Credit {
    /// The connection opens. Returns true if a GRANT became due.
    pub(super) fn open(&mut self, growth: &Growth) -> bool {
        let inflow = &mut self.inflow;
        inflow.window = growth.first(inflow.window);
        inflow.due() && inflow.list()
    }

    /// The local end has read this many bytes. `finished`: the peer sends no more. Returns true if a GRANT became due.
    pub(super) fn take(&mut self, bytes: usize, growth: &Growth, finished: bool) -> bool {
        let inflow = &mut self.inflow;
        let widening = if growth.widest > growth.base { HIGH_BDP } else { LOW_RTT };
        // Half of the budget is left for connections that come later.
        let share = u32::try_from(inflow.beyond(growth.base) + growth.budget / 2).unwrap_or(u32::MAX);
        let cap = growth.base.saturating_add(share);
        // After the peer's FIN a wider window is useless.
        let grows = growth.spacious && !finished;
        inflow.take(bytes, if grows { growth.widest.min(cap) } else { inflow.window }, widening);
        // After the peer's FIN a GRANT gives no credit. It shows that the local end is slow, not idle, so that the peer keeps waiting
        // for the answer.
        (finished || inflow.due()) && inflow.list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(receive: u32, send: u32) -> Credit {
        Credit::new(Windows { receive, send })
    }

    #[test]
    fn sender_stays_within_its_credit() {
        let mut out = credit(1, 100).outflow;
        out.send(60);
        assert_eq!(out.room(), 40);
        out.send(40);
        out.blocked = true;
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
        assert!(!inflow.is_full(), "40 more may come");
        inflow.take(49, 100, LOW_RTT);
        assert!(!inflow.due());
        inflow.take(1, 100, LOW_RTT);
        assert!(inflow.due());
        assert_eq!(inflow.grant(), 150);
        assert!(!inflow.due(), "told once");
        assert!(inflow.receive(90), "up to 150");
        assert!(inflow.is_full());
        assert!(!inflow.receive(1), "not a byte more");
    }

    #[test]
    fn window_grows_for_fast_readers_and_shrinks_for_slow_ones() {
        let mut inflow = credit(100, 1).inflow;
        for _ in 0..LOW_RTT.smooth {
            assert_eq!(inflow.window, 100);
            assert!(inflow.receive(50));
            inflow.take(50, 400, LOW_RTT);
            assert!(inflow.due());
            inflow.grant();
        }
        assert_eq!(inflow.window, 200);
        for _ in 0..200 {
            let half = (inflow.window / 2) as usize;
            assert!(inflow.receive(half));
            inflow.take(half, 400, LOW_RTT);
            inflow.grant();
        }
        assert_eq!(inflow.window, 400, "never wider than the widest");
        for _ in 0..100 {
            assert!(inflow.receive(1));
            inflow.take(1, 800, LOW_RTT);
        }
        assert_eq!(inflow.window, 400, "pieces count by their bytes");
    }

    #[test]
    fn progress_after_fin_is_told_also_with_a_window_that_shrank() {
        let mut credit = credit(400, 1);
        credit.inflow.first = 100;
        assert!(credit.inflow.receive(400));
        credit.inflow.window = 200;
        let growth = Growth { widest: 400, base: 400, budget: 0, spacious: true, connections: 1 };
        assert!(!credit.take(1, &growth, false), "400 were granted, and 201 are the goal");
        assert!(credit.take(1, &growth, true));
        assert_eq!(credit.inflow.grant(), 400);
    }

    /// At a high RTT one burst arrives in each, of what was granted before. Its pieces need not divide the window.
    #[test]
    fn bursts_use_the_whole_window() {
        const WINDOW: u32 = 8 << 20;
        let mut inflow = credit(WINDOW, 1).inflow;
        let mut allowed = u64::from(WINDOW);
        for round in 0..20 {
            let burst = allowed - inflow.received;
            assert!(burst >= u64::from(WINDOW - GRANT_STEP), "round {round}: {burst}");
            while inflow.received < allowed {
                let piece = usize::try_from(allowed - inflow.received).unwrap().min(131_063);
                assert!(inflow.receive(piece));
                inflow.take(piece, WINDOW, HIGH_BDP);
                if inflow.due() {
                    inflow.grant();
                }
            }
            allowed = inflow.granted;
        }
    }

    #[test]
    fn a_burst_that_is_taken_before_the_next_is_no_lag_and_more_is() {
        let mut inflow = credit(400, 1).inflow;
        inflow.first = 100;
        assert!(inflow.receive(400));
        for _ in 0..4 {
            assert_eq!(inflow.window, 400);
            inflow.take(100, 800, HIGH_BDP);
        }
        inflow.grant();
        assert_eq!(inflow.window, 800, "never wider than the widest");
        assert!(inflow.receive(800));
        inflow.take(401, 800, HIGH_BDP);
        inflow.grant();
        assert!(inflow.receive(401));
        inflow.take(398, 800, HIGH_BDP);
        assert_eq!(inflow.window, 800, "799 taken without a rest, and half a window waits");
        inflow.take(1, 800, HIGH_BDP);
        assert_eq!(inflow.window, 400, "a whole window");
        let granted = inflow.granted;
        assert_eq!(inflow.grant(), granted, "what was granted stays granted");
    }
}
