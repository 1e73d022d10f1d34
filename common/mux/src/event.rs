//! The core's instructions to its driver, and the driver's answers.

use std::convert::Infallible;

use crate::packet::{ConnectId, Packet, TraceContext};
use crate::table::ConnKey;

/// A packet that carries no payload.
pub type Control = Packet<Infallible>;

/// The next thing to send.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Transmit {
    /// Send this packet.
    Control(Control),
    /// Read at most `max` bytes from this connection's source, pass them to [`crate::Link::push`] and send what it
    /// returns. If the source has ended, call [`crate::Link::end_source`].
    Read {
        /// The connection whose source is read.
        key: ConnKey,
        /// Bytes, at least 1.
        max: usize,
    },
    /// It is the turn of this connection's source, which has no credit. If the local end has gone and left only unread
    /// bytes, the driver reports this by [`crate::Link::local_closed`].
    NoCredit {
        /// The connection whose source lacks credit.
        key: ConnKey,
    },
    /// The same as [`Transmit::Read`], but [`crate::Link::push`] drops the bytes. The peer has closed; the source must
    /// not block on its writes while its queue drains.
    Discard {
        /// The connection whose source is read.
        key: ConnKey,
        /// Bytes, at least 1.
        max: usize,
    },
    /// It is the turn of this ended connection's local end, which called [`crate::Link::linger`].
    Linger {
        /// The ended connection.
        key: ConnKey,
        /// How many bytes the local end may discard.
        max: usize,
    },
}

/// How a source ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceEnd {
    /// The source sends no more. It may still listen.
    Eof,
    /// The source neither sends nor listens any more.
    Closed,
    /// The source broke.
    Failed(String),
}

/// How the driver must handle a packet that it passed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// Offer the connection's [`crate::Link::recv`] to its local end, then call [`crate::Link::advance`].
    Deliver(ConnKey),
    /// Nothing is left to do.
    Handled,
    /// The packet has no effect, because its connection or dial had just ended: the sender could not know.
    Late,
    /// The packet had no effect and is counted.
    Dropped(Dropped),
}

/// Why a packet had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// A packet of an unknown type. The codec finds it.
    UnknownType,
    /// A known type without its payload, or a message that is not a packet. The codec finds it.
    Malformed,
    /// The link never had this connection.
    UnknownConnection,
    /// The link has no such dial.
    UnknownDial,
    /// A second dial with the id of a pending one.
    DuplicateDial,
    /// DATA or FIN after its sender's own FIN or CLOSE_REQ.
    AfterEnd,
    /// A packet of the other direction.
    WrongDirection,
    /// A DIAL_RSP with the id of an existing connection, or with an invalid id.
    BadConnectId,
    /// DATA beyond the granted credit. The link resets the connection.
    Overrun,
    /// A packet of an extension that was not negotiated.
    NotAgreed,
}

impl Dropped {
    /// The value of the metric's label.
    pub const fn label(self) -> &'static str {
        match self {
            Dropped::UnknownType => "unknown_type",
            Dropped::Malformed => "malformed",
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

/// An event that the driver must handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Agent: dial, then answer with [`crate::Link::dialed`].
    Dial {
        /// The key of the future connection.
        key: ConnKey,
        /// As the server sent it, unchecked.
        protocol: String,
        /// As the server sent it, unchecked.
        address: String,
        /// The trace that the dial belongs to.
        trace: Option<TraceContext>,
    },
    /// Agent: the server canceled this dial; the key is dead.
    DialCanceled {
        /// The dial.
        key: ConnKey,
    },
    /// Server: the agent has dialed; bytes may flow.
    Opened {
        /// The connection.
        key: ConnKey,
        /// Its id on the wire, for the log.
        id: ConnectId,
    },
    /// Server: the dial failed; the key is dead.
    DialFailed {
        /// The dial.
        key: ConnKey,
        /// The cause.
        error: DialError,
    },
    /// The peer's source has ended and the local end has read all its bytes: shut down the local end's write side.
    /// Comes once.
    ShutDown {
        /// The connection.
        key: ConnKey,
    },
    /// The connection is over for its local end. Comes once; the key is dead.
    Ended {
        /// The connection.
        key: ConnKey,
        /// How it ended.
        end: CloseReason,
    },
    /// Server: the agent asks for no new dials. Comes once.
    Draining,
    /// Server: [`crate::Link::probe`] must be called. An idle half-closed connection is closed only after the agent has answered.
    ProbeWanted,
    /// Server: the agent has answered [`crate::Link::probe`].
    ProbeAnswered,
    /// Agent: the server's probe tells the number of servers, if it is a native server's.
    ServerCount {
        /// The number, at least 1.
        servers: u32,
    },
}

impl Event {
    /// The connection that the event concerns; none if it concerns the whole link.
    pub const fn key(&self) -> Option<ConnKey> {
        match self {
            Event::Dial { key, .. }
            | Event::DialCanceled { key }
            | Event::Opened { key, .. }
            | Event::DialFailed { key, .. }
            | Event::ShutDown { key }
            | Event::Ended { key, .. } => Some(*key),
            Event::Draining | Event::ProbeWanted | Event::ProbeAnswered | Event::ServerCount { .. } => None,
        }
    }
}

/// Why a dial on this link failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DialError {
    /// The agent's text.
    Refused(String),
    /// The answer is invalid: its connect id is in use, or not positive.
    BadAnswer,
    /// The agent gave up the dial without an answer.
    Closed,
    /// The link was lost before an answer.
    LinkLost,
}

/// How a connection ended. The local end is notified exactly once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// In order: the local end has read everything that arrived before the close.
    Flushed,
    /// Bytes may be missing: the local end must not report an orderly end.
    Broken(Cause),
}

impl CloseReason {
    /// The error of the CLOSE_RSP to a gRPC frontend: empty for an orderly end and, as at the Go server, when the agent
    /// was lost.
    pub fn wire_text(&self) -> String {
        match self {
            CloseReason::Flushed | CloseReason::Broken(Cause::LinkLost) => String::new(),
            CloseReason::Broken(cause) => cause.to_string(),
        }
    }
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CloseReason::Flushed => f.write_str("closed"),
            CloseReason::Broken(cause) => cause.fmt(f),
        }
    }
}

/// Why a connection broke.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The agent stream was lost.
    LinkLost,
    /// The local end failed.
    Local(String),
    /// The peer reported this error. Bytes that arrived before it were delivered.
    Peer(String),
    /// The connection's queue held up the link and drained too slowly.
    Stalled,
    /// The flush before the close made no progress, or took too long.
    FlushTimeout,
    /// The peer sent more than it was granted.
    Overrun,
}

/// How Linux and Go name the errors of a socket whose peer has reset it, or has closed it with unread bytes.
const ABORTS: [&str; 3] = ["connection reset by peer", "broken pipe", "transport endpoint is not connected"];

impl Cause {
    /// Whether the application at one end aborted the connection, by a reset or by a close while bytes were in flight.
    /// The tunnel has then lost no bytes that anyone waited for.
    pub fn is_abort(&self) -> bool {
        let (Cause::Local(text) | Cause::Peer(text)) = self else { return false };
        let text = text.to_ascii_lowercase();
        ABORTS.iter().any(|abort| text.contains(abort))
    }

    /// The value of the metric's label.
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
