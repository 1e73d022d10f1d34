//! Whether the peer's kernel still answers on a TCP connection, as seen by the local kernel.
//!
//! The kernel still acknowledges for a stopped or starved program; a host that has gone, or a broken path, acknowledges
//! nothing. No socket option distinguishes the two: TCP_USER_TIMEOUT also ends a connection whose peer has kept its
//! window closed for that time, although the peer's kernel answers every window probe (`tcp_probe_timer` in Linux;
//! measured with 6.18: after 30.5 s with a time-out of 30 s, never without). Without that option the kernel gives up a
//! host that vanished with unacknowledged bytes only after some 15 minutes. So the option stays off, and
//! [`TcpPeer::acknowledgment`] asks the kernel for the connection's `tcp_info` (sock_diag(7): needs no privilege and no
//! descriptor of the connection, takes some 20 µs). [`HostSilence`] evaluates the answers.
//!
//! If the kernel has no sock_diag (in some sandboxes), TCP_USER_TIMEOUT is used: see [`bound_silence`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with, sockopt,
};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How long a host may acknowledge none of the bytes sent to it.
pub const HOST_TIMEOUT: Duration = Duration::from_secs(30);

/// An outage of this length ends no connection. TCP doubles the time between retransmissions, so only the answer to a
/// retransmission counts that is sent at least this long after the silence began.
const TOLERATED_OUTAGE: Duration = Duration::from_secs(20);

/// The answer to the last retransmission may take this long.
const MAX_RTT: Duration = Duration::from_secs(1);

/// Unanswered probes of a closed window. They are up to two minutes apart, and a single one may be lost.
const WINDOW_PROBES: u8 = 2;

/// The acknowledgment state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgment {
    /// Retransmitted bytes or a probe have not been answered.
    pub outstanding: bool,
    /// Time since bytes were last sent or retransmitted.
    pub last_sent: Duration,
    /// Time since the peer's kernel last acknowledged anything.
    pub last_received: Duration,
    /// Unanswered probes, of a closed window or of an idle connection.
    pub probes: u8,
    /// The lowest RTT between the two kernels, however busy the programs are. A proxy between them ends it. `None` from a kernel
    /// that does not tell (before Linux 4.6, gVisor).
    pub min_rtt: Option<Duration>,
}

/// Since when the peer's kernel has been silent, over several samples.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostSilence(Option<Instant>);

impl HostSilence {
    /// Whether the last sample showed silence.
    pub fn is_silent(&self) -> bool {
        self.0.is_some()
    }

    /// Evaluates a sample. Returns true once the host must be given up: it has acknowledged nothing for
    /// [`HOST_TIMEOUT`], not even a retransmission late in that time.
    pub fn is_over(&mut self, now: Instant, seen: Acknowledgment) -> bool {
        if !seen.outstanding {
            self.0 = None;
            return false;
        }
        let since = *self.0.get_or_insert(now);
        let silent = now.duration_since(since);
        if seen.last_received < silent {
            self.0 = Some(now);
            return false;
        }
        let tried_late = match seen.probes {
            // Without a route, retransmissions fail on this machine and are not counted as sent, so none is ever late.
            0 if silent >= 2 * HOST_TIMEOUT => true,
            0 => seen.last_sent >= MAX_RTT && silent.saturating_sub(seen.last_sent) >= TOLERATED_OUTAGE,
            probes => probes >= WINDOW_PROBES,
        };
        silent >= HOST_TIMEOUT && tried_late
    }
}

/// Identifies a TCP connection to the kernel. Holds no descriptor.
#[derive(Debug, Clone)]
pub struct TcpPeer {
    request: [u8; REQUEST],
}

const NETLINK_HEADER: usize = 16;
/// struct inet_diag_req_v2.
const REQUEST: usize = NETLINK_HEADER + 56;
/// struct inet_diag_msg; attributes follow it.
const ANSWER: usize = NETLINK_HEADER + 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
/// The attribute with struct tcp_info.
const INET_DIAG_INFO: u16 = 2;
const ESTABLISHED: u8 = 1;

