//! Certificates, keys and CAs that change at run time: new handshakes use them, open connections are not affected, and unusable
//! files are refused.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, expect_end, works};
use e2e::frontend::{Mode, Place};
use e2e::http1::get;
use e2e::load::Plan;
use e2e::metrics::{AGENT, SERVER, Scrape};
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::rotation::rotate_under_load;
use e2e::wait::{DEADLINE, never, until, within};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use status::{Certificate, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A short interval of file checks.
const EVERY: &str = "--certificate-reload-interval=50ms";

async fn watched(mode: Mode, front: Front) -> Result<Pair> {
    Setup::new(mode, front).server_arg(EVERY).agent_arg(EVERY).start().await
}

/// The counts of the three watches: the frontend's, the agent port's, the agent's.
async fn reloads(pair: &Pair, result: &str) -> Result<[f64; 3]> {
    let (server, agent) = (pair.server().metrics().await?, pair.agent().metrics().await?);
    let of = |scrape: &Scrape, prefix: &str, side: &str| {
        scrape.value(&format!("{prefix}certificate_reloads_total"), &[("result", result), ("side", side)])
    };
    Ok([of(&server, SERVER, "frontend"), of(&server, SERVER, "agents"), of(&agent, AGENT, "servers")])
}

async fn counted(pair: &Pair, result: &str, wanted: [f64; 3]) -> Result<()> {
    let what = format!("{wanted:?} reloads with the result {result}");
    until(&what, DEADLINE, || async { (reloads(pair, result).await.ok()? == wanted).then_some(()) }).await
}

/// The certificate that a port presents now.
async fn shown(address: SocketAddr, pair: &Pair, alpn: &[&str]) -> Result<Vec<u8>> {
    let config = match alpn {
        ["agent"] => pair.pki.agent_client()?,
        alpn => pair.pki.frontend_client(alpn)?,
    };
    let stream = TcpStream::connect(address).await?;
    let tls = TlsConnector::from(config).connect(ServerName::from(address.ip()), stream).await?;
    let certs = tls.get_ref().1.peer_certificates().context("a certificate")?;
    Ok(certs.first().context("a certificate")?.to_vec())
}

#[tokio::test]
async fn new_handshakes_use_new_files_and_live_connections_go_on() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let mut pair = watched(mode, Front::Tls).await?;
        let Place::Tls(front) = pair.frontend().place else { anyhow::bail!("a TLS frontend") };
        let agents = pair.server().agent_address();
        let alpn = if mode == Mode::Grpc { "h2" } else { "http/1.1" };
        let before = [shown(front, &pair, &[alpn]).await?, shown(agents, &pair, &["agent"]).await?];
        let endpoint = Endpoint::echo().await?;
        let conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
        pair.pki.rotate()?;
        counted(&pair, "success", [1.0, 1.0, 1.0]).await?;
        let after = [shown(front, &pair, &[alpn]).await?, shown(agents, &pair, &["agent"]).await?];
        ensure!(before[0] != after[0] && before[1] != after[1], "the old certificate is still shown");
        echo(conn, Payload::new(2, 1_000_000)).await?;
        works(pair.frontend(), &endpoint.target()).await?;
        // The agent presents its new certificate as well.
        pair.server_mut().restart()?;
        pair.server_mut().wait_healthy().await?;
        pair.wait_connected().await?;
    }
    Ok(())
}

/// Frontends with different protocols have the same files, which count once.
#[tokio::test]
async fn several_frontends_reload_their_certificate_together() -> Result<()> {
    let setup = Setup::new(Mode::Grpc, Front::Tls).and(Mode::HttpConnect, Front::Tls);
    let pair = setup.server_arg(EVERY).agent_arg(EVERY).start().await?;
    let frontends = [pair.frontend(), &pair.server().further[0]];
    let mut before = Vec::new();
    for frontend in frontends {
        let Place::Tls(address) = frontend.place else { anyhow::bail!("a TLS frontend") };
        let alpn = if frontend.mode == Mode::Grpc { "h2" } else { "http/1.1" };
        before.push((address, alpn, shown(address, &pair, &[alpn]).await?));
    }
    pair.pki.rotate()?;
    counted(&pair, "success", [1.0, 1.0, 1.0]).await?;
    for (address, alpn, old) in before {
        ensure!(shown(address, &pair, &[alpn]).await? != old, "{alpn}: the old certificate is still shown");
    }
    let endpoint = Endpoint::echo().await?;
    for frontend in frontends {
        works(frontend, &endpoint.target()).await?;
    }
    Ok(())
}

/// The server's certificates whose changed files the status calls unusable.
async fn refused_changes(pair: &Pair) -> Result<Vec<Certificate>> {
    let status: Status = serde_json::from_str(&get(pair.server().admin, "/statusz").await?.body)?;
    Ok(status.certificates.into_iter().filter(|one| !one.change_refused.is_empty()).collect())
}

