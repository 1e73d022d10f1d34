//! Dials an endpoint within 5 s: parse, resolve, check, connect.
//!
//! Follows Go's `net.DialTimeout`: the addresses of the first address's family are tried in turn, each with a share of the
//! remaining time; the addresses of the other family start 300 ms later, or at once when all of the first family have failed.
//! Dropping the future cancels the dial. Never reads or writes a byte.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use net::host_port::HostPort;
use net::listen::{NOTSENT_LOWAT, Priority};
use rand::seq::SliceRandom;
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::address::{Host, Network, Target, this_machine};
use super::error::{DialError, Failure, LookupCause, LookupError};
use super::order;
use super::policy::DestinationPolicy;
use super::resolve::Resolve;

/// Time limit of a whole dial, including its lookup (Go's agent: 5 s). Servers wait longer.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Smallest share of the time for one of several addresses, if that much is left (Go: 2 s).
const MIN_ADDRESS_TIMEOUT: Duration = Duration::from_secs(2);

/// The head start of the preferred address family (Go: 300 ms, RFC 6555).
const HEAD_START: Duration = Duration::from_millis(300);

/// Idle time and interval of TCP keepalive towards endpoints (Go's default), and the number of probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 9;

/// A dialed endpoint.
#[derive(Debug)]
pub struct Endpoint {
    /// The connected socket, with its options set.
    pub stream: TcpStream,
    /// The endpoint's address, for the log.
    pub peer: SocketAddr,
}

/// Dials endpoints.
#[derive(Debug)]
pub struct Dialer<R> {
    resolver: Arc<R>,
    policy: DestinationPolicy,
    timeout: Duration,
    /// Whether it dials endpoints: their sockets leave the last descriptors to streams and probes, and have a limit of unsent bytes.
    /// Otherwise a name's addresses of equal preference are tried in random order.
    is_to_endpoints: bool,
}

/// An address to try, with its text in Go's form.
#[derive(Debug, Clone)]
struct Candidate {
    address: SocketAddr,
    text: String,
}

impl<R: Resolve> Dialer<R> {
    /// A dialer that resolves by `resolver`, checks `policy`, and takes at most [`DIAL_TIMEOUT`].
    pub fn new(resolver: Arc<R>, policy: DestinationPolicy) -> Self {
        Self { resolver, policy, timeout: DIAL_TIMEOUT, is_to_endpoints: true }
    }

    /// A dialer to servers, which are no endpoints: without a policy, within `timeout`. The caller limits the unsent bytes. A
    /// name's addresses of equal preference are tried in random order: each may be another server, and sources such as a hosts
    /// file always list them in the same order.
    pub fn to_servers(resolver: Arc<R>, timeout: Duration) -> Self {
        Self { resolver, policy: DestinationPolicy::unrestricted(), timeout, is_to_endpoints: false }
    }

    /// Dials the protocol and `host:port` of a DIAL_REQ.
    pub async fn dial(&self, protocol: &str, address: &str) -> Result<Endpoint, DialError> {
        self.dial_timed(protocol, address, &mut None).await
    }

    /// The same; `lookup` is set to the time that the lookup of a name took, once it has succeeded.
    pub async fn dial_timed(
        &self,
        protocol: &str,
        address: &str,
        lookup: &mut Option<Duration>,
    ) -> Result<Endpoint, DialError> {
        let began = Instant::now();
        let deadline = began + self.timeout;
        let network = Network::parse(protocol)?;
        let target = Target::parse(network, address)?;
        let is_name = matches!(target.host, Host::Name(_));
        // The lookup's sockets would use the reserve.
        if self.is_to_endpoints && is_name && !Priority::Connection.may_open() {
            let failure = Failure::Os { step: "socket", error: Errno::MFILE.into() };
            return Err(DialError::new(network, "", failure));
        }
        let candidates = self.candidates(network, &target, deadline).await?;
        *lookup = is_name.then(|| began.elapsed());
        let allowed = self.allowed(network, &target, candidates)?;
        Attempt { network, deadline, is_to_endpoints: self.is_to_endpoints }.race(allowed).await
    }

