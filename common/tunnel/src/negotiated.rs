//! The extensions that both ends of one agent stream negotiated when it was opened.

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
