use std::collections::HashMap;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::*;

/// Resolves names from a table; a lookup of any other name never ends.
struct Table(HashMap<&'static str, Result<Vec<IpAddr>, LookupError>>);

impl Resolve for Table {
    async fn lookup(&self, host: &str, _network: Network) -> Result<Vec<IpAddr>, LookupError> {
        match self.0.get(host) {
            Some(answer) => answer.clone(),
            None => std::future::pending().await,
        }
    }
}

fn dialer(names: impl IntoIterator<Item = (&'static str, Vec<&'static str>)>) -> Dialer<Table> {
    let answers = names
        .into_iter()
        .map(|(name, ips)| (name, Ok(ips.into_iter().map(|ip| ip.parse().unwrap()).collect())));
    Dialer::new(Arc::new(Table(answers.collect())), DestinationPolicy::default())
}

async fn refused(dialer: &Dialer<Table>, protocol: &str, address: &str) -> String {
    dialer.dial(protocol, address).await.expect_err("nobody listens").to_string()
}

/// A closed loopback port, reserved while the guard is held.
async fn closed_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[tokio::test]
async fn literals_names_and_mapped_addresses_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let local = listener.local_addr().unwrap();
    let dialer = dialer([("box", vec!["127.0.0.1"])]);
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "box", "", "0.0.0.0"] {
        let endpoint = dialer.dial("tcp", &format!("{host}:{}", local.port())).await.unwrap();
        assert_eq!(endpoint.peer, local, "{host}");
        assert!(endpoint.stream.nodelay().unwrap());
        let socket = SockRef::from(&endpoint.stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE);
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), NOTSENT_LOWAT);
    }
}

/// Listeners on the same port of two addresses.
async fn two_replicas() -> (TcpListener, TcpListener) {
    loop {
        let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // Another process may have that port.
        if let Ok(two) = TcpListener::bind(("127.0.0.2", one.local_addr().unwrap().port())).await {
            return (one, two);
        }
    }
}

#[tokio::test]
async fn dials_are_spread_over_all_addresses_of_a_name() {
    let (one, two) = two_replicas().await;
    let (one, two) = (one.local_addr().unwrap(), two.local_addr().unwrap());
    let names = || dialer([("replicas", vec!["127.0.0.1", "127.0.0.2"])]);
    let (fixed, spreading) = (names(), Dialer { is_to_endpoints: false, ..names() });
    let address = format!("replicas:{}", one.port());
    let mut seen = std::collections::HashSet::new();
    // Fewer connections than the listen backlog, because nothing accepts them.
    for _ in 0..40 {
        assert_eq!(fixed.dial("tcp", &address).await.unwrap().peer, one);
        seen.insert(spreading.dial("tcp", &address).await.unwrap().peer);
    }
    assert_eq!(seen, [one, two].into());
}

/// The expected texts were obtained from Go 1.26.
#[tokio::test]
async fn refusals_read_as_in_go() {
    let (_guard, port) = closed_port().await;
    let dialer = dialer([("box", vec!["127.0.0.1"]), ("six", vec!["::1"])]);
    let refusal = "connect: connection refused";
    for (protocol, host, text) in [
        ("tcp", "127.0.0.1", format!("dial tcp 127.0.0.1:{port}: {refusal}")),
        ("tcp4", "[::ffff:127.0.0.1]", format!("dial tcp4 127.0.0.1:{port}: {refusal}")),
        ("tcp", "box", format!("dial tcp 127.0.0.1:{port}: {refusal}")),
        ("tcp", "", format!("dial tcp :{port}: {refusal}")),
        ("tcp", "0.0.0.0", format!("dial tcp 0.0.0.0:{port}: {refusal}")),
        ("tcp6", "127.0.0.1", "dial tcp6: address 127.0.0.1: no suitable address found".to_owned()),
        ("tcp4", "[::1]", "dial tcp4: address ::1: no suitable address found".to_owned()),
        ("tcp4", "six", "dial tcp4: address six: no suitable address found".to_owned()),
        ("unix", "x", "dial unix: unknown network unix".to_owned()),
    ] {
        assert_eq!(refused(&dialer, protocol, &format!("{host}:{port}")).await, text);
    }
}

