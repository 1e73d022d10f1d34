//! Resolves names to addresses: first by the hosts file, then by the servers of resolv.conf.
//!
//! Search domains and `ndots` apply as in the system's resolver. Nothing is cached, as in Go: a name that moves is found at the
//! next lookup. The two files are read again when they have changed, also in a pod. Never blocks a thread on the network:
//! tokio's own lookup runs on a blocking pool, which silent servers would fill.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::{DnsUdpSocket, RuntimeProvider, TokioRuntimeProvider, TokioTime};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, Resolver};
use parking_lot::Mutex;
use rand::seq::SliceRandom;
use resolv_conf::ScopedIp;
use rustix::io::Errno;
use serve::logs::Peer;
use serve::metrics::CountBy;
use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

use super::address::Network;
use super::dial::zone_index;
use super::error::{LookupCause, LookupError};

/// The limits of a question's time-out. A dial has 5 s: an unanswered question for AAAA must end before, because the answer
/// to the one for A waits for it.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// Shortest interval between checks of the files' modification times (Go: 5 s for both).
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Number of servers that are used, as in the system's resolver.
const MAX_SERVERS: usize = 3;

/// Most rounds of questions to the servers, as in the system's resolver (`attempts:` of resolv.conf).
const MAX_ATTEMPTS: usize = 5;

/// Wait for an answer before the next question is asked; the earlier ones stay open. The 5 s default of resolv.conf is a whole
/// dial: one silent server would use it up.
const NEXT_QUESTION_DELAY: Duration = Duration::from_millis(1500);

/// Resolves host names. A trait, so that tests can use a fake.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of `host` that `network` admits, in order of preference, never empty. The caller handles address literals.
    /// The lookup has no deadline of its own: the caller drops it.
    fn lookup(
        &self,
        host: &str,
        network: Network,
    ) -> impl Future<Output = Result<Vec<IpAddr>, LookupError>> + Send;
}

serve::label! {
    /// The result of a lookup: [`FOUND`], or that of [`LookupCause::label`].
    pub struct LookupResult in "result"
}

/// The result of a lookup of a name that has an address.
const FOUND: &str = "found";

/// Counts a lookup when it is dropped: the caller drops one that takes too long.
struct Outcome<'a> {
    results: &'a CountBy<LookupResult>,
    result: &'static str,
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        self.results.count(LookupResult(self.result));
    }
}

/// Resolves by the system's configuration, with the hickory library. Counts each lookup once.
pub struct SystemResolver {
    results: CountBy<LookupResult>,
    state: Mutex<State>,
}

struct State {
    current: Arc<Configured>,
    resolv_conf: ReadFile,
    hosts: ReadFile,
    checked: Instant,
}

/// A file as it could be read last.
struct ReadFile {
    path: PathBuf,
    text: Vec<u8>,
    /// The modification time and the length at that reading.
    stamp: Option<(SystemTime, u64)>,
    /// The last reading failed.
    unreadable: bool,
}

/// The contents of the two files.
struct Configured {
    /// All servers in the file's order, once for each attempt; never empty.
    questions: Vec<Question>,
    search: Vec<Name>,
    ndots: usize,
    hosts: Hosts,
}

/// One question to one server, with a resolver of its own: the library's time-out covers all servers of a resolver, and equal
/// questions to one resolver become one.
struct Question {
    server: SocketAddr,
    resolver: Resolver<ToServer>,
}

/// tokio's runtime for one server.
#[derive(Clone)]
struct ToServer {
    tokio: TokioRuntimeProvider,
    /// The library's address lacks the IPv6 zone.
    server: SocketAddr,
}

impl RuntimeProvider for ToServer {
    type Handle = <TokioRuntimeProvider as RuntimeProvider>::Handle;
    type Timer = TokioTime;
    type Udp = Connected;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.tokio.create_handle()
    }

    fn connect_tcp(
        &self,
        _server: SocketAddr,
        local: Option<SocketAddr>,
        limit: Option<Duration>,
    ) -> Later<'static, Self::Tcp> {
        let connecting = self.tokio.connect_tcp(self.server, local, limit);
        Box::pin(async {
            let stream = connecting.await?;
            // The library keeps a connection to a server that has vanished, because lookups end before its time-out.
            SockRef::from(&stream.0).set_tcp_user_timeout(Some(MAX_ANSWER_TIMEOUT))?;
            Ok(stream)
        })
    }

    fn bind_udp(&self, local: SocketAddr, _server: SocketAddr) -> Later<'static, Connected> {
        let server = self.server;
        Box::pin(async move {
            let socket = UdpSocket::bind(local).await?;
            socket.connect(server).await?;
            Ok(Connected(socket))
        })
    }
}

