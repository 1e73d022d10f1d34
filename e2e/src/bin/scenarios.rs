//! `scenarios --server PATH --agent PATH [--server2 PATH --agent2 PATH]`: injects production's faults between servers and agents
//! in network namespaces, and measures them. See `hack/scenarios`.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Arg, ArgMatches, Command, value_parser};
use e2e::arguments::{number, path, switch};
use e2e::figures::write_generated;
use e2e::frontend::Mode;
use e2e::process::raise_descriptor_limit;
use e2e::scenarios::{ALL, Mix, Row, Scenario, Sizes, Timing, end_on_signals, picture, run, table};

/// The mix whose figures decide whether this program succeeds.
const NATIVE: &str = "native-native";

const MODES: [Mode; 2] = [Mode::Grpc, Mode::HttpConnect];

/// The mixes: the name, and whether server and agent belong to the first pair.
const MIXES: [(&str, [bool; 2]); 4] = [
    ("Go-Go", [false, false]),
    (NATIVE, [true, true]),
    ("native server and Go agents", [true, false]),
    ("Go server and native agents", [false, true]),
];

fn command() -> Command {
    let list =
        |name: &'static str, help: &'static str| Arg::new(name).long(name).value_delimiter(',').help(help);
    Command::new("scenarios")
        .about("Injects production's faults between servers and agents, and measures them")
        .args_override_self(true)
        .arg(path("server", "The native proxy-server").required(true))
        .arg(path("agent", "The native proxy-agent").required(true))
        .arg(path("server2", "Go's proxy-server").requires("agent2"))
        .arg(path("agent2", "Go's proxy-agent").requires("server2"))
        .arg(list("scenario", "Scenarios [default: all]").value_parser(ALL.map(Scenario::name)))
        .arg(list("mix", "Mixes, by name [default: all]").value_parser(MIXES.map(|(name, _)| name)))
        .arg(number("servers", "5", "Servers"))
        .arg(number("agents", "3", "Agents"))
        .arg(number("large-servers", "20", "Servers of 01-large"))
        .arg(number("large-agents", "100", "Agents of 01-large"))
        .arg(number("interval", "1000", "--sync-interval of the agents, ms; always 5000 in 00"))
        .arg(number("seconds", "15", "Seconds of observation after the fault"))
        .arg(switch("long", "As upstream measured: --interval=5000 and --seconds=60, whatever these say"))
        .arg(
            Arg::new("frontend")
                .long("frontend")
                .default_value("grpc")
                .value_parser(MODES.map(Mode::flag))
                .help("The clients' protocol"),
        )
        .arg(
            Arg::new("write")
                .long("write")
                .value_name("FOLDER")
                .value_parser(value_parser!(PathBuf))
                .num_args(0..=1)
                .default_missing_value("docs")
                .help("Writes the table of FAULTS.md in this folder, and pictures/faults-*.svg"),
        )
}

fn list(matches: &ArgMatches, name: &str) -> Option<Vec<String>> {
    Some(matches.get_many::<String>(name)?.cloned().collect())
}

/// The mixes that were asked for and whose programs were named.
fn mixes(matches: &ArgMatches) -> Vec<Mix> {
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    let servers = [path("server2"), path("server")];
    let agents = [path("agent2"), path("agent")];
    let asked = list(matches, "mix");
    let asked =
        MIXES.iter().filter(|(name, _)| asked.as_ref().is_none_or(|asked| asked.iter().any(|a| a == name)));
    let mixes = asked.filter_map(|(name, [server, agent])| {
        let server = servers.get(usize::from(*server))?.clone()?;
        let agent = agents.get(usize::from(*agent))?.clone()?;
        Some(Mix { name: (*name).into(), server, agent })
    });
    mixes.collect()
}

/// The sizes and times of a scenario.
fn conditions(matches: &ArgMatches, scenario: Scenario) -> Result<(Sizes, Timing)> {
    let number = |name: &str| matches.get_one::<u64>(name).copied().unwrap_or_default();
    let (servers, agents) = match scenario {
        Scenario::BothResetLarge => ("large-servers", "large-agents"),
        _ => ("servers", "agents"),
    };
    let (interval, seconds) = match matches.get_flag("long") {
        true => (5000, 60),
        false => (number("interval"), number("seconds")),
    };
    let frontend = matches.get_one::<String>("frontend");
    let sizes = Sizes {
        servers: usize::try_from(number(servers).max(1))?,
        agents: u8::try_from(number(agents).clamp(1, 250))?,
        interval: Duration::from_millis(interval),
        mode: MODES
            .into_iter()
            .find(|mode| frontend.is_some_and(|name| name == mode.flag()))
            .unwrap_or(Mode::Grpc),
    };
    let timing = Timing { before: Duration::from_secs(3), after: Duration::from_secs(seconds.max(2)) };
    Ok((sizes, timing))
}

