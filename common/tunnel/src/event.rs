//! What the core tells its shell, and what the shell answers.

use std::convert::Infallible;

use crate::packet::{ConnectId, Packet};
use crate::table::ConnKey;

/// A packet that carries no payload.
pub type Control = Packet<Infallible>;

/// What is to be sent next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Transmit {
    /// Send this packet.
    Control(Control),
    /// Read at most `max` bytes from this connection's source and send them as DATA of `id`, then answer with
    /// [`crate::Link::read`]. The payload never enters the core.
    Read {
        /// Whose source.
        key: ConnKey,
        /// The connection's number on the wire.
        id: ConnectId,
        /// Bytes, at least 1.
        max: usize,
    },
    /// This connection's source has its turn, and no credit. If its local end is known to have gone for good, but for
    /// what is still to be read, say so by [`crate::Link::leaving`].
    NoCredit {
        /// Whose source.
        key: ConnKey,
    },
    /// Read from this connection's source and throw it away (the other side has closed, the source must not
    /// block on us while our queue drains), then answer with [`crate::Link::read`].
    Discard {
        /// Whose source.
        key: ConnKey,
    },
}

/// What a read brought.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReadOutcome {
    /// So many bytes, which were sent (or thrown away); there may be more.
    Data(usize),
    /// Nothing now; the shell calls [`crate::Link::readable`] when that changes.
    Blocked,
    /// The source sends no more. It may still listen.
    Eof,
    /// The source neither sends nor listens any more.
    Closed,
    /// The source broke.
    Failed(String),
}

/// What to do with a packet that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Hand the payload to this connection's local end; report what stays queued by [`crate::Link::queued`].
    Deliver(ConnKey),
    /// Nothing is left to do.
    Handled,
    /// The packet has no effect, because it crossed the end of what it names: its sender could not know.
    Late,
    /// The packet had no effect: to be counted.
    Dropped(Dropped),
}

/// Why a packet had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// A connection that this link never had.
    UnknownConnection,
    /// No such dial on this link.
    UnknownDial,
    /// A dial under a number that is being dialled already.
    DuplicateDial,
    /// DATA or FIN behind its sender's own FIN or CLOSE_REQ.
    AfterEnd,
    /// A packet of the other direction.
    WrongDirection,
    /// An answer that names a connection which lives already, or an impossible number.
    BadConnectId,
    /// DATA beyond what was granted: it costs the sender the connection.
    Overrun,
    /// A packet that only peers which agreed on it may send.
    NotAgreed,
}

impl Dropped {
    /// The value of a metric's label.
    pub const fn label(self) -> &'static str {
        match self {
            Dropped::UnknownConnection => "unknown_connection",
            Dropped::UnknownDial => "unknown_dial",
            Dropped::DuplicateDial => "duplicate_dial",
            Dropped::AfterEnd => "after_end",
            Dropped::WrongDirection => "wrong_direction",
            Dropped::BadConnectId => "bad_connect_id",
            Dropped::Overrun => "overrun",
            Dropped::NotAgreed => "not_agreed",
        }
    }
}

/// Something the shell must act on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Agent: dial, then answer with [`crate::Link::dialed`].
    Dial {
        /// The connection to be.
        key: ConnKey,
        /// As the server sent it, unchecked.
        protocol: String,
        /// As the server sent it, unchecked.
        address: String,
    },
    /// Agent: nobody waits for this dial any more; the key is dead.
    DialCancelled {
        /// The dial.
        key: ConnKey,
    },
    /// Server: the agent dialled; bytes may flow.
    Opened {
        /// The connection.
        key: ConnKey,
        /// Its number on the wire, for the log.
        id: ConnectId,
    },
    /// Server: the dial brought no connection; the key is dead.
    DialFailed {
        /// The dial.
        key: ConnKey,
        /// Why.
        error: DialError,
    },
    /// The peer's source has ended, and everything it sent was taken: shut the local end's write side down. Told
    /// once; a local end that knows no such thing is answered by [`crate::Link::cannot_half_close`].
    ShutDown {
        /// The connection.
        key: ConnKey,
    },
    /// The connection is over for its local end: told once, the key is dead.
    Ended {
        /// The connection.
        key: ConnKey,
        /// How.
        end: End,
    },
    /// Server: the agent asks for no new dials. Told once.
    Draining,
}

impl Event {
    /// Whom it is about, unless it is the whole link.
    pub const fn key(&self) -> Option<ConnKey> {
        match self {
            Event::Dial { key, .. }
            | Event::DialCancelled { key }
            | Event::Opened { key, .. }
            | Event::DialFailed { key, .. }
            | Event::ShutDown { key }
            | Event::Ended { key, .. } => Some(*key),
            Event::Draining => None,
        }
    }
}

/// Why a dial on this link brought no connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DialError {
    /// The agent's text.
    Refused(String),
    /// The answer made no sense (a number that lives already, or none).
    BadAnswer,
    /// The agent gave it up without an answer.
    Closed,
    /// The link was lost before an answer.
    LinkLost,
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum End {
    /// In order: everything that arrived for the local end before the close was taken by it.
    Flushed,
    /// Bytes may be missing.
    Broken(Cause),
}

/// Why a connection broke.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The agent stream was lost.
    LinkLost,
    /// The local end failed.
    Local(String),
    /// The other side says so, in its words. What arrived before was delivered.
    Peer(String),
    /// Its queue held up the link and drained too slowly.
    Stalled,
    /// The flush before the close made no progress, or took too long.
    FlushTimeout,
    /// The peer sent more than it was granted.
    Overrun,
}

/// How Linux and Go name the errors of a socket whose peer has reset it, or has closed it without reading on.
const ABORTS: [&str; 3] = ["connection reset by peer", "broken pipe", "transport endpoint is not connected"];

impl Cause {
    /// Whether the application at one end aborted the connection itself, by a reset or a close under way: the tunnel
    /// has lost nothing that somebody waited for.
    pub fn is_abort(&self) -> bool {
        let (Cause::Local(text) | Cause::Peer(text)) = self else { return false };
        let text = text.to_ascii_lowercase();
        ABORTS.iter().any(|abort| text.contains(abort))
    }

    /// The value of a metric's label.
    pub const fn label(&self) -> &'static str {
        match self {
            Cause::LinkLost => "link_lost",
            Cause::Local(_) => "local",
            Cause::Peer(_) => "peer",
            Cause::Stalled => "stalled",
            Cause::FlushTimeout => "flush_timeout",
            Cause::Overrun => "overrun",
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::LinkLost => f.write_str("agent stream lost"),
            Cause::Local(text) | Cause::Peer(text) => f.write_str(text),
            Cause::Stalled => f.write_str("connection stalled: its reader was too slow for the link"),
            Cause::FlushTimeout => f.write_str("close timed out: queued bytes were not taken"),
            Cause::Overrun => f.write_str("the other side sent more than it was granted"),
        }
    }
}
