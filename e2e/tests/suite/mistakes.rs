//! Wrong configurations: the log, the readiness and the status of both programs name the cause and the fix, at `-v=0`.
//! A program that cannot know the cause shows its effect.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use e2e::frontend::{Mode, Place};
use e2e::http1::get;
use e2e::metrics::{AGENT, Scrape};
use e2e::pair::{Front, Pair, Setup};
use e2e::pki::Pki;
use e2e::process::{Process, Recipe};
use e2e::program::Program;
use e2e::wait::{DEADLINE, until};
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use std::net::SocketAddr;

use crate::tokens::World;

const DAY: i64 = 86_400;

/// What a program must say in its log and in `/statusz`. An empty text is not checked.
struct Says<'a> {
    log: &'a str,
    status: &'a str,
}

/// A server that no agent has reached knows no more.
const NO_AGENT: Says<'_> = Says { log: "", status: "no connection to any proxy agent" };

/// A program that works.
const READY: Says<'_> = Says { log: "", status: r#""state":"ready""# };

/// The same text in both places.
fn both(text: &str) -> Says<'_> {
    Says { log: text, status: text }
}

async fn says(process: &Process, admin: SocketAddr, said: &Says<'_>) -> Result<()> {
    let found = until(said.log, DEADLINE, || async {
        let log = process.log();
        log.iter().any(|line| line.replace("\\\"", "\"").contains(said.log)).then_some(())
    });
    found.await.map_err(|error| process.explain(&error))?;
    let shown = until(said.status, DEADLINE, || async {
        let body = get(admin, "/statusz").await.ok()?.body.replace("\\\"", "\"");
        body.contains(said.status).then_some(())
    });
    if shown.await.is_err() {
        anyhow::bail!("/statusz lacks {:?}: {}", said.status, get(admin, "/statusz").await?.body);
    }
    Ok(())
}

/// Adds an agent with these flags to a server, checks what both say, and that both still run.
async fn check(mut pair: Pair, agent: &[&str], server_says: Says<'_>, agent_says: Says<'_>) -> Result<()> {
    check_at(&mut pair, agent, server_says, agent_says).await
}

/// The same for a pair that is needed afterwards.
async fn check_at(
    pair: &mut Pair,
    agent: &[&str],
    server_says: Says<'_>,
    agent_says: Says<'_>,
) -> Result<()> {
    let mut flags = vec!["-v=0"];
    flags.extend(agent);
    pair.add_agent("a", "", &flags)?;
    says(&pair.server().process, pair.server().admin, &server_says).await?;
    says(&pair.agent().process, pair.agent().admin, &agent_says).await?;
    if agent_says.status.contains("--") {
        // The last error is also in the agent's readiness.
        let body = get(pair.agent().health, "/readyz?verbose").await?.body;
        ensure!(body.contains("last error") && body.contains(agent_says.status), "{body}");
    }
    let runs = pair.server_mut().process.ended().is_none() && pair.agent_mut().process.ended().is_none();
    ensure!(runs, "a program ended");
    Ok(())
}

async fn server(flags: &[String]) -> Result<Pair> {
    let setup =
        flags.iter().fold(Setup::grpc().agents(0).server_arg("-v=0"), |setup, flag| setup.server_arg(flag));
    setup.start().await
}

fn other_pki() -> Result<(tempfile::TempDir, Pki)> {
    let folder = tempfile::tempdir()?;
    let pki = Pki::create(folder.path())?;
    Ok((folder, pki))
}

#[tokio::test]
async fn agent_that_does_not_trust_the_server_names_file_and_issuers() -> Result<()> {
    let (_folder, other) = other_pki()?;
    let flag = format!("--ca-cert={}", other.front_ca.display());
    let hint = format!(
        "--ca-cert {}: the certificate was issued by CN=throw-away cluster authority; trusted: CN=throw-away front authority",
        other.front_ca.display()
    );
    let server_says = both("the agent does not accept --cluster-cert: it must trust the issuer");
    check(server(&[]).await?, &[&flag], server_says, both(&hint)).await
}

