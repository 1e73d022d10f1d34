//! The protocol state machine of a frontend's Proxy stream.
//!
//! Sans I/O: packets and events go in, replies and orders for the caller come out. A stream carries one connection, as in every
//! released client; further requests are refused without an effect on that connection.
//!
//! ```text
//!             DIAL_REQ            dialed
//!   Idle ───────────────▶ Dialing ───────▶ Open ──────────────────────────────────▶ Over
//!    │                       │               │  backend's end: CLOSE_RSP               ▲
//!    │                       │               │ CLOSE_REQ, end of stream, DIAL_CLS      │
//!    │                       │               ├──────────▶ Closing ─────────────────────┤
//!    │                       │               │             backend's end: CLOSE_RSP    │
//!    │                       │               │ endpoint's end: CLOSE_RSP               │
//!    │                       │               └──────────▶ Told ────────────────────────┤
//!    │                       │                             CLOSE_REQ, end of stream    │
//!    │ DATA, unfit DIAL_REQ  │ refused, DIAL_CLS, CLOSE_REQ, end of stream             │
//!    └───────────────────────┴─────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant 3: the client's `random` is echoed to that client only; the connect id belongs to this stream and is unrelated to
//! the agent's.

use bytes::Bytes;
use grpc::Incoming;
use mux::{ConnectId, DialId, Dropped, Packet, oversized_target};

/// The connect id that the client sees for the one connection of its stream.
pub const CONNECTION: ConnectId = ConnectId(1);

const BEFORE_DIAL_CLOSE: &str = "backend uninitialized";
const BEFORE_DIAL_DATA: &str = "backend not initialized";
const CLOSE_WHILE_DIALING: &str = "CLOSE_REQ to backend failed";
const MISMATCHED: &str = "mismatched connection IDs";
const UNKNOWN_CLOSE: &str = "Unknown connectID";
const SECOND_DIAL: &str = "one connection per stream";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No DIAL_REQ has arrived.
    #[default]
    Idle,
    /// A dial is pending, with the client's id.
    Dialing(DialId),
    /// The DIAL_RSP with the connect id was sent to the client.
    Open(DialId),
    /// The client has closed; the backend's end is awaited and then answered by CLOSE_RSP.
    Closing,
    /// The endpoint sends no more, and the terminal packet was sent. What the client has sent before is still delivered.
    Told,
    /// The one terminal packet was sent, or the client cannot receive it any more.
    Over,
}

/// The caller's action after it has sent the replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Nothing: the replies alone answer the packet.
    Nothing,
    /// Nothing: the packet is invalid in this state, and is counted.
    Drop(Dropped),
    /// Start the dial.
    Dial {
        /// As received from the client.
        protocol: String,
        /// As received from the client.
        address: String,
    },
    /// Cancel the dial, then end the stream.
    Cancel,
    /// Deliver to the backend.
    Deliver(Bytes),
    /// The client neither sends nor reads any more: deliver the accepted bytes, then close the backend.
    Close,
    /// End the stream.
    Finish,
}

/// The answer to one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaction {
    /// Packets to send to the client, in this order, before the order is carried out.
    pub replies: Vec<Packet<Bytes>>,
    /// What to do then.
    pub order: Order,
}

impl From<Order> for Reaction {
    fn from(order: Order) -> Self {
        Reaction { replies: Vec::new(), order }
    }
}

/// One frontend stream.
#[derive(Debug, Default)]
pub struct Machine {
    state: State,
}

impl Machine {
    /// Whether the terminal packet was sent or cannot be sent any more: nothing else is to be sent.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether the dial of the stream has succeeded.
    pub fn has_connection(&self) -> bool {
        !matches!(self.state, State::Idle | State::Dialing(_))
    }

    /// The client's id of its dial or of the open connection, for the log.
    pub fn dial_id(&self) -> Option<DialId> {
        match self.state {
            State::Dialing(random) | State::Open(random) => Some(random),
            State::Idle | State::Closing | State::Told | State::Over => None,
        }
    }

    /// Handles a packet from the client.
    pub fn handle(&mut self, incoming: Incoming) -> Reaction {
        match incoming {
            Incoming::Packet(packet) => self.handle_packet(packet),
            Incoming::Unknown(_) => useless(Dropped::UnknownType),
            Incoming::Malformed(_) => useless(Dropped::Malformed),
        }
    }