type Later<'a, T> = Pin<Box<dyn Send + Future<Output = io::Result<T>> + 'a>>;

/// A connected UDP socket. An unconnected one gets no error if the server refuses (ICMP port unreachable): it would seem silent.
struct Connected(UdpSocket);

impl DnsUdpSocket for Connected {
    type Time = TokioTime;

    fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        DnsUdpSocket::poll_recv_from(&self.0, cx, buffer)
    }

    /// The library calls only this. The default calls `poll_recv_from`, which an error of the socket does not wake.
    fn recv_from<'a, 'b, 'c>(&'a self, buffer: &'b mut [u8]) -> Later<'c, (usize, SocketAddr)>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async {
            let received = self.0.recv_from(buffer).await?;
            fail_lame_referral(&mut buffer[..received.0]);
            Ok(received)
        })
    }

    /// On Linux a connected socket may send to its peer's address.
    fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        server: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.0.poll_send_to(cx, bytes, server)
    }
}

/// Turns the answer of a server that neither knows the name nor asks others into its failure (SERVFAIL), so that the next server
/// is asked. The library would take it for "no address", and hides the flags. The rule is that of Go and glibc: no error, no
/// answer, no additional record, and none of the flags AA, TC and RA.
fn fail_lame_referral(datagram: &mut [u8]) {
    if let [_, _, flags, code, _, _, 0, 0, _, _, 0, 0, ..] = datagram
        && (*flags & 0x06, *code & 0x8f) == (0, 0)
    {
        *code |= 2;
    }
}

impl SystemResolver {
    /// The system's resolver.
    pub fn new(results: CountBy<LookupResult>) -> Self {
        Self::with_files("/etc/resolv.conf", "/etc/hosts", results)
    }

    /// Reads the two files; either may be missing, now or later.
    pub(crate) fn with_files(
        resolv_conf: impl Into<PathBuf>,
        hosts: impl Into<PathBuf>,
        results: CountBy<LookupResult>,
    ) -> Self {
        let (mut resolv_conf, mut hosts) = (ReadFile::new(resolv_conf.into()), ReadFile::new(hosts.into()));
        resolv_conf.read();
        hosts.read();
        let current = Arc::new(Configured::read(&resolv_conf.text, &hosts.text));
        Self { results, state: Mutex::new(State { current, resolv_conf, hosts, checked: Instant::now() }) }
    }

    /// The configuration, read again if a file has changed; checks at most once in [`FILE_CHECK_INTERVAL`].
    fn configured(&self) -> Arc<Configured> {
        let mut state = self.state.lock();
        if state.checked.elapsed() >= FILE_CHECK_INTERVAL {
            state.checked = Instant::now();
            if state.resolv_conf.read() | state.hosts.read() {
                state.current = Arc::new(Configured::read(&state.resolv_conf.text, &state.hosts.text));
                tracing::info!("name resolution configuration changed and was read again");
            }
        }
        state.current.clone()
    }
}

impl ReadFile {
    fn new(path: PathBuf) -> Self {
        Self { path, text: Vec::new(), stamp: None, unreadable: false }
    }

    /// Reads the file if it has changed; returns whether it did. A file that is missing or not for this user is an empty one, as in
    /// Go. After another error the text stays, and the next check reads again.
    fn read(&mut self) -> bool {
        let stamp = std::fs::metadata(&self.path).and_then(|data| Ok((data.modified()?, data.len()))).ok();
        if stamp == self.stamp {
            return false;
        }
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                Vec::new()
            }
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    tracing::warn!(err = %error, file = %self.path.display(), "cannot read file, keeping its previous contents");
                }
                return false;
            }
        };
        (self.text, self.stamp, self.unreadable) = (text, stamp, false);
        true
    }
}

impl Resolve for SystemResolver {
    async fn lookup(&self, host: &str, network: Network) -> Result<Vec<IpAddr>, LookupError> {
        let unanswered = LookupCause::Unanswered(None);
        let mut outcome = Outcome { results: &self.results, result: unanswered.label() };
        let found = self.configured().lookup(host, network).await;
        outcome.result = found.as_ref().map_or_else(|error| error.cause.label(), |_| FOUND);
        found
    }
}

