//! `faults [--row N,M] [--quick] [--rounds N]`: injects the faults that the programs must survive. See `hack/faults`.

#![allow(clippy::print_stdout, reason = "a program whose product is what it prints")]

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Arg, ArgMatches, Command, value_parser};
use e2e::arguments::{path, switch};
use e2e::faults::{Column, Context, Length, ROWS, Row, markdown};
use e2e::figures::write_generated;
use e2e::process::raise_descriptor_limit;
use e2e::scenarios::{end_on_signals, signaled};
use tokio::time::Instant;

fn command() -> Command {
    Command::new("faults")
        .about("Injects faults and threats beside a load with checksums, and measures notice and recovery")
        .args_override_self(true)
        .arg(
            Arg::new("row")
                .long("row")
                .value_delimiter(',')
                .value_parser(ROWS.iter().map(|row| row.number).collect::<Vec<_>>())
                .help("Rows, by number [default: all]"),
        )
        .arg(switch("quick", "Only rows that take less than 20 s"))
        .arg(switch("list", "Lists the rows, and how each was shown to fail"))
        .arg(
            Arg::new("rounds")
                .long("rounds")
                .default_value("1")
                .value_parser(value_parser!(u32))
                .help("Rounds of each row"),
        )
        .arg(path("suite", "The test program `suite`, for rows that are tests"))
        .arg(path(
            "go",
            "The folder of Go's server and agent: a column of theirs, and row 15 from them to native ones",
        ))
        .arg(
            path("write", "Writes the table into FAULTS.md of this folder")
                .num_args(0..=1)
                .default_missing_value("docs"),
        )
}

/// Runs the rounds of a row with one pair of programs.
fn column(row: &Row, rounds: u32, context: &Context, of: &str) -> Column {
    let mut column = Column::default();
    for round in 1..=if row.length == Length::Once { 1 } else { rounds } {
        let began = Instant::now();
        let result = (row.run)(context);
        let outcome = match &result {
            Ok(times) => {
                format!("noticed {:.2?}, recovered {:.2?}; {}", times.noticed, times.recovered, times.note)
            }
            Err(error) => {
                let text = format!("{error:#}");
                format!("FAILED: {}", text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default())
            }
        };
        eprintln!("{} {}{of}, round {round}, {:.1?}: {outcome}", row.number, row.name, began.elapsed());
        column.add(result);
    }
    column
}

fn run(matches: &ArgMatches) -> Result<()> {
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    let go = path("go").map(|folder| (folder.join("server"), folder.join("agent")));
    let context = Context { programs: None, go: go.clone(), suite: path("suite") };
    let rounds = matches.get_one::<u32>("rounds").copied().unwrap_or(1);
    let asked: Option<Vec<&String>> = matches.get_many("row").map(Iterator::collect);
    let rows = ROWS.iter().filter(|row| match &asked {
        Some(asked) => asked.iter().any(|number| *number == row.number),
        None => !matches.get_flag("quick") || row.length == Length::Quick,
    });
    let mut results = Vec::new();
    for row in rows {
        let ours = column(row, rounds, &context, "");
        let go = go.clone().filter(|_| row.go);
        let go = go.map(|programs| {
            column(row, rounds, &Context { programs: Some(programs), ..context.clone() }, ", Go")
        });
        ensure!(!signaled(), "ended by a signal; nothing is written");
        results.push((row, ours, go));
    }
    let table = markdown(&results);
    print!("{table}");
    if let Some(folder) = path("write") {
        let page = folder.join("FAULTS.md");
        write_generated(
            &page,
            "faults",
            &format!("{rounds} rounds; times are median and worst.\n\n{table}"),
        )?;
    }
    let failed: Vec<_> =
        results.iter().filter(|(_, ours, _)| ours.failed.is_some()).map(|(row, ..)| row.number).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn main() -> Result<()> {
    let matches = command().get_matches();
    if matches.get_flag("list") {
        for Row { number, name, holds, length, shown, .. } in ROWS {
            println!("{number} ({length:?}) {name}: {holds}. Shown to fail: {shown}.");
        }
        return Ok(());
    }
    end_on_signals()?;
    raise_descriptor_limit();
    run(&matches)
}
