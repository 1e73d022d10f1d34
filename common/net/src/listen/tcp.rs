//! TCP listeners, and the options of accepted and dialed TCP connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use super::BindError;
use crate::host_port::{HostPort, unbracketed};

/// The connections that the kernel queues until they are accepted (it caps this at `net.core.somaxconn`, the value that
/// Go uses).
pub(super) const BACKLOG: i32 = 4096;

/// TCP keepalive probes of an idle peer: a peer that vanished is noticed after 30 s, even if HTTP/2 pings are rare because Go
/// servers close connections that ping more often.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(10))
    .with_interval(Duration::from_secs(5))
    .with_retries(4);

/// Binds a TCP listener. As in Go an empty host, `0.0.0.0` and `::` mean all addresses of both families; IPv4 only if
/// this machine has no IPv6. A name is resolved; IPv4 is preferred.
///
/// Must be called within a runtime.
///
/// # Errors
/// If the host is unknown, or the address cannot be bound.
pub fn bind_tcp(host: &str, port: u16) -> Result<TcpListener, BindError> {
    bind(host, port, &|_| Ok(()))
}

/// Binds a TCP listener for agents: limits the segment size of its connections from the start.
///
/// # Errors
/// If the host is unknown, or the address cannot be bound.
pub fn bind_links(host: &str, port: u16) -> Result<TcpListener, BindError> {
    bind(host, port, &|socket| socket.set_tcp_mss(MAX_SEGMENT_BYTES))
}

/// Socket options that are set before a client can connect.
type Prepare<'a> = &'a dyn Fn(&Socket) -> io::Result<()>;

fn bind(host: &str, port: u16, prepare: Prepare<'_>) -> Result<TcpListener, BindError> {
    let (bare, shown) = (unbracketed(host), HostPort(host, port).to_string());
    let bound = if bare.is_empty() || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
        every_address(port, prepare)
    } else {
        let unknown = format_args!("{host:?} is neither an IP address nor a known name");
        let address = resolve(bare, port).ok_or_else(|| BindError::new(&shown, unknown))?;
        listener(address, false, prepare)
    };
    bound.and_then(TcpListener::from_std).map_err(|error| BindError::new(shown, error))
}

fn every_address(port: u16, prepare: Prepare<'_>) -> io::Result<StdListener> {
    match listener((Ipv6Addr::UNSPECIFIED, port).into(), true, prepare) {
        Err(error) if lacks_ipv6(&error) => listener((Ipv4Addr::UNSPECIFIED, port).into(), false, prepare),
        bound => bound,
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT)
    )
}

fn listener(address: SocketAddr, dual_stack: bool, prepare: Prepare<'_>) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!dual_stack)?;
    }
    // A restart must not wait for connections of the previous process (TIME_WAIT).
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    prepare(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn resolve(host: &str, port: u16) -> Option<SocketAddr> {
    let found: Vec<_> = (host, port).to_socket_addrs().ok()?.collect();
    found.iter().find(|address| address.is_ipv4()).or(found.first()).copied()
}

/// Sets the options of all our TCP connections: no delay of small writes, keepalive probes, and with `user_timeout` a
/// limit on how long sent bytes may stay unacknowledged.
///
/// # Errors
/// Those of setsockopt(2); the connection is most likely gone.
pub fn tune(stream: &TcpStream, user_timeout: Option<Duration>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    user_timeout.map_or(Ok(()), |limit| socket.set_tcp_user_timeout(Some(limit)))
}

/// The limit of unsent bytes in the kernel towards an endpoint or a client. Without a limit one that stalls takes megabytes of
/// kernel memory, and TCP memory pressure then slows every connection.
pub const NOTSENT_LOWAT: u32 = 128 << 10;

/// The largest TCP segment of a tunnel's connections, in bytes. Only loopback has larger ones.
///
/// When the machine's TCP memory (`net.ipv4.tcp_mem`) runs short, because thousands of stalled connections hold it, a
/// window shrinks to four segments. Four of loopback's 64 KiB, with the kernel's overhead, exceed the limit of one
/// socket, so every second segment is dropped and resent 200 ms later: all connections of an agent would crawl.
const MAX_SEGMENT_BYTES: u32 = 32_000;
