//! Flags whose effect no other test covers: the programs pass them on correctly.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::adversarial::frames::{
    ACK, END_HEADERS, Frame, GOAWAY, HEADERS, PING, block, frame, hello, read_frame,
};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::frontend::{Io, Mode, Place, tls_over, tls_socket};
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::pki::client_with;
use e2e::wait::{DEADLINE, until, within};
use fake_apiserver::FakeApi;
use rustls::SupportedCipherSuite;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A provider that offers one cipher suite.
fn offering(suite: SupportedCipherSuite) -> Arc<CryptoProvider> {
    CryptoProvider { cipher_suites: vec![suite], ..default_provider() }.into()
}

#[tokio::test]
async fn versions_and_suites_of_tls_hold_on_both_ports() -> Result<()> {
    let new = cipher_suite::TLS13_AES_128_GCM_SHA256;
    let [short, long] = [
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ];
    let rows = [
        ("--tls-min-version=VersionTLS13", [(new, true), (short, false), (long, false)]),
        (
            "--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            [(new, true), (short, false), (long, true)],
        ),
    ];
    for (flag, clients) in rows {
        let pair = Setup::new(Mode::Grpc, Front::Tls).server_arg(flag).start().await?;
        let Place::Tls(front) = pair.frontend().place else { bail!("a TLS frontend") };
        let pki = &pair.pki;
        for (suite, fits) in clients {
            let sides = [
                (front, &pki.front_ca, &pki.front_client),
                (pair.server().agent_address(), &pki.cluster_ca, &pki.agent),
            ];
            for (address, ca, who) in sides {
                let stream = TcpStream::connect(address).await?;
                let client = client_with(offering(suite), ca, who, &["h2"])?;
                assert_eq!(tls_over(stream, client).await.is_ok(), fits, "{flag}: {suite:?} at {address}");
            }
        }
    }
    Ok(())
}

/// Whether the port accepts connections.
async fn listens(ip: Ipv4Addr, port: u16) -> bool {
    TcpStream::connect(SocketAddr::from((ip, port))).await.is_ok()
}

