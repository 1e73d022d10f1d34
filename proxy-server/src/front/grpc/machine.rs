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
//!    │                       │               └──────────▶ Closing ─────────────────────┤
//!    │                       │                             backend's end: CLOSE_RSP    │
//!    │ DATA, unfit DIAL_REQ  │ refused, DIAL_CLS, CLOSE_REQ, end of stream             │
//!    └───────────────────────┴─────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant 3: the client's `random` is echoed to that client only; the connect id belongs to this stream and is unrelated to
//! the agent's.

use bytes::Bytes;
use mux::{ConnectId, DialId, Dropped, Packet};
use serve::metrics::DropReason;
use transport::wire::Incoming;

use crate::limits::{MAX_ADDRESS_BYTES, MAX_PROTOCOL_BYTES};

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
    /// The one terminal packet was sent, or the client cannot receive it any more.
    Over,
}

/// The caller's action after it has sent the replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Nothing: the replies alone answer the packet.
    Nothing,
    /// Nothing: the packet is invalid in this state, and is counted.
    Drop(DropReason),
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

    /// The client's id of its dial or of the open connection, for the log.
    pub fn dial_id(&self) -> Option<DialId> {
        match self.state {
            State::Dialing(random) | State::Open(random) => Some(random),
            State::Idle | State::Closing | State::Over => None,
        }
    }

    /// Handles a packet from the client.
    pub fn handle(&mut self, incoming: Incoming) -> Reaction {
        match incoming {
            Incoming::Packet(packet) => self.handle_packet(packet),
            Incoming::Unknown(_) => Order::Drop(DropReason::UnknownType).into(),
            Incoming::Malformed(_) => Order::Drop(DropReason::Malformed).into(),
        }
    }

    fn handle_packet(&mut self, packet: Packet<Bytes>) -> Reaction {
        match packet {
            Packet::Data { id, payload } => self.handle_data(id, payload),
            Packet::DialReq { random, protocol, address } => self.handle_dial(random, protocol, address),
            Packet::CloseReq { id } => self.handle_close(id),
            Packet::DialCls { random } => self.handle_dial_close(random),
            Packet::DialRsp { .. } | Packet::CloseRsp { .. } | Packet::Drain => {
                useless(Dropped::WrongDirection)
            }
            Packet::Grant { .. } | Packet::Fin { .. } => useless(Dropped::NotAgreed),
        }
    }

    fn handle_data(&mut self, id: ConnectId, payload: Bytes) -> Reaction {
        match self.state {
            State::Idle => {
                self.state = State::Over;
                reply(close_rsp(id, BEFORE_DIAL_DATA), Order::Finish)
            }
            State::Open(_) if id == CONNECTION => Order::Deliver(payload).into(),
            State::Open(_) if id.0 == 0 => useless(Dropped::UnknownConnection),
            State::Open(_) => {
                self.state = State::Over;
                let replies = vec![close_rsp(id, MISMATCHED), close_rsp(CONNECTION, MISMATCHED)];
                Reaction { replies, order: Order::Close }
            }
            State::Dialing(_) => useless(Dropped::UnknownConnection),
            State::Closing => useless(Dropped::AfterEnd),
            State::Over => Order::Nothing.into(),
        }
    }

    fn handle_dial(&mut self, random: DialId, protocol: String, address: String) -> Reaction {
        match self.state {
            State::Idle if let Some(text) = invalid_request(&protocol, &address) => {
                self.state = State::Over;
                reply(dial_error(random, text), Order::Finish)
            }
            State::Idle => {
                self.state = State::Dialing(random);
                Order::Dial { protocol, address }.into()
            }
            // An error under the id of the first dial would look like the failure of the first dial.
            State::Dialing(first) | State::Open(first) if first == random => useless(Dropped::DuplicateDial),
            State::Dialing(_) | State::Open(_) | State::Closing => {
                reply(dial_error(random, SECOND_DIAL.to_owned()), Order::Nothing)
            }
            State::Over => useless(Dropped::DuplicateDial),
        }
    }

    fn handle_close(&mut self, id: ConnectId) -> Reaction {
        match self.state {
            State::Idle => reply(close_rsp(id, BEFORE_DIAL_CLOSE), Order::Nothing),
            State::Dialing(_) => {
                self.state = State::Over;
                reply(close_rsp(id, CLOSE_WHILE_DIALING), Order::Cancel)
            }
            State::Open(_) if id == CONNECTION => {
                self.state = State::Closing;
                Order::Close.into()
            }
            State::Open(_) | State::Closing if id != CONNECTION => {
                reply(close_rsp(id, UNKNOWN_CLOSE), Order::Nothing)
            }
            State::Open(_) | State::Closing => useless(Dropped::AfterEnd),
            // It crossed our CLOSE_RSP.
            State::Over => Order::Nothing.into(),
        }
    }

    fn handle_dial_close(&mut self, random: DialId) -> Reaction {
        match self.state {
            State::Dialing(dialed_id) if dialed_id == random => {
                self.state = State::Over;
                Order::Cancel.into()
            }
            // The client canceled while the DIAL_RSP was on its way.
            State::Open(dialed_id) if dialed_id == random => {
                self.state = State::Closing;
                Order::Close.into()
            }
            // It crossed our answer.
            State::Over => Order::Nothing.into(),
            _ => useless(Dropped::UnknownDial),
        }
    }

    /// The client ended its sending direction; it may still read.
    pub fn handle_end(&mut self) -> Order {
        match self.state {
            State::Idle => {
                self.state = State::Over;
                Order::Finish
            }
            State::Dialing(_) => {
                self.state = State::Over;
                Order::Cancel
            }
            State::Open(_) => {
                self.state = State::Closing;
                Order::Close
            }
            State::Closing | State::Over => Order::Finish,
        }
    }

    /// The stream was reset or its connection lost: the client receives nothing more.
    pub fn handle_reset(&mut self) -> Order {
        let order = match self.state {
            State::Idle | State::Over => Order::Finish,
            State::Dialing(_) => Order::Cancel,
            State::Open(_) | State::Closing => Order::Close,
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

    /// The dial failed: returns the DIAL_RSP to send, after which the stream ends, or `None` if the client no longer waits.
    ///
    /// An empty text would mean success, so it is replaced.
    pub fn handle_refused(&mut self, text: String) -> Option<Packet<Bytes>> {
        let State::Dialing(random) = self.state else { return None };
        self.state = State::Over;
        Some(dial_error(random, if text.is_empty() { "dial failed".to_owned() } else { text }))
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

/// Why a target is refused before any agent sees it, if it is.
fn invalid_request(protocol: &str, address: &str) -> Option<String> {
    if protocol.len() > MAX_PROTOCOL_BYTES {
        return Some(format!("dial: protocol of more than {MAX_PROTOCOL_BYTES} bytes"));
    }
    (address.len() > MAX_ADDRESS_BYTES)
        .then(|| format!("dial: address of more than {MAX_ADDRESS_BYTES} bytes"))
}

fn useless(why: Dropped) -> Reaction {
    Order::Drop(why.into()).into()
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