impl Configured {
    fn read(resolv_conf: &[u8], hosts: &[u8]) -> Self {
        let (conf, errors) = resolv_conf::Config::parse_with_errors(resolv_conf);
        for error in errors {
            tracing::warn!(err = %error, "ignored an invalid line of resolv.conf (the first line has number 0)");
        }
        let mut known = Hosts::default();
        let _ = known.read_hosts_conf(String::from_utf8_lossy(hosts).as_bytes());
        Self::new(&conf, &servers(&conf), known)
    }

    fn new(conf: &resolv_conf::Config, servers: &[SocketAddr], hosts: Hosts) -> Self {
        let attempts = usize::try_from(conf.attempts).unwrap_or(MAX_ATTEMPTS).clamp(1, MAX_ATTEMPTS);
        let rounds = (0..attempts).flat_map(|round| servers.iter().map(move |server| (round, *server)));
        let questions = rounds.map(|(round, server)| Question::new(conf, server, round));
        let ndots = usize::try_from(conf.ndots).unwrap_or(usize::MAX);
        Self { questions: questions.collect(), search: search(conf), ndots, hosts }
    }

    /// The absolute names to ask for, in Go's order: a name with fewer than `ndots` dots comes after the search list.
    fn names(&self, mut name: Name) -> Vec<Name> {
        if name.is_fqdn() {
            return vec![name];
        }
        let appended = self.search.iter().filter_map(|domain| name.clone().append_domain(domain).ok());
        let mut names: Vec<Name> = appended.collect();
        let at = if usize::from(name.num_labels()) > self.ndots { 0 } else { names.len() };
        name.set_fqdn(true);
        names.insert(at, name);
        names
    }

    async fn lookup(&self, host: &str, network: Network) -> Result<Vec<IpAddr>, LookupError> {
        let known = known(&self.hosts, host);
        if !known.is_empty() {
            return Ok(known);
        }
        let unknown = LookupError { host: host.to_owned(), cause: LookupCause::NoSuchHost(None) };
        if !is_domain_name(host) {
            return Err(unknown);
        }
        if host.strip_suffix('.').unwrap_or(host).eq_ignore_ascii_case("localhost") {
            // RFC 6761: localhost is not sent to a server, and a search list would cause several queries.
            let both: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return Ok(both.into_iter().filter(|ip| network.admits(*ip)).collect());
        }
        let Ok(name) = Name::from_ascii(host) else { return Err(unknown) };
        let names = self.names(name);
        // "No such name" is an answer; the next question is asked only if there is no answer.
        let mut outcome = Err(unknown.cause);
        let (mut unasked, mut open) = (self.questions.iter(), FuturesUnordered::new());
        loop {
            if let Some(question) = unasked.next() {
                open.push(question.ask(&names, network));
            }
            let ended = match unasked.as_slice() {
                [] => open.next().await,
                _ => match timeout(NEXT_QUESTION_DELAY, open.next()).await {
                    Ok(ended) => ended,
                    Err(_) => continue,
                },
            };
            match ended {
                Some(answer @ (Ok(_) | Err(LookupCause::NoSuchHost(_)))) => {
                    outcome = answer;
                    break;
                }
                Some(failed) => outcome = failed,
                None => break,
            }
        }
        outcome.map_err(|cause| LookupError { host: host.to_owned(), cause })
    }
}