#[tokio::test]
async fn server_that_does_not_trust_the_agent_names_file_and_issuers() -> Result<()> {
    let (_folder, other) = other_pki()?;
    let cluster = "CN=throw-away cluster authority";
    let namesake = format!(
        "--cluster-ca-cert {}: the certificate was issued by {cluster}; trusted: {cluster} (an authority of that name with another key",
        other.cluster_ca.display()
    );
    // The agent knows from the handshake that the server names another authority.
    let withheld = format!(
        "the agent did not send --agent-cert: the server's --cluster-ca-cert does not contain its issuer {cluster}"
    );
    for (ca, server_says, agent_says) in [
        (
            &other.cluster_ca,
            namesake.as_str(),
            "the server does not accept --agent-cert: its --cluster-ca-cert",
        ),
        (&other.front_ca, "agents send only a certificate whose issuer is in --cluster-ca-cert", &withheld),
    ] {
        let flag = format!("--cluster-ca-cert={}", ca.display());
        check(server(&[flag]).await?, &[], both(server_says), both(agent_says)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn agent_without_a_certificate_is_told_the_flags() -> Result<()> {
    let server_says =
        both("this port requires a client certificate: set the agent's --agent-cert and --agent-key");
    let agent_says = both("the server requires a client certificate: set --agent-cert and --agent-key");
    check(server(&[]).await?, &["--agent-cert=", "--agent-key="], server_says, agent_says).await
}

/// A certificate of the pair's authority with this validity, as two flags.
fn certificate(pair: &Pair, flags: [&str; 2], server: bool, from: i64, until: i64) -> Result<Vec<String>> {
    let made = pair.pki.cluster_leaf(if server { ServerAuth } else { ClientAuth }, from, until)?;
    let files = [made.cert, made.key].into_iter().zip(flags).map(|(pem, flag)| {
        let path = pair.folder().join(flag.trim_start_matches('-'));
        std::fs::write(&path, pem)?;
        Ok(format!("{flag}={}", path.display()))
    });
    files.collect()
}

#[tokio::test]
async fn agents_certificate_that_is_not_valid_now_is_named_with_its_date() -> Result<()> {
    for (from, until, what) in [
        (-9 * DAY, -DAY, "expired: it was valid until 20"),
        (DAY, 9 * DAY, "not valid yet: it is valid from 20"),
    ] {
        let pair = server(&[]).await?;
        let flags = certificate(&pair, ["--agent-cert", "--agent-key"], false, from, until)?;
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let agent_says = both(
            "the server says that --agent-cert is expired or not valid yet: replace it, or correct the clocks",
        );
        check(pair, &flags, both(what), agent_says).await?;
    }
    Ok(())
}

#[tokio::test]
async fn servers_certificate_that_is_not_valid_now_is_named_with_its_date() -> Result<()> {
    for (from, until, what) in [
        (-9 * DAY, -DAY, "certificate expired: it was valid until 20"),
        (DAY, 9 * DAY, "certificate not valid yet: it is valid from 20"),
    ] {
        let made = server(&[]).await?;
        let flags = certificate(&made, ["--cluster-cert", "--cluster-key"], true, from, until)?;
        let setup =
            flags.iter().fold(Setup::grpc().agents(0).server_arg("-v=0").pki(&made.pki), |setup, flag| {
                setup.server_arg(flag)
            });
        let server_says = both(
            "the agent says that --cluster-cert is expired or not valid yet: replace it, or correct the clocks",
        );
        check(setup.start().await?, &[], server_says, both(what)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn certificate_for_the_other_purpose_is_named_at_both_ends() -> Result<()> {
    let pair = server(&[]).await?;
    let flags = certificate(&pair, ["--agent-cert", "--agent-key"], true, -DAY, DAY)?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let agent_says = both(
        "the server does not accept --agent-cert: its extended key usage must allow client authentication",
    );
    check(pair, &flags, both("invalid peer certificate"), agent_says).await?;
    let made = server(&[]).await?;
    let flags = certificate(&made, ["--cluster-cert", "--cluster-key"], false, -DAY, DAY)?;
    let setup = Setup::grpc().agents(0).server_arg("-v=0").pki(&made.pki);
    let pair = flags.iter().fold(setup, |setup, flag| setup.server_arg(flag)).start().await?;
    let server_says = both(
        "the agent does not accept --cluster-cert: its extended key usage must allow server authentication",
    );
    check(pair, &[], server_says, both("invalid peer certificate")).await
}

/// Repetitions are one entry, although each attempt reads the clock.
#[tokio::test]
async fn repeated_refusals_of_an_expired_certificate_are_one_entry() -> Result<()> {
    let mut pair = server(&[]).await?;
    let flags = certificate(&pair, ["--agent-cert", "--agent-key"], false, -9 * DAY, -DAY)?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    pair.add_agent("a", "", &flags)?;
    let admin = pair.server().admin;
    let refused = until("three refusals", DEADLINE, || async {
        let status: status::Status = serde_json::from_str(&get(admin, "/statusz").await.ok()?.body).ok()?;
        (status.totals.refused >= 3).then_some(status.refused)
    });
    assert_eq!(refused.await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn name_that_the_servers_certificate_lacks_is_named_with_those_it_has() -> Result<()> {
    let pair = server(&["--agent-bind-address=0.0.0.0".to_owned()]).await?;
    let agent_says = both("not valid for name 127.0.0.2, only for localhost, servers.test, 127.0.0.1, ");
    let server_says = both("the agent does not accept --cluster-cert");
    check(pair, &["--proxy-server-host=127.0.0.2"], server_says, agent_says).await
}

#[tokio::test]
async fn wrong_ports_are_named() -> Result<()> {
    let fix = "nothing listens there: check that the server runs, and that --proxy-server-host and \
               --proxy-server-port lead to its --agent-port";
    let refused = format!("dial tcp 127.0.0.1:1: connect: connection refused ({fix})");
    let agent_says = Says { log: fix, status: &refused };
    check(server(&[]).await?, &["--proxy-server-port=1"], NO_AGENT, agent_says).await?;
    for admin in [false, true] {
        let pair = server(&[]).await?;
        let port = if admin { pair.server().admin } else { pair.server().health }.port();
        let flag = format!("--proxy-server-port={port}");
        let agent_says = format!(
            "the answer is not TLS; is 127.0.0.1:{port} the agent port? Health and admin ports speak plain HTTP; \
             --proxy-server-port must lead to the server's --agent-port"
        );
        check(pair, &[&flag], NO_AGENT, both(&agent_says)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn agent_at_a_frontends_port_is_named_at_both_ends() -> Result<()> {
    for (mode, server_says, agent_says) in [
        (
            Mode::Grpc,
            "an agent came to a frontend's port: agents connect to --agent-port",
            "is it the agent port? A gRPC frontend answers like this; --proxy-server-port must lead to the server's --agent-port",
        ),
        (
            Mode::HttpConnect,
            "if it is an agent, it must connect to --agent-port",
            "An HTTP CONNECT frontend answers like this; --proxy-server-port must lead to the server's --agent-port",
        ),
    ] {
        let pair = Setup::new(mode, Front::Tls).agents(0).server_arg("-v=0").start().await?;
        let Place::Tls(address) = pair.frontend().place else { anyhow::bail!("a port") };
        // Certificates that the frontend accepts.
        let front = &pair.pki;
        let flags = [
            format!("--proxy-server-port={}", address.port()),
            format!("--ca-cert={}", front.front_ca.display()),
            format!("--agent-cert={}", front.front_client.cert.display()),
            format!("--agent-key={}", front.front_client.key.display()),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        check(pair, &flags, both(server_says), both(agent_says)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn token_that_is_missing_or_refused_is_named_at_both_ends() -> Result<()> {
    let world = World::new().await?;
    let wanted = "Authentication context was not found in metadata";
    let pair = world.setup("unknown")?.server_arg("-v=0").agents(0).start().await?;
    let agent_says = both("the server requires a token: set --service-account-token-path");
    check(pair, &["--service-account-token-path="], both(wanted), agent_says).await?;
    let pair = world.setup("unknown")?.server_arg("-v=0").agents(0).start().await?;
    let agent_says = both("the token of --service-account-token-path must suit --authentication-audience");
    check(pair, &[], both("service account jwt not valid"), agent_says).await
}

#[tokio::test]
async fn count_that_no_server_completes_is_named_once() -> Result<()> {
    let mut pair = server(&["--server-count=3".to_owned()]).await?;
    let text = "no attempt reaches a missing server: is the server count too high";
    let count = r#"{"name":"server-count","value":"3"}"#;
    check_at(&mut pair, &[], Says { log: "", status: count }, both(text)).await?;
    // Two more attempts.
    let duplicates = |metrics: &Scrape| {
        metrics.value(&format!("{AGENT}server_connection_attempts_total"), &[("result", "duplicate")])
    };
    let seen = duplicates(&pair.agent().metrics().await?);
    until("two more attempts", DEADLINE, || async {
        (duplicates(&pair.agent().metrics().await.ok()?) >= seen + 2.0).then_some(())
    })
    .await?;
    for log in [pair.agent().process.log(), pair.server().process.log()] {
        let about = |line: &&String| line.contains("server count") || line.contains("uplicate");
        let lines: Vec<_> = log.iter().filter(about).collect();
        ensure!(lines.len() <= 1, "{lines:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn two_servers_with_one_id_are_named() -> Result<()> {
    let setup = Setup::grpc().servers(2).agents(0).server_arg("-v=0").server_arg("--server-id=same");
    let mut pair = setup.start().await?;
    pair.add_agent("a", "", &["-v=0"])?;
    let agent = pair.agent();
    says(&agent.process, agent.admin, &both("do two servers have one --server-id?")).await?;
    let id = Says { log: r#"serverID="same""#, status: r#""id":"same""# };
    says(&agent.process, agent.admin, &id).await?;
    let body = get(agent.health, "/readyz?verbose").await?.body;
    ensure!(body.contains("do two servers have one --server-id?"), "{body}");
    for server in &pair.servers {
        says(&server.process, server.admin, &Says { log: "", status: r#""id":"same""# }).await?;
    }
    Ok(())
}

#[tokio::test]
async fn kubernetes_api_that_is_down_is_named_at_both_ends() -> Result<()> {
    let world = World::new().await?;
    let pair = world.setup("unknown")?.server_arg("-v=0").agents(0).start().await?;
    world.api.down();
    let server_says = Says { log: "An agent's token could not be reviewed", status: "token review: " };
    let agent_says =
        both("the server could not review the token, which may be valid: its log has the reason");
    check(pair, &[], server_says, agent_says).await
}

#[tokio::test]
async fn agents_without_identifiers_for_the_strategy_are_named() -> Result<()> {
    let mut pair = server(&["--proxy-strategies=destHost".to_owned()]).await?;
    let said = Says {
        log: "no connected agent has --agent-identifiers",
        status: "1 connected, without --agent-identifiers for destHost",
    };
    check_at(&mut pair, &[], said, READY).await?;
    let health = pair.server().health;
    let body = get(health, "/readyz?verbose").await?.body;
    let said = "no connection to any proxy agent\n   1 connected, without --agent-identifiers for destHost";
    ensure!(body.contains(said), "{body}");
    let body = get(health, "/readyz").await?.body;
    ensure!(body == "no connection to any proxy agent", "{body}");
    Ok(())
}

#[tokio::test]
async fn unauthenticated_agents_cause_a_warning() -> Result<()> {
    let server_says = Says { log: "Agents are not authenticated", status: r#""id":"a","identity":"""# };
    check(server(&["--cluster-ca-cert=".to_owned()]).await?, &[], server_says, READY).await
}

#[tokio::test]
async fn two_agents_with_one_id_are_named() -> Result<()> {
    let mut pair = server(&[]).await?;
    pair.add_agent("same", "", &[])?;
    pair.wait_connected().await?;
    let said = Says {
        log: "two agents use one agent id: give each its own --agent-id",
        status: "agent id same is also used by an agent at 127.0.0.1",
    };
    check(pair, &["--agent-id=same"], said, Says { log: "", status: r#""id":"same""# }).await
}

#[tokio::test]
async fn two_servers_with_one_socket_are_named_by_both() -> Result<()> {
    let first = server(&[]).await?;
    let second =
        Setup::grpc().agents(0).server_arg("-v=0").places(&[first.frontend().place.clone()]).start().await?;
    second.server().process.wait_said("another process listens on the Unix socket").await?;
    let why = "another process's file is there";
    let said = Says { log: why, status: why };
    says(&first.server().process, first.server().admin, &said).await?;
    let body = get(first.server().health, "/readyz?verbose").await?.body;
    ensure!(body.contains(why), "{body}");
    Ok(())
}

#[tokio::test]
async fn client_with_the_other_protocol_is_in_the_status() -> Result<()> {
    for (mode, bytes, cause) in [
        (
            Mode::Grpc,
            "CONNECT node:10250 HTTP/1.1\r\nHost: node:10250\r\n\r\n",
            "--mode is grpc: was it HTTP/1.1 CONNECT?",
        ),
        (Mode::HttpConnect, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "--mode is http-connect: was it gRPC?"),
    ] {
        let pair = Setup::new(mode, Front::Unix).server_arg("-v=0").agents(0).start().await?;
        let Place::Unix(path) = &pair.frontend().place else { anyhow::bail!("a Unix socket") };
        for _ in 0..3 {
            let mut client = tokio::net::UnixStream::connect(path).await?;
            tokio::io::AsyncWriteExt::write_all(&mut client, bytes.as_bytes()).await?;
        }
        says(&pair.server().process, pair.server().admin, &both(cause)).await?;
        let lines = pair.server().process.log().iter().filter(|line| line.contains(cause)).count();
        assert_eq!(lines, 1, "once a minute");
    }
    Ok(())
}

/// The frontend cannot listen yet: the log, the readiness and the status name the flag and the cause.
#[tokio::test]
async fn socket_that_cannot_be_bound_is_named_with_its_flag() -> Result<()> {
    let pair = server(&[]).await?;
    let file = pair.folder().join("file");
    std::fs::write(&file, "precious")?;
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
    let (full, closed) = (pair.folder().join("full"), pair.folder().join("closed"));
    std::fs::create_dir_all(full.join("directory"))?;
    std::fs::create_dir(&closed)?;
    std::fs::set_permissions(&closed, Permissions::from_mode(0o555))?;
    for (path, why) in [
        (full, "the file exists and is not a socket: remove it or choose another path"),
        (closed.join("s.sock"), "permission denied: make its directory writable for user "),
        (pair.folder().join("missing/s.sock"), "its directory does not exist"),
        (file, "the file exists and is not a socket: remove it or choose another path"),
        (long, "a socket's path must be shorter than 108 bytes"),
    ] {
        let flag = format!("--uds-name={}", path.display());
        let said = format!("--uds-name: cannot listen on {}: {why}", path.display());
        let mut process = start(Program::Server, &pair, &[flag])?;
        let status = process.exit(DEADLINE).await?;
        ensure!(status.code() == Some(1) && process.said(&said), "{said}: {:?}", process.log());
    }
    Ok(())
}

/// A program with the pair's certificates.
fn start(program: Program, pair: &Pair, flags: &[String]) -> Result<Process> {
    Process::spawn(unprivileged(pair.recipe(program, flags)?))
}

/// The same program without root's right to read and write every file.
fn unprivileged(recipe: Recipe) -> Recipe {
    if !rustix::process::geteuid().is_root() {
        return recipe;
    }
    let mut args = vec!["--bounding-set=-dac_override,-dac_read_search".to_owned(), "--".to_owned()];
    args.push(recipe.program.display().to_string());
    args.extend(recipe.args);
    Recipe { program: "setpriv".into(), args, ..recipe }
}

/// A file that cannot be read ends the process with one line that names flag, file and fix.
#[tokio::test]
async fn files_that_cannot_be_read_are_named_with_their_flags() -> Result<()> {
    let pair = server(&[]).await?;
    let (directory, secret) = (pair.folder().join("directory"), pair.folder().join("secret"));
    std::fs::create_dir(&directory)?;
    std::fs::write(&secret, "")?;
    std::fs::set_permissions(&secret, Permissions::from_mode(0o000))?;
    let tokens = ["--agent-namespace=a", "--agent-service-account=b", "--authentication-audience=c"];
    let rows: [(Program, &str, &[&str]); 7] = [
        (Program::Server, "--cluster-cert", &[]),
        (Program::Server, "--cluster-key", &[]),
        (Program::Server, "--cluster-ca-cert", &[]),
        (Program::Server, "--kubeconfig", &tokens),
        (Program::Agent, "--agent-cert", &[]),
        (Program::Agent, "--agent-key", &[]),
        (Program::Agent, "--ca-cert", &[]),
    ];
    for (program, flag, further) in rows {
        for (path, why) in [
            (&directory, "it is a directory: name a file"),
            (&secret, "permission denied: make it readable for user "),
        ] {
            let mut flags = vec![format!("{flag}={}", path.display())];
            flags.extend(further.iter().map(|flag| (*flag).to_owned()));
            let mut process = start(program, &pair, &flags)?;
            let status = process.exit(DEADLINE).await?;
            let (log, said) = (process.log(), format!("{flag}: cannot read {}: {why}", path.display()));
            let is_last = log.last().is_some_and(|line| line.starts_with(&said));
            ensure!(status.code() == Some(1) && is_last, "{said}: {status}: {log:?}");
        }
    }
    Ok(())
}

/// A token file may appear later, so the agent tries again.
#[tokio::test]
async fn token_file_that_cannot_be_read_is_named_with_its_flag() -> Result<()> {
    let world = World::new().await?;
    let pair = world.setup("unknown")?.server_arg("-v=0").agents(0).start().await?;
    let path = pair.folder().display().to_string();
    let agent_says = format!("--service-account-token-path {path}: it is a directory: name a file");
    check(pair, &[&format!("--service-account-token-path={path}")], NO_AGENT, both(&agent_says)).await
}

/// These command lines and files end the process with one line that names the flag and the fix. If lines are JSON, only
/// the error of a command line that cannot be parsed is text.
#[tokio::test]
async fn mistakes_that_are_known_at_the_start_end_the_process() -> Result<()> {
    let pair = server(&[]).await?;
    let pki = &pair.pki;
    let (cert, key) = (pki.agent.cert.display(), pki.agent.key.display());
    let (server_cert, server_key) = (pki.cluster_server.cert.display(), pki.cluster_server.key.display());
    let swapped = "a private key is in it, and no certificate: are certificate and key swapped?";
    let agent = [
        (
            vec![format!("--agent-cert={key}"), format!("--agent-key={cert}")],
            format!("--agent-cert: {key}: {swapped}"),
        ),
        (
            vec![format!("--agent-key={server_key}")],
            format!(
                "--agent-cert, --agent-key: the private key {server_key} does not match the certificate {cert}"
            ),
        ),
        (
            vec!["--proxy-server-host=https://lb.example.com".to_owned()],
            "it is a URL: write HOST or HOST:PORT".to_owned(),
        ),
        (vec!["--agent-identifiers=ipv4=1.2.3".to_owned()], "write ipv4=ADDRESS".to_owned()),
        (vec!["--agent-identifiers=cidr=10.0.0.0/40".to_owned()], "write cidr=BLOCK".to_owned()),
        (vec!["--agent-identifiers=default-route=yes".to_owned()], "write default-route=true".to_owned()),
        (
            vec!["--service-account-token-path=/nonexistent".to_owned()],
            "--service-account-token-path: ".to_owned(),
        ),
        (vec!["--agent-idd=a".to_owned()], "did you mean --agent-id?".to_owned()),
        (vec!["--sync-interval=10".to_owned()], "the unit is missing".to_owned()),
    ];
    let server = [
        (
            vec![format!("--cluster-cert={server_key}"), format!("--cluster-key={server_cert}")],
            format!("--cluster-cert: {server_key}: {swapped}"),
        ),
        (
            vec![format!("--cluster-key={key}")],
            format!(
                "--cluster-cert, --cluster-key: the private key {key} does not match the certificate {server_cert}"
            ),
        ),
        (vec!["--server-port=8090".to_owned()], "set --server-port=0".to_owned()),
        (
            vec![
                format!("--cluster-ca-cert={}", pki.cluster_ca.display()),
                "--agent-namespace=a".to_owned(),
                "--agent-service-account=b".to_owned(),
                "--authentication-audience=c".to_owned(),
            ],
            "drop one".to_owned(),
        ),
        (
            vec!["--proxy-strategies=nearest".to_owned()],
            "the strategies are default, destHost and defaultRoute".to_owned(),
        ),
    ];
    for (program, rows) in [(Program::Agent, &agent[..]), (Program::Server, &server[..])] {
        for (flags, said) in rows {
            for json in [false, true] {
                let flags: Vec<String> =
                    flags.iter().cloned().chain(json.then(|| "--log-format=json".to_owned())).collect();
                let mut process = start(program, &pair, &flags)?;
                let status = process.exit(DEADLINE).await?;
                let log = process.log();
                let last = log.last().context("no line")?;
                let text = match json && !last.starts_with("Error: ") {
                    true => serde_json::from_str::<serde_json::Value>(last)?["msg"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                    false => last.clone(),
                };
                ensure!(status.code() == Some(1) && text.contains(said), "{flags:?}: {status}: {log:?}");
            }
        }
    }
    Ok(())
}

/// The error that ends a start is also in the log file, like Go's.
#[tokio::test]
async fn error_at_the_start_is_also_in_the_log_file() -> Result<()> {
    let pair = server(&[]).await?;
    let log = pair.folder().join("log");
    let file = format!("--log-file={}", log.display());
    let key = format!("--cluster-key={}", pair.pki.agent.key.display());
    for (flag, said) in [
        (key.as_str(), "does not match the certificate"),
        ("--server-port=8090", "--server-port cannot be used with --uds-name"),
    ] {
        for format in ["text", "json"] {
            let flags = [flag, "--logtostderr=false", &file, "--log-format", format].map(str::to_owned);
            let mut process = start(Program::Server, &pair, &flags)?;
            let status = process.exit(DEADLINE).await?;
            let shown = process.log().iter().filter(|line| line.contains(said)).count();
            let written = std::fs::read_to_string(&log)?;
            let last = written.lines().last().context("no line")?;
            let is_error = last.starts_with('E') || last.contains("\"level\":\"error\"");
            ensure!(status.code() == Some(1) && shown == 1, "{flag}: {status}: {:?}", process.log());
            ensure!(is_error && last.contains(said) && written.matches(said).count() == 1, "{written}");
            std::fs::remove_file(&log)?;
        }
    }
    Ok(())
}

/// They work with Go's agent, so they start, and the log says what is wrong.
#[tokio::test]
async fn values_that_an_empty_variable_leaves_are_warned_of() -> Result<()> {
    for (name, value, said) in [
        ("proxy-server-host", "", "--proxy-server-host is empty: it counts as localhost"),
        ("agent-identifiers", "host=", "--agent-identifiers has an empty value, which matches no target"),
        ("agent-identifiers", "ipv4=$(HOST_IP)", "--agent-identifiers has a variable that nothing expanded"),
        ("agent-identifiers", "ipv4=10.0.0.1,fd00::1", "--agent-identifiers has a list of addresses"),
    ] {
        let status = format!(r#"{{"name":"{name}","value":"{value}"}}"#);
        let agent_says = Says { log: said, status: &status };
        check(server(&[]).await?, &[&format!("--{name}={value}")], READY, agent_says).await?;
    }
    Ok(())
}
