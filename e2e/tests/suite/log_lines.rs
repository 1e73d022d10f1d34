//! Events that the Go programs log, too, have Go's messages, keys and severity.

use anyhow::{Result, ensure};
use e2e::adversarial::{AdversarialAgent, AgentMeta, PacketStream, channel, data, dial_cls, dial_req};
use e2e::endpoints::{Endpoint, Refusing};
use e2e::exchange::works;
use e2e::frontend::Mode;
use e2e::pair::{Front, Pair, Setup};
use e2e::process::{Process, Signal};
use e2e::wait::{DEADLINE, until};
use tokio::io::AsyncWriteExt;

/// A Go line: severity, message and keys.
type GoLine = (char, &'static str, &'static [&'static str]);

const SERVER: &[GoLine] = &[
    ('I', "Connect request from agent", &["agentID", "serverID"]),
    ('I', "Register backend for agent", &["agentID"]),
    ('I', "Agent connected", &["agentID", "serverID"]),
    ('I', "Pick agent as backend", &["agentID"]),
    (
        'I',
        "Proxy connection established",
        &["dialID", "connectionID", "agentID", "dialAddress", "dialDuration"],
    ),
    ('E', "DIAL_RSP contains failure", &["err", "dialID", "agentID"]),
    ('I', "agent is draining", &["agentID"]),
    ('I', "marked backend as draining, will not route new requests to this agent", &["agentID"]),
    ('I', "Receive stream from agent is closed", &["agentID"]),
    ('I', "Remove connection for agent", &["agentID"]),
];
const SERVER_GRPC: &[GoLine] = &[
    ('I', "Received DIAL_REQ", &["dialID", "dialAddress"]),
    ('E', "Failed to get a backend", &["err", "dialID"]),
];
const SERVER_CONNECT: &[GoLine] = &[
    ('I', "Received request for host", &["method", "host", "userAgent"]),
    ('I', "Connection established, sent 200 OK", &["host", "agentID", "connectionID"]),
    ('E', "no tunnels available", &["err"]),
];
const AGENT: &[GoLine] = &[
    ('I', "successfully connected to new proxy server", &["serverID", "newServerCount"]),
    ('I', "Start serving", &["serverID", "agentID"]),
    ('I', "Received DIAL_REQ", &["serverID", "agentID", "dialID", "dialAddress"]),
    ('I', "Endpoint connection established", &["dialID", "connectionID", "dialAddress"]),
    ('I', "error dialing backend", &["error", "dialID", "dialAddress"]),
    ('I', "close connection", &["dialID", "connectionID", "dialAddress"]),
    ('I', "Received first signal", &["signal"]),
    ('I', "drain agent client", &["serverID", "agentID"]),
];

fn is(line: &str, (severity, message, keys): &GoLine) -> bool {
    let Some((head, rest)) = line.split_once("] ") else { return false };
    let fields = rest.strip_prefix(&format!("{message:?}"));
    head.starts_with(*severity)
        && fields.is_some_and(|fields| keys.iter().all(|key| fields.contains(&format!(" {key}="))))
}

async fn expect(process: &Process, lines: &[GoLine]) -> Result<()> {
    for line in lines {
        let said = until(line.1, DEADLINE, || async {
            process.log().iter().any(|said| is(said, line)).then_some(())
        });
        said.await.map_err(|error| process.explain(&error.context(format!("{line:?}"))))?;
    }
    Ok(())
}

#[tokio::test]
async fn log_lines_of_go_keep_their_text() -> Result<()> {
    for (mode, further) in [(Mode::Grpc, SERVER_GRPC), (Mode::HttpConnect, SERVER_CONNECT)] {
        let mut pair = Setup::new(mode, Front::Unix).start().await?;
        let endpoint = Endpoint::echo().await?;
        works(pair.frontend(), &endpoint.target()).await?;
        pair.frontend().dial_error(&Refusing::new()?.target()).await?;
        pair.agent().process.signal(Signal::TERM)?;
        expect(&pair.agent().process, AGENT).await?;
        pair.agent().process.signal(Signal::TERM)?;
        pair.server_mut().wait_unready().await?;
        pair.frontend().dial_error(&endpoint.target()).await?;
        expect(&pair.server().process, SERVER).await?;
        expect(&pair.server().process, further).await?;
    }
    Ok(())
}

#[tokio::test]
async fn dials_without_an_answer_have_gos_keys() -> Result<()> {
    const TERMINATED: GoLine =
        ('E', "Dial terminated (DIAL_CLS) by backend", &["dialID", "agentID", "dialAddress", "dialDuration"]);
    const LOST: GoLine = (
        'E',
        "backend context closed before connection was established",
        &["err", "host", "dialID", "agentID"],
    );
    const TIMED_OUT: GoLine = (
        'E',
        "backend dial timed out before connection was established",
        &["err", "host", "dialID", "agentID"],
    );
    let canceled: [(_, GoLine); 2] = [
        (
            Mode::Grpc,
            ('E', "Dial cancelled (DIAL_CLS) by frontend", &["dialID", "dialAddress", "dialDuration"]),
        ),
        (
            Mode::HttpConnect,
            ('I', "Frontend connection closed before being established", &["host", "dialID", "agentID"]),
        ),
    ];
    for (mode, canceled) in canceled {
        let pair = Setup::new(mode, Front::Unix).agents(0).start().await?;
        let mut agent = connect(&pair, &AgentMeta::new("a", "")).await?;
        let mut socket = pair.frontend().socket().await?;
        if mode == Mode::Grpc {
            let mut stream = PacketStream::proxy(channel(socket).await?);
            stream.send(dial_req(42, "node:1")).await?;
            agent.expect_dial().await?;
            stream.send(dial_cls(42)).await?;
            expect(&pair.server().process, &[canceled]).await?;
        } else {
            socket.write_all(b"CONNECT node:1 HTTP/1.1\r\n\r\n").await?;
            agent.expect_dial().await?;
            drop(socket);
            expect(&pair.server().process, &[canceled]).await?;
        }
        agent.stream.expect("the DIAL_CLS").await?;
        let terminated = async {
            let request = agent.expect_dial().await?;
            agent.stream.send(dial_cls(request.random)).await
        };
        tokio::try_join!(pair.frontend().dial_error("node:1"), terminated)?;
        let lost = async { agent.expect_dial().await.map(|_| drop(agent)) };
        tokio::try_join!(pair.frontend().dial_error("node:1"), lost)?;
        expect(&pair.server().process, &[TERMINATED, LOST]).await?;

        let pair =
            Setup::new(mode, Front::Unix).agents(0).server_arg("--backend-dial-timeout=10ms").start().await?;
        let _silent = connect(&pair, &AgentMeta::new("a", "")).await?;
        pair.frontend().dial_error("node:1").await?;
        expect(&pair.server().process, &[TIMED_OUT]).await?;
    }
    Ok(())
}

/// The lines that show a flag, without their prefix.
fn shown(process: &Process) -> Vec<String> {
    let lines = process.log();
    let rests =
        lines.iter().filter_map(|line| line.strip_prefix('I')?.split_once("] ").map(|(_, rest)| rest));
    rests.filter(|rest| rest.contains(" set to ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn flags_are_shown_at_the_start_as_go_shows_them() -> Result<()> {
    let pair = Setup::http_connect().server_arg("--kubeconfig-qps=2.5").start().await?;
    let server = shown(&pair.server().process);
    assert_eq!(server.first().map(String::as_str), Some(r#"ServerCert set to ""."#));
    for line in [
        r#"Mode set to "http-connect"."#,
        "DeleteUDSFile set to true.",
        "Server port set to 0.",
        "Keepalive time set to 1h0m0s.",
        "ServerID set to server-0.",
        "KubeconfigQPS set to 2.500000.",
        "CipherSuites set to [].",
        "BackendDialTimeout set to 0s.",
        r#"--agent-identity-binding set to "log"."#,
    ] {
        ensure!(server.iter().any(|shown| shown == line), "{line}: {server:#?}");
    }
    let agent = shown(&pair.agent().process);
    assert_eq!(agent.iter().position(|line| line == "AgentID set to agent-0."), Some(12), "{agent:#?}");
    assert_eq!(
        agent.get(26).map(String::as_str),
        Some("APIContentType set to application/vnd.kubernetes.protobuf.")
    );
    Ok(())
}

/// kube-apiserver and Go agents close their connections without a GOAWAY or close_notify.
#[tokio::test]
async fn ordinary_closes_are_no_losses_and_no_line_links_to_a_manual() -> Result<()> {
    for front in [Front::Unix, Front::Tls] {
        let pair = Setup::new(Mode::Grpc, front).server_arg("-v=2").start().await?;
        let endpoint = Endpoint::echo().await?;
        for _ in 0..5 {
            works(pair.frontend(), &endpoint.target()).await?;
            drop(connect(&pair, &AgentMeta::new("b", "")).await?);
        }
        let process = &pair.server().process;
        process.wait_said("\"Stream read from agent cancelled\"").await?;
        pair.server().wait_metric("grpc_connections", &[("service_method", "Proxy")], 0.0).await?;
        process.wait_said("\"Stream read from frontend cancelled\"").await?;
        for line in process.log() {
            ensure!(
                !line.starts_with('E') && !line.contains("docs.rs") && !line.contains("connection lost"),
                "{line}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_frontend_stream_that_fails_is_an_error() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let mut stream = pair.frontend().packets().await?;
    let _ = stream.send(data(1, vec![0; 5 << 20])).await;
    let failed = |line: &String| line.starts_with('E') && line.contains("Stream read from frontend failure");
    let process = &pair.server().process;
    process.wait_said("\"Stream read from frontend failure\"").await?;
    ensure!(process.log().iter().any(failed), "{:#?}", process.log());
    Ok(())
}

/// With `--sync-forever` Go agents connect repeatedly, find that they already have a stream to the server, and close the
/// connection.
#[tokio::test]
async fn duplicate_connects_of_an_agent_say_nothing_at_v_1() -> Result<()> {
    let pair = Setup::grpc().server_arg("-v=1").agents(0).start().await?;
    let meta = AgentMeta::new("a", "host=elsewhere");
    let _first = connect(&pair, &meta).await?;
    let process = &pair.server().process;
    process.wait_said("agent claims what its identity does not vouch for").await?;
    let (lines, counted) = (process.log().len(), claims(&pair).await?);
    assert!(counted > 0.0, "the claims are counted once");
    for _ in 0..5 {
        drop(connect(&pair, &meta).await?);
        pair.server().wait_metric("grpc_connections", &[("service_method", "Connect")], 1.0).await?;
    }
    assert_eq!(claims(&pair).await?, counted);
    process.signal(Signal::TERM)?;
    process.wait_said("Shutting down server.").await?;
    let log = process.log();
    let next = log.get(lines).map(String::as_str).unwrap_or_default();
    ensure!(next.contains("Shutting down server."), "{:#?}", log.get(lines..));
    Ok(())
}

async fn connect(pair: &Pair, meta: &AgentMeta) -> Result<AdversarialAgent> {
    AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, meta).await
}

async fn claims(pair: &Pair) -> Result<f64> {
    pair.server().metric("agent_claims_total", &[]).await
}