#[tokio::test]
async fn denied_addresses_are_never_dialed() {
    let metadata = "169.254.169.254";
    let names = [("metadata", vec![metadata]), ("both", vec![metadata, "127.0.0.1"])];
    let dialer = dialer(names);
    let denied = "connect: destination is denied, it is a cloud metadata service (--allow-cloud-metadata)";
    let local =
        "connect: destination is denied, it is link-local (--allow-destinations, --allow-cloud-metadata)";
    for (host, text) in [
        (metadata, format!("dial tcp 169.254.169.254:80: {denied}")),
        ("[::ffff:169.254.169.254]", format!("dial tcp 169.254.169.254:80: {denied}")),
        ("[fd00:ec2::254]", format!("dial tcp [fd00:ec2::254]:80: {denied}")),
        ("metadata", format!("dial tcp 169.254.169.254:80: {denied}")),
        ("169.254.20.10", format!("dial tcp 169.254.20.10:80: {local}")),
        ("[fe80::1%nope]", format!("dial tcp [fe80::1%nope]:80: {local}")),
    ] {
        assert_eq!(refused(&dialer, "tcp", &format!("{host}:80")).await, text);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let local = listener.local_addr().unwrap();
    assert_eq!(dialer.dial("tcp", &format!("both:{}", local.port())).await.unwrap().peer, local);
}

#[tokio::test(start_paused = true)]
async fn silent_names_end_with_the_deadline() {
    let began = Instant::now();
    let error = dialer([]).dial("tcp", "silent.example:9").await.unwrap_err();
    assert_eq!(error.to_string(), "dial tcp: lookup silent.example: i/o timeout");
    assert!(error.is_timeout());
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn next_address_is_tried_and_the_first_error_reported() {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let names = [("two", vec!["127.0.0.1", "127.0.0.2"]), ("none", vec!["127.0.0.3", "127.0.0.4"])];
    let dialer = dialer(names);
    let endpoint = dialer.dial("tcp", &format!("two:{port}")).await.unwrap();
    assert_eq!(endpoint.peer.ip(), "127.0.0.2".parse::<IpAddr>().unwrap());
    let text = refused(&dialer, "tcp", &format!("none:{port}")).await;
    assert_eq!(text, format!("dial tcp 127.0.0.3:{port}: connect: connection refused"));
}

/// A listener whose queue is full drops SYNs, like an endpoint that does not answer.
#[tokio::test]
async fn a_silent_endpoint_is_a_timeout_and_does_not_keep_the_next_from_its_turn() {
    let full = TcpSocket::new_v4().unwrap();
    full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = full.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
        queued.push(stream);
        assert!(queued.len() < 64, "the queue fills up");
    }
    let port = address.port();
    let open = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    let names = [("only", vec!["127.0.0.1"]), ("two", vec!["127.0.0.1", "127.0.0.2"])];
    let dialer = Dialer { timeout: Duration::from_millis(500), ..dialer(names) };
    let error = dialer.dial("tcp", &format!("only:{port}")).await.unwrap_err();
    assert_eq!(error.to_string(), format!("dial tcp 127.0.0.1:{port}: i/o timeout"));
    assert!(error.is_timeout());
    let dialer = Dialer { timeout: Duration::from_secs(4), ..dialer };
    let endpoint = dialer.dial("tcp", &format!("two:{port}")).await.unwrap();
    assert_eq!(endpoint.peer, open.local_addr().unwrap());
}

#[test]
fn shares_follow_gos_rule() {
    let seconds = Duration::from_secs;
    for (left, addresses, share_of) in [(5, 1, 5), (9, 3, 3), (5, 3, 2), (3, 3, 2), (1, 2, 1), (0, 2, 0)] {
        assert_eq!(share(seconds(left), addresses), seconds(share_of), "{left} s for {addresses}");
    }
}

/// The policy checks exactly the addresses that are connected to: those of one look-up, each by itself, and the requested name.
#[tokio::test]
async fn rules_hold_for_every_address_of_a_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rules = |texts: &[&str]| -> Vec<_> {
        texts.iter().map(|text| crate::endpoint::DestinationRule::parse(text).unwrap()).collect()
    };
    let with = |deny: &[&str], allow: &[&str]| {
        let mut dialer =
            dialer([("box", vec!["127.0.0.2", "127.0.0.1"]), ("rebound", vec!["::ffff:127.0.0.2"])]);
        dialer.policy = DestinationPolicy { deny: rules(deny), allow: rules(allow), cloud_metadata: false };
        dialer
    };
    let open = with(&["127.0.0.2"], &[]);
    let endpoint = open.dial("tcp", &format!("box:{port}")).await.unwrap();
    assert_eq!(endpoint.peer, listener.local_addr().unwrap(), "the address that is left");
    let text = refused(&open, "tcp", &format!("rebound:{port}")).await;
    assert_eq!(
        text,
        format!("dial tcp 127.0.0.2:{port}: connect: destination is denied (--deny-destinations)")
    );
    let narrow = with(&[], &[&format!("box:{port}"), "10.0.0.0/8"]);
    narrow.dial("tcp", &format!("box:{port}")).await.unwrap();
    let text = refused(&narrow, "tcp", &format!("127.0.0.1:{port}")).await;
    assert!(text.ends_with("destination is denied, no rule allows it (--allow-destinations)"), "{text}");
    let text = refused(&with(&["*"], &[]), "tcp", &format!(":{port}")).await;
    assert!(text.contains("(--deny-destinations)"), "{text}");
}

