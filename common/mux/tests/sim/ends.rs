//! The local ends: sources that send what their plan says, and sinks that read the expected bytes in order.

use mux::{CloseReason, ConnKey, Payload, SourceEnd};

use super::Role;
use super::scenario::Step;
use crate::ensure;

/// A run of numbered bytes in one direction of one connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    /// The connection that it belongs to, whatever the packet says.
    pub(crate) conn: usize,
    /// The half that sent it.
    pub(crate) from: Role,
    /// The number of its first byte.
    pub(crate) first: u16,
    /// The number of bytes.
    pub(crate) len: u16,
}

/// The core's buffers hold segments: it must keep their order and lose none.
impl Payload for Segment {
    const COPY_BELOW: usize = 3;
    const JOIN_BELOW: usize = 2;

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    fn split_to(&mut self, count: usize) -> Self {
        let len = self.len.min(u16::try_from(count).unwrap_or(u16::MAX));
        let front = Segment { len, ..self.clone() };
        self.first += len;
        self.len -= len;
        front
    }

    fn join(segments: &[Self]) -> Self {
        let mut joined = segments[0].clone();
        for segment in &segments[1..] {
            assert_eq!(
                (segment.conn, segment.from),
                (joined.conn, joined.from),
                "bytes of two sources joined"
            );
            assert_eq!(
                segment.first,
                joined.first + joined.len,
                "bytes joined that do not follow each other"
            );
            joined.len += segment.len;
        }
        joined
    }
}

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read {
    Data(Segment),
    Blocked,
    End(SourceEnd),
}

/// The phase of a local end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Nothing has happened yet.
    Idle,
    /// The dial is pending.
    Dialing(ConnKey),
    /// Agent: the dial was canceled, and the dialer's result is still to come.
    Cancelled(ConnKey),
    /// Bytes may flow.
    Open(ConnKey),
    /// The local end has been notified of its end, or has been abandoned.
    Over,
}

/// A frontend or an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LocalEnd {
    pub(crate) phase: Phase,
    /// How many steps of its plan have reached the socket.
    pub(crate) arrived: usize,
    /// How many steps have been read.
    pub(crate) done: usize,
    /// How many bytes of the current step have been read.
    pub(crate) part: u8,
    /// How many bytes were passed to the stream.
    pub(crate) sent: u16,
    /// How many bytes were delivered to this end.
    pub(crate) received: u16,
    /// How many bytes this end has read.
    pub(crate) taken: u16,
    /// How many bytes the core must hold for this end.
    pub(crate) queued: u16,
    /// Bytes have arrived that this end was not offered yet.
    pub(crate) dirty: bool,
    /// The source was read to its end.
    pub(crate) source_over: bool,
    /// This end closed by itself and does not listen any more.
    pub(crate) closed_itself: bool,
    /// This end broke.
    pub(crate) failed: bool,
    /// This side handled the peer's close of the connection.
    pub(crate) peer_closed: bool,
    /// This side sent its close; no DATA may follow.
    pub(crate) close_sent: bool,
    /// This side sent its FIN; no DATA may follow.
    pub(crate) fin_sent: bool,
    /// This side handled the peer's FIN.
    pub(crate) peer_fin: bool,
    /// This end was asked to shut down its write side.
    pub(crate) shut: bool,
    /// The offset that the peer has granted, as far as this side knows.
    pub(crate) allowed: u64,
    /// The bytes of its source are discarded; no DATA may follow.
    pub(crate) discarding: bool,
    pub(crate) abandoned: bool,
    /// The connection was open once.
    pub(crate) opened: bool,
    pub(crate) end: Option<CloseReason>,
}

impl LocalEnd {
    pub(crate) fn new() -> Self {
        LocalEnd {
            phase: Phase::Idle,
            arrived: 0,
            done: 0,
            part: 0,
            sent: 0,
            received: 0,
            taken: 0,
            queued: 0,
            dirty: false,
            source_over: false,
            closed_itself: false,
            failed: false,
            peer_closed: false,
            close_sent: false,
            fin_sent: false,
            peer_fin: false,
            shut: false,
            allowed: u64::MAX,
            discarding: false,
            abandoned: false,
            opened: false,
            end: None,
        }
    }

    /// The key of an open connection.
    pub(crate) fn open(&self) -> Option<ConnKey> {
        match self.phase {
            Phase::Open(key) => Some(key),
            _ => None,
        }
    }

    /// Whether its socket has unread bytes.
    pub(crate) fn unread(&self) -> bool {
        self.done < self.arrived && !self.source_over
    }

    /// Reads from its socket, as the driver does.
    pub(crate) fn read(&mut self, conn: usize, role: Role, script: &[Step], max: usize) -> Read {
        if self.done >= self.arrived {
            return Read::Blocked;
        }
        let end = match script[self.done] {
            Step::Send(bytes) => {
                let len = usize::from(bytes - self.part).min(max);
                self.part += u8::try_from(len).expect("at most the step's bytes");
                if self.part == bytes {
                    self.part = 0;
                    self.done += 1;
                }
                let len = u16::try_from(len).expect("bounded by the plan");
                return Read::Data(Segment { conn, from: role, first: self.sent, len });
            }
            Step::Eof => SourceEnd::Eof,
            Step::Closed => {
                self.closed_itself = true;
                (self.queued, self.dirty) = (0, false);
                SourceEnd::Closed
            }
            Step::Fail => {
                self.failed = true;
                SourceEnd::Failed("source".to_owned())
            }
        };
        self.source_over = true;
        self.done += 1;
        Read::End(end)
    }

    /// Records a segment that the core has accepted. It must belong to this connection, come from the other half and be
    /// the next in order.
    pub(crate) fn deliver(&mut self, conn: usize, role: Role, segment: &Segment) -> Result<(), String> {
        ensure!(segment.conn == conn, "bytes of connection {} delivered to {conn} at {role:?}", segment.conn);
        ensure!(segment.from != role, "bytes came back to their sender: {segment:?}");
        ensure!(
            segment.first == self.received,
            "connection {conn} at {role:?}: byte {} arrived when {} was expected",
            segment.first,
            self.received
        );
        ensure!(!self.closed_itself, "connection {conn} at {role:?}: bytes for somebody who has left");
        self.received += segment.len;
        self.queued += segment.len;
        Ok(())
    }

    /// Reads at most `most` bytes of the first segment that it is offered. Returns the number of bytes.
    pub(crate) fn take(
        &mut self,
        conn: usize,
        role: Role,
        front: Option<&Segment>,
        most: u16,
    ) -> Result<usize, String> {
        let Some(front) = front else { return Err(format!("connection {conn} at {role:?} lost its queue")) };
        ensure!(
            front.conn == conn && front.from != role,
            "connection {conn} at {role:?} is offered {front:?}"
        );
        ensure!(
            front.first == self.taken && front.len > 0,
            "connection {conn} at {role:?}: {front:?} is offered when {} was expected",
            self.taken
        );
        let len = front.len.min(most);
        self.taken += len;
        self.queued = self.queued.checked_sub(len).ok_or("more is offered than has arrived")?;
        Ok(usize::from(len))
    }
}
