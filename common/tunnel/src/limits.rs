//! The bounds of one link, each with its reason.

use std::time::Duration;

/// The bounds of one link. [`Limits::default`] is what both halves run with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Dials without an answer. A frontend that floods is told so instead of growing the table.
    pub pending_dials: usize,
    /// Connections and dials together: a quarter of the descriptors that a big agent may have.
    pub connections: usize,
    /// From here on a connection's queue is watched for progress anew, in charged bytes. (Smaller ones are
    /// watched too, from their first byte on: together they may exceed the link's budget.)
    pub soft_cap: usize,
    /// Above it the link stops receiving until the queue drains or its connection is reset, in charged bytes.
    pub hard_cap: usize,
    /// The same for all queues of the link together, in charged bytes.
    pub link_budget: usize,
    /// Control packets that may wait to be sent before the link stops receiving: a peer that asks without
    /// reading answers cannot grow us.
    pub outbox: usize,
    /// What a connection that holds up the link must drain at least, in bytes per [`Limits::drain_window`].
    pub min_drain: usize,
    /// The window in which [`Limits::min_drain`] is measured.
    pub drain_window: Duration,
    /// A CLOSE_REQ is answered within this time, flushed or not: the Go client gives up after 10 s.
    pub answer_close: Duration,
    /// A flush that moves no byte for this long is given up.
    pub flush_stall: Duration,
    /// No flush takes longer.
    pub flush_max: Duration,
    /// What a local end that has gone leaves unread for want of credit may move nothing for this long: an outage that the
    /// link survives must not cost it.
    pub credit_stall: Duration,
    /// How long the server waits for a CLOSE_RSP before it forgets the connection.
    pub await_close: Duration,
    /// How wide a connection's window may grow between own peers, in bytes of payload.
    pub window_max: u32,
    /// How wide it may grow where the way is long: see [`in_flight`].
    pub window_far: u32,
    /// By how much all of a link's windows together may be wider than [`Limits::window_max`], in bytes: what stalls
    /// all at once after it had been quick.
    pub far_budget: usize,
    /// How long the server waits for a sign of life from an endpoint whose frontend sends no more. A frontend that
    /// has closed for good may look the same.
    pub half_closed_server: Duration,
    /// How long the agent waits for a sign of life from a frontend whose endpoint sends no more.
    pub half_closed_agent: Duration,
    /// How much one connection is read at once, in bytes. With a quarter of it sixteen transfers were a tenth slower, and
    /// a ping beside them no quicker: it is not in line behind sources that always have more.
    pub chunk: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            pending_dials: 4_096,
            connections: 16_000,
            soft_cap: 1 << 20,
            hard_cap: 8 << 20,
            link_budget: 256 << 20,
            outbox: 16_384,
            min_drain: 128 << 10,
            drain_window: Duration::from_secs(2),
            answer_close: Duration::from_secs(5),
            flush_stall: Duration::from_secs(10),
            flush_max: Duration::from_secs(60),
            credit_stall: Duration::from_secs(45),
            await_close: Duration::from_secs(10),
            window_max: 1 << 20,
            window_far: 8 << 20,
            far_budget: 64 << 20,
            half_closed_server: Duration::from_secs(10),
            half_closed_agent: Duration::from_secs(600),
            chunk: 128 << 10,
        }
    }
}

/// What a way of that round trip holds at a GiB a second, in bytes, between `near` and `far`: a window below it is what
/// bounds the speed. (A MiB for each millisecond, to the next power of two, so that samples that differ by little change nothing;
/// TCP's own windows end at 4 to 6 MiB on most machines.)
pub fn in_flight(round_trip: Duration, near: u32, far: u32) -> u32 {
    const PER_MICROSECOND: u128 = 1_074;
    let bytes = round_trip.as_micros().saturating_mul(PER_MICROSECOND);
    u32::try_from(bytes).unwrap_or(far).min(far).next_power_of_two().clamp(near.min(far), far)
}

/// What a queued slice of `len` bytes is charged: small slices pin much larger receive buffers, and each costs
/// its own bookkeeping.
pub const fn charge(len: usize) -> usize {
    const SMALLEST: usize = 512;
    const BOOKKEEPING: usize = 64;
    (if len < SMALLEST { SMALLEST } else { len }) + BOOKKEEPING
}