impl Question {
    fn new(conf: &resolv_conf::Config, server: SocketAddr, round: usize) -> Self {
        let mut options = ResolverOpts::default();
        options.timeout =
            Duration::from_secs(conf.timeout.into()).clamp(MIN_ANSWER_TIMEOUT, MAX_ANSWER_TIMEOUT);
        options.attempts = 0;
        // A server that refuses EDNS0 is asked without it in the next round.
        options.edns0 = round == 0;
        options.os_port_selection = true;
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = 0;
        let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
        connections.drain(..usize::from(conf.use_vc));
        connections.iter_mut().for_each(|connection| connection.port = server.port());
        let config = NameServerConfig::new(server.ip(), true, connections);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![config]);
        let tokio = TokioRuntimeProvider::default();
        let resolver = Resolver::builder_with_config(config, ToServer { tokio, server })
            .with_options(options)
            .build()
            .expect("only TLS and trust anchors can fail to build, and neither is configured");
        Self { server, resolver }
    }

    /// The addresses of the first of these names that has any. "No such host" means that the server has said so of each name.
    async fn ask(&self, names: &[Name], network: Network) -> Result<Vec<IpAddr>, LookupCause> {
        let mut failed = None;
        for name in names {
            let answers = tokio::join!(
                self.resolver.lookup(name.clone(), RecordType::A),
                self.resolver.lookup(name.clone(), RecordType::AAAA)
            );
            let mut found = Vec::new();
            for answer in <[_; 2]>::from(answers) {
                match answer {
                    Ok(answer) => {
                        found.extend(answer.answers().iter().filter_map(|record| record.data.ip_addr()));
                    }
                    Err(NetError::Dns(DnsError::NoRecordsFound(_))) => {}
                    Err(error) => failed = failed.or_else(|| Some(cause(self.server, &error))),
                }
            }
            found.retain(|ip| network.admits(*ip));
            if !found.is_empty() {
                // Not every server rotates its answers; the shuffle spreads the dials over the addresses.
                found.shuffle(&mut rand::rng());
                return Ok(found);
            }
        }
        Err(failed.unwrap_or(LookupCause::NoSuchHost(Some(self.server))))
    }
}

fn cause(server: SocketAddr, error: &NetError) -> LookupCause {
    let refused = LookupCause::Io(server, Errno::CONNREFUSED.raw_os_error());
    match error {
        NetError::Timeout => LookupCause::Unanswered(Some(server)),
        NetError::Io(error) => match error.raw_os_error() {
            Some(errno) => LookupCause::Io(server, errno),
            None if error.kind() == io::ErrorKind::TimedOut => LookupCause::Unanswered(Some(server)),
            None => refused,
        },
        NetError::NoConnections => refused,
        _ => LookupCause::Misbehaving(server),
    }
}

/// The servers in the file's order. Without a file, or without a server in it, queries go to this machine, as in Go.
fn servers(conf: &resolv_conf::Config) -> Vec<SocketAddr> {
    let address = |server| match server {
        ScopedIp::V4(ip) => SocketAddr::new(ip.into(), 53),
        ScopedIp::V6(ip, zone) => {
            SocketAddrV6::new(ip, 53, 0, zone.map_or(0, |zone| zone_index(&zone))).into()
        }
    };
    conf.get_nameservers_or_local().into_iter().take(MAX_SERVERS).map(address).collect()
}

/// The search list. The machine's own domain counts only without one, as in the system's resolver.
fn search(conf: &resolv_conf::Config) -> Vec<Name> {
    let mut search = Vec::new();
    // Some tools write `--` for no domain.
    for domain in conf.get_last_search_or_domain().filter(|domain| *domain != "--") {
        match Name::from_str_relaxed(domain) {
            Ok(name) => search.push(name),
            Err(_) => {
                tracing::warn!(domain = %Peer(domain), "a search domain of resolv.conf cannot be used");
            }
        }
    }
    if search.is_empty() {
        search.extend(conf.get_system_domain().and_then(|domain| domain.parse().ok()));
    }
    search
}

/// The addresses of a name in the hosts file. The library would apply search domains first, and ask its servers for
/// `name.search.domain`; Go looks up the requested name before. Only plain names: the library takes other spellings for the same
/// name, which the destination policy does not.
fn known(hosts: &Hosts, host: &str) -> Vec<IpAddr> {
    if host.len() > 254 || !host.is_ascii() || host.contains('\\') {
        return Vec::new();
    }
    let Ok(name) = host.parse::<Name>() else { return Vec::new() };
    let mut known = Vec::new();
    for kind in [RecordType::A, RecordType::AAAA] {
        let found = hosts.lookup_static_host(&Query::query(name.clone(), kind));
        for ip in found.iter().flat_map(Lookup::answers).filter_map(|record| record.data.ip_addr()) {
            let ip = ip.to_canonical();
            if !known.contains(&ip) {
                known.push(ip);
            }
        }
    }
    known
}

/// Whether a text can be a name; other texts are never sent to a server. The rules are Go's: labels of letters, digits, `-` and
/// `_`, at most 63 bytes each and 253 in total, no `-` at either end of a label, and not only digits. (The hosts file may have
/// others, such as `1234`.)
fn is_domain_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.len() <= 253
        && name.split('.').all(label)
        && name.bytes().any(|b| b.is_ascii_alphabetic() || b == b'_' || b == b'-')
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
