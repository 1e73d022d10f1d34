//! The local ends: sources that bring what their plan says, sinks that take what they are given to, in order.

use std::collections::VecDeque;

use tunnel::{ConnKey, End, ReadOutcome};

use super::Half;
use super::scenario::Step;
use crate::ensure;

/// A run of numbered bytes of one connection's direction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    /// Which connection it belongs to, whatever the packet says.
    pub(crate) conn: usize,
    /// Where it was sent.
    pub(crate) from: Half,
    /// The number of its first byte.
    pub(crate) first: u16,
    /// How many bytes.
    pub(crate) len: u16,
}

/// How far a local end has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Nothing has happened yet.
    Idle,
    /// The dial is under way.
    Dialing(ConnKey),
    /// Agent: the dial was cancelled, and the dialler's result is still to come.
    Cancelled(ConnKey),
    /// Bytes may flow.
    Open(ConnKey),
    /// It has been told its end, or does not want to be told.
    Over,
}

/// A frontend or an endpoint with the queue that the shell keeps for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LocalEnd {
    pub(crate) phase: Phase,
    /// So many steps of its plan have reached the socket.
    pub(crate) arrived: usize,
    /// So many have been read.
    pub(crate) done: usize,
    /// So many bytes of the current step have been read.
    pub(crate) part: u8,
    /// Bytes handed to the stream.
    pub(crate) sent: u16,
    /// Bytes that were delivered here.
    pub(crate) received: u16,
    /// Bytes that it took.
    pub(crate) taken: u16,
    pub(crate) queue: VecDeque<Segment>,
    /// Its source was read to its end.
    pub(crate) source_over: bool,
    /// It went away by itself and listens no more.
    pub(crate) closed_itself: bool,
    /// It broke.
    pub(crate) failed: bool,
    /// The peer's close of this connection was handled here.
    pub(crate) peer_closed: bool,
    /// This side's close was sent; no DATA may follow.
    pub(crate) close_sent: bool,
    /// This side's FIN was sent; no DATA may follow.
    pub(crate) fin_sent: bool,
    /// The peer's FIN was handled here.
    pub(crate) peer_fin: bool,
    /// It was told to shut its write side down.
    pub(crate) shut: bool,
    /// So many bytes the peer has granted, as far as is known here.
    pub(crate) allowed: u64,
    /// Its source is being thrown away; no DATA may follow.
    pub(crate) discarding: bool,
    pub(crate) abandoned: bool,
    /// Its connection was open once.
    pub(crate) opened: bool,
    pub(crate) end: Option<End>,
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
            queue: VecDeque::new(),
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

    /// Bytes that wait for it.
    pub(crate) fn queued(&self) -> usize {
        self.queue.iter().map(|segment| usize::from(segment.len)).sum()
    }

    /// Whether its socket holds something that was not read.
    pub(crate) fn unread(&self) -> bool {
        self.done < self.arrived && !self.source_over
    }

    /// Reads from its socket, as the shell does.
    pub(crate) fn read(&mut self, script: &[Step], max: usize) -> ReadOutcome {
        if self.done >= self.arrived {
            return ReadOutcome::Blocked;
        }
        match script[self.done] {
            Step::Send(bytes) => {
                let len = usize::from(bytes - self.part).min(max);
                self.part += u8::try_from(len).expect("at most the step's bytes");
                if self.part == bytes {
                    self.part = 0;
                    self.done += 1;
                }
                return ReadOutcome::Data(len);
            }
            Step::Eof => {}
            Step::Closed => {
                self.closed_itself = true;
                self.queue.clear();
            }
            Step::Fail => self.failed = true,
        }
        self.source_over = true;
        self.done += 1;
        match script[self.done - 1] {
            Step::Closed => ReadOutcome::Closed,
            Step::Fail => ReadOutcome::Failed("source".to_owned()),
            _ => ReadOutcome::Eof,
        }
    }

    /// Queues a segment: it must be its own, the next, and not from itself.
    pub(crate) fn deliver(&mut self, conn: usize, half: Half, segment: Segment) -> Result<(), String> {
        ensure!(segment.conn == conn, "bytes of connection {} delivered to {conn} at {half:?}", segment.conn);
        ensure!(segment.from != half, "bytes came back to their sender: {segment:?}");
        ensure!(
            segment.first == self.received,
            "connection {conn} at {half:?}: byte {} arrived when {} was expected",
            segment.first,
            self.received
        );
        ensure!(!self.closed_itself, "connection {conn} at {half:?}: bytes for somebody who has left");
        self.received += segment.len;
        self.queue.push_back(segment);
        Ok(())
    }

    /// Takes what is first in its queue: how many bytes.
    pub(crate) fn take(&mut self) -> usize {
        let Some(segment) = self.queue.pop_front() else { return 0 };
        self.taken += segment.len;
        usize::from(segment.len)
    }
}
