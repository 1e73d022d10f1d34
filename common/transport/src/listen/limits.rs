//! The limits of listeners, each with its reason.

use std::time::Duration;

/// The first pause after a failed accept: long enough to cost next to nothing, short enough to be unnoticed if a
/// descriptor was freed at once.
pub const ACCEPT_BACKOFF_FIRST: Duration = Duration::from_millis(5);

/// The longest pause between accepts. A listener resumes within this time after descriptors are available.
pub const ACCEPT_BACKOFF_MOST: Duration = Duration::from_secs(1);

/// The longest time from accept to the end of the TLS handshake. At an RTT of 300 ms a handshake takes about one
/// second.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// The connections that the kernel queues until they are accepted (it caps this at `net.core.somaxconn`, the value that
/// Go uses).
pub const BACKLOG: i32 = 4096;

/// The mode of the frontend's Unix socket: the owner and its group only (umask 0007 in Go).
pub const UNIX_MODE: u32 = 0o770;

/// How often the socket file is checked. A deleted file is bound again within this time.
pub const UNIX_WATCH: Duration = Duration::from_secs(3);