    /// The addresses of a name, in the order of a dial; none for an address literal. Without those that this machine has no
    /// route to, unless there are no others.
    ///
    /// # Errors
    /// If the lookup fails. The caller limits the time.
    pub async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, DialError> {
        let target = Target::parse(Network::Tcp, &HostPort(host, 0).to_string())?;
        if !matches!(target.host, Host::Name(_)) {
            return Ok(Vec::new());
        }
        let found = self.candidates(Network::Tcp, &target, Instant::now() + self.timeout).await?;
        let (routed, other): (Vec<IpAddr>, Vec<IpAddr>) =
            found.into_iter().map(|candidate| candidate.address.ip()).partition(|ip| order::has_route(*ip));
        Ok(if routed.is_empty() { other } else { routed })
    }

    /// The candidates that the policy allows; never empty.
    fn allowed(
        &self,
        network: Network,
        target: &Target,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, DialError> {
        let name = match &target.host {
            Host::Name(name) => Some(name.as_str()),
            Host::Empty | Host::Ip { .. } => None,
        };
        let mut denied = None;
        let mut allowed = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            match self.policy.check(name, candidate.address) {
                Ok(()) => allowed.push(candidate),
                Err(reason) => denied = denied.or(Some((candidate.text, reason))),
            }
        }
        match denied {
            Some((address, reason)) if allowed.is_empty() => {
                Err(DialError::new(network, &address, Failure::Denied(reason)))
            }
            _ => Ok(allowed),
        }
    }

    /// The addresses of a target; never empty.
    async fn candidates(
        &self,
        network: Network,
        target: &Target,
        deadline: Instant,
    ) -> Result<Vec<Candidate>, DialError> {
        let port = target.port;
        let unsuitable = |host: String| DialError::new(network, "", Failure::NoSuitableAddress(host));
        match &target.host {
            Host::Empty => {
                let ip: IpAddr = match network {
                    Network::Tcp6 => Ipv6Addr::LOCALHOST.into(),
                    Network::Tcp | Network::Tcp4 => Ipv4Addr::LOCALHOST.into(),
                };
                Ok(vec![Candidate { address: SocketAddr::new(ip, port), text: format!(":{port}") }])
            }
            Host::Ip { ip, .. } if !network.admits(*ip) => Err(unsuitable(ip.to_string())),
            Host::Ip { ip, zone } => Ok(vec![literal(*ip, zone.as_deref(), port)]),
            Host::Name(name) => {
                let found = timeout_at(deadline, self.resolver.lookup(name, network)).await;
                let found = found.unwrap_or_else(|_| {
                    Err(LookupError { host: name.clone(), cause: LookupCause::Unanswered(None) })
                });
                let found = found.map_err(|error| DialError::new(network, "", error))?;
                let mut admitted: Vec<IpAddr> =
                    found.into_iter().map(|ip| ip.to_canonical()).filter(|ip| network.admits(*ip)).collect();
                if admitted.is_empty() {
                    return Err(unsuitable(name.clone()));
                }
                if !self.is_to_endpoints {
                    admitted.shuffle(&mut rand::rng());
                }
                order::by_preference(&mut admitted);
                Ok(admitted.into_iter().map(|ip| literal(ip, None, port)).collect())
            }
        }
    }
}

fn literal(ip: IpAddr, zone: Option<&str>, port: u16) -> Candidate {
    let text = match zone {
        Some(zone) => format!("[{ip}%{zone}]:{port}"),
        None => SocketAddr::new(ip, port).to_string(),
    };
    let address = match (this_machine(ip), zone) {
        (IpAddr::V6(ip), Some(zone)) => SocketAddrV6::new(ip, port, 0, zone_index(zone)).into(),
        (ip, _) => SocketAddr::new(ip, port),
    };
    Candidate { address, text }
}

/// The index of an interface; an unknown zone is 0, which the kernel refuses if a zone is needed.
pub(super) fn zone_index(zone: &str) -> u32 {
    let by_name = || {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        rustix::net::netdevice::name_to_index(&socket, zone).ok()
    };
    by_name().or_else(|| zone.parse().ok()).unwrap_or(0)
}

