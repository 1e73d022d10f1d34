//! What both ends of one agent stream agreed on when it was opened.

/// What this stream's peer understands beyond the wire that Go peers speak. Agreed when the stream is opened, for it
/// alone: the next one may lead to a Go peer. [`Terms::default`] is the common wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Terms {
    /// Each connection has flow control of its own.
    pub credits: Option<Windows>,
    /// A source that ends is told by FIN; the other direction flows on.
    pub half_close: bool,
}

/// How much either end may send on a new connection before the first GRANT, in bytes of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Windows {
    /// What the peer may send.
    pub ours: u32,
    /// What we may send.
    pub theirs: u32,
}
