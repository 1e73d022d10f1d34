//! `cargo quickstart`: two server replicas behind a load balancer, an agent that finds both, a web page behind the agent, and
//! one fetch of that page through each frontend. Serves until Ctrl-C, or with `--once` ends after the fetches. Needs no
//! cluster, no privileges and no files: everything is in a temporary folder.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Arg, ArgAction, Command};
use e2e::endpoints::{Endpoint, PAGE};
use e2e::frontend::{Frontend, Mode, Place};
use e2e::http1::get_over;
use e2e::pair::{Front, Pair, Setup};
use e2e::program;
use e2e::wait::within;

fn main() -> ExitCode {
    let once = Command::new("quickstart")
        .about("Starts a whole tunnel on this machine and fetches a page through it")
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("End after the fetches, with status 0 only if all went well"),
        )
        .get_matches()
        .get_flag("once");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.context("cannot start the runtime").and_then(|runtime| runtime.block_on(run(once)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(once: bool) -> Result<()> {
    if std::env::var_os("PROXY_SERVER").is_none() || std::env::var_os("PROXY_AGENT").is_none() {
        println!("Building proxy-server and proxy-agent ...");
        program::build(false)?;
    }
    println!("Starting two server replicas, a load balancer and an agent ...");
    let endpoint = Endpoint::page().await?;
    let pair = Setup::replicas(&[(Mode::Grpc, Front::Unix), (Mode::HttpConnect, Front::Tls)]).start().await?;
    describe(&pair, &endpoint);
    for server in &pair.servers {
        fetch(&server.frontend, &endpoint).await?;
    }
    if once {
        println!("\nDone: the page came through both frontends.");
        return Ok(());
    }
    invite(&pair, &endpoint)?;
    tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")?;
    println!("\nStopping.");
    Ok(())
}

fn describe(pair: &Pair, endpoint: &Endpoint) {
    let front = |frontend: &Frontend| match &frontend.place {
        Place::Unix(path) => format!("{} at {}", frontend.mode.flag(), path.display()),
        Place::Tls(address) => format!("{} at {address} with mutual TLS", frontend.mode.flag()),
    };
    println!();
    for (index, server) in pair.servers.iter().enumerate() {
        println!(
            "  server {index}: {}; agents at {}; health at http://{}/readyz",
            front(&server.frontend),
            server.agent_address(),
            server.health
        );
    }
    if let Some(balancer) = &pair.balancer {
        println!("  load balancer: {} in front of both agent ports", balancer.address());
    }
    println!("  agent: connected to both servers; health at http://{}/readyz", pair.agent().health);
    println!("  web page: http://{}/, dialed by the agent\n", endpoint.address());
}

/// Fetches the page through one frontend.
async fn fetch(frontend: &Frontend, endpoint: &Endpoint) -> Result<()> {
    let name = frontend.mode.flag();
    let conn = frontend.dial(&endpoint.target()).await.with_context(|| format!("dialing through {name}"))?;
    let answer = within("the page", get_over(conn, &endpoint.target(), "/")).await?;
    let answer = answer.with_context(|| format!("fetching through {name}"))?;
    ensure!(answer.head.status == 200 && answer.body == PAGE, "through {name} came {answer:?}");
    println!("Fetched through the {name} frontend: {}", answer.body.trim_end());
    Ok(())
}

/// Prints commands to try by hand.
fn invite(pair: &Pair, endpoint: &Endpoint) -> Result<()> {
    let by_tls = pair.servers.iter().find_map(|server| match server.frontend.place {
        Place::Tls(address) => Some(address),
        Place::Unix(_) => None,
    });
    let proxy = by_tls.context("a replica with a TCP frontend")?;
    let pki = &pair.pki;
    println!("\nTry it yourself:\n");
    println!("  curl --proxytunnel --proxy https://{proxy} \\");
    println!("    --proxy-cacert {} \\", pki.front_ca.display());
    println!(
        "    --proxy-cert {} --proxy-key {} \\",
        pki.front_client.cert.display(),
        pki.front_client.key.display()
    );
    println!("    http://{}/\n", endpoint.address());
    println!("  curl http://{}/metrics\n", pair.server().health);
    println!("Serving until Ctrl-C.");
    Ok(())
}
