//! `scale [--agents N] [--connections M]`: measures one server with many light agents. Set `PROXY_SERVER` to a release build.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Arg, ArgMatches, Command, value_parser};
use e2e::process::raise_descriptor_limit;
use e2e::scale::{Auth, Fleet, Options, Plan, run};

/// The subcommand by which this program starts itself as light agents.
const LIGHT: &str = "light";

fn command() -> Command {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).default_value(default).value_parser(value_parser!(usize)).help(help)
    };
    let auth =
        Arg::new("auth").long("auth").default_value("certificate").value_parser(["certificate", "token"]);
    Command::new("scale")
        .about("Measures one server with many agents: memory, descriptors, CPU at rest, dials, and a restart")
        .arg(number("agents", "8000", "The most agents; the descriptor limit must be 1.6 times as large"))
        .arg(number("processes", "2", "Processes that the agents share"))
        .arg(number("connections", "2000", "Idle connections"))
        .arg(number("dials", "2000", "Dials with each number of agents"))
        .arg(number("seconds", "10", "Time over which CPU at rest is measured"))
        .arg(auth.clone().help("How agents authenticate"))
        .subcommand(
            Command::new(LIGHT)
                .hide(true)
                .arg(Arg::new("server").long("server").value_parser(value_parser!(SocketAddr)).required(true))
                .arg(number("first", "0", "The first agent's number"))
                .arg(number("count", "1", "How many agents"))
                .arg(Arg::new("pki").long("pki").value_parser(value_parser!(PathBuf)).required(true))
                .arg(auth),
        )
}

fn auth(matches: &ArgMatches) -> Auth {
    matches.get_one::<String>("auth").and_then(|name| Auth::named(name)).unwrap_or(Auth::Certificate)
}

async fn light(matches: &ArgMatches) -> Result<()> {
    let number = |name: &str| matches.get_one::<usize>(name).copied().unwrap_or_default();
    let server = *matches.get_one::<SocketAddr>("server").context("--server")?;
    let plan = Plan { server, first: number("first"), count: number("count"), auth: auth(matches) };
    let _fleet = Fleet::start(&plan, matches.get_one::<PathBuf>("pki").context("--pki")?)?;
    std::future::pending().await
}

async fn measure(matches: &ArgMatches) -> Result<()> {
    let number = |name: &str| matches.get_one::<usize>(name).copied().unwrap_or_default();
    let options = Options {
        agents: number("agents"),
        processes: number("processes"),
        connections: number("connections"),
        dials: number("dials"),
        rest: Duration::from_secs(number("seconds") as u64),
        auth: auth(matches),
    };
    let measured = run(options, &[LIGHT]).await?;
    println!("{measured}");
    measured.check()
}

fn main() -> Result<()> {
    let matches = command().get_matches();
    raise_descriptor_limit();
    match matches.subcommand() {
        // One thread: the agents must leave CPU time to the server.
        Some((LIGHT, matches)) => {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(light(matches))
        }
        _ => tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?
            .block_on(measure(&matches)),
    }
}