/// First the file is truncated; then certificate and key do not match; then the certificate has expired.
#[tokio::test]
async fn unusable_certificates_are_logged_once_and_the_old_ones_stay() -> Result<()> {
    let pair = watched(Mode::Grpc, Front::Unix).await?;
    let endpoint = Endpoint::echo().await?;
    let good = std::fs::read_to_string(&pair.pki.cluster_server.cert)?;
    let usage = ExtendedKeyUsagePurpose::ServerAuth;
    let strange = pair.pki.cluster_leaf(usage.clone(), -60, 3_600)?;
    let expired = pair.pki.cluster_leaf(usage.clone(), -7_200, -3_600)?;
    let early = pair.pki.cluster_leaf(usage, 3_600, 7_200)?;
    let (crt, key) = ("cluster-server.crt", "cluster-server.key");
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[(crt, &good[..good.len() / 2])], "no END line"),
        (&[(crt, &strange.cert)], "does not match"),
        (&[(crt, &expired.cert), (key, &expired.key)], "expired"),
        (&[(crt, &early.cert), (key, &early.key)], "not valid before"),
        (&[(key, "")], "no private key"),
    ];
    for (number, (files, why)) in cases.into_iter().enumerate() {
        pair.pki.replace(files)?;
        counted(&pair, "failure", [0.0, number as f64 + 1.0, 0.0]).await?;
        let side = [("side", "agents")];
        assert_eq!(pair.server().metric("certificate_last_reload_success", &side).await?, 0.0);
        let refused = refused_changes(&pair).await?;
        let is_told = |one: &Certificate| one.side == "agents" && one.change_refused.contains(why);
        assert!(!refused.is_empty() && refused.iter().all(is_told), "{why}: {refused:?}");
        let lines = |log: Vec<String>| log.iter().filter(|line| line.contains(why)).count();
        until("a line that says why", DEADLINE, || async {
            (lines(pair.server().process.log()) > 0).then_some(())
        })
        .await?;
        // Several checks later there is no further log line or count.
        let again = format!("a second line with {why:?}");
        never(&again, Duration::from_millis(300), || lines(pair.server().process.log()) > 1).await?;
        counted(&pair, "failure", [0.0, number as f64 + 1.0, 0.0]).await?;
        works(pair.frontend(), &endpoint.target()).await?;
        shown(pair.server().agent_address(), &pair, &["agent"]).await.context("the old one still serves")?;
    }
    pair.pki.rotate()?;
    counted(&pair, "success", [0.0, 1.0, 1.0]).await?;
    assert_eq!(pair.server().metric("certificate_last_reload_success", &[("side", "agents")]).await?, 1.0);
    assert_eq!(refused_changes(&pair).await?, []);
    Ok(())
}

/// A new CA: the server refuses a client with a certificate of the old CA at its next handshake. The client cannot avoid that
/// by resuming a session, because the server offers none.
#[tokio::test]
async fn a_changed_client_authority_refuses_the_clients_of_the_old_one() -> Result<()> {
    let mut pair = watched(Mode::Grpc, Front::Unix).await?;
    let endpoint = Endpoint::echo().await?;
    let conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
    let (old, address) = (pair.pki.agent_client()?, pair.server().agent_address());
    // An independent client that resumes its session if it can.
    ensure!(resumes(&old, address).await? == [false, false], "no session is resumed");
    let kept = pair.pki.kept(&pair.pki.agent, "kept-agent")?;
    pair.pki.rotate_cluster_authority()?;
    counted(&pair, "success", [0.0, 1.0, 1.0]).await?;
    // The client trusts the new server, so only the server can refuse.
    let mut of_before = pair.pki.clone();
    of_before.agent = kept;
    let refused = resumes(&of_before.agent_client()?, address).await;
    ensure!(refused.is_err(), "a client of the old authority was let in: {refused:?}");
    shown(address, &pair, &["agent"]).await.context("a client of the new authority")?;
    // Open connections continue, and the agent reconnects with its new certificate.
    echo(conn, Payload::new(2, 1_000_000)).await?;
    pair.server_mut().restart()?;
    pair.server_mut().wait_healthy().await?;
    pair.wait_connected().await?;
    works(pair.frontend(), &endpoint.target()).await
}

/// Whether each of two successive connections resumed a session. The first byte from the server proves that it admitted the
/// client.
async fn resumes(config: &Arc<ClientConfig>, address: SocketAddr) -> Result<[bool; 2]> {
    let mut resumed = [false; 2];
    for resumed in &mut resumed {
        let stream = TcpStream::connect(address).await?;
        let connector = TlsConnector::from(config.clone());
        let mut tls = connector.connect(ServerName::from(address.ip()), stream).await?;
        within("the server's first byte", tls.read_u8()).await??;
        *resumed = tls.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
    }
    Ok(resumed)
}

