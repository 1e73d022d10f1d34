use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serve::metrics::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::*;
use crate::captured_log::CapturedLog;
use crate::metrics::register;

const HOSTS: &str = "127.0.0.1 box\n::1 box\n10.1.1.1 1234\n";

fn hosts(text: &str) -> Hosts {
    let mut hosts = Hosts::default();
    hosts.read_hosts_conf(text.as_bytes()).unwrap();
    hosts
}

fn resolver(directory: &Path, resolv_conf: impl AsRef<[u8]>) -> SystemResolver {
    let (conf, hosts) = (directory.join("resolv.conf"), directory.join("hosts"));
    std::fs::write(&conf, resolv_conf).unwrap();
    std::fs::write(&hosts, HOSTS).unwrap();
    let metrics = register(&mut Registry::default());
    SystemResolver::with_files(conf, hosts, metrics.lookups.clone())
}

/// A DNS server for A queries: `names` have an address, other names do not exist.
async fn serve(names: &'static [&'static str]) -> SocketAddr {
    serve_by(move |query, from| vec![(answer(&query, names), from)]).await
}

/// A DNS server that sends what `reply` returns for each datagram.
async fn serve_by<F>(mut reply: F) -> SocketAddr
where
    F: FnMut(Vec<u8>, SocketAddr) -> Vec<(Vec<u8>, SocketAddr)> + Send + 'static,
{
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            for (answer, to) in reply(buffer[..length].to_vec(), from) {
                // A socket that is closed by now refuses the answer.
                let _sent = socket.send_to(&answer, to).await;
            }
        }
    });
    address
}

fn is_a(query: &[u8]) -> bool {
    let end = 12 + query[12..].iter().position(|&byte| byte == 0).unwrap();
    query[end + 2] == 1
}

fn answer(query: &[u8], names: &[&str]) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] != 0 {
        let length = usize::from(query[at]);
        labels.push(String::from_utf8(query[at + 1..=at + length].to_vec()).unwrap());
        at += length + 1;
    }
    let end = at + 5;
    let is_a = is_a(query);
    let known = names.contains(&labels.join(".").to_ascii_lowercase().as_str());
    let servfail = labels[0] == "servfail";
    let code = if servfail {
        2
    } else if known {
        0
    } else {
        3
    };
    let count = u8::from(known && is_a);
    let mut answer = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1, 0, count, 0, 1 - count, 0, 0];
    answer.extend_from_slice(&query[12..end]);
    if count == 1 {
        answer.extend_from_slice(&[0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 1, 2, 3]);
    } else {
        // SOA of the root zone: "no such name" may be kept for 900 s.
        answer.extend_from_slice(&[0, 0, 6, 0, 1, 0, 0, 3, 132, 0, 22, 0, 0]);
        answer.extend_from_slice(&[0, 0, 3, 132].repeat(5));
    }
    answer
}

/// A resolver whose servers listen on separate ports, with other lines of resolv.conf.
fn with_servers(lines: &str, ports: &[u16]) -> SystemResolver {
    let directory = tempfile::tempdir().unwrap();
    let mut resolver = resolver(directory.path(), "");
    let conf = resolv_conf::Config::parse(lines).unwrap();
    let servers: Vec<_> = ports.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
    resolver.state.get_mut().current = Arc::new(Configured::new(&conf, &servers, hosts(HOSTS)));
    resolver
}

