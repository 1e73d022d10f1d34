//! The interface between the tunnel and HTTP/2: one bidirectional gRPC stream of packets.
//!
//! The layers above use only [`Wire`]; this crate contains everything below it: HTTP/2, gRPC framing, protobuf.

mod admission;
pub mod authority;
mod backlog;
mod buffered;
pub mod capabilities;
mod client;
mod deframe;
mod frame;
pub mod joined;
mod keepalive;
mod lingering;
pub mod live_streams;
mod packet;
mod pinger;
#[cfg(test)]
mod raw;
mod request;
mod server;
mod settings;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod turns;

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use mux::Packet;

pub use admission::Unadmitted;
pub use client::{Connected, ConnectionHandle, connect};
pub use deframe::MESSAGE_LIMIT;
pub use frame::OutFrame;
pub use keepalive::{Keepalive, KeepaliveFlags, KeepaliveHandle, PeerKernel, UNRESPONSIVE_AFTER};
pub use packet::decode;
pub use request::{Request, single};
pub use server::{ConnectionError, serve_connection};
pub use settings::ServerSettings;
pub use stream::WireStream;
pub use turns::BusyTurns;

/// An incoming message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// A packet of a known type with its own payload.
    Packet(Packet<Bytes>),
    /// A packet of an unknown type. The receiver ignores it.
    Unknown(i32),
    /// A known type without its payload or with another's, an empty DATA, or bytes that are not a packet. The receiver
    /// counts and drops it. The text describes the fault.
    Malformed(&'static str),
}

/// One gRPC stream of packets, in both directions.
///
/// `poll_*` register the waker of the one task that owns the stream.
pub trait Wire {
    /// How many bytes of payload may be sent now without queueing (at least 1). Pending while the peer grants none;
    /// stays pending once the peer has finished in order, see [`Wire::poll_over`]. Control packets are small and may be
    /// sent at any time.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, WireError>>;

    /// Sends one packet. Never blocks; bytes beyond the peer's window are queued.
    fn send(&mut self, packet: Packet<Bytes>) -> Result<(), WireError>;

    /// The next packet; `None` after an orderly end of the peer's direction.
    ///
    /// While the caller does not poll, the peer gets no stream credit; the caller polls [`Wire::poll_hold`] instead.
    fn poll_packet(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Incoming, WireError>>>;

    /// Ready once the stream has failed, or the peer accepts nothing more. All packets that [`Wire::poll_packet`] still
    /// returns, and its end, have then arrived.
    fn poll_over(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Reads the arrived packets into a compact buffer without returning them: HTTP/2 keeps more than 200 bytes for each
    /// unread frame. Their window is not returned to the peer, which limits the buffer. For a caller that accepts no packets.
    fn poll_hold(&mut self, _cx: &mut Context<'_>) {}

    /// While on, consumed packets do not return their window to the peer. So everything that the peer may send before a
    /// close can be read ahead, within the memory that its window granted. Off returns the withheld window.
    fn hold_back(&mut self, _on: bool) {}

    /// Bytes that were read and not returned yet, those of an unfinished message included, or whose window is withheld. Takes
    /// no lock.
    fn held(&self) -> usize {
        0
    }

    /// Ends the stream if an unfinished message is longer than this. At first the limit is [`MESSAGE_LIMIT`].
    fn limit_messages(&mut self, _bytes: usize) {}

    /// The RTT to the peer without load, once it is measured.
    fn rtt(&self) -> Option<Duration> {
        None
    }

    /// Ends the stream because of the peer's fault: a server sends the error as status, a client resets the stream.
    fn fail(&mut self, _error: &WireError) {
        self.finish();
    }

    /// Ends our direction after everything sent: a server's status OK, a client's half-close.
    fn finish(&mut self);
}

/// Why a stream ended unexpectedly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct WireError {
    /// The gRPC status code (metrics use Go's names).
    pub code: Code,
    /// One line, without control characters.
    pub message: String,
}

/// Defines [`Code`] from the names and numbers.
macro_rules! codes {
    ($($name:ident = $number:literal),+ $(,)?) => {
        /// The gRPC status codes, with Go's names: <https://grpc.io/docs/guides/status-codes/>.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "the names are gRPC's own")]
        pub enum Code {
            $($name = $number),+
        }

        impl Code {
            /// All codes, in the order of their numbers.
            pub const ALL: &[Code] = &[$(Code::$name),+];

            /// Go's name of the code, the value of the label `code`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Code::$name => stringify!($name)),+
                }
            }

            /// The code with this number on the wire.
            pub fn from_number(number: u32) -> Option<Code> {
                Code::ALL.get(usize::try_from(number).ok()?).copied()
            }
        }
    };
}

codes! {
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
