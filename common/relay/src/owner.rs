//! What a half (server or agent) adds to the relay: where dials come from and where they go, and who counts.

use std::task::{Context, Poll};

use transport::wire::WireError;
use tunnel::{Cause, ConnKey, ConnectId, DialError, Dropped, PacketKind, Time};

use crate::conns::Conns;

/// The owner of a link: gives commands to it and hears of its dials.
pub trait Owner<S> {
    /// Carries out what is asked of the link. `Ready` ends the stream, in order: what was sent goes out.
    fn poll_commands(&mut self, cx: &mut Context<'_>, conns: &mut Conns<S>, now: Time) -> Poll<()>;

    /// Agent: a dial is wanted.
    fn dial(&mut self, _conns: &mut Conns<S>, _key: ConnKey, _protocol: String, _address: String) {}

    /// Agent: nobody waits for this dial any more.
    fn dial_cancelled(&mut self, _key: ConnKey) {}

    /// Server: the dial succeeded; the local end may be attached.
    fn opened(&mut self, _conns: &mut Conns<S>, _now: Time, _key: ConnKey, _id: ConnectId) {}

    /// Server: the dial failed.
    fn dial_failed(&mut self, _key: ConnKey, _error: DialError) {}

    /// An opened connection is over; its local end is told by the relay.
    fn ended(&mut self, _key: ConnKey) {}

    /// Server: the agent asks for no new dials.
    fn draining(&mut self) {}

    /// The stream has ended; no command brings a connection from now on.
    fn lost(&mut self) {}

    /// Whether the owner still needs the task although the stream has ended (a connection that waits for its
    /// local end to be told).
    fn is_done(&self) -> bool {
        true
    }
}

/// What the relay counts. Called for each packet: must be cheap.
pub trait Meter {
    /// A packet is about to be sent to the peer.
    fn sent(&self, kind: PacketKind);
    /// A packet came from the peer.
    fn received(&self, kind: PacketKind);
    /// A packet of a type that we do not know came from the peer.
    fn unknown(&self);
    /// Something came from the peer that is no packet, or lacks its payload.
    fn malformed(&self);
    /// A packet had no effect.
    fn dropped(&self, reason: Dropped);
    /// A connection ended without delivering everything, although no application aborted it.
    fn broken(&self, cause: &Cause);
    /// So many charged bytes wait for local ends now.
    fn queued(&mut self, charged: usize);
    /// Receiving stands still because a bound was reached, or goes on again.
    fn paused(&mut self, paused: bool);
    /// The stream failed while receiving.
    fn receive_error(&self, error: &WireError);
    /// The stream failed while sending a packet of this kind.
    fn send_error(&self, error: &WireError, kind: PacketKind);
}
