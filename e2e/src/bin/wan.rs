//! `wan --server PATH --agent PATH [--server2 PATH --agent2 PATH]`: measures the pairs in turn over an emulated wide area
//! network. See `hack/wan`.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use e2e::arguments::{self, path, switch};
use e2e::frontend::Mode;
use e2e::wan::{Bulk, Cell, Conditions, Event, Figures, Row, Subject, Timing, chart, json, measure, table};

/// Bits per second that no machine reaches.
const UNLIMITED: u64 = 1_000_000_000_000;

const MODES: [Mode; 2] = [Mode::HttpConnect, Mode::Grpc];

fn command() -> Command {
    let list = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).default_value(default).value_delimiter(',').help(help)
    };
    Command::new("wan")
        .about("Measures pairs of programs over an emulated wide area network")
        .arg(path("server", "The proxy-server").required(true))
        .arg(path("agent", "The proxy-agent").required(true))
        .arg(path("server2", "The proxy-server of a second pair").requires("agent2"))
        .arg(path("agent2", "The proxy-agent of a second pair").requires("server2"))
        .arg(Arg::new("name").long("name").default_value("native").help("What the first pair is called"))
        .arg(Arg::new("name2").long("name2").default_value("Go").help("What the second pair is called"))
        .arg(
            list("frontend", "http-connect,grpc", "Frontends of the pairs")
                .value_parser(MODES.map(Mode::flag)),
        )
        .arg(
            Arg::new("agent-flag")
                .long("agent-flag")
                .action(ArgAction::Append)
                .allow_hyphen_values(true)
                .help("A further flag of the first pair's agent, as --agent-flag=--lanes=1"),
        )
        .arg(switch("no-tls", "Leave out bare TLS, one connection for each client"))
        .arg(list("rtt", "1,20,50,100", "Round trips, ms").value_parser(value_parser!(u64)))
        .arg(
            list("loss", "0,0.1,1", "Random loss in each direction, percent")
                .value_parser(value_parser!(f64)),
        )
        .arg(
            list("reorder", "0", "Packets that arrive 5 ms later, percent").value_parser(value_parser!(f64)),
        )
        .arg(list("cc", "cubic,bbr", "Congestion control of both sides"))
        .arg(
            list("rate", "200", "Mbit/s in each direction; 0: as many as the emulator carries")
                .value_parser(value_parser!(u64)),
        )
        .arg(arguments::number("seed", "1", "What lost packets are chosen by; each round adds one"))
        .arg(list("bulk", "1-down,16-down,1-up,16-up", "Bulk transfers at once").value_parser(bulk))
        .arg(Arg::new("event").long("event").default_value("none").value_parser(event).help(
            "What happens when the measuring begins: none, jump-80 (the round trip becomes 80 ms), blackout-4 \
             (no packet gets through for 4 s)",
        ))
        .arg(switch("no-dials", "Without a dial every 100 ms"))
        .arg(arguments::number("seconds", "8", "Seconds that are measured of each subject in each cell"))
        .arg(arguments::number("warm-up", "2", "Seconds before that"))
        .arg(arguments::number("rounds", "1", "Rounds of all cells; medians are printed"))
        .arg(path("plot", "Draw throughput and pings into this file, as SVG"))
        .arg(switch("json", "Print JSON instead of a table"))
}

fn bulk(text: &str) -> Result<Bulk, String> {
    let (count, direction) = text.split_once('-').ok_or("a number and a direction, as 16-down")?;
    let count = count.parse().map_err(|error| format!("{count}: {error}"))?;
    match direction {
        "down" => Ok(Bulk::Down(count)),
        "up" => Ok(Bulk::Up(count)),
        _ => Err("the direction is down or up".into()),
    }
}

fn event(text: &str) -> Result<Event, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    match text.split_once('-') {
        None if text == "none" => Ok(Event::None),
        Some(("jump", millis)) => Ok(Event::Jump(Duration::from_millis(number(millis)?))),
        Some(("blackout", seconds)) => Ok(Event::Blackout(Duration::from_secs(number(seconds)?))),
        _ => Err("none, jump-MILLISECONDS or blackout-SECONDS".into()),
    }
}

fn number(matches: &ArgMatches, name: &str) -> u64 {
    matches.get_one::<u64>(name).copied().unwrap_or_default()
}

fn list<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> Vec<T> {
    matches.get_many(name).into_iter().flatten().cloned().collect()
}

