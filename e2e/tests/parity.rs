//! Compares the programs with upstream's: every flag, default, metric family and label of upstream's must exist here.
//! `UPSTREAM` names a folder with upstream's `server` and `agent`: `hack/nightly parity` builds the newest ones.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::adversarial::PacketStream;
use e2e::endpoints::{Endpoint, Refusing};
use e2e::exchange::works;
use e2e::frontend::{Mode, Place, Tunnel};
use e2e::metrics::Scrape;
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::program::Program;
use e2e::wait::{DEADLINE, until};
use fake_apiserver::FakeApi;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;

/// Flags whose default differs on purpose: each start has a new id.
const RANDOM: [&str; 2] = ["server-id", "agent-id"];

/// Metrics of the Go runtime and of its HTTP handler, which these programs do not have (CHANGELOG.md).
const RUNTIME: [&str; 3] = ["go_", "promhttp_", "process_network_"];

/// Upstream's program.
fn upstream(program: Program) -> Result<PathBuf> {
    let folder = std::env::var_os("UPSTREAM").context("UPSTREAM names no folder: run hack/nightly parity")?;
    Ok(PathBuf::from(folder).join(if program == Program::Server { "server" } else { "agent" }))
}

fn help(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--help").output().with_context(|| format!("{program:?}"))?;
    // Go's programs print their help to either.
    Ok(String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?)
}

/// The defaults of a help text by the long names of the flags. Both programs print one flag in a line, and its default in
/// parentheses.
fn defaults(help: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let flag = line.strip_prefix("  ")?.trim_start();
        let (_, long) = flag.split_at(flag.find("--").filter(|at| matches!(at, 0 | 4))?);
        let name = long[2..].split([' ', '[', '=']).next()?.to_owned();
        let default = line.rsplit_once("(default ").map_or("", |(_, default)| {
            default.split_once(") (").map_or(default, |(default, _)| default).trim_end_matches(')')
        });
        let default = default.trim_matches(|c| "\"[]".contains(c));
        let default = match default {
            // Zero values, which a help may leave out.
            "0" | "0s" | "false" | ":0" => "",
            // Severities have names and numbers.
            "INFO" => "",
            "ERROR" => "2",
            other => other,
        };
        Some((name, default.to_owned()))
    };
    help.lines().filter_map(line).collect()
}

/// Whether our program knows a flag that its help does not show.
fn knows(program: Program, flag: &str) -> Result<bool> {
    let output = Command::new(program.path()?).arg(format!("--{flag}=a=b")).arg("--no-such-flag").output()?;
    Ok(!String::from_utf8(output.stderr)?.contains(&format!("unknown flag: --{flag}\n")))
}

#[test]
fn every_flag_of_upstream_exists_with_its_default() -> Result<()> {
    let mut lacking = Vec::new();
    for program in [Program::Server, Program::Agent] {
        let (theirs, ours) = (defaults(&help(&upstream(program)?)?), defaults(&help(&program.path()?)?));
        ensure!(theirs.len() > 20 && ours.len() > 20, "{program:?}: {theirs:?} and {ours:?}");
        for (flag, default) in theirs {
            match ours.get(&flag) {
                // A hidden name of another flag.
                None if knows(program, &flag)? => {}
                None => lacking.push(format!("{program:?}: --{flag}")),
                Some(own) if *own != default && !RANDOM.contains(&flag.as_str()) => {
                    lacking
                        .push(format!("{program:?}: --{flag} has the default {own:?}, upstream {default:?}"));
                }
                Some(_) => {}
            }
        }
    }
    ensure!(lacking.is_empty(), "these flags differ from upstream's:\n{}", lacking.join("\n"));
    Ok(())
}

/// Families with their type and the names of their labels.
type Families = BTreeMap<String, (String, BTreeSet<String>)>;

fn families(scrape: &Scrape, found: &mut Families) {
    for (name, kind) in &scrape.types {
        if RUNTIME.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let (_, labels) = found.entry(name.clone()).or_insert_with(|| (kind.clone(), BTreeSet::new()));
        let suffixes = ["", "_bucket", "_sum", "_count"];
        let samples = scrape.samples.iter().filter(|sample| {
            suffixes.iter().any(|suffix| sample.name.strip_suffix(suffix) == Some(name.as_str()))
        });
        labels.extend(samples.flat_map(|sample| sample.labels.keys().filter(|key| *key != "le").cloned()));
    }
}

