//! The core: the life of all connections of one agent stream, as data.
//!
//! Nothing here has a socket, a clock, a task or a payload. A [`Link`] is one end of an agent stream,
//! `Link<Server>` or `Link<Agent>`. The shell around it (crate `relay`) goes in turns:
//!
//! 1. While [`Link::receiving`], or once the stream is over, hand each packet that has arrived to [`Link::handle_packet`] (DATA as its
//!    length) and do what the [`Verdict`] says: write the payload to the local end, keep what that does not take,
//!    and report how much is kept by [`Link::queued`].
//! 2. Report what sockets say: [`Link::readable`], [`Link::taken`] and [`Link::queued`] as queues drain,
//!    [`Link::holds_ahead`], [`Link::leaving`], [`Link::write_failed`], [`Link::local_failed`]; and what memory says:
//!    [`Link::refuse_dials`], [`Link::relieve`].
//! 3. While the stream takes bytes, do what [`Link::poll_transmit`] says: send a control packet, or read so many
//!    bytes from that connection's source, send them, and answer with [`Link::read`]. What lacks credit is looked after
//!    ([`Transmit::NoCredit`]), what nobody is to have is thrown away ([`Transmit::Discard`]). Once nothing can be sent,
//!    [`Link::mute`]; once the stream has ended, [`Link::lose`].
//! 4. Act on each [`Link::poll_event`]; set a timer for [`Link::poll_timeout`] and call
//!    [`Link::handle_timeout`] when it is due.
//!
//! It is pulled, so nothing piles up towards the stream: a source is read when the link can send. Towards local
//! ends queues are bounded by [`Limits`]; a connection that holds up the link is reset, and counted. Between own
//! peers ([`Terms`]) each connection has a window of its own, and none holds up the link.

mod agent;
mod conn;
mod credit;
mod endings;
mod event;
mod half_close;
mod limits;
mod link;
mod packet;
mod queues;
mod rings;
mod server;
mod table;
mod terms;
mod time;
mod transmit;

pub use agent::Agent;
pub use event::{Cause, Control, DialError, Dropped, End, Event, ReadOutcome, Transmit, Verdict};
pub use limits::{Limits, charge, in_flight};
pub use link::{Link, Side};
pub use packet::{ConnectId, DialId, Packet, PacketKind, cut_error};
pub use server::{Full, Server};
pub use table::ConnKey;
pub use terms::{Terms, Windows};
pub use time::Time;