fn subjects(matches: &ArgMatches) -> Vec<Subject> {
    let path = |name: &str| matches.get_one::<PathBuf>(name);
    let name = |name: &str| matches.get_one::<String>(name).map_or("", String::as_str);
    let first = path("server").zip(path("agent")).map(|programs| (name("name"), programs));
    let second = path("server2").zip(path("agent2")).map(|programs| (name("name2"), programs));
    let asked: Vec<String> = list(matches, "frontend");
    let modes = MODES.into_iter().filter(|mode| asked.iter().any(|asked| asked == mode.flag()));
    let flags: Vec<String> = list(matches, "agent-flag");
    let pairs = modes.flat_map(|mode| {
        let pairs =
            first.map(|first| (first, &*flags)).into_iter().chain(second.map(|second| (second, &[][..])));
        pairs.map(move |((name, (server, agent)), flags)| Subject::pair(name, server, agent, mode, flags))
    });
    pairs.chain((!matches.get_flag("no-tls")).then_some(Subject::Tls)).collect()
}

fn conditions(matches: &ArgMatches) -> Vec<(String, Conditions)> {
    let mut all = Vec::new();
    for rtt in list::<u64>(matches, "rtt") {
        for rate in list::<u64>(matches, "rate") {
            for loss in list::<f64>(matches, "loss") {
                for reorder in list::<f64>(matches, "reorder") {
                    for cc in list::<String>(matches, "cc") {
                        let name = format!("{rtt} ms, {rate} Mbit/s, {loss} % lost, {reorder} % late, {cc}");
                        let conditions = Conditions {
                            rtt: Duration::from_millis(rtt),
                            loss: loss / 100.0,
                            reorder: reorder / 100.0,
                            rate: if rate == 0 { UNLIMITED } else { rate * 1_000_000 },
                            congestion_control: cc,
                            seed: number(matches, "seed"),
                        };
                        all.push((name, conditions));
                    }
                }
            }
        }
    }
    all
}

fn cells(matches: &ArgMatches) -> Vec<(String, Cell)> {
    let event = matches.get_one::<Event>("event").copied().unwrap_or(Event::None);
    let dials = !matches.get_flag("no-dials");
    let cells = |(name, conditions): (String, Conditions)| {
        let cell = move |bulk: Bulk| {
            let conditions = conditions.clone();
            (format!("{name}, {bulk}"), Cell { conditions, bulk, event, dials })
        };
        list::<Bulk>(matches, "bulk").into_iter().map(cell)
    };
    conditions(matches).into_iter().flat_map(cells).collect()
}

fn main() -> Result<()> {
    let matches = command().get_matches();
    let timing = Timing {
        warm_up: Duration::from_secs(number(&matches, "warm-up")),
        measured: Duration::from_secs(number(&matches, "seconds").max(1)),
        grace: Duration::from_secs(3),
    };
    let (cells, subjects) = (cells(&matches), subjects(&matches));
    let mut measured = vec![Vec::new(); cells.len() * subjects.len()];
    for round in 1..=number(&matches, "rounds").max(1) {
        let all = cells.iter().flat_map(|cell| subjects.iter().map(move |subject| (cell, subject)));
        // The subjects are the inner loop: figures that are compared are measured within seconds of each other.
        for (((name, cell), subject), rounds) in all.zip(&mut measured) {
            let mut cell = cell.clone();
            cell.conditions.seed += round - 1;
            let what = format!("round {round}: {name}: {}", subject.name());
            let figures = measure(&cell, subject, timing).with_context(|| what.clone())?;
            eprintln!("{what}: {:.1} Mbit/s, ping p99 {:.0} ms", figures.megabits, figures.ping_p99);
            rounds.push(figures);
        }
    }
    let names = cells.iter().flat_map(|(cell, _)| subjects.iter().map(move |subject| (cell, subject)));
    let rows: Vec<Row> = names
        .zip(&measured)
        .filter_map(|((cell, subject), rounds)| {
            let figures = Figures::median(rounds)?;
            Some(Row { cell: cell.clone(), subject: subject.name(), figures, rounds: rounds.len() })
        })
        .collect();
    if let Some(path) = matches.get_one::<PathBuf>("plot") {
        std::fs::write(path, chart(&rows)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if matches.get_flag("json") {
        println!("{}", serde_json::to_string_pretty(&json(&rows))?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(())
}