/// With fifty transfers and a hundred dials per second. The nightly run is ten times as long, with five times the load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_rotations_under_load_fail_nothing_and_cut_nothing() -> Result<()> {
    let plan = Plan { rate: 100, hold: Duration::from_millis(200), transfers: 50 };
    let report = rotate_under_load(&plan, 10, Duration::from_millis(200)).await?;
    e2e::figures::say("ten rotations", &report);
    report.check()
}

/// In the last fifth to tenth of its certificate's life an agent presents the newer one, on a second stream, and ends the first
/// stream once its connections have ended.
#[tokio::test]
async fn an_agent_reconnects_before_its_certificate_expires() -> Result<()> {
    let mut pair = Setup::grpc().agents(0).agent_arg(EVERY).start().await?;
    let usage = ExtendedKeyUsagePurpose::ClientAuth;
    // In the last tenth of its life.
    let old = pair.pki.cluster_leaf(usage.clone(), -3_600, 60)?;
    let newer = pair.pki.cluster_leaf(usage, -60, 7_200)?;
    pair.pki.replace(&[("agent.crt", &old.cert), ("agent.key", &old.key)])?;
    pair.add_agent("ageing", "", &[])?;
    pair.wait_connected().await?;
    let endpoint = Endpoint::echo().await?;
    let conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
    pair.agent().wait_metric("open_server_connections", &[], 1.0).await?;
    pair.pki.replace(&[("agent.crt", &newer.cert), ("agent.key", &newer.key)])?;
    // Both streams are open: the first for its connection, the second for new dials.
    pair.agent().wait_metric("retiring_server_connections", &[], 1.0).await?;
    ensure!(pair.agent().metric("open_server_connections", &[]).await? == 1.0, "there is one server");
    let drained = [("segment", "from_agent"), ("packet_type", "DRAIN")];
    pair.server().wait_metric("stream_packets_total", &drained, 1.0).await?;
    for _ in 0..20 {
        works(pair.frontend(), &endpoint.target()).await?;
    }
    let mut conn = echo(conn, Payload::new(2, 1_000_000)).await?;
    pair.agent().wait_metric("retiring_server_connections", &[], 1.0).await?;
    conn.shutdown().await?;
    expect_end(&mut conn).await?;
    drop(conn);
    pair.agent().wait_metric("retiring_server_connections", &[], 0.0).await?;
    ensure!(pair.agent().metric("open_server_connections", &[]).await? == 1.0, "and still is");
    let (at, now) =
        ("certificate_expiry_timestamp_seconds", rustls::pki_types::UnixTime::now().as_secs() as f64);
    let expiry = pair.agent().metric(at, &[("file", "agent-cert")]).await?;
    ensure!(expiry > now + 7_000.0, "the newer certificate's end is shown: {expiry} at {now}");
    works(pair.frontend(), &endpoint.target()).await
}

#[tokio::test]
async fn refused_agents_are_counted_and_logged_once_for_each_cause() -> Result<()> {
    let mut pair = Setup::grpc().server_arg("-v=0").agents(0).start().await?;
    let wrong_ca = format!("--ca-cert={}", pair.pki.front_ca.display());
    let (cert, key) = (&pair.pki.front_client.cert, &pair.pki.front_client.key);
    let wrong_pair = [format!("--agent-cert={}", cert.display()), format!("--agent-key={}", key.display())];
    let health = format!("--proxy-server-port={}", pair.server().health.port());
    let cases: [(&str, &[&str], &str); 4] = [
        ("ca", &[&wrong_ca], "the certificate was issued by "),
        ("pair", &[&wrong_pair[0], &wrong_pair[1]], "the agent did not send --agent-cert"),
        ("none", &["--agent-cert=", "--agent-key="], "the server requires a client certificate"),
        ("port", &[&health], "the answer is not TLS"),
    ];
    for (number, (id, args, cause)) in cases.into_iter().enumerate() {
        pair.add_agent(id, "", args)?;
        let agent = &pair.agents[number];
        agent.process.wait_said(cause).await?;
        let failures = format!("{AGENT}server_connect_failures_total");
        agent.wait_metrics("a second attempt", |metrics| metrics.sum(&failures, &[]) >= Some(2.0)).await?;
    }
    // One line for each cause, not for each attempt.
    let refused = |reason: &str| {
        let lines = pair.server().process.log();
        let line =
            |line: &&String| line.contains("closing unauthenticated connection") && line.contains(reason);
        lines.iter().filter(line).count()
    };
    pair.server().process.wait_said("peer sent no certificates").await?;
    ensure!(refused("handshake_failed") == 2, "{:?}", pair.server().process.log());
    Ok(())
}
