//! The limits of one link, each with its reason, and what was negotiated for it.

use std::time::Duration;

/// The period over which [`Limits::min_drain`] is measured.
pub(crate) const DRAIN_WINDOW: Duration = Duration::from_secs(2);

/// The agent answers CLOSE_REQ within this time, flushed or not: the Go client gives up after 10 s.
pub(crate) const MAX_CLOSE_ANSWER: Duration = Duration::from_secs(5);

/// How long the server waits for a CLOSE_RSP before it forgets the connection. Longer than [`MAX_CLOSE_ANSWER`], so that it does not
/// give up a close that is being answered.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A flush without progress for this long is given up.
pub(crate) const MAX_FLUSH_STALL: Duration = Duration::from_secs(10);

/// The longest duration of a flush.
pub(crate) const MAX_FLUSH: Duration = Duration::from_secs(60);

/// How long the unread bytes of a local end that has gone may wait for credit without progress. Longer than an outage that the link
/// survives.
pub(crate) const MAX_CREDIT_STALL: Duration = Duration::from_secs(45);

/// How long the agent waits for activity of a frontend whose endpoint sends no more. The server waits as long if the agent has
/// closed.
pub(crate) const MAX_IDLE_FRONTEND: Duration = Duration::from_secs(600);

/// How long the server waits for activity of an endpoint whose frontend sends no more, before it asks whether the agent stands still.
/// A frontend that has closed may look the same.
pub(crate) const MAX_IDLE_ENDPOINT: Duration = Duration::from_secs(10);

/// The limits of one link. Server and agent both use [`Limits::default`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Dials without an answer. A frontend that exceeds the limit gets an error instead of growing the table.
    pub pending_dials: usize,
    /// Connections and dials together: a quarter of the file descriptors of a large agent.
    pub connections: usize,
    /// Above this size, in charged bytes, the measurement of a connection's drain rate restarts. (Smaller queues are
    /// measured too, from their first byte: together they may exceed the link's budget.)
    pub soft_cap: usize,
    /// Above this size, in charged bytes, the link stops receiving until the queue drains or its connection is reset.
    pub hard_cap: usize,
    /// The same limit for all queues of the link together, in charged bytes.
    pub link_budget: usize,
    /// Control packets that may wait to be sent before the link stops receiving: a peer that sends requests without
    /// reading the answers cannot grow our memory.
    pub outbox: usize,
    /// The least that a connection that holds up the link must drain, in bytes, in 2 s.
    pub min_drain: usize,
    /// The least time between the last DATA and CLOSE_REQ. Zero for a native agent, which writes what it has received; the
    /// driver sets it for an upstream agent.
    pub close_pause: Duration,
    /// The widest window of a connection between native peers at a low RTT, in bytes of payload.
    pub window_max: u32,
    /// The same at a high RTT: see [`bdp`].
    pub window_high_bdp: u32,
    /// By how much all of a link's windows together may exceed [`Limits::window_max`] per connection, in bytes. Bounds
    /// the bytes that queue when fast readers stall all at once.
    pub high_bdp_budget: usize,
    /// Bytes of one read from one connection. With a quarter of it, sixteen transfers were a tenth slower and a concurrent
    /// ping no faster, because a ping does not queue behind sources that always have more.
    pub chunk: usize,
    /// How many bytes a link may read only to drop them, in 10 ms.
    pub discard_budget: usize,
    /// The most bytes that one connection discards in one turn.
    pub discard_quantum: usize,
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
            close_pause: Duration::ZERO,
            window_max: 1 << 20,
            window_high_bdp: 8 << 20,
            high_bdp_budget: 64 << 20,
            chunk: 128 << 10,
            discard_budget: 1 << 20,
            discard_quantum: 64 << 10,
        }
    }
}

/// The bandwidth-delay product at this RTT and 1 GiB/s, in bytes, between `least` and `most`: a smaller window would
/// limit the throughput. (1 MiB for each millisecond, rounded up to a power of two, so that small differences between
/// samples change nothing. TCP's own windows end at 4 to 6 MiB on most machines.)
pub fn bdp(rtt: Duration, least: u32, most: u32) -> u32 {
    const BYTES_PER_MICROSECOND: u128 = 1_074;
    let bytes = rtt.as_micros().saturating_mul(BYTES_PER_MICROSECOND);
    u32::try_from(bytes).unwrap_or(most).min(most).next_power_of_two().clamp(least.min(most), most)
}

/// The extensions that this stream's peer understands beyond the upstream protocol. Negotiated for each stream, because
/// the next one may lead to an upstream peer. [`Negotiated::default`] is the upstream protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Negotiated {
    /// Each connection has its own flow control.
    pub credits: Option<Windows>,
    /// FIN reports that a source has ended; the other direction continues.
    pub half_close: bool,
}

/// How many bytes of payload either end may send on a new connection before the first GRANT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Windows {
    /// The bytes that the peer may send.
    pub receive: u32,
    /// The bytes that we may send.
    pub send: u32,
}
