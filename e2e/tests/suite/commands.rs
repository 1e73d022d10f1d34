//! `proxy-server status`, `probe`, `top` and `verbosity`, and those of the agent, against running pairs.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::adversarial::{AdversarialAgent, AgentMeta};
use e2e::endpoints::{Endpoint, Refusing};
use e2e::frontend::Place;
use e2e::http1::get;
use e2e::pair::{FRONTS, Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::process::output;
use e2e::program::{Program, row};
use e2e::wait::{DEADLINE, until};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What a command printed, and its exit status.
struct Said {
    code: i32,
    out: String,
    err: String,
}

/// Runs a command to its end.
async fn run(program: Program, words: &[&str]) -> Result<Said> {
    run_by(Command::new(program.path()?), words).await
}

async fn run_by(mut command: Command, words: &[&str]) -> Result<Said> {
    let Output { status, stdout, stderr } = output(command.args(words).stdout(Stdio::piped())).await?;
    let code = status.code().context("killed")?;
    Ok(Said { code, out: String::from_utf8(stdout)?, err: String::from_utf8(stderr)? })
}

/// Runs a command that asks at this address, and expects this exit status.
async fn ask(program: Program, at: SocketAddr, words: &[&str], code: i32) -> Result<String> {
    let address = format!("--admin-address={at}");
    let said = run(program, &[words, &[&address]].concat()).await?;
    ensure!(said.code == code, "{words:?}: {} instead of {code}\n{}{}", said.code, said.out, said.err);
    Ok(said.out + &said.err)
}

async fn probe(pair: &Pair, words: &[&str], code: i32) -> Result<String> {
    ask(Program::Server, pair.server().admin, &[&["probe"], words].concat(), code).await
}

#[tokio::test]
async fn status_tells_the_health_and_lists() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let (server, agent) = (pair.server().admin, pair.agent().admin);
    let text = ask(Program::Server, server, &["status"], 0).await?;
    ensure!(text.starts_with("proxy-server server-0 (") && text.contains(" is healthy: 1 agent, "), "{text}");
    ensure!(row(&text, "frontend")?.ends_with("s0.sock  grpc"), "{text}");
    let text = ask(Program::Agent, agent, &["status"], 0).await?;
    ensure!(text.starts_with("proxy-agent agent-0 (") && text.contains(" is healthy: 1 server, "), "{text}");
    ensure!(
        row(&ask(Program::Server, server, &["status", "agents"], 0).await?, "agent-0")?.contains("ready")
    );
    // A new stream is counted before it is listed.
    until("the server in the list", DEADLINE, || async {
        let text = ask(Program::Agent, agent, &["status", "servers"], 0).await.ok()?;
        row(&text, "server-0").is_ok_and(|row| row.contains("ready")).then_some(())
    })
    .await?;
    ensure!(ask(Program::Server, server, &["status", "certificates"], 0).await?.contains("--cluster-cert"));
    let echo = Endpoint::echo().await?;
    let _open = pair.frontend().dial(&echo.target()).await?;
    for (program, at, peer) in [(Program::Server, server, "agent-0"), (Program::Agent, agent, "server-0")] {
        let text = ask(program, at, &["status", "connections"], 0).await?;
        ensure!(row(&text, &echo.target())?.contains(peer), "{text}");
        let json = ask(program, at, &["status", "connections", "-o", "json"], 0).await?;
        let json: Value = serde_json::from_str(&json)?;
        ensure!(json["connections"][0]["target"] == echo.target(), "{json}");
    }
    let refusing = Refusing::new()?;
    pair.frontend().dial_error(&refusing.target()).await?;
    let text = ask(Program::Server, server, &["status", "failures"], 0).await?;
    ensure!(row(&text, &refusing.target())?.ends_with("connect: connection refused"), "{text}");
    Ok(())
}

#[tokio::test]
async fn konnectivity_check_has_the_commands_of_its_image() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let echo = Endpoint::echo().await?;
    let target = echo.target();
    for (program, at, words, expected) in [
        (Program::Server, pair.server().admin, &["status"][..], "proxy-server server-0 ("),
        (Program::Agent, pair.agent().admin, &["status"], "proxy-agent agent-0 ("),
        (Program::Server, pair.server().admin, &["probe", &target], "the agent has connected to the target"),
    ] {
        let mut command = Command::new(program.path()?);
        command.arg0("/konnectivity-check");
        let said = run_by(command, &[words, &[&format!("--admin-address={at}")]].concat()).await?;
        ensure!(said.code == 0 && said.out.contains(expected), "{words:?}: {}{}", said.out, said.err);
    }
    Ok(())
}

