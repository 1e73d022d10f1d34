//! What a frontend's Proxy stream is answered: the third machine beside the core and the dial.
//!
//! Sans I/O: packets and events go in, replies and orders for the shell come out. A stream carries one
//! connection, as in every released client; what a client asks beyond that is refused without touching the
//! connection that it has.
//!
//! ```text
//!             DIAL_REQ            dialled
//!   Idle ───────────────▶ Dialing ───────▶ Open ──────────────────────────────────▶ Over
//!    │                       │               │  backend's end: CLOSE_RSP               ▲
//!    │                       │               │ CLOSE_REQ, end of stream, DIAL_CLS      │
//!    │                       │               └──────────▶ Closing ─────────────────────┤
//!    │                       │                             backend's end: CLOSE_RSP    │
//!    │ DATA, unfit DIAL_REQ  │ refused, DIAL_CLS, CLOSE_REQ, end of stream             │
//!    └───────────────────────┴─────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant 3: the client's `random` is echoed to that client and goes nowhere else; the connect id is this
//! stream's own and says nothing about the agent's.

use bytes::Bytes;
use serve::metrics::DropReason;
use transport::wire::Incoming;
use tunnel::{ConnectId, DialId, Dropped, Packet};

use crate::limits::{MAX_ADDRESS_BYTES, MAX_PROTOCOL_BYTES};

/// The connect id of the one connection of a stream, as its client knows it.
pub const CONNECTION: ConnectId = ConnectId(1);

const BEFORE_DIAL_CLOSE: &str = "backend uninitialized";
const BEFORE_DIAL_DATA: &str = "backend not initialized";
const CLOSE_WHILE_DIALING: &str = "CLOSE_REQ to backend failed";
const MISMATCHED: &str = "mismatched connection IDs";
const UNKNOWN_CLOSE: &str = "Unknown connectID";
const SECOND_DIAL: &str = "one connection per stream";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No DIAL_REQ has come.
    #[default]
    Idle,
    /// A dial is under way; the client's id of it.
    Dialing(DialId),
    /// DIAL_RSP has told the client its connect id.
    Open(DialId),
    /// The client has closed; the backend's end is awaited, to be answered by CLOSE_RSP.
    Closing,
    /// The one terminal packet is sent, or nobody is left to read it.
    Over,
}

/// What the shell is to do after the replies are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Nothing (the packet was answered by the replies alone).
    Nothing,
    /// Nothing: the packet makes no sense here. To be counted.
    Drop(DropReason),
    /// Start the dial.
    Dial {
        /// As the client wrote it.
        protocol: String,
        /// As the client wrote it.
        address: String,
    },
    /// Give up the dial, then end the stream.
    Cancel,
    /// Deliver to the backend.
    Deliver(Bytes),
    /// The client neither sends nor listens any more: deliver what was accepted, then close the backend.
    Close,
    /// End the stream.
    Finish,
}

/// The answer to one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaction {
    /// To be sent to the client, in this order, before the order is followed.
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
    /// Whether the client's end of this stream has been settled: nothing more is to be sent.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Something arrived from the client.
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
            State::Closing | State::Over => useless(Dropped::NobodyListens),
        }
    }

    fn handle_dial(&mut self, random: DialId, protocol: String, address: String) -> Reaction {
        match self.state {
            State::Idle if let Some(text) = unfit(&protocol, &address) => {
                self.state = State::Over;
                reply(dial_error(random, text), Order::Finish)
            }
            State::Idle => {
                self.state = State::Dialing(random);
                Order::Dial { protocol, address }.into()
            }
            // An error under the first one's id would be taken for the first one's.
            State::Dialing(first) | State::Open(first) if first == random => useless(Dropped::DuplicateDial),
            State::Dialing(_) | State::Open(_) | State::Closing => {
                reply(dial_error(random, SECOND_DIAL.to_owned()), Order::Nothing)
            }
            State::Over => useless(Dropped::NobodyListens),
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
            State::Open(_) | State::Closing | State::Over => useless(Dropped::NobodyListens),
        }
    }

    fn handle_dial_close(&mut self, random: DialId) -> Reaction {
        match self.state {
            State::Dialing(ours) if ours == random => {
                self.state = State::Over;
                Order::Cancel.into()
            }
            // The client gave up while the DIAL_RSP was under way to it.
            State::Open(ours) if ours == random => {
                self.state = State::Closing;
                Order::Close.into()
            }
            _ => useless(Dropped::UnknownDial),
        }
    }

    /// The client ended its direction (it may still read).
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

    /// The stream was reset, or its connection lost: nobody reads what is sent from here on.
    pub fn handle_reset(&mut self) -> Order {
        let order = match self.state {
            State::Idle | State::Over => Order::Finish,
            State::Dialing(_) => Order::Cancel,
            State::Open(_) | State::Closing => Order::Close,
        };
        self.state = State::Over;
        order
    }

    /// The dial brought a connection: the DIAL_RSP to send. `None` when the dial is no longer wanted.
    pub fn handle_dialled(&mut self) -> Option<Packet<Bytes>> {
        let State::Dialing(random) = self.state else { return None };
        self.state = State::Open(random);
        Some(Packet::DialRsp { random, outcome: Ok(CONNECTION) })
    }

    /// The dial failed: the DIAL_RSP to send, after which the stream ends. `None` when nobody waits for it.
    ///
    /// An empty text would read as success, so it is replaced.
    pub fn handle_refused(&mut self, text: String) -> Option<Packet<Bytes>> {
        let State::Dialing(random) = self.state else { return None };
        self.state = State::Over;
        Some(dial_error(random, if text.is_empty() { "dial failed".to_owned() } else { text }))
    }

    /// The backend's end of the connection has come: the CLOSE_RSP to send, after which the stream ends.
    /// `None` when the client has had its terminal packet, or is gone.
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

/// What is wrong with a target that no agent should see.
fn unfit(protocol: &str, address: &str) -> Option<String> {
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