/// The kernel accepts many spellings of loopback, and a rule for loopback holds for all of them. The port is closed: a spelling
/// that passes the rule fails with a different text.
#[tokio::test]
async fn a_denied_loopback_is_denied_in_every_spelling() {
    let (_guard, port) = closed_port().await;
    let rules = ["127.0.0.0/8", "::1"].map(|text| crate::endpoint::DestinationRule::parse(text).unwrap());
    let mut dialer =
        dialer([("zero", vec!["0.0.0.0"]), ("mapped", vec!["::ffff:0.0.0.0"]), ("six", vec!["::"])]);
    dialer.policy = DestinationPolicy { deny: rules.to_vec(), ..DestinationPolicy::default() };
    for host in [
        "",
        "0.0.0.0",
        "127.9.9.9",
        "[::]",
        "[::%1]",
        "[::1%lo]",
        "[::ffff:0.0.0.0]",
        "[::ffff:0.0.0.0%1]",
        "[::FFFF:0:0%lo]",
        "[0:0:0:0:0:ffff:0:0%251]",
        "[::ffff:127.0.0.1%1]",
        "[64:ff9b::127.0.0.1%1]",
        "zero",
        "mapped",
        "six",
    ] {
        let text = refused(&dialer, "tcp", &format!("{host}:{port}")).await;
        assert!(text.ends_with("destination is denied (--deny-destinations)"), "{host:?}: {text}");
    }
}

/// Also for the addresses after the first: a failed address does not lead to a denied one.
#[tokio::test]
async fn no_failure_leads_to_an_address_that_is_denied() {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut dialer = dialer([("mixed", vec!["127.0.0.1", "127.0.0.2"])]);
    dialer.dial("tcp", &format!("mixed:{port}")).await.unwrap();
    let deny = crate::endpoint::DestinationRule::parse("127.0.0.2").unwrap();
    dialer.policy = DestinationPolicy { deny: vec![deny], ..DestinationPolicy::default() };
    let text = refused(&dialer, "tcp", &format!("mixed:{port}")).await;
    assert_eq!(text, format!("dial tcp 127.0.0.1:{port}: connect: connection refused"));
}
