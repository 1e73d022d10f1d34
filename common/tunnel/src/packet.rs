//! What travels on an agent stream, as a closed enum.
//!
//! Keeps invariant 9: a packet of a known type always has its own payload, because no other can be written
//! down. (The Go peers dereference the payload that the type promises and die when it is absent.) The payload
//! of DATA is a type parameter: bytes at the wire, a length in the core, which never sees a payload.

use std::fmt;

/// The number of an established connection on one agent stream. The agent allocates it, from 1 upwards.
///
/// It means something only together with the stream that it was allocated on, and only while that stream
/// lives. Peers can send any value, 0 and negative ones included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectId(pub i64);

/// The number of a pending dial on one stream (`random` on the wire).
///
/// On an agent stream the server allocates it; a frontend's own value never gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialId(pub i64);

impl fmt::Display for ConnectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for DialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The longest error text that is sent or kept, in bytes: it may name an address as long as a message, and goes into answers
/// and logs. An answer longer than a message would end a Go server's stream; Go's own are a name of 255 bytes with some
/// words around it.
const LONGEST_ERROR: usize = 4 << 10;

/// What is kept of an error text.
pub fn cut_error(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST_ERROR)).unwrap_or_default()
}

/// One packet. `P` is the payload of DATA: `Bytes` at the wire, `usize` (its length) in the core.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Packet<P> {
    /// Asks the agent to dial; answered by exactly one [`Packet::DialRsp`].
    DialReq {
        /// Echoed by the answer.
        random: DialId,
        /// `tcp`, `tcp4` or `tcp6`.
        protocol: String,
        /// `host:port`.
        address: String,
    },
    /// The outcome of a dial: a connect id, or the dialler's error text.
    DialRsp {
        /// The request's id.
        random: DialId,
        /// On the wire an empty error means success.
        outcome: Result<ConnectId, String>,
    },
    /// Towards the agent: close this connection, deliver first what was sent before.
    CloseReq {
        /// The connection.
        id: ConnectId,
    },
    /// Towards the frontend: the connection is over.
    CloseRsp {
        /// The connection.
        id: ConnectId,
        /// Empty for an orderly end.
        error: String,
    },
    /// Payload of one connection, never empty.
    Data {
        /// The connection.
        id: ConnectId,
        /// The bytes, or how many they are.
        payload: P,
    },
    /// Towards the agent: the dial is no longer wanted.
    DialCls {
        /// The request's id.
        random: DialId,
    },
    /// From the agent, once per stream: no new dials, please.
    Drain,
    /// Between own peers: so much may be sent on this connection, counted from its start.
    Grant {
        /// The connection.
        id: ConnectId,
        /// Bytes of payload since the connection was opened.
        offset: u64,
    },
    /// Between own peers: the sender's source has ended, it still listens.
    Fin {
        /// The connection.
        id: ConnectId,
    },
}

impl<P> Packet<P> {
    /// The packet's type.
    pub fn kind(&self) -> PacketKind {
        match self {
            Packet::DialReq { .. } => PacketKind::DialReq,
            Packet::DialRsp { .. } => PacketKind::DialRsp,
            Packet::CloseReq { .. } => PacketKind::CloseReq,
            Packet::CloseRsp { .. } => PacketKind::CloseRsp,
            Packet::Data { .. } => PacketKind::Data,
            Packet::DialCls { .. } => PacketKind::DialCls,
            Packet::Drain => PacketKind::Drain,
            Packet::Grant { .. } => PacketKind::Grant,
            Packet::Fin { .. } => PacketKind::Fin,
        }
    }

    /// Exchanges the payload of DATA, and leaves everything else as it is.
    pub fn map<Q>(self, f: impl FnOnce(P) -> Q) -> Packet<Q> {
        match self {
            Packet::DialReq { random, protocol, address } => Packet::DialReq { random, protocol, address },
            Packet::DialRsp { random, outcome } => Packet::DialRsp { random, outcome },
            Packet::CloseReq { id } => Packet::CloseReq { id },
            Packet::CloseRsp { id, error } => Packet::CloseRsp { id, error },
            Packet::Data { id, payload } => Packet::Data { id, payload: f(payload) },
            Packet::DialCls { random } => Packet::DialCls { random },
            Packet::Drain => Packet::Drain,
            Packet::Grant { id, offset } => Packet::Grant { id, offset },
            Packet::Fin { id } => Packet::Fin { id },
        }
    }
}

/// The type of a packet, as metrics and logs name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PacketKind {
    /// `DIAL_REQ`
    DialReq,
    /// `DIAL_RSP`
    DialRsp,
    /// `CLOSE_REQ`
    CloseReq,
    /// `CLOSE_RSP`
    CloseRsp,
    /// `DATA`
    Data,
    /// `DIAL_CLS`
    DialCls,
    /// `DRAIN`
    Drain,
    /// `GRANT`, of own peers
    Grant = 100,
    /// `FIN`, of own peers
    Fin = 101,
}

impl PacketKind {
    /// All kinds, in the order of their numbers on the wire.
    pub const ALL: [PacketKind; 9] = [
        PacketKind::DialReq,
        PacketKind::DialRsp,
        PacketKind::CloseReq,
        PacketKind::CloseRsp,
        PacketKind::Data,
        PacketKind::DialCls,
        PacketKind::Drain,
        PacketKind::Grant,
        PacketKind::Fin,
    ];

    /// The number on the wire.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The enum's name in the .proto, the value of the label `packet_type`.
    pub const fn name(self) -> &'static str {
        match self {
            PacketKind::DialReq => "DIAL_REQ",
            PacketKind::DialRsp => "DIAL_RSP",
            PacketKind::CloseReq => "CLOSE_REQ",
            PacketKind::CloseRsp => "CLOSE_RSP",
            PacketKind::Data => "DATA",
            PacketKind::DialCls => "DIAL_CLS",
            PacketKind::Drain => "DRAIN",
            PacketKind::Grant => "GRANT",
            PacketKind::Fin => "FIN",
        }
    }
}
