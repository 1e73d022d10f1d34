//! The packets of an agent stream, as a closed enum.
//!
//! Keeps invariant 9: a packet of a known type always has its own payload, because no other value can be constructed.
//! (The Go programs dereference the payload that the type promises, and crash if it is absent.) The payload of DATA is
//! a type parameter: bytes in the programs, lengths and checked segments in tests.

use std::fmt;

/// The id of an established connection on one agent stream. The agent allocates it, counting up from 1.
///
/// It is valid only together with its stream, and only while that stream lives. Peers can send any value, including 0
/// and negative ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectId(pub i64);

/// The id of a pending dial on one stream (`random` on the wire).
///
/// The server allocates it on an agent stream; a frontend's own value never gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialId(pub i64);

/// The W3C trace context of a dial: the sender's span, which the receiver's span has as its parent.
///
/// `Display` is the header `traceparent` of version 00.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The id of the trace, not 0.
    pub trace: u128,
    /// The id of the span, not 0.
    pub span: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl TraceContext {
    /// The context of a `traceparent` of version 00. None if the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix("00-")?.split('-');
        let mut number = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits)?;
            let lower = field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            u128::from_str_radix(field, 16).ok().filter(|_| lower)
        };
        let (trace, span, flags) = (number(32)?, u64::try_from(number(16)?).ok()?, number(2)?);
        let valid = trace > 0 && span > 0 && fields.next().is_none();
        valid.then_some(TraceContext { trace, span, sampled: flags & 1 == 1 })
    }
}

/// The longest error text that is sent or kept, in bytes. A text may contain an address as long as a message, and goes
/// into answers and logs. An answer longer than the message limit would end a Go server's stream. Go's own texts
/// contain a name of at most 255 bytes and some words.
const MAX_ERROR_BYTES: usize = 4 << 10;

/// Cuts an error text to the longest length, 4 KiB.
pub fn cut_error(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_ERROR_BYTES)).unwrap_or_default()
}

/// Bytes of a dial's protocol. The longest that agents dial, `tcp4` and `tcp6`, have four.
const MAX_PROTOCOL_BYTES: usize = 16;

/// Bytes of a dial's address. A DNS name has at most 253. An agent keeps the address as long as the connection. An address that
/// filled a whole message would, together with our own dial id, make a message that is too large for an agent and ends the agent's
/// whole stream.
pub const MAX_ADDRESS_BYTES: usize = 1024;

/// Why a target is refused without a dial, if it is too long.
pub fn oversized_target(protocol: &str, address: &str) -> Option<String> {
    if protocol.len() > MAX_PROTOCOL_BYTES {
        return Some(format!("protocol of more than {MAX_PROTOCOL_BYTES} bytes"));
    }
    (address.len() > MAX_ADDRESS_BYTES).then(|| format!("address of more than {MAX_ADDRESS_BYTES} bytes"))
}

/// One packet. `P` is the payload of DATA: `Bytes` in the programs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Packet<P> {
    /// Asks the agent to dial; answered by exactly one [`Packet::DialRsp`].
    DialReq {
        /// Echoed in the answer.
        random: DialId,
        /// `tcp`, `tcp4` or `tcp6`.
        protocol: String,
        /// `host:port`.
        address: String,
        /// Between native peers: the trace that the dial belongs to.
        trace: Option<TraceContext>,
    },
    /// The outcome of a dial: a connect id, or the dialer's error text.
    DialRsp {
        /// The request's id.
        random: DialId,
        /// On the wire an empty error means success.
        outcome: Result<ConnectId, String>,
    },
    /// Towards the agent: close this connection after delivering the bytes that were sent before.
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
        /// The bytes, or their number.
        payload: P,
    },
    /// Towards the agent: the client no longer wants the dial.
    DialCls {
        /// The request's id.
        random: DialId,
    },
    /// From the agent, once per stream: send no new dials.
    Drain,
    /// Between native peers: how far the receiver of this packet may send on the connection.
    Grant {
        /// The connection.
        id: ConnectId,
        /// Bytes of payload since the connection was opened.
        offset: u64,
    },
    /// Between native peers: the sender's source has ended; the sender still listens.
    Fin {
        /// The connection.
        id: ConnectId,
    },
}

impl<P> Packet<P> {
    /// Replaces the payload of DATA; leaves everything else unchanged.
    pub fn map<Q>(self, f: impl FnOnce(P) -> Q) -> Packet<Q> {
        match self {
            Packet::DialReq { random, protocol, address, trace } => {
                Packet::DialReq { random, protocol, address, trace }
            }
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

macro_rules! packet_kinds {
    ($($kind:ident: $name:literal = $number:literal;)+) => {
        /// The type of a packet, as metrics and logs name it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum PacketKind {
            $(#[doc = concat!("`", $name, "`")] $kind = $number,)+
        }

        impl PacketKind {
            /// All kinds, in the order of their numbers on the wire.
            pub const ALL: [PacketKind; [$($number),+].len()] = [$(PacketKind::$kind),+];

            /// The enum's name in the .proto, the value of the label `packet_type`.
            pub const fn name(self) -> &'static str {
                match self { $(PacketKind::$kind => $name),+ }
            }
        }

        impl<P> Packet<P> {
            /// The packet's type.
            pub fn kind(&self) -> PacketKind {
                match self { $(Packet::$kind { .. } => PacketKind::$kind),+ }
            }
        }
    };
}

// The name in the .proto, and its number. The last two are between native peers: their numbers are far from those that
// Konnectivity may assign in future.
packet_kinds! {
    DialReq: "DIAL_REQ" = 0;
    DialRsp: "DIAL_RSP" = 1;
    CloseReq: "CLOSE_REQ" = 2;
    CloseRsp: "CLOSE_RSP" = 3;
    Data: "DATA" = 4;
    DialCls: "DIAL_CLS" = 5;
    Drain: "DRAIN" = 6;
    Grant: "GRANT" = 100;
    Fin: "FIN" = 101;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_context_is_a_traceparent() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::parse(text).unwrap();
        assert_eq!((context.span, context.sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(context.to_string(), text);
        for (flags, sampled) in [("-00", false), ("-02", false), ("-03", true)] {
            assert_eq!(TraceContext::parse(&text.replace("-01", flags)).unwrap().sampled, sampled, "{flags}");
        }
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
        }
    }
}
