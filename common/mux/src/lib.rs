//! The core: all connections of one agent stream with their state, their bytes, their credit and their limits.
//!
//! The core has no socket, clock or task. A [`Link`] is one end of an agent stream: `Link<Server, Bytes>` or
//! `Link<Agent, Bytes>`; tests use other payloads. The driver around it (crate `driver`) repeats these steps:
//!
//! 1. While [`Link::receiving`] is true, and once the stream has ended, pass each received packet to
//!    [`Link::handle_packet`]. If the [`Disposition`] says so, offer [`Link::recv`] to the local end and report the number of
//!    accepted bytes by [`Link::advance`].
//! 2. For a socket that is ready, offer and advance again, and call [`Link::readable`]. Report local ends that fail or go:
//!    [`Link::write_failed`], [`Link::end_source`], [`Link::local_closed`], [`Link::holds_ahead`].
//! 3. While the stream accepts bytes, do what [`Link::poll_transmit`] returns: send a control packet, or read at most
//!    `max` bytes from a connection's source, pass them to [`Link::push`] and send the packets that it returns. Once nothing
//!    can be sent any more, call [`Link::shutdown_send`]; once the stream has ended, [`Link::stream_lost`].
//! 4. Act on each [`Link::poll_event`]. After [`Event::Ended`] the local end may discard bytes
//!    ([`Link::discard_allowance`], [`Link::linger`]); then [`Link::release`] frees its key.
//! 5. Set a timer for [`Link::poll_timeout`] and call [`Link::handle_timeout`] when it expires. If the process is short of
//!    memory, call [`Link::shed`].
//!
//! The driver pulls, so no payload queues towards the stream: it reads a source only when the link can send. Receive
//! buffers are bounded by [`Limits`]; the link resets and counts a connection that holds up the others. Between native
//! peers ([`Negotiated`]) each connection has its own flow-control window, and none holds up the link.

mod agent;
mod conn;
mod discard;
mod ends;
mod event;
mod lane;
mod limits;
mod link;
mod local;
mod memory;
mod packet;
mod payload;
mod schedule;
mod server;
mod table;
mod time;

pub use agent::Agent;
pub use conn::{Buffer, Fill};
pub use event::{Cause, CloseReason, Control, DialError, Disposition, Dropped, Event, SourceEnd, Transmit};
pub use lane::{BULK_BYTES, LaneLoad, choose_lane, class};
pub use limits::{Limits, Negotiated, Windows, bdp};
pub use link::{Link, Side};
pub use packet::{
    ConnectId, DialId, MAX_ADDRESS_BYTES, Packet, PacketKind, TraceContext, cut_error, oversized_target,
};
pub use payload::{Payload, charge};
pub use server::Server;
pub use table::ConnKey;
pub use time::Time;