async fn with_server(search: &str, names: &'static [&'static str]) -> SystemResolver {
    with_servers(search, &[serve(names).await.port()])
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[tokio::test]
async fn the_hosts_file_answers_first() {
    let resolver = with_server("search svc.local\noptions ndots:5", &["box.svc.local"]).await;
    assert_eq!(resolver.lookup("box", Network::Tcp).await.unwrap(), ips(&["127.0.0.1", "::1"]));
    assert_eq!(resolver.lookup("BOX.", Network::Tcp).await.unwrap(), ips(&["127.0.0.1", "::1"]));
    assert_eq!(resolver.lookup("1234", Network::Tcp).await.unwrap(), ips(&["10.1.1.1"]), "no name for DNS");
}

#[tokio::test]
async fn localhost_needs_neither_file_nor_server() {
    let resolver = with_server("search svc.local\noptions ndots:5", &["localhost.svc.local"]).await;
    assert_eq!(resolver.lookup("localhost", Network::Tcp).await.unwrap(), ips(&["127.0.0.1", "::1"]));
    assert_eq!(resolver.lookup("Localhost.", Network::Tcp6).await.unwrap(), ips(&["::1"]));
    assert_eq!(resolver.lookup("app.localhost", Network::Tcp6).await.unwrap(), ips(&["::1"]));
}

#[tokio::test]
async fn search_domains_apply_to_short_names() {
    let resolver = with_server("search ns.svc.local svc.local\noptions ndots:5", &["kube.svc.local"]).await;
    assert_eq!(resolver.lookup("kube", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
    assert_eq!(resolver.lookup("kube.svc.local.", Network::Tcp4).await.unwrap(), ips(&["10.1.2.3"]));
    assert!(resolver.lookup("kube.", Network::Tcp).await.is_err(), "absolute");
}

#[tokio::test]
async fn failures_are_distinguished() {
    let resolver = with_server("", &["kube"]).await;
    let server = resolver.configured().questions[0].server;
    let error = |host: &'static str, network| {
        let resolver = &resolver;
        async move { resolver.lookup(host, network).await.unwrap_err().to_string() }
    };
    let on = |host: &str, what: &str| format!("lookup {host} on {server}: {what}");
    assert_eq!(error("nx.example", Network::Tcp).await, on("nx.example", "no such host"));
    assert_eq!(error("kube", Network::Tcp6).await, on("kube", "no such host"));
    assert_eq!(error("servfail.example", Network::Tcp).await, on("servfail.example", "server misbehaving"));
    assert_eq!(error("bad..name", Network::Tcp).await, "lookup bad..name: no such host");
}

#[tokio::test]
async fn a_silent_server_does_not_keep_the_next_from_being_asked() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let ports = [silent.local_addr().unwrap().port(), serve(&["kube.svc.local"]).await.port()];
    let resolver = with_servers("search ns.svc.local svc.local\noptions ndots:5", &ports);
    let dial = Duration::from_secs(5);
    let found = timeout(dial, resolver.lookup("kube", Network::Tcp)).await.expect("within a dial");
    assert_eq!(found.unwrap(), ips(&["10.1.2.3"]));
    let error = timeout(dial, resolver.lookup("nx", Network::Tcp)).await.expect("within a dial").unwrap_err();
    assert_eq!(error.to_string(), format!("lookup nx on 127.0.0.1:{}: no such host", ports[1]));
}

#[tokio::test]
async fn a_name_with_enough_dots_is_asked_for_before_the_search_list() {
    let resolver = with_server("search a b\noptions ndots:2", &[]).await;
    let names = |host| {
        let names = resolver.configured().names(Name::from_ascii(host).unwrap());
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names("x.y"), ["x.y.a.", "x.y.b.", "x.y."]);
    assert_eq!(names("x.y.z"), ["x.y.z.", "x.y.z.a.", "x.y.z.b."]);
    assert_eq!(names("x."), ["x."]);
}

#[tokio::test]
async fn a_failure_for_one_name_of_the_search_list_is_not_no_such_host() {
    let broken = serve_by(|query, from| {
        let mut answer = answer(&query, &[]);
        if query[12..].starts_with(b"\x04kube\x03svc\x05local\0") {
            answer[3] = 0x82;
        }
        vec![(answer, from)]
    });
    let (broken, search) = (broken.await.port(), "search ns.svc.local svc.local\noptions ndots:5");
    let error = with_servers(search, &[broken]).lookup("kube", Network::Tcp).await.unwrap_err();
    assert_eq!(error.to_string(), format!("lookup kube on 127.0.0.1:{broken}: server misbehaving"));
    let resolver = with_servers(search, &[broken, serve(&["kube.svc.local"]).await.port()]);
    assert_eq!(resolver.lookup("kube", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
}

#[tokio::test]
async fn a_failed_query_for_ipv6_is_not_no_such_host() {
    let server = serve_by(|query, from| {
        let mut answer = answer(&query, &[]);
        answer[3] = if is_a(&query) { 0x80 } else { 0x82 };
        vec![(answer, from)]
    });
    let error =
        with_servers("", &[server.await.port()]).lookup("six.example", Network::Tcp).await.unwrap_err();
    assert!(error.to_string().ends_with("server misbehaving"), "{error}");
}

#[tokio::test]
async fn nothing_is_cached() {
    let names = Arc::new(Mutex::new([].as_slice()));
    let served = names.clone();
    let server = serve_by(move |query, from| vec![(answer(&query, *served.lock()), from)]).await;
    let resolver = with_servers("", &[server.port()]);
    assert!(resolver.lookup("late.example", Network::Tcp).await.is_err());
    *names.lock() = ["late.example"].as_slice();
    assert_eq!(resolver.lookup("late.example", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
    *names.lock() = [].as_slice();
    assert!(resolver.lookup("late.example", Network::Tcp).await.is_err());
}

/// The server answers only the first datagram, once the question has been repeated. The library sends three datagrams for a
/// question.
#[tokio::test]
async fn a_late_answer_counts_after_the_question_was_repeated() {
    let mut queries = Vec::new();
    let server = serve_by(move |query, from| {
        if !is_a(&query) {
            return vec![(answer(&query, &["slow.example"]), from)];
        }
        queries.push((answer(&query, &["slow.example"]), from));
        if queries.len() == 4 { vec![queries[0].clone()] } else { Vec::new() }
    });
    let resolver = with_servers("", &[server.await.port()]);
    assert_eq!(resolver.lookup("slow.example", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
}

#[tokio::test]
async fn every_server_is_asked_in_each_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let text = "nameserver 10.0.0.1\nnameserver 10.0.0.2\noptions timeout:7 ";
    for (attempts, rounds) in
        [("", 2), ("attempts:1", 1), ("attempts:3", 3), ("attempts:999999", MAX_ATTEMPTS)]
    {
        let resolver = resolver(directory.path(), format!("{text}{attempts}\n"));
        assert_eq!(servers_of(&resolver), ["10.0.0.1:53", "10.0.0.2:53"].repeat(rounds), "{attempts}");
        assert_eq!(resolver.configured().questions[0].resolver.options().timeout, MAX_ANSWER_TIMEOUT);
    }
}

/// Neither authoritative nor with recursion, without a record; `flags` are the second and third byte of the header.
async fn serve_nothing(flags: [u8; 2], authority: &'static [u8]) -> SocketAddr {
    serve_by(move |query, from| {
        let question = &query[12..17 + query[12..].iter().position(|&byte| byte == 0).unwrap()];
        let head =
            [query[0], query[1], flags[0], flags[1], 0, 1, 0, 0, 0, u8::from(!authority.is_empty()), 0, 0];
        vec![([&head, question, authority].concat(), from)]
    })
    .await
}

#[tokio::test]
async fn the_next_server_is_asked_after_a_lame_referral_only() {
    // A name server of the root: owner ".", NS, IN, 60 s, "a.".
    let root = &[0, 0, 2, 0, 1, 0, 0, 0, 60, 0, 3, 1, b'a', 0];
    let next = serve(&["kube.example"]).await.port();
    for (flags, authority, found) in [
        ([0x81, 0x00], &[][..], true),
        ([0x81, 0x00], root, true),
        // Of an authority, and of a resolver that omits the SOA.
        ([0x85, 0x00], &[], false),
        ([0x81, 0x80], &[], false),
        ([0x81, 0x03], &[], false),
    ] {
        let first = serve_nothing(flags, authority).await.port();
        let answer = with_servers("", &[first, next]).lookup("kube.example", Network::Tcp).await;
        assert_eq!(answer.is_ok(), found, "{flags:?}: {answer:?}");
        let error = with_servers("", &[first, next]).lookup("nx.example", Network::Tcp).await.unwrap_err();
        assert!(error.to_string().ends_with("no such host"), "{flags:?}: {error}");
    }
    let first = serve_nothing([0x81, 0x00], &[]).await.port();
    let error = with_servers("", &[first]).lookup("kube.example", Network::Tcp).await.unwrap_err();
    assert!(error.to_string().ends_with("server misbehaving"), "{error}");
}

#[test]
fn an_answer_with_a_record_or_a_flag_is_no_lame_referral() {
    // Flags; the numbers of answers, of authorities and of additional records.
    for (flags, [answers, authorities, additional], lame) in [
        ([0x81, 0x00], [0, 1, 0], true),
        ([0x81, 0x00], [1, 0, 0], false),
        ([0x81, 0x00], [0, 0, 1], false),
        ([0x83, 0x00], [0, 0, 0], false),
        ([0x85, 0x00], [0, 0, 0], false),
        ([0x81, 0x80], [0, 0, 0], false),
        ([0x81, 0x05], [0, 0, 0], false),
    ] {
        let mut datagram = [1, 2, flags[0], flags[1], 0, 1, 0, answers, 0, authorities, 0, additional];
        let before = datagram;
        fail_lame_referral(&mut datagram);
        assert_eq!(datagram != before, lame, "{before:?}");
    }
}

#[tokio::test]
async fn underscores_are_sent_to_the_server() {
    let resolver = with_server("search svc.local", &["under_score.example", "a_b.svc.local"]).await;
    assert_eq!(resolver.lookup("under_score.example", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
    assert_eq!(resolver.lookup("a_b", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
}

/// A DNS server on one port: `by_udp` answers datagrams, and `names` have an address by TCP.
async fn serve_by_tcp<F>(by_udp: F, names: &'static [&'static str]) -> SocketAddr
where
    F: FnMut(Vec<u8>, SocketAddr) -> Vec<(Vec<u8>, SocketAddr)> + Clone + Send + 'static,
{
    // The port may be taken for TCP.
    let (server, listener) = loop {
        let server = serve_by(by_udp.clone()).await;
        if let Ok(listener) = TcpListener::bind(server).await {
            break (server, listener);
        }
    };
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                while let Ok(length) = stream.read_u16().await {
                    let mut query = vec![0; length.into()];
                    stream.read_exact(&mut query).await.unwrap();
                    let answer = answer(&query, names);
                    stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            });
        }
    });
    server
}

#[tokio::test]
async fn a_truncated_answer_is_asked_for_by_tcp() {
    let truncated = |query: Vec<u8>, from| {
        let mut answer = answer(&query, &[]);
        (answer[2], answer[3]) = (answer[2] | 2, 0);
        vec![(answer, from)]
    };
    let resolver = with_servers("", &[serve_by_tcp(truncated, &["big.example"]).await.port()]);
    assert_eq!(resolver.lookup("big.example", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
}

#[tokio::test]
async fn a_connection_to_a_vanished_server_ends_soon() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = ToServer { tokio: TokioRuntimeProvider::default(), server: listener.local_addr().unwrap() };
    let stream = to.connect_tcp(to.server, None, None).await.unwrap();
    assert_eq!(SockRef::from(&stream.0).tcp_user_timeout().unwrap(), Some(MAX_ANSWER_TIMEOUT));
}

#[tokio::test]
async fn use_vc_asks_by_tcp_only() {
    let denies = |query: Vec<u8>, from| vec![(answer(&query, &[]), from)];
    let resolver = with_servers("options use-vc", &[serve_by_tcp(denies, &["tcp.example"]).await.port()]);
    assert_eq!(resolver.lookup("tcp.example", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
}

#[tokio::test]
async fn the_next_server_is_asked_at_once_if_one_refuses() {
    // A connected socket reserves the port, and datagrams of others are refused.
    let closed = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    closed.connect("127.0.0.1:9").await.unwrap();
    let closed = closed.local_addr().unwrap();
    let resolver = with_servers("", &[closed.port()]);
    let error =
        timeout(NEXT_QUESTION_DELAY, resolver.lookup("kube.example", Network::Tcp)).await.expect("at once");
    let refused = format!("lookup kube.example on {closed}: read udp {closed}: read: connection refused");
    assert_eq!(error.unwrap_err().to_string(), refused);
    let resolver = with_servers("", &[closed.port(), serve(&["kube.example"]).await.port()]);
    let found =
        timeout(NEXT_QUESTION_DELAY, resolver.lookup("kube.example", Network::Tcp)).await.expect("at once");
    assert_eq!(found.unwrap(), ips(&["10.1.2.3"]));
}

/// Whether a query ends with an OPT record of EDNS0 for answers of 1,232 bytes.
fn has_edns(query: &[u8]) -> bool {
    query.ends_with(&[0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0])
}

#[tokio::test]
async fn queries_announce_the_size_of_answers_like_go() {
    let server = serve_by(|query, from| {
        let names: &[&str] = if has_edns(&query) { &["edns.example"] } else { &[] };
        vec![(answer(&query, names), from)]
    });
    let resolver = with_servers("", &[server.await.port()]);
    assert_eq!(resolver.lookup("edns.example", Network::Tcp).await.unwrap(), ips(&["10.1.2.3"]));
}

#[tokio::test]
async fn a_server_that_refuses_edns_is_asked_without_it() {
    let server = serve_by(|query, from| {
        let mut answer = answer(&query, &["old.example"]);
        if has_edns(&query) {
            answer[3] = 0x81;
        }
        vec![(answer, from)]
    });
    let resolver = with_servers("", &[server.await.port()]);
    let found =
        timeout(NEXT_QUESTION_DELAY, resolver.lookup("old.example", Network::Tcp)).await.expect("at once");
    assert_eq!(found.unwrap(), ips(&["10.1.2.3"]));
}

#[tokio::test]
async fn the_kernel_chooses_the_ports_of_queries() {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let limits: Vec<u16> = range.split_whitespace().map(|limit| limit.parse().unwrap()).collect();
    let ports = Arc::<Mutex<Vec<u16>>>::default();
    let seen = ports.clone();
    let server = serve_by(move |query, from| {
        seen.lock().push(from.port());
        vec![(answer(&query, &["kube.example"]), from)]
    });
    let resolver = with_servers("", &[server.await.port()]);
    for _ in 0..20 {
        resolver.lookup("kube.example", Network::Tcp).await.unwrap();
    }
    let ports = ports.lock();
    assert!(ports.iter().all(|port| (limits[0]..=limits[1]).contains(port)), "{ports:?}");
}

#[tokio::test]
async fn a_dropped_lookup_closes_its_sockets() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let resolver = with_servers("options timeout:30", &[silent.local_addr().unwrap().port()]);
    let mut buffer = [0; 1500];
    let from = tokio::select! {
        _ = resolver.lookup("kube.example", Network::Tcp) => panic!("nobody answers"),
        received = silent.recv_from(&mut buffer) => received.unwrap().1,
    };
    silent.connect(from).await.unwrap();
    let refused = async {
        while silent.send(b"late").await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), refused).await.expect("the question's socket is closed");
}

fn servers_of(resolver: &SystemResolver) -> Vec<String> {
    resolver.configured().questions.iter().map(|question| question.server.to_string()).collect()
}

#[tokio::test]
async fn a_missing_resolv_conf_means_this_machine() {
    let metrics = register(&mut Registry::default());
    let resolver = SystemResolver::with_files("/nonexistent/resolv.conf", "", metrics.lookups.clone());
    assert_eq!(servers_of(&resolver)[..2], ["127.0.0.1:53", "[::1]:53"]);
}

#[tokio::test]
async fn a_server_keeps_its_zone() {
    let directory = tempfile::tempdir().unwrap();
    let resolver = resolver(directory.path(), "nameserver fe80::1%lo\noptions attempts:1\n");
    assert_eq!(servers_of(&resolver), ["[fe80::1%1]:53"], "lo is the first interface");
}

#[tokio::test]
async fn a_line_that_cannot_be_used_leaves_the_others_in_use() {
    let directory = tempfile::tempdir().unwrap();
    for text in [
        b"search a_b..c example.com\nnameserver 10.0.0.1\nnameserver not-an-address\noptions ndots:3\n"
            .as_slice(),
        b"# B\xfcro\nnameserver 10.0.0.1\nsearch -- example.com\noptions ndots:3\n",
        b"nameserver \xff\n# B\xfcro\nnameserver 10.0.0.1\noptions ndots:3\ndomain example.com",
    ] {
        let resolver = resolver(directory.path(), text);
        let (configured, shown) = (resolver.configured(), text.escape_ascii());
        assert_eq!(servers_of(&resolver), ["10.0.0.1:53"; 2], "{shown}");
        assert_eq!((configured.ndots, &configured.search[..]), (3, &[name("example.com")][..]), "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_read_anew() {
    let directory = tempfile::tempdir().unwrap();
    let resolver = resolver(directory.path(), "nameserver 10.0.0.1\noptions attempts:1\n");
    assert_eq!(servers_of(&resolver), ["10.0.0.1:53"]);
    change(&directory.path().join("resolv.conf"), "nameserver 10.0.0.2\noptions attempts:1\n");
    assert_eq!(servers_of(&resolver), ["10.0.0.1:53"], "looked at a moment ago");
    tokio::time::advance(FILE_CHECK_INTERVAL).await;
    assert_eq!(servers_of(&resolver), ["10.0.0.2:53"]);
}

/// As on systems where all files have the same time, and after `cp -p`.
#[tokio::test(start_paused = true)]
async fn a_file_with_another_length_has_changed() {
    let directory = tempfile::tempdir().unwrap();
    let conf = directory.path().join("resolv.conf");
    let resolver = resolver(directory.path(), "nameserver 10.0.0.1\noptions attempts:1\n");
    let modified = std::fs::metadata(&conf).unwrap().modified().unwrap();
    std::fs::write(&conf, "nameserver 10.0.0.10\noptions attempts:1\n").unwrap();
    std::fs::File::open(&conf).unwrap().set_modified(modified).unwrap();
    tokio::time::advance(FILE_CHECK_INTERVAL).await;
    assert_eq!(servers_of(&resolver), ["10.0.0.10:53"]);
}

/// Changes a file that was read within the resolution of modification times.
fn change(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    static CHANGES: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(CHANGES.fetch_add(1, Ordering::Relaxed));
    std::fs::File::open(path).unwrap().set_modified(time).unwrap();
}

#[tokio::test(start_paused = true)]
async fn files_that_cannot_be_read_change_nothing() {
    let log = CapturedLog::new();
    let directory = tempfile::tempdir().unwrap();
    let (conf, hosts) = (directory.path().join("resolv.conf"), directory.path().join("hosts"));
    let resolver = resolver(directory.path(), "nameserver 10.0.0.1\noptions attempts:1\n");
    let box_is = |ips: &[IpAddr]| assert_eq!(known(&resolver.configured().hosts, "box"), ips);
    for file in [&conf, &hosts] {
        // A directory can be opened, but not read.
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir(file).unwrap();
        for _ in 0..3 {
            tokio::time::advance(FILE_CHECK_INTERVAL).await;
            assert_eq!(servers_of(&resolver), ["10.0.0.1:53"]);
            box_is(&ips(&["127.0.0.1", "::1"]));
        }
        std::fs::remove_dir(file).unwrap();
        change(&conf, "nameserver 10.0.0.1\noptions attempts:1\n");
        change(&hosts, HOSTS);
        tokio::time::advance(FILE_CHECK_INTERVAL).await;
        box_is(&ips(&["127.0.0.1", "::1"]));
    }
    change(&conf, "nameserver 10.0.0.2\noptions attempts:1\n");
    std::fs::remove_file(&hosts).unwrap();
    tokio::time::advance(FILE_CHECK_INTERVAL).await;
    assert_eq!(servers_of(&resolver), ["10.0.0.2:53"]);
    box_is(&[]);
    let text = log.text();
    assert_eq!(
        text.matches("cannot read file, keeping its previous contents").count(),
        2,
        "once each: {text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_read_leaves_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let (conf, hosts) = (directory.path().join("resolv.conf"), directory.path().join("hosts"));
    std::fs::create_dir(&hosts).unwrap();
    std::fs::write(&conf, "nameserver 10.0.0.1\noptions attempts:1\n").unwrap();
    let metrics = register(&mut Registry::default());
    let resolver = SystemResolver::with_files(&conf, &hosts, metrics.lookups.clone());
    assert_eq!(servers_of(&resolver), ["10.0.0.1:53"]);
    change(&conf, "nameserver 10.0.0.2\noptions attempts:1\n");
    tokio::time::advance(FILE_CHECK_INTERVAL).await;
    assert_eq!(servers_of(&resolver), ["10.0.0.2:53"]);
}

#[test]
fn names_are_recognized_like_go() {
    for name in ["a", "a.b.", "foo_bar", "xn--bcher-kva.example", "1a.2", "_srv.x", "10-0-0-11", "1-2"] {
        assert!(is_domain_name(name), "{name}");
    }
    let long = "a".repeat(64);
    for name in
        ["", ".", " ", "a b", "bad..name", "127.1", "1.2.3.4.", "-", "xn--", "a-.b", "127.0.0.1%lo", &long]
    {
        assert!(!is_domain_name(name), "{name}");
    }
}

#[test]
fn names_and_aliases_are_found_in_any_case() {
    let hosts = hosts("# top\n127.0.0.1 localhost Box # tail\n::1\tlocalhost\nnonsense x\n10.0.0.1\n");
    let both: [IpAddr; 2] = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
    assert_eq!(known(&hosts, "localhost"), both);
    assert_eq!(known(&hosts, "LOCALHOST."), both);
    assert_eq!(known(&hosts, "box"), &both[..1]);
    for other in ["x", "\\box", "b\\157x", "box\\", "\u{ff42}ox", "bo\u{ad}x"] {
        assert!(known(&hosts, other).is_empty(), "{other}: the policy sees another name");
    }
}