impl TcpPeer {
    /// Identifies this connection.
    ///
    /// # Errors
    /// Those of getsockname(2) and getsockopt(2); the connection is most likely gone.
    pub fn of(stream: &TcpStream) -> io::Result<Self> {
        let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
        let cookie = sockopt::socket_cookie(stream)?;
        let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let family = u8::try_from(family.as_raw()).map_err(io::Error::other)?;
        let mut request = Vec::with_capacity(REQUEST);
        request.extend_from_slice(&(REQUEST as u32).to_ne_bytes());
        request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        // Sequence number and port are zero: the answer arrives on its own socket.
        request.extend_from_slice(&[0; 8]);
        request.extend_from_slice(&[family, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
        request.extend_from_slice(&u32::MAX.to_ne_bytes());
        request.extend_from_slice(&local.port().to_be_bytes());
        request.extend_from_slice(&peer.port().to_be_bytes());
        request.extend_from_slice(&octets(local));
        request.extend_from_slice(&octets(peer));
        // Any interface: addresses, ports and cookie identify the socket.
        request.extend_from_slice(&0_u32.to_ne_bytes());
        request.extend_from_slice(&cookie.to_ne_bytes());
        let request = request.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(TcpPeer { request })
    }

    /// Returns the kernel's current state of the connection.
    ///
    /// # Errors
    /// If the connection is not established any more, or the kernel has no sock_diag.
    pub fn acknowledgment(&self) -> io::Result<Acknowledgment> {
        let kernel = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(netlink::SOCK_DIAG),
        )?;
        send(&kernel, &self.request, SendFlags::empty())?;
        // The kernel answers within the call above.
        let mut answer = [0; 4096];
        let (length, _) = recv(&kernel, &mut answer, RecvFlags::empty())?;
        read(answer.get(..length).unwrap_or_default()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Limits how long the peer's kernel may leave sent bytes unacknowledged: the caller samples the returned [`TcpPeer`],
/// or, if that is impossible (`None`), TCP_USER_TIMEOUT applies, which also ends connections with a closed window.
///
/// # Errors
/// Those of setsockopt(2); the connection is most likely gone.
pub fn bound_silence(stream: &TcpStream) -> io::Result<Option<TcpPeer>> {
    let error = match TcpPeer::of(stream).map(|peer| (peer.acknowledgment(), peer)) {
        Ok((Ok(_), peer)) => return Ok(Some(peer)),
        // A sample needs a descriptor; the next sample may get one.
        Ok((Err(error), peer)) if lacks_descriptors(&error) => return Ok(Some(peer)),
        Ok((Err(error), _)) | Err(error) => error,
    };
    tracing::debug!(%error, "no sock_diag, using TCP_USER_TIMEOUT");
    SockRef::from(stream).set_tcp_user_timeout(Some(HOST_TIMEOUT))?;
    Ok(None)
}

fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// An address as sixteen bytes, as sock_diag encodes it.
fn octets(address: SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96).to_be_bytes(),
    }
}

/// Reads the `tcp_info` of an answer. `None` without one, or for a connection that is closing.
fn read(answer: &[u8]) -> Option<Acknowledgment> {
    if u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?) != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut rest = answer.get(ANSWER..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        let value = rest.get(4..length)?;
        if kind == INET_DIAG_INFO {
            return tcp_info(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

/// Fields of struct tcp_info (linux/tcp.h). Older kernels end it earlier.
fn tcp_info(info: &[u8]) -> Option<Acknowledgment> {
    let [state, _congestion, retransmits, probes, ..] = *info else { return None };
    if state != ESTABLISHED {
        return None;
    }
    // After eight single bytes: the 32-bit fields by their number.
    let word = |number: usize| -> Option<u32> {
        let at = 8 + 4 * number;
        Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?))
    };
    let milliseconds = |number| Some(Duration::from_millis(word(number)?.into()));
    let (unacked, last_sent, last_received) = (word(4)?, milliseconds(9)?, milliseconds(12)?);
    // A retransmission that the peer's kernel answered without accepting the bytes, because its buffer is full, is not
    // silence.
    let resent = unacked > 0 && retransmits > 0 && last_sent < last_received;
    let outstanding = resent || probes > 0;
    // `tcpi_min_rtt`; all bits are set before the first sample.
    let min_rtt = word(35)
        .filter(|micros| !matches!(*micros, 0 | u32::MAX))
        .map(|micros| Duration::from_micros(micros.into()));
    Some(Acknowledgment { outstanding, last_sent, last_received, probes, min_rtt })
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