    fn handle_packet(&mut self, packet: Packet<Bytes>) -> Reaction {
        use State::{Closing, Dialing, Idle, Open, Over, Told};
        let (next, reaction) = match (self.state, packet) {
            (Idle, Packet::Data { id, .. }) => (Over, reply(close_rsp(id, BEFORE_DIAL_DATA), Order::Finish)),
            (Open(_) | Told, Packet::Data { id: CONNECTION, payload }) => {
                (self.state, Order::Deliver(payload).into())
            }
            (Open(_), Packet::Data { id, .. }) if id.0 != 0 => {
                let replies = vec![close_rsp(id, MISMATCHED), close_rsp(CONNECTION, MISMATCHED)];
                (Over, Reaction { replies, order: Order::Close })
            }
            (Closing, Packet::Data { .. }) => (Closing, useless(Dropped::AfterEnd)),
            (Told, Packet::CloseReq { .. } | Packet::DialCls { .. }) => (Over, Order::Close.into()),
            // These crossed our terminal packet.
            (Over, Packet::Data { .. } | Packet::CloseReq { .. } | Packet::DialCls { .. }) => {
                (Over, Order::Nothing.into())
            }
            (state, Packet::Data { .. }) => (state, useless(Dropped::UnknownConnection)),

            (Idle, Packet::DialReq { random, protocol, address, .. }) => {
                match oversized_target(&protocol, &address) {
                    Some(text) => (Over, reply(dial_error(random, format!("dial: {text}")), Order::Finish)),
                    None => (Dialing(random), Order::Dial { protocol, address }.into()),
                }
            }
            // An error under the id of the first dial would look like the failure of the first dial.
            (state @ (Dialing(first) | Open(first)), Packet::DialReq { random, .. }) if first == random => {
                (state, useless(Dropped::DuplicateDial))
            }
            (Told | Over, Packet::DialReq { .. }) => (self.state, useless(Dropped::DuplicateDial)),
            (state, Packet::DialReq { random, .. }) => {
                (state, reply(dial_error(random, SECOND_DIAL.to_owned()), Order::Nothing))
            }

            (Idle, Packet::CloseReq { id }) => {
                (Idle, reply(close_rsp(id, BEFORE_DIAL_CLOSE), Order::Nothing))
            }
            (Dialing(_), Packet::CloseReq { id }) => {
                (Over, reply(close_rsp(id, CLOSE_WHILE_DIALING), Order::Cancel))
            }
            (Open(_), Packet::CloseReq { id: CONNECTION }) => (Closing, Order::Close.into()),
            (Closing, Packet::CloseReq { id: CONNECTION }) => (Closing, useless(Dropped::AfterEnd)),
            (state, Packet::CloseReq { id }) => (state, reply(close_rsp(id, UNKNOWN_CLOSE), Order::Nothing)),

            (Dialing(dialed), Packet::DialCls { random }) if dialed == random => (Over, Order::Cancel.into()),
            // The client canceled while the DIAL_RSP was on its way.
            (Open(dialed), Packet::DialCls { random }) if dialed == random => (Closing, Order::Close.into()),
            (state, Packet::DialCls { .. }) => (state, useless(Dropped::UnknownDial)),

            (state, Packet::DialRsp { .. } | Packet::CloseRsp { .. } | Packet::Drain) => {
                (state, useless(Dropped::WrongDirection))
            }
            (state, Packet::Grant { .. } | Packet::Fin { .. }) => (state, useless(Dropped::NotAgreed)),
        };
        self.state = next;
        reaction
    }

    /// The client ended its sending direction; it may still read.
    pub fn handle_end(&mut self) -> Order {
        let (next, order) = match self.state {
            State::Idle => (State::Over, Order::Finish),
            State::Dialing(_) => (State::Over, Order::Cancel),
            State::Open(_) => (State::Closing, Order::Close),
            State::Told => (State::Over, Order::Close),
            state @ (State::Closing | State::Over) => (state, Order::Finish),
        };
        self.state = next;
        order
    }

    /// The stream was reset or its connection lost: the client receives nothing more.
    pub fn handle_reset(&mut self) -> Order {
        let order = match self.state {
            State::Idle | State::Over => Order::Finish,
            State::Dialing(_) => Order::Cancel,
            State::Open(_) | State::Closing | State::Told => Order::Close,
        };
        self.state = State::Over;
        order
    }

    /// The dial succeeded: returns the DIAL_RSP to send, or `None` if the dial is no longer wanted.
    pub fn handle_dialed(&mut self) -> Option<Packet<Bytes>> {
        let State::Dialing(random) = self.state else { return None };
        self.state = State::Open(random);
        Some(Packet::DialRsp { random, outcome: Ok(CONNECTION) })
    }

    /// The dial failed: returns the DIAL_RSP to send, after which the stream ends, or `None` if the client no longer waits. The
    /// text is not empty: that would mean success.
    pub fn handle_refused(&mut self, text: String) -> Option<Packet<Bytes>> {
        let State::Dialing(random) = self.state else { return None };
        self.state = State::Over;
        Some(dial_error(random, text))
    }

    /// The endpoint sends no more: returns the CLOSE_RSP to send.
    pub fn handle_backend_fin(&mut self) -> Option<Packet<Bytes>> {
        let is_open = matches!(self.state, State::Open(_));
        let packet = self.handle_backend_end("");
        if is_open {
            self.state = State::Told;
        }
        packet
    }

    /// The backend's end of the connection has arrived: returns the CLOSE_RSP to send, after which the stream ends. `None` if
    /// the client has received its terminal packet or is gone.
    pub fn handle_backend_end(&mut self, error: &str) -> Option<Packet<Bytes>> {
        if !matches!(self.state, State::Open(_) | State::Closing) {
            return None;
        }
        self.state = State::Over;
        Some(close_rsp(CONNECTION, error))
    }
}

fn reply(packet: Packet<Bytes>, order: Order) -> Reaction {
    Reaction { replies: vec![packet], order }
}

fn useless(why: Dropped) -> Reaction {
    Order::Drop(why).into()
}

fn close_rsp(id: ConnectId, error: &str) -> Packet<Bytes> {
    Packet::CloseRsp { id, error: error.to_owned() }
}

fn dial_error(random: DialId, text: String) -> Packet<Bytes> {
    Packet::DialRsp { random, outcome: Err(text) }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
