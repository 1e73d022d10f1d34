//! `status`, `probe` and `konnectivity-check compare` by `kubectl exec`, as docs/commands.md describes them: without a shell, and
//! through the tunnel of which they tell. The kubelet starts the programs beside the running ones.

use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use e2e::endpoints::Refusing;
use e2e::frontend::Place;
use e2e::pair::Pair;
use e2e::program::{Program, row};

use crate::phases::cats;
use crate::world::{FRONTENDS, Ground, Lane, World};

/// Runs a program by `kubectl exec`, and expects this exit status; returns what it printed.
async fn exec(lane: &Lane, program: &str, words: &[&str], code: i32) -> Result<String> {
    let output = lane.run(&[&["exec", "app", "-c", "app", "--", program], words].concat()).await?;
    ensure!(output.code == Some(code), "{}: {words:?}: {output:?}", lane.name());
    Ok(output.text())
}

/// The flags of a client of this frontend.
fn identity(ground: &Ground, place: &Place) -> Vec<String> {
    let pki = &ground.pki;
    match place {
        Place::Unix(_) => Vec::new(),
        Place::Tls(_) => vec![
            format!("--client-cert={}", pki.front_client.cert.display()),
            format!("--client-key={}", pki.front_client.key.display()),
            format!("--ca-cert={}", pki.front_ca.display()),
        ],
    }
}

/// Both programs are healthy, and list the connections of running commands.
pub(crate) async fn status_tells_of_the_tunnel(world: &World, lanes: &[Lane], pairs: &[Pair]) -> Result<()> {
    let (kubelet, sessions) = (world.node.address.to_string(), cats(lanes).await?);
    let servers = pairs.iter().flat_map(|pair| pair.servers.iter().map(move |server| (pair, server)));
    for (lane, (pair, server)) in lanes.iter().zip(servers) {
        let program = Program::Server.path()?.display().to_string();
        let admin = format!("--admin-address={}", server.admin);
        let text = exec(lane, &program, &["status", &admin], 0).await?;
        let agents = format!(" is healthy: {} agent", pair.agents.len());
        ensure!(text.starts_with("proxy-server server-") && text.contains(&agents), "{text}");
        let text = exec(lane, &program, &["status", "connections", &admin], 0).await?;
        ensure!(row(&text, &kubelet)?.contains("agent-"), "{text}");
        let (mut holders, program) = (0, Program::Agent.path()?.display().to_string());
        for agent in &pair.agents {
            let admin = format!("--admin-address={}", agent.admin);
            let text = exec(lane, &program, &["status", &admin], 0).await?;
            let servers = format!(" is healthy: {} server", pair.servers.len());
            ensure!(text.starts_with("proxy-agent agent-") && text.contains(&servers), "{text}");
            let text = exec(lane, &program, &["status", "connections", &admin], 0).await?;
            holders += usize::from(text.contains(&kubelet));
        }
        ensure!(holders > 0, "{}: no agent lists a connection to the kubelet", lane.name());
    }
    drop(sessions);
    Ok(())
}

/// A dial by the frontend of the lane's kube-apiserver to a kubelet, to a pod, and to a port that refuses: kubectl exits with the
/// probe's status.
pub(crate) async fn probe_dials_as_kube_apiserver_does(
    world: &World,
    lanes: &[Lane],
    pairs: &[Pair],
) -> Result<()> {
    let program = Program::Server.path()?.display().to_string();
    let (kubelet, web, refusing) =
        (world.node.address.to_string(), world.node.web.to_string(), Refusing::new()?);
    let servers = pairs.iter().flat_map(|pair| &pair.servers);
    for (((lane, server), place), (_, mode, _)) in
        lanes.iter().zip(servers).zip(&world.ground.places).zip(FRONTENDS)
    {
        let mut flags = identity(&world.ground, place);
        flags.push(format!("--admin-address={}", server.admin));
        let flags: Vec<&str> = ["probe"].into_iter().chain(flags.iter().map(String::as_str)).collect();
        for (words, stage, said, code) in [
            (&["--tls", &kubelet][..], "tls ", "the endpoint answers with TLS", 0),
            (&["--http", &web], "http ", "the endpoint answers HTTP/1.1 200 OK", 0),
            (&[&refusing.target()], "connect ", "connect: connection refused", 6),
        ] {
            let text = exec(lane, &program, &[&flags[..], words].concat(), code).await?;
            ensure!(row(&text, stage)?.ends_with(said), "{}: {text}", lane.name());
            ensure!(row(&text, "frontend ")?.contains(mode.flag()), "{text}");
            ensure!(row(&text, "selection ")?.contains("agent agent-"), "{text}");
        }
    }
    Ok(())
}

/// The canary of docs/migrating.md dials the kubelet and a pod by two servers' sockets.
pub(crate) async fn compare_finds_two_servers_the_same(world: &World, lanes: &[Lane]) -> Result<()> {
    let (lane, node) = (lanes.first().context("a lane")?, &world.node);
    let program = lane.scratch().join("konnectivity-check");
    symlink(Program::Server.path()?, &program)?;
    let mut words = vec!["compare".to_owned()];
    for ((side, place), (_, mode, _)) in ["old", "new"].into_iter().zip(&world.ground.places).zip(FRONTENDS) {
        let Place::Unix(path) = place else { anyhow::bail!("a Unix socket") };
        words.push(format!("--{side}=unix:{},{}", path.display(), mode.flag()));
    }
    for targets in
        [["--tls".to_owned(), node.address.to_string()], ["--http".to_owned(), node.web.to_string()]]
    {
        let words: Vec<&str> = words.iter().chain(&targets).map(String::as_str).collect();
        let text = exec(lane, &program.display().to_string(), &words, 0).await?;
        ensure!(text.contains("safe to switch: 1 of 1 targets behave the same"), "{text}");
    }
    Ok(())
}
