//! `endurance rotations|rollouts|stalls|outages|floods|lanes|soak`: runs the scenarios of the tests for hours and with more load.
//! Build it with `--release`, and set `PROXY_SERVER` and `PROXY_AGENT` to release builds of the programs.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Arg, ArgMatches, Command, value_parser};
use e2e::crowd::{agents_at_a_server, servers_at_an_agent};
use e2e::floods::{Flood, Kind};
use e2e::frontend::Mode;
use e2e::load::Plan;
use e2e::netns::Network;
use e2e::outages::{Fault, Outage};
use e2e::rollout::restart_all_under_load;
use e2e::rotation::rotate_under_load;
use e2e::soak::{Soak, soak};
use e2e::stalls::{FlowControl, beside_stalls};

fn main() -> Result<()> {
    let matches = command().get_matches();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&matches))
}

fn command() -> Command {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).default_value(default).value_parser(value_parser!(u32)).help(help)
    };
    let rate = |default| number("rate", default, "New dials a second");
    Command::new("endurance")
        .about("Certificates rotated, every process restarted, or anything at random, under load: nothing may fail")
        .subcommand_required(true)
        .subcommand(
            Command::new("rotations")
                .arg(rate("500"))
                .arg(number("count", "100", "Rotations of every certificate and key"))
                .arg(number("transfers", "50", "Connections that carry bytes all the time")),
        )
        .subcommand(Command::new("rollouts").arg(rate("200")).arg(number(
            "count",
            "10",
            "Restarts of each of three servers and three agents",
        )))
        .subcommand(
            Command::new("stalls")
                .about("Readers and endpoints that stall, with and without flow control for each connection: others are served")
                .arg(number("count", "1000", "How many of each")),
        )
        .subcommand(Command::new("outages").about(
            "Programs that stand still for up to two minutes, networks that pass nothing for up to 20 s: no connection ends",
        ))
        .subcommand(Command::new("floods").about(
            "Peers that send in small pieces and stall, or only ClientHellos: prints the server's memory, and pings and dials beside them",
        ))
        .subcommand(
            Command::new("lanes")
                .about("The memory of idle agents and servers without and with lanes")
                .arg(number("agents", "1000", "Agents at one server"))
                .arg(number("servers", "20", "Servers of one agent")),
        )
        .subcommand(
            Command::new("soak")
                .about("Random load with stalls, kills and resets: in the end everything is back where it was")
                .arg(number("minutes", "10", "How long"))
                .arg(number("clients", "60", "Clients at once"))
                .arg(number("seed", "1", "Of the random choices")),
        )
}

async fn run(matches: &ArgMatches) -> Result<()> {
    let (name, matches) = matches.subcommand().context("a subcommand")?;
    let number = |name: &str| matches.get_one::<u32>(name).copied().unwrap_or_default();
    if name == "soak" {
        let time = Duration::from_secs(60) * number("minutes");
        let (clients, seed) = (number("clients").into(), number("seed").into());
        let (kill_every, cut_every) = (Duration::from_secs(20), Duration::from_secs(5));
        let figures = soak(Soak { time, clients, seed, kill_every, cut_every }).await?;
        println!("{time:?} of random load: {figures}");
        return figures.check();
    }
    if name == "outages" {
        return outages().await;
    }
    if name == "floods" {
        return floods().await;
    }
    if name == "lanes" {
        let server = agents_at_a_server(usize::try_from(number("agents"))?).await?;
        let agent = servers_at_an_agent(usize::try_from(number("servers"))?).await?;
        for (what, cost) in
            [("agents at a server, 1 and 2 lanes", server), ("servers at an agent, 1 and 4 lanes", agent)]
        {
            let (one, all) = (cost.one, cost.all);
            print!("{what}: {} and {} MiB, ", one.rss_mib(), all.rss_mib());
            print!("{} and {} descriptors, ", one.descriptors, all.descriptors);
            println!("{} KiB for each further lane", cost.kib());
        }
        server.check()?;
        agent.check()?;
        return Ok(());
    }
    let count = usize::try_from(number("count"))?;
    if name == "stalls" {
        return stalls(count).await;
    }
    let rate = number("rate");
    let report = if name == "rotations" {
        let transfers = usize::try_from(number("transfers"))?;
        let plan = Plan { rate, hold: Duration::from_millis(200), transfers };
        rotate_under_load(&plan, count, Duration::from_millis(500)).await?
    } else {
        let plan = Plan { rate, hold: Duration::from_secs(3), transfers: 0 };
        restart_all_under_load(&plan, count).await?
    };
    println!("{count} {name}: {report}");
    report.check()
}

async fn outages() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        for seconds in [8, 20, 40, 120] {
            for fault in [Fault::StoppedAgent, Fault::StoppedServer, Fault::StuckRelay] {
                // A dial times out after 25 s, and a stopped server does not answer.
                let dials = seconds <= 20 && !matches!(fault, Fault::StoppedServer);
                survive(Outage { mode, fault, length: Duration::from_secs(seconds), dials }).await?;
            }
        }
        for (seconds, dials) in [(4, false), (4, true), (8, false), (8, true), (20, false)] {
            let network = Network::new(1)?;
            let length = Duration::from_secs(seconds);
            let inside = || survive(Outage { mode, fault: Fault::Blackhole(&network), length, dials });
            tokio::task::block_in_place(|| network.near.block_on(inside))?;
        }
    }
    Ok(())
}

async fn floods() -> Result<()> {
    for (kind, peers, pieces) in [
        (Kind::OnlyCpu, 1, 10_000),
        (Kind::AgentsThatReadNothing, 20, 100_000),
        (Kind::AgentsWithStrayData, 20, 100_000),
        (Kind::AgentsWithLargeStrayData, 8, 20_000),
        (Kind::AgentsWithFragments, 20, 740_000),
        (Kind::ClientsOfAStalledEndpoint, 200, 50_000),
        (Kind::ClientsWithoutADial, 20, 256 << 10),
        (Kind::ClientsWithoutADial, 40, 256 << 10),
        (Kind::ClientHellos, 20, 500),
    ] {
        let flood = Flood { kind, peers, pieces, elsewhere: true };
        println!("{flood:?}: {}", flood.run("128Mi").await?);
    }
    Ok(())
}

async fn survive(outage: Outage<'_>) -> Result<()> {
    let recovered = outage.survive().await?;
    println!("survived: {outage:?}, recovered after {recovered:.1?}");
    Ok(())
}

async fn stalls(count: usize) -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        for flow_control in [FlowControl::BOTH].into_iter().chain(FlowControl::NOT_BOTH) {
            let figures = beside_stalls(flow_control.setup(mode), flow_control, count).await?;
            println!("{count} readers and {count} endpoints stalled, {}, {figures}", mode.flag());
            figures.check()?;
        }
    }
    Ok(())
}