/// Several connections of one agent have the same id: each stream numbers its own.
#[tokio::test]
async fn connections_of_several_lanes_have_different_streams() -> Result<()> {
    let pair = Setup::grpc().agent_arg("--lanes=4").start().await?;
    let lanes = || async {
        let json =
            ask(Program::Server, pair.server().admin, &["status", "agents", "-o=json"], 0).await.ok()?;
        let json: Value = serde_json::from_str(&json).ok()?;
        (json["agents"][0]["streams"] == 4).then_some(())
    };
    until("four lanes", DEADLINE, lanes).await?;
    let echo = Endpoint::echo().await?;
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(pair.frontend().dial(&echo.target()).await?);
    }
    for (program, at) in [(Program::Server, pair.server().admin), (Program::Agent, pair.agent().admin)] {
        let json = ask(program, at, &["status", "connections", "-o=json"], 0).await?;
        let json: Value = serde_json::from_str(&json)?;
        let connections = json["connections"].as_array().context("connections")?;
        let number = |one: &Value, field: &str| one[field].as_u64().filter(|number| *number > 0);
        let pairs: Option<BTreeSet<_>> =
            connections.iter().map(|one| Some((number(one, "stream")?, number(one, "id")?))).collect();
        ensure!(pairs.is_some_and(|pairs| pairs.len() == 8), "{json}");
        let streams: BTreeSet<_> = connections.iter().map(|one| one["stream"].as_u64()).collect();
        ensure!(streams.len() > 1, "{json}");
        let text = ask(program, at, &["status", "connections"], 0).await?;
        ensure!(row(&text, "TARGET")?.contains("STREAM  ID"), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn output_that_cannot_be_written_is_an_error_and_a_closed_pipe_is_none() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let at = format!("--admin-address={}", pair.server().admin);
    for words in [&["status"][..], &["status", "-o=json"], &["top", "--once"], &["top", "--interval=100ms"]] {
        for is_full in [true, false] {
            let (reader, writer) = std::io::pipe()?;
            let out = if is_full { Stdio::from(File::create("/dev/full")?) } else { Stdio::from(writer) };
            drop(reader);
            let mut command = Command::new(Program::Server.path()?);
            let Output { status, stderr, .. } = output(command.args(words).arg(&at).stdout(out)).await?;
            let (code, line) = match is_full {
                true => (2, "cannot write to standard output: No space left on device (os error 28)\n"),
                false => (0, ""),
            };
            let said = String::from_utf8(stderr)?;
            ensure!(status.code() == Some(code) && said == line, "{words:?}: {status}: {said}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn status_tells_why_it_is_not_ready_or_cannot_be_asked() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let at = pair.server().admin;
    let text = ask(Program::Server, at, &["status"], 1).await?;
    ensure!(
        text.lines().next().is_some_and(|line| line.contains("NOT READY") && line.contains("agent")),
        "{text}"
    );
    let text = ask(Program::Server, at, &["status", "agent"], 2).await?;
    ensure!(text.starts_with("unknown list \"agent\": did you mean agents?"), "{text}");
    let text = ask(Program::Server, pair.server().health, &["status"], 2).await?;
    ensure!(text.contains("/statusz answers 404: is this the admin port (--admin-port)"), "{text}");
    let unused: SocketAddr = Refusing::new()?.target().parse()?;
    for command in ["status", "top", "verbosity"] {
        let text = ask(Program::Agent, unused, &[command], 2).await?;
        let start = format!("cannot ask the proxy-agent at http://{unused}: Connection refused");
        ensure!(text.starts_with(&start) && text.lines().count() == 1, "{text}");
        ensure!(text.contains("--admin-server-port") && text.contains("--admin-address=HOST:PORT"), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn probe_dials_by_each_frontend_and_names_the_agent() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let page = Endpoint::page().await?;
        let pki = &pair.pki;
        let tls = [
            format!("--client-cert={}", pki.front_client.cert.display()),
            format!("--client-key={}", pki.front_client.key.display()),
            format!("--ca-cert={}", pki.front_ca.display()),
        ];
        let tls: Vec<&str> = tls.iter().map(String::as_str).filter(|_| front == Front::Tls).collect();
        for _ in 0..2 {
            let text = probe(&pair, &[&tls[..], &["--http", &page.target()]].concat(), 0).await?;
            let selection = "selection - agent agent-0: strategy default: 1 of 1 agent suits and is ready";
            let selection: Vec<&str> = selection.split_whitespace().collect();
            let found: Vec<&str> = row(&text, "selection")?.split_whitespace().collect();
            ensure!(found == selection, "{mode:?} {front:?}: {text}");
            ensure!(row(&text, "frontend")?.contains(mode.flag()), "{text}");
            ensure!(row(&text, "dial ")?.contains("the agent has connected to the target"), "{text}");
            ensure!(row(&text, "http ")?.ends_with("the endpoint answers HTTP/1.1 200 OK"), "{text}");
        }
        // The agent port speaks TLS.
        let target = pair.server().agent_address().to_string();
        let text = probe(&pair, &[&tls[..], &["--tls", &target]].concat(), 0).await?;
        ensure!(row(&text, "tls ")?.contains("the endpoint answers with TLS"), "{text}");
        let text = probe(&pair, &[&tls[..], &["--http", &target]].concat(), 7).await?;
        ensure!(row(&text, "http ")?.contains("FAILED: the endpoint does not answer with HTTP"), "{text}");
        let refusing = Refusing::new()?;
        let text = probe(&pair, &[&tls[..], &[&refusing.target()]].concat(), 6).await?;
        ensure!(row(&text, "connect ")?.ends_with("connect: connection refused"), "{text}");
        ensure!(row(&text, "selection")?.contains("agent agent-0"), "{text}");
        if front == Front::Tls {
            let text = probe(&pair, &[&page.target()], 3).await?;
            ensure!(
                row(&text, "frontend")?.contains("give --client-cert, --client-key and --ca-cert"),
                "{text}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn probe_tells_which_stage_failed() -> Result<()> {
    let pair = Setup::http_connect().agents(0).start().await?;
    let text = probe(&pair, &["10.0.0.1:80"], 4).await?;
    let why = "FAILED: No agent available (no agent is connected)";
    ensure!(row(&text, "selection")?.contains(why), "{text}");
    let Place::Unix(path) = &pair.frontend().place else { anyhow::bail!("a Unix socket") };
    let wrong = format!("--frontend=unix:{}", path.display());
    let text = probe(&pair, &[&wrong, "10.0.0.1:80"], 3).await?;
    ensure!(text.contains("FAILED: its answer is not HTTP/2: does it speak HTTP CONNECT?"), "{text}");
    let text = probe(&pair, &["--frontend=unix:/no/such.sock", "10.0.0.1:80"], 3).await?;
    ensure!(text.contains("FAILED: grpc+unix:/no/such.sock: No such file or directory"), "{text}");
    for (words, line) in [
        (&["10.0.0.1"][..], "\"10.0.0.1\" is no target: give HOST:PORT"),
        (&["a:1", "b:1"], "unexpected \"b:1\": usage: proxy-server probe [flags] HOST:PORT"),
        (&["--http", "a:1", "true"], "unexpected \"true\": usage: "),
        (&["--tls", "--http", "a:1"], "--tls cannot be used with --http"),
        (&["--agent=x", "--frontend=unix:/y", "a:1"], "--agent cannot be used with --frontend"),
        (&["--fronted=x", "a:1"], "unknown flag: --fronted (did you mean --frontend?)"),
    ] {
        let text = probe(&pair, words, 2).await?;
        ensure!(text.starts_with(line) && text.lines().count() == 1, "{words:?}: {text}");
    }
    Ok(())
}

/// The agent answers pings, and no dial.
#[tokio::test]
async fn probe_names_the_agent_if_it_does_not_answer() -> Result<()> {
    for setup in [Setup::grpc(), Setup::http_connect()] {
        let setup =
            setup.agents(0).server_arg("--backend-dial-timeout=300ms").server_arg("--allow-probe-dials");
        let pair = setup.start().await?;
        let meta = AgentMeta::new("silent", "");
        let _agent = AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &meta).await?;
        for words in [&["10.0.0.1:80"][..], &["--agent=silent", "10.0.0.1:80"]] {
            let text = probe(&pair, words, 5).await?;
            ensure!(row(&text, "selection ")?.contains("agent silent"), "{text}");
            ensure!(
                row(&text, "agent  ")?.contains("FAILED: ")
                    && text.contains("timed out waiting for backend dial"),
                "{text}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn probe_dials_through_the_agent_that_is_named() -> Result<()> {
    let setup = Setup::http_connect().agents(3);
    let refusing = setup.clone().start().await?;
    let text = probe(&refusing, &["--agent=agent-1", "127.0.0.1:1"], 2).await?;
    ensure!(text.contains("--allow-probe-dials"), "{text}");
    let pair = setup.server_arg("--allow-probe-dials").start().await?;
    let page = Endpoint::page().await?;
    for _ in 0..5 {
        let text = probe(&pair, &["--agent=agent-1", "--http", &page.target()], 0).await?;
        ensure!(
            row(&text, "selection")?.contains("agent agent-1 was asked for (strategy default: 3 of 3"),
            "{text}"
        );
        ensure!(row(&text, "http ")?.ends_with("HTTP/1.1 200 OK"), "{text}");
    }
    let json = ask(Program::Server, pair.server().admin, &["status", "agents", "-o=json"], 0).await?;
    let json: Value = serde_json::from_str(&json)?;
    let agents = json["agents"].as_array().context("agents")?;
    let dials: Vec<_> =
        agents.iter().map(|agent| (agent["id"].as_str(), agent["dials_ok"].as_u64())).collect();
    let expected =
        [("agent-0", 0), ("agent-1", 5), ("agent-2", 0)].map(|(id, dials)| (Some(id), Some(dials)));
    ensure!(dials == expected, "{dials:?}");
    let text = probe(&pair, &["--agent=agent-7", &page.target()], 4).await?;
    let missing = "FAILED: no connected agent has the id \"agent-7\": 3 connected";
    ensure!(row(&text, "selection")?.ends_with(missing) && text.lines().count() == 2, "{text}");
    let refusing = Refusing::new()?;
    let text = probe(&pair, &["--agent=agent-2", &refusing.target()], 6).await?;
    ensure!(row(&text, "connect ")?.ends_with("connection refused"), "{text}");
    pair.server().wait_metric("established_connections", &[], 0.0).await?;
    Ok(())
}

#[tokio::test]
async fn verbosity_changes_and_returns_after_its_time() -> Result<()> {
    let pair = Setup::grpc().agent_arg("-v=1").start().await?;
    for (program, at, old) in
        [(Program::Server, pair.server().admin, "4"), (Program::Agent, pair.agent().admin, "1")]
    {
        ensure!(ask(program, at, &["verbosity"], 0).await?.trim() == old);
        let text = ask(program, at, &["verbosity", "6", "--for=500ms"], 0).await?;
        let said = format!("successfully set klog.logging.verbosity to 6 for 500ms, then {old}\n");
        ensure!(text == said, "{text}");
        let back =
            || async { ask(program, at, &["verbosity"], 0).await.ok().filter(|level| level.trim() == old) };
        until("the old verbosity", DEADLINE, back).await?;
        ask(program, at, &["verbosity", "7"], 0).await?;
        let flags = get(at, "/statusz").await?.body;
        ensure!(flags.contains(r#"{"name":"v","value":"7"}"#), "{flags}");
        for words in [&["verbosity", "loud"][..], &["verbosity", "--for=1m"], &["verbosity", "2", "--for=0s"]]
        {
            ask(program, at, words, 2).await?;
        }
    }
    pair.server().process.wait_said("\"verbosity changed\" from=4 to=6").await?;
    pair.agent().process.wait_said("\"verbosity changed\" from=6 to=1").await?;
    Ok(())
}

#[tokio::test]
async fn top_shows_bytes_per_second_without_a_terminal() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let source = Endpoint::source(Payload::new(1, 1 << 30)).await?;
    let mut open = pair.frontend().dial(&source.target()).await?;
    open.write_all(b"x").await?;
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while open.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    });
    for (program, at) in [(Program::Server, pair.server().admin), (Program::Agent, pair.agent().admin)] {
        let moving = || async {
            let text = ask(program, at, &["top", "--once", "--interval=200ms"], 0).await.ok()?;
            let rows = text.lines().filter(|line| line.contains("iB/s")).count();
            (rows == 2 && row(&text, &source.target()).is_ok() && !text.contains('\u{1b}')).then_some(())
        };
        until("bytes per second of the peer and of the connection", DEADLINE, moving).await?;
    }
    reader.abort();
    Ok(())
}

#[tokio::test]
async fn words_that_are_no_commands_are_refused_only_in_the_first_place() -> Result<()> {
    for (program, word, line) in [
        (
            Program::Server,
            "stats",
            "unknown command \"stats\": did you mean status? proxy-server knows status, ",
        ),
        (Program::Agent, "probe", "unknown command \"probe\": proxy-agent knows status, top, verbosity, "),
        (Program::Agent, "verbosty", "unknown command \"verbosty\": did you mean verbosity? "),
    ] {
        let said = run(program, &[word, "--version"]).await?;
        ensure!((said.code, said.out.as_str()) == (1, ""), "{}", said.err);
        ensure!(said.err.starts_with(line) && said.err.lines().count() == 1, "{}", said.err);
    }
    for (program, words) in [(Program::Server, ["--version", "status"]), (Program::Agent, ["", "--version"])]
    {
        let said = run(program, &words).await?;
        ensure!(
            said.code == 0 && said.out.ends_with(concat!(env!("CARGO_PKG_VERSION"), "\n")),
            "{}",
            said.err
        );
    }
    let pair = Setup::grpc().agent_arg("--sync-forever").agent_arg("false").start().await?;
    let line = "\"false\" after --sync-forever is ignored: did you mean --sync-forever=false?";
    pair.agent().process.wait_said(line).await?;
    ensure!(
        ask(Program::Server, pair.server().admin, &["status", "--help"], 0)
            .await?
            .contains("Usage: proxy-server status [flags] [")
    );
    Ok(())
}
