//! The part that each program (server or agent) adds to the driver: dials, their results, and counts.

use std::task::{Context, Poll};

use grpc::WireError;
use mux::{Cause, ConnKey, ConnectId, DialError, Dropped, PacketKind, Time, TraceContext};

use crate::LinkEnd;
use crate::conns::Conns;
use crate::live::Traffic;

/// The owner of a link: sends it commands and receives the events of its dials.
pub trait LinkHandler<S> {
    /// Executes the pending commands. `Ready` ends the stream in order: queued packets are sent.
    fn poll_commands(&mut self, cx: &mut Context<'_>, conns: &mut Conns<S>, now: Time) -> Poll<()>;

    /// Agent: the server requests a dial of this protocol and address.
    fn dial(
        &mut self,
        _conns: &mut Conns<S>,
        _key: ConnKey,
        _target: (String, String),
        _trace: Option<TraceContext>,
    ) {
    }

    /// Agent: the server canceled this dial.
    fn dial_canceled(&mut self, _key: ConnKey) {}

    /// Server: the dial succeeded; the local end may be attached.
    fn opened(&mut self, _conns: &mut Conns<S>, _now: Time, _key: ConnKey, _id: ConnectId) {}

    /// Server: the dial failed.
    fn dial_failed(&mut self, _key: ConnKey, _error: DialError) {}

    /// Server: the agent asks for no new dials.
    fn draining(&mut self) {}

    /// Server: must call [`mux::Link::probe`], unless a probe is under way. An idle half-closed connection is closed only after the
    /// agent has answered.
    fn probe_wanted(&mut self, conns: &mut Conns<S>);

    /// Server: the agent has answered a probe through its packet loop.
    fn probe_answered(&mut self) {}

    /// Agent: the server tells the number of servers, if it is a native one.
    fn server_count(&mut self, _servers: u32) {}

    /// The stream has ended with this many connections; from now on no command opens one. The driver goes on until the local ends
    /// have taken what had arrived.
    fn lost(&mut self, _end: &LinkEnd, _connections: usize) {}
}

/// The driver's counters. Called for each packet: must be cheap.
pub trait Meter {
    /// The driver sends a packet to the peer.
    fn sent(&self, kind: PacketKind);
    /// The peer sent a packet.
    fn received(&self, kind: PacketKind);
    /// A packet had no effect.
    fn dropped(&self, reason: Dropped);
    /// A connection ended with bytes undelivered, although no application aborted it.
    fn broken(&self, cause: &Cause);
    /// The charged bytes that wait for local ends now.
    fn queued(&mut self, charged: usize);
    /// What the link carries now. Called once for each turn.
    fn carries(&mut self, traffic: Traffic);
    /// The link stopped receiving because a limit was reached, or resumed.
    fn paused(&mut self, _paused: bool) {}
    /// The stream failed while receiving.
    fn receive_error(&self, error: &WireError);
    /// The stream failed while sending a packet of this kind.
    fn send_error(&self, error: &WireError, kind: PacketKind);
}
