//! What bounds listeners, each with its reason.

use std::time::Duration;

/// First pause after a failed accept: long enough to cost next to nothing, short enough that nobody
/// notices when a descriptor was freed at once.
pub const ACCEPT_BACKOFF_FIRST: Duration = Duration::from_millis(5);

/// Longest pause between accepts. A listener works again within this time after descriptors are back.
pub const ACCEPT_BACKOFF_MOST: Duration = Duration::from_secs(1);

/// Longest time from accept to the end of the TLS handshake. A link with an RTT of 300 ms needs about one second.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Connections that the kernel keeps until they are accepted (it caps this at `net.core.somaxconn`,
/// which is what Go asks for).
pub const BACKLOG: i32 = 4096;

/// Permissions of the frontend's Unix socket: the owner and its group, nobody else (umask 0007 in Go).
pub const UNIX_MODE: u32 = 0o770;

/// How often the socket file is looked at. A deleted one is bound again within this time.
pub const UNIX_WATCH: Duration = Duration::from_secs(3);
