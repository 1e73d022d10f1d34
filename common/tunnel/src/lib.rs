//! The core: the state of all connections of one agent stream, as data.
//!
//! The core has no socket, clock, task or payload. A [`Link`] is one end of an agent stream: `Link<Server>` or
//! `Link<Agent>`. The shell around it (crate `relay`) repeats these steps:
//!
//! 1. While [`Link::receiving`] is true, and once the stream has ended, pass each received packet to
//!    [`Link::handle_packet`] (DATA as its length) and act on the [`Disposition`]: write the payload to the local end, queue
//!    the bytes that the local end does not accept, and report the queue's size by [`Link::queued`].
//! 2. Report the sockets' events: [`Link::readable`]; [`Link::taken`] and [`Link::queued`] as queues drain;
//!    [`Link::holds_ahead`], [`Link::local_closed`], [`Link::write_failed`], [`Link::local_failed`]. Report the memory state:
//!    [`Link::refuse_dials`], [`Link::shed`].
//! 3. While the stream accepts bytes, do what [`Link::poll_transmit`] returns: send a control packet, or read at most
//!    `max` bytes from a connection's source, send them and call [`Link::read`]. [`Transmit::NoCredit`] names a source
//!    without credit; [`Transmit::Discard`] names a source whose bytes are read and dropped. Once nothing can be sent any
//!    more, call [`Link::shutdown_send`]; once the stream has ended, [`Link::stream_lost`].
//! 4. Act on each [`Link::poll_event`]. Set a timer for [`Link::poll_timeout`] and call [`Link::handle_timeout`]
//!    when it expires.
//!
//! The shell pulls, so no payload queues towards the stream: it reads a source only when the link can send. Queues
//! towards local ends are bounded by [`Limits`]; the link resets and counts a connection that holds up the others.
//! Between native peers ([`Negotiated`]) each connection has its own flow-control window, and none holds up the link.

mod agent;
mod buffer;
mod close;
mod conn;
mod credit;
mod discard;
mod event;
mod half_close;
mod limits;
mod link;
mod negotiated;
mod packet;
mod payload;
mod queues;
mod rings;
mod server;
mod table;
mod time;
mod transmit;

pub use agent::Agent;
pub use buffer::Buffer;
pub use event::{Cause, Control, DialError, Disposition, Dropped, End, Event, Frames, SourceEnd, Transmit};
pub use limits::{Limits, bdp};
pub use link::{Link, Side};
pub use negotiated::{Negotiated, Windows};
pub use packet::{ConnectId, DialId, Packet, PacketKind, cut_error};
pub use payload::{Payload, charge};
pub use server::{Full, Server};
pub use table::ConnKey;
pub use time::Time;
