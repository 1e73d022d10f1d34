//! `bench --server PATH --agent PATH [--server2 PATH --agent2 PATH]`: runs the same cases over one or two pairs with both
//! frontends, and over a bare relay as the upper limit. Build it with `--release`.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Command};
use e2e::arguments::{number, path, switch};
use e2e::bench::{
    COST, Case, Load, Report, SPEED, Subject, egress_relay, endpoint, ingress_relay, measure, svg,
};
use e2e::frontend::Mode;
use serde_json::json;

fn main() -> Result<()> {
    // The relay's processes have one thread each, like one link of a pair.
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["relay-ingress", socket, to, pki] => {
            let to = to.parse().context("the egress relay's address")?;
            runtime(1)?.block_on(ingress_relay(Path::new(socket), to, Path::new(pki)))
        }
        ["endpoint", port] => runtime(2)?.block_on(endpoint(port.parse()?)),
        ["relay-egress", port, pki] => runtime(1)?.block_on(egress_relay(port.parse()?, Path::new(pki))),
        _ => {
            e2e::process::raise_descriptor_limit();
            runtime(2)?.block_on(run(&command().get_matches()))
        }
    }
}

fn runtime(threads: usize) -> Result<tokio::runtime::Runtime> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("cannot start the runtime")
}

fn command() -> Command {
    Command::new("bench")
        .about("Measures a server and an agent, another pair beside it, and a bare relay")
        .arg(path("server", "The proxy-server").required(true))
        .arg(path("agent", "The proxy-agent").required(true))
        .arg(path("server2", "The proxy-server of a second pair").requires("agent2"))
        .arg(path("agent2", "The proxy-agent of a second pair").requires("server2"))
        .arg(Arg::new("name2").long("name2").default_value("2").help("What the second pair is called"))
        .arg(
            Arg::new("flag")
                .long("flag")
                .action(ArgAction::Append)
                .allow_hyphen_values(true)
                .help("A further flag of all measured programs, as --flag=-v=0"),
        )
        .arg(number("rounds", "1", "Rounds; medians are printed"))
        .arg(number("bulk", "512", "MiB of each bulk case"))
        .arg(number("pings", "5000", "Round trips of the ping-pong"))
        .arg(number("seconds", "3", "Seconds of the fan-out and connect cases"))
        .arg(number("idle", "1000", "Idle connections"))
        .arg(number("uploads", "200", "Uploads"))
        .arg(number("many", "10000", "Connections that are idle beside the busy ones"))
        .arg(number("busy", "2000", "Connections that are busy beside the idle ones"))
        .arg(
            Arg::new("case")
                .long("case")
                .action(ArgAction::Append)
                .value_parser(Case::ALL.map(|(name, _)| name))
                .help("Run only these cases; each case named by its own flag"),
        )
        .arg(
            Arg::new("mode")
                .long("mode")
                .value_parser(MODES.map(Mode::flag))
                .help("Measure only this frontend"),
        )
        .arg(path("plot", "Draw the main figures into PATH-speed.svg and PATH-cost.svg"))
        .arg(switch("json", "Print JSON instead of a table"))
        .arg(switch("no-relay", "Leave out the bare relay"))
}

const MODES: [Mode; 2] = [Mode::Grpc, Mode::HttpConnect];

fn subjects(matches: &ArgMatches) -> Vec<(String, Subject)> {
    let mut subjects = Vec::new();
    let flags: Vec<String> = matches.get_many("flag").into_iter().flatten().cloned().collect();
    let second = matches.get_one::<String>("name2").map_or_else(String::new, |name| format!(", {name}"));
    for (server, agent, suffix) in [("server", "agent", ""), ("server2", "agent2", &second)] {
        let Some((server, agent)) =
            matches.get_one::<PathBuf>(server).cloned().zip(matches.get_one::<PathBuf>(agent).cloned())
        else {
            continue;
        };
        let only = matches.get_one::<String>("mode");
        for mode in MODES.into_iter().filter(|mode| only.is_none_or(|only| only == mode.flag())) {
            let subject =
                Subject::Pair { server: server.clone(), agent: agent.clone(), mode, flags: flags.clone() };
            subjects.push((format!("{}{suffix}", mode.flag()), subject));
        }
    }
    if !matches.get_flag("no-relay") {
        subjects.push(("bare relay".into(), Subject::Relay));
    }
    subjects
}

async fn run(matches: &ArgMatches) -> Result<()> {
    let number = |name: &str| matches.get_one::<u64>(name).copied().unwrap_or_default();
    let count = |name: &str| usize::try_from(number(name)).unwrap_or(usize::MAX);
    let load = Load {
        bulk: number("bulk").max(16),
        pings: count("pings").max(10),
        seconds: number("seconds").max(1),
        idle: count("idle").max(1),
        uploads: count("uploads").max(1),
        many: count("many"),
        busy: count("busy").max(1),
    };
    let only: Vec<&String> = matches.get_many("case").into_iter().flatten().collect();
    let asked = |name: &str| only.is_empty() || only.iter().any(|only| *only == name);
    let cases: Vec<_> = Case::ALL.into_iter().filter(|(name, _)| asked(name)).collect();
    let subjects = subjects(matches);
    let mut rounds = vec![Vec::new(); subjects.len()];
    for round in 1..=number("rounds").max(1) {
        let mut reports = vec![Report::default(); subjects.len()];
        // The subjects are the inner loop: figures that are compared are measured within seconds of each other, so that other
        // load on the machine affects all alike.
        for &(case, measured) in &cases {
            for ((name, subject), report) in subjects.iter().zip(&mut reports) {
                eprintln!("round {round}: {case}: {name} ...");
                measure(subject, measured, load, report).await.with_context(|| format!("{case}: {name}"))?;
            }
        }
        rounds.iter_mut().zip(reports).for_each(|(all, report)| all.push(report));
    }
    let columns: Vec<(String, Report)> = subjects
        .iter()
        .zip(&rounds)
        .map(|((name, _), reports)| (name.clone(), Report::median(reports)))
        .collect();
    if let Some(path) = matches.get_one::<PathBuf>("plot") {
        for (cases, name) in [(SPEED, "speed"), (COST, "cost")] {
            let file = format!("{}-{name}.svg", path.display());
            std::fs::write(&file, svg(cases, &columns)).with_context(|| format!("cannot write {file}"))?;
        }
    }
    if matches.get_flag("json") {
        let all: Vec<_> = subjects
            .iter()
            .zip(&columns)
            .map(|((name, subject), (_, report))| {
                json!({ "subject": name, "topology": subject.topology(), "figures": report.json() })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print!("{}", Report::table(&columns));
        println!();
        for (name, subject) in &subjects {
            println!("{name}: {}", subject.topology());
        }
        println!(
            "Clients and endpoint are in the benchmark's process; CPU figures are those of the two processes measured."
        );
    }
    Ok(())
}
