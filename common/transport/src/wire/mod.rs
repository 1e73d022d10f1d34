//! The seam between the tunnel and HTTP/2: one bidirectional gRPC stream, as packets.
//!
//! Everything above sees [`Wire`] alone; everything below (HTTP/2, gRPC framing, protobuf) is this folder's.

mod admission;
mod backlog;
mod buffered;
pub mod capabilities;
mod client;
mod deframe;
mod frame;
mod handover;
mod keepalive;
mod packet;
mod protobuf;
mod request;
mod server;
mod settings;
mod status;
mod stream;
mod tail;
#[cfg(test)]
mod tests;
mod unadmitted;

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tunnel::Packet;

pub use admission::Admission;
pub use buffered::Buffering;
pub use client::{Connected, ConnectionHandle, connect};
pub use deframe::MESSAGE_LIMIT;
pub use frame::OutFrame;
pub use keepalive::{Keepalive, PeerKernel, Pulse, UNRESPONSIVE_AFTER};
pub use packet::decode;
pub use request::Request;
pub use server::{ConnectionError, serve_connection, serve_connection_until};
pub use settings::{ClientSettings, Farewell, ServerSettings};
pub use stream::WireStream;
pub use unadmitted::Unadmitted;

/// What arrived on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// A packet of a known type with its own payload.
    Packet(Packet<Bytes>),
    /// A packet of a type that this side does not know: to be ignored.
    Unknown(i32),
    /// A known type without its own payload or with another's, an empty DATA, or bytes that are no packet at
    /// all: to be counted and dropped. The text names what is wrong.
    Malformed(&'static str),
}

/// One gRPC stream of packets, both ways.
///
/// `poll_*` register the waker of the task that owns the stream: one task at a time.
pub trait Wire {
    /// How many bytes of payload may be sent now without piling up (at least 1). Pending while the peer
    /// grants none, and for ever once it has finished in order: [`Wire::poll_over`] tells that. Control packets may be sent
    /// at any time, they are small.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, WireError>>;

    /// Sends one packet. Never blocks; what exceeds the peer's window waits inside.
    fn send(&mut self, packet: Packet<Bytes>) -> Result<(), WireError>;

    /// The next packet, `None` after an orderly end of the peer's direction.
    ///
    /// A caller that takes no more packets withholds the stream's window from the peer; it calls [`Wire::poll_hold`] instead.
    fn poll_packet(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Incoming, WireError>>>;

    /// Ready once the stream has failed, or its peer takes nothing more: all that [`Wire::poll_packet`] still hands out, its end
    /// included, has arrived already.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }

    /// Reads what has arrived without handing it out, and joins it: HTTP/2 keeps more than 200 bytes for each frame that nobody
    /// reads. The window is not given back to the peer, and bounds it. For a caller that takes no packets for now.
    fn poll_hold(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// While on, the window that whole packets took up is not given back to the peer: all that it may send before a
    /// close can then be read ahead, in the memory that its window granted. Off gives back what was held.
    fn hold_back(&mut self, on: bool) {
        let _ = on;
    }

    /// Bytes that have arrived and have not been handed out, or whose window is held back.
    fn held(&mut self) -> usize {
        0
    }

    /// The shortest round trip to the peer that was measured so far.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Ends the stream for the peer's fault, and says which: a server's status. A client's stream is reset.
    fn fail(&mut self, error: &WireError) {
        let _ = error;
        self.finish();
    }

    /// Ends our direction, behind everything sent: a server's status OK, a client's half-close.
    fn finish(&mut self);
}

/// Why a stream ended against expectation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct WireError {
    /// The gRPC status code (Go's names go into metrics).
    pub code: Code,
    /// One line, without control characters.
    pub message: String,
}

/// The gRPC status codes, with Go's names: <https://grpc.io/docs/guides/status-codes/>.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are gRPC's own")]
pub enum Code {
    OK = 0,
    Canceled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// Go's name of the code, the value of the label `code`.
    pub const fn name(self) -> &'static str {
        match self {
            Code::OK => "OK",
            Code::Canceled => "Canceled",
            Code::Unknown => "Unknown",
            Code::InvalidArgument => "InvalidArgument",
            Code::DeadlineExceeded => "DeadlineExceeded",
            Code::NotFound => "NotFound",
            Code::AlreadyExists => "AlreadyExists",
            Code::PermissionDenied => "PermissionDenied",
            Code::ResourceExhausted => "ResourceExhausted",
            Code::FailedPrecondition => "FailedPrecondition",
            Code::Aborted => "Aborted",
            Code::OutOfRange => "OutOfRange",
            Code::Unimplemented => "Unimplemented",
            Code::Internal => "Internal",
            Code::Unavailable => "Unavailable",
            Code::DataLoss => "DataLoss",
            Code::Unauthenticated => "Unauthenticated",
        }
    }
}