/// How the addresses of one target are tried.
struct Attempt {
    network: Network,
    deadline: Instant,
    /// See [`Dialer::is_to_endpoints`].
    is_to_endpoints: bool,
}

impl Attempt {
    /// Tries the first family's addresses, and concurrently the other family's after the head start.
    async fn race(&self, candidates: Vec<Candidate>) -> Result<Endpoint, DialError> {
        let prefers_v4 = candidates.first().is_some_and(|first| first.address.is_ipv4());
        let (first, second): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| candidate.address.is_ipv4() == prefers_v4);
        if second.is_empty() {
            return self.in_turn(&first).await;
        }
        let failed = Notify::new();
        let mut preferred = pin!(async { self.in_turn(&first).await.inspect_err(|_| failed.notify_one()) });
        let mut other = pin!(async {
            let _ = timeout(HEAD_START, failed.notified()).await;
            self.in_turn(&second).await
        });
        tokio::select! {
            result = &mut preferred => match result {
                // The preferred family's error is returned.
                Err(error) => other.await.map_err(|_| error),
                connected => connected,
            },
            result = &mut other => match result {
                Err(_) => preferred.await,
                connected => connected,
            },
        }
    }

    /// Tries one address after the other. If all fail, returns the first address's error, as Go does.
    async fn in_turn(&self, candidates: &[Candidate]) -> Result<Endpoint, DialError> {
        let mut first = None;
        for (index, candidate) in candidates.iter().enumerate() {
            let share =
                share(self.deadline.saturating_duration_since(Instant::now()), candidates.len() - index);
            let until = Instant::now() + share;
            let tried = timeout_at(until, self.connect(candidate))
                .await
                .unwrap_or_else(|_| Err(DialError::new(self.network, &candidate.text, Failure::Timeout)));
            match tried {
                Ok(stream) => return Ok(Endpoint { stream, peer: candidate.address }),
                Err(error) => first = first.or(Some(error)),
            }
            if Instant::now() >= self.deadline {
                break;
            }
        }
        Err(first.unwrap_or(DialError::new(self.network, "", Failure::Timeout)))
    }

    async fn connect(&self, candidate: &Candidate) -> Result<TcpStream, DialError> {
        let fail = |step, error| DialError::new(self.network, &candidate.text, Failure::Os { step, error });
        // A connect to a closed port of this machine can connect to itself; Go tries twice more.
        for _ in 0..3 {
            let socket = match candidate.address {
                SocketAddr::V4(_) => TcpSocket::new_v4(),
                SocketAddr::V6(_) => TcpSocket::new_v6(),
            };
            let socket = socket.map_err(|error| fail("socket", error))?;
            if self.is_to_endpoints && !Priority::Connection.may_keep(&socket) {
                return Err(fail("socket", Errno::MFILE.into()));
            }
            self.configure(&socket).map_err(|error| fail("setsockopt", error))?;
            let stream = socket.connect(candidate.address).await.map_err(|error| fail("connect", error))?;
            let local = stream.local_addr().ok();
            let same_port = local.is_some_and(|local| local.port() == candidate.address.port());
            if !(same_port && local == stream.peer_addr().ok()) {
                return Ok(stream);
            }
        }
        Err(fail("connect", Errno::CONNREFUSED.into()))
    }

    fn configure(&self, socket: &TcpSocket) -> io::Result<()> {
        socket.set_nodelay(true)?;
        let socket = SockRef::from(socket);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES))?;
        if self.is_to_endpoints { socket.set_tcp_notsent_lowat(NOTSENT_LOWAT) } else { Ok(()) }
    }
}

/// Go's partial deadline: an equal share of the time left, at least 2 s if that much is left.
fn share(left: Duration, addresses: usize) -> Duration {
    let equal = left / u32::try_from(addresses.max(1)).unwrap_or(u32::MAX);
    equal.max(MIN_ADDRESS_TIMEOUT).min(left)
}

#[cfg(test)]
#[path = "dial_tests.rs"]
mod tests;