/// The families of a server and an agent after traffic, refusals, a stalled client, leases and losses. `further`: flags of the
/// server.
async fn after_use(mode: Mode, programs: [PathBuf; 2], further: &[&str]) -> Result<Families> {
    let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
    let kubeconfig = format!("--kubeconfig={}", api.kubeconfig(folder.path(), "{token: canary}")?.display());
    let json = "--kube-api-content-type=application/json";
    let [server, agent] = programs;
    let setup = further.iter().copied().fold(Setup::new(mode, Front::Unix), Setup::server_arg);
    let mut pair = setup
        .programs(server, agent)
        .server_arg("--enable-lease-controller")
        .server_arg(&kubeconfig)
        .server_arg(json)
        .agent_arg("--count-server-leases")
        .agent_arg(&kubeconfig)
        .agent_arg(json)
        .start()
        .await?;
    let (endpoint, refusing) = (Endpoint::echo().await?, Refusing::new()?);
    works(pair.frontend(), &endpoint.target()).await?;
    pair.frontend().dial_error(&refusing.target()).await?;
    until("the leases counted", DEADLINE, || async { (api.count("GET") > 2).then_some(()) }).await?;
    let mut found = Families::new();
    stalled(&pair, mode).await?;
    for scrape in [pair.server().metrics().await?, pair.agent().metrics().await?] {
        families(&scrape, &mut found);
    }
    pair.server_mut().process.kill()?;
    pair.agent_mut().wait_unready().await?;
    families(&pair.agent().metrics().await?, &mut found);
    pair.server_mut().process.restart()?;
    pair.server_mut().wait_ready().await?;
    pair.agent_mut().process.kill()?;
    pair.server_mut().wait_unready().await?;
    families(&pair.server().metrics().await?, &mut found);
    Ok(found)
}

/// Leaves a client that does not read, until its bytes block the server's receiving.
async fn stalled(pair: &Pair, mode: Mode) -> Result<()> {
    // Upstream may write an endpoint's first bytes before the 200, so this one waits for the client's.
    let source = Endpoint::asked(Payload::new(7, 64 << 20)).await?;
    if mode == Mode::Grpc {
        let stream = PacketStream::proxy(pair.frontend().channel().await?);
        drop(Tunnel::dial(stream, &source.target()).await?);
        return Ok(());
    }
    let mut client = pair.frontend().dial(&source.target()).await?;
    client.write_all(b"x").await?;
    // Only versions after v0.36 count such a client, so the wait ends once ten looks in a row see no more bytes.
    let seen = Mutex::new((0.0, 0));
    until("bytes that no longer move", DEADLINE, || async {
        let moved = pair.server().metric("stream_packets_total", &[("packet_type", "DATA")]).await.ok()?;
        let mut seen = seen.lock();
        *seen = if moved > 1.0 && moved == seen.0 { (moved, seen.1 + 1) } else { (moved, 0) };
        (seen.1 == 10).then_some(())
    })
    .await?;
    drop(client);
    Ok(())
}

#[tokio::test]
async fn every_metric_of_upstream_exists_with_its_labels() -> Result<()> {
    let mut lacking = Vec::new();
    let both = [Program::Server, Program::Agent];
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let [server, agent] = both.map(upstream);
        let theirs = after_use(mode, [server?, agent?], &[]).await?;
        let [server, agent] = both.map(Program::path);
        // With flow control no client can block the server's receiving, and upstream has none.
        let ours = after_use(mode, [server?, agent?], &["--connection-flow-control=false"]).await?;
        ensure!(theirs.len() > 20, "upstream has only {theirs:?}");
        for (name, family) in theirs {
            match ours.get(&name) {
                None => lacking.push(format!("{mode:?}: {name}")),
                Some(own) if *own != family => {
                    lacking.push(format!("{mode:?}: {name}: {own:?}, upstream {family:?}"))
                }
                Some(_) => {}
            }
        }
    }
    ensure!(lacking.is_empty(), "these metrics differ from upstream's:\n{}", lacking.join("\n"));
    Ok(())
}

/// The canary of a migration: a Go pair is the old side, ours the new one.
#[tokio::test]
async fn compare_finds_both_pairs_the_same() -> Result<()> {
    for (mode, protocol) in [(Mode::Grpc, "grpc"), (Mode::HttpConnect, "http-connect")] {
        let setup = Setup::new(mode, Front::Unix);
        let go =
            setup.clone().programs(upstream(Program::Server)?, upstream(Program::Agent)?).start().await?;
        let ours = setup.start().await?;
        let (page, refusing) = (Endpoint::page().await?, Refusing::new()?);
        let side = |flag: &str, pair: &Pair| match &pair.frontend().place {
            Place::Unix(path) => Ok(format!("--{flag}=uds:{},{protocol}", path.display())),
            Place::Tls(_) => anyhow::bail!("a Unix socket"),
        };
        let words =
            [side("old", &go)?, side("new", &ours)?, "--http".to_owned(), page.target(), refusing.target()];
        let mut command = Command::new(Program::Server.path()?);
        command.arg0("konnectivity-check").arg("compare").args(words);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8(output.stdout)?;
        ensure!(output.status.success() && said.contains("safe to switch: 2 of 2"), "{protocol}: {said}");
    }
    Ok(())
}