#[tokio::test]
async fn listeners_are_bound_to_their_addresses_alone() -> Result<()> {
    let (home, other) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 3));
    let pair = Setup::new(Mode::Grpc, Front::Tls)
        .server_arg(format!("--admin-bind-address={other}"))
        .agent_arg(format!("--admin-bind-address={other}"))
        .start()
        .await?;
    let Place::Tls(front) = pair.frontend().place else { bail!("a TLS frontend") };
    let (server, agent) = (pair.server(), pair.agent());
    for (name, port, at) in [
        ("--server-bind-address", front.port(), home),
        ("--agent-bind-address", server.agent_port(), home),
        ("--health-bind-address", server.health.port(), home),
        ("--health-server-host", agent.health.port(), home),
        ("the server's --admin-bind-address", server.admin.port(), other),
        ("the agent's --admin-bind-address", agent.admin.port(), other),
    ] {
        for ip in [home, other] {
            assert_eq!(listens(ip, port).await, ip == at, "{name}: {ip}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn logs_go_to_their_file_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let args = |name: &str| {
        let file = format!("--log-file={}", path(name).display());
        ["--logtostderr=false".to_owned(), "--alsologtostderr=false".to_owned(), file]
    };
    let setup = args("server").into_iter().fold(Setup::grpc(), Setup::server_arg);
    let pair = args("agent").into_iter().fold(setup, Setup::agent_arg).start().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    for (name, process, text) in [
        ("server", &pair.server().process, "Proxy server is running"),
        ("agent", &pair.agent().process, "serverID"),
    ] {
        until("the log's file", DEADLINE, || async {
            std::fs::read_to_string(path(name)).ok()?.contains(text).then_some(())
        })
        .await
        .with_context(|| format!("{name}: {:?}", std::fs::read_to_string(path(name))))?;
        ensure!(!process.said(text), "{name}: on standard error as well");
    }
    Ok(())
}

/// Waits until one of the programs has reset a stalled connection; returns the most bytes that were queued meanwhile.
async fn most_queued(pair: &Pair) -> Result<[f64; 2]> {
    let mut most = [0.0_f64; 2];
    loop {
        let scrapes = [pair.server().metrics().await?, pair.agent().metrics().await?];
        let mut resets = 0.0;
        for ((scrape, prefix), most) in
            scrapes.iter().zip([e2e::metrics::SERVER, e2e::metrics::AGENT]).zip(&mut most)
        {
            *most = most.max(scrape.value(&format!("{prefix}queued_bytes"), &[]));
            resets += scrape.value(&format!("{prefix}connection_resets_total"), &[("reason", "stalled")]);
        }
        if resets > 0.0 {
            return Ok(most);
        }
    }
}

/// The limit of a connection's queue, in the server and in the agent, without connection flow control.
#[tokio::test]
async fn a_connections_memory_has_a_limit_of_its_own() -> Result<()> {
    let limit = "--connection-memory-limit=1Mi";
    let pair = Setup::http_connect()
        .server_arg("--connection-flow-control=false")
        .server_arg(limit)
        .agent_arg(limit)
        .start()
        .await?;
    let source = Endpoint::source(Payload::new(7, 64 << 20)).await?;
    let reader = pair.frontend().dial(&source.target()).await?;
    let [server, _] = within("the reader's reset", most_queued(&pair)).await??;
    drop(reader);
    let endpoint = Endpoint::stalled().await?;
    let mut writer = pair.frontend().dial(&endpoint.target()).await?;
    let writing = tokio::spawn(async move {
        let block = vec![0; 64 << 10];
        while writer.write_all(&block).await.is_ok() {}
    });
    let resets = [("reason", "stalled")];
    let reset = pair.agent().wait_metric("connection_resets_total", &resets, 1.0);
    let mut agent = 0.0_f64;
    let mut reset = std::pin::pin!(reset);
    while tokio::time::timeout(Duration::from_millis(20), &mut reset).await.is_err() {
        agent = agent.max(pair.agent().metric("queued_bytes", &[]).await?);
    }
    writing.abort();
    // Above a half, so that the queue was observed; far below the default of 8 MiB.
    for most in [server, agent] {
        ensure!((524_288.0..2_097_152.0).contains(&most), "{server} and {agent} bytes waited");
    }
    Ok(())
}

#[tokio::test]
async fn leases_have_their_namespace_and_label() -> Result<()> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    let spec = |holder: &str| json!({ "holderIdentity": holder, "leaseDurationSeconds": 3_600, "renewTime": "2200-01-01T00:00:00.000000Z" });
    // One more lease that counts, and three that do not.
    for (namespace, name, labels) in [
        ("elsewhere", "ours", json!({ "tunnel": "blue" })),
        ("elsewhere", "green", json!({ "tunnel": "green" })),
        ("elsewhere", "default", json!({ "k8s-app": "konnectivity-server" })),
        ("kube-system", "default", json!({ "tunnel": "blue" })),
    ] {
        api.put_lease(namespace, name, labels, spec(name));
    }
    let kubeconfig = format!("--kubeconfig={}", api.kubeconfig(folder.path(), "{token: canary}")?.display());
    let pair = ["--enable-lease-controller", "--lease-namespace=elsewhere", "--lease-label=tunnel=blue"]
        .into_iter()
        .fold(Setup::grpc(), Setup::server_arg)
        .agent_arg("--count-server-leases")
        .agent_arg("--lease-namespace=elsewhere")
        .agent_arg("--lease-label-selector=tunnel=blue")
        .server_arg(&kubeconfig)
        .agent_arg(&kubeconfig)
        .start()
        .await?;
    let name = "konnectivity-proxy-server-server-0";
    let lease = until("the server's lease", DEADLINE, || async { api.lease("elsewhere", name) }).await?;
    assert_eq!(lease["metadata"]["labels"], json!({ "tunnel": "blue" }));
    pair.agent().wait_metric("known_server_count", &[], 2.0).await?;
    ensure!(api.lease("kube-system", name).is_none(), "a lease in the default namespace");
    Ok(())
}

/// Opens one stream by hand and waits for a PING.
async fn pinged(mut socket: Box<dyn Io>, path: &str) -> Result<()> {
    let request = frame(HEADERS, END_HEADERS, 1, &block(path));
    socket.write_all(&[hello(), request].concat()).await?;
    loop {
        match read_frame(&mut socket).await? {
            Frame { kind: PING, flags, .. } if flags & ACK == 0 => return Ok(()),
            Frame { kind: GOAWAY, .. } => bail!("GOAWAY"),
            _ => {}
        }
    }
}

/// By default the server pings only after an hour.
#[tokio::test]
async fn both_keepalive_flags_cause_pings() -> Result<()> {
    let pair = Setup::grpc()
        .agents(0)
        .server_arg("--keepalive-time=1s")
        .server_arg("--frontend-keepalive-time=1s")
        .start()
        .await?;
    within("a ping to a frontend", pinged(pair.frontend().socket().await?, "/ProxyService/Proxy")).await??;
    let agent = tls_socket(pair.server().agent_address(), pair.pki.agent_client()?).await?;
    within("a ping to an agent", pinged(Box::new(agent), "/AgentService/Connect")).await?
}