/// The conditions of a run, as a sentence above the table.
fn sentence(matches: &ArgMatches) -> Result<String> {
    let (few, timing) = conditions(matches, Scenario::BothReset)?;
    let (many, _) = conditions(matches, Scenario::BothResetLarge)?;
    Ok(format!(
        "{} servers and {} agents with `--sync-interval={:?} --sync-forever` (in 00: 5s); in `01, many programs` {} servers and {} \
         agents. Observed for {:?} after the fault.",
        few.servers, few.agents, few.interval, many.servers, many.agents, timing.after
    ))
}

/// The figure that counts only for an agent that has become slow; "dials above 25 ms" judges it.
const SHARE: &str = "dials that the agent gets, %";

/// Whether cargo built the program without optimization.
fn is_debug_build(program: &Path) -> bool {
    program.components().any(|part| part.as_os_str() == "debug")
}

/// Fails if the native pair misses by far. Figures of a machine that stood still say nothing. An agent that dials quickly with 1 % of
/// a CPU may keep its share of the dials.
fn verdict(mixes: &[String], rows: &[Row]) -> Result<()> {
    let native = mixes.iter().position(|mix| mix == NATIVE);
    let mut misses = Vec::new();
    for row in rows {
        let outcome = native.and_then(|native| row.outcomes.get(native)).filter(|outcome| !outcome.stalled);
        let far = outcome
            .iter()
            .flat_map(|outcome| &outcome.figures)
            .filter(|figure| figure.misses_by_far() && figure.name != SHARE);
        misses
            .extend(far.map(|figure| format!("{}: {}: {}", row.scenario.title(), figure.name, figure.value)));
    }
    ensure!(misses.is_empty(), "{NATIVE} is far from what is wanted:\n{}", misses.join("\n"));
    Ok(())
}

/// Replaces the generated table, and writes the pictures.
fn write(folder: &Path, table: &str, mixes: &[String], rows: &[Row]) -> Result<()> {
    write_generated(&folder.join("FAULTS.md"), "scenarios", table)?;
    let pictures = folder.join("pictures");
    std::fs::create_dir_all(&pictures)?;
    for row in rows {
        let name = format!("faults-{}.svg", row.scenario.name());
        std::fs::write(pictures.join(name), picture(mixes, row))?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let matches = command().get_matches();
    let asked = list(&matches, "scenario");
    let scenarios = ALL.into_iter().filter(|scenario| {
        asked.as_ref().is_none_or(|asked| asked.iter().any(|name| name == scenario.name()))
    });
    let mixes = mixes(&matches);
    let folder = matches.get_one::<PathBuf>("write");
    ensure!(
        folder.is_none() || (asked.is_none() && mixes.len() == MIXES.len()),
        "--write needs all scenarios and all mixes"
    );
    let debug = mixes.iter().flat_map(|mix| [&mix.server, &mix.agent]).find(|path| is_debug_build(path));
    if let (Some(_), Some(program)) = (folder, debug) {
        bail!("--write needs release builds, and {} is a debug build", program.display());
    }
    end_on_signals()?;
    raise_descriptor_limit();
    let mut rows = Vec::new();
    for scenario in scenarios {
        let (sizes, timing) = conditions(&matches, scenario)?;
        let mut outcomes = Vec::new();
        for mix in &mixes {
            let what = format!("{}, {}", scenario.title(), mix.name);
            let outcome = run(scenario, mix, sizes, timing).with_context(|| what.clone())?;
            for figure in &outcome.figures {
                eprintln!("{what}: {}: {}", figure.name, figure.value);
            }
            outcomes.push(outcome);
        }
        rows.push(Row { scenario, outcomes });
    }
    let names: Vec<String> = mixes.into_iter().map(|mix| mix.name).collect();
    let table = table(&names, &rows);
    print!("{table}");
    if let Some(folder) = folder {
        let table = format!("{}\n\n{table}", sentence(&matches)?);
        write(folder, &table, &names, &rows)?;
    }
    verdict(&names, &rows)
}
