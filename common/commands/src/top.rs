//! `top`: agents (or servers) and connections by bytes per second, refreshed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use flags::{Exit, FlagError, GoDuration};
use status::words::{ago, bytes};
use status::{Connection, Status};
use tokio::time::{Instant, sleep};

use crate::admin::Admin;
use crate::status::headline;
use crate::table::Table;
use crate::{Program, read};

const ABOUT: &str =
    "shows the connections of the running program by bytes per second, refreshed until Ctrl-C.";

/// Connections of which the busiest are found: those that have carried most bytes, and the newest.
const SAMPLE: usize = status::MAX_LIMIT;

flags::flags! {
    struct TopFlags {
        "View" {
            /// Show one view, of one interval, and end.
            once: bool = "false",
            /// Time between two views, and over which bytes are counted.
            interval: Duration = "2s" => interval,
            /// Rows of each table.
            rows: u64 = "15",
        }
    }
}

fn interval(flag: &'static str, given: GoDuration) -> Result<Duration, FlagError> {
    match given.or_zero() {
        time if time >= Duration::from_millis(100) => Ok(time),
        _ => Err(FlagError::value(flag, given, "it must be at least 100ms")),
    }
}

pub(crate) async fn run(program: Program, line: Vec<OsString>) -> Result<Exit, Exit> {
    let (flags, admin, _): (TopFlags, _, _) = read((program, "top", ABOUT), ("", 0), line)?;
    let (admin, rows) = (Admin::new(program, admin), usize::try_from(flags.rows).unwrap_or(usize::MAX));
    let mut before = sample(&admin).await?;
    loop {
        sleep(flags.interval).await;
        let after = sample(&admin).await?;
        let view = view(&before, &after, rows);
        if flags.once {
            return Ok(Exit::show(view));
        }
        // Home, and clear: only a terminal understands it.
        let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "\n" };
        if std::io::stdout().write_all(format!("{clear}{view}").as_bytes()).is_err() {
            return Ok(Exit::show(""));
        }
        before = after;
    }
}

/// Connections at one moment.
struct Sample {
    status: Status,
    at: Instant,
}

async fn sample(admin: &Admin) -> Result<Sample, Exit> {
    let query = |sort| format!("list=connections&limit={SAMPLE}&sort={sort}");
    let mut status = admin.status(&query("-bytes_from_endpoint")).await?;
    if status.connections.len() == SAMPLE {
        for sort in ["-bytes_to_endpoint", "-since"] {
            status.connections.extend(admin.status(&query(sort)).await?.connections);
        }
        status.connections.sort_by(|one, two| key(one).cmp(&key(two)));
        status.connections.dedup_by(|one, two| key(one) == key(two));
    }
    Ok(Sample { status, at: Instant::now() })
}

/// Identifies a connection in several samples.
fn key(connection: &Connection) -> (&str, i64, &str) {
    (&connection.peer, connection.id, &connection.since)
}

fn view(before: &Sample, after: &Sample, rows: usize) -> String {
    let seconds = (after.at - before.at).as_secs_f64();
    let peer = if after.status.is_agent() { "SERVER" } else { "AGENT" };
    let old: HashMap<_, _> = before.status.connections.iter().map(|one| (key(one), one)).collect();
    let rate = |connection| {
        let old = old.get(&key(connection));
        let moved = |of: fn(&Connection) -> u64| of(connection).saturating_sub(old.map_or(0, |old| of(old)));
        Rate { to: moved(|one| one.bytes_to_endpoint), from: moved(|one| one.bytes_from_endpoint) }
    };
    let mut rated: Vec<_> = after.status.connections.iter().map(|one| (one, rate(one))).collect();
    let per_second = |bytes_moved: u64| bytes((bytes_moved as f64 / seconds) as u64) + "/s";

    let mut peers = Table::new(&[peer, "CONNECTIONS", "TO ENDPOINTS", "FROM ENDPOINTS"]);
    for (id, (count, rate)) in by_peer(&rated).into_iter().take(rows) {
        peers.row([&id, &count, &per_second(rate.to), &per_second(rate.from)]);
    }
    let mut connections =
        Table::new(&["TARGET", peer, "ID", "OPENED", "TO ENDPOINT", "FROM ENDPOINT", "QUEUED"]);
    rated.sort_by_key(|(_, rate)| Reverse(rate.to + rate.from));
    for (connection, rate) in rated.into_iter().take(rows) {
        let (to, from) = (per_second(rate.to), per_second(rate.from));
        let (opened, queued) = (ago(&connection.since, &after.status.now), bytes(connection.queued));
        connections.row([&connection.target, &connection.peer, &connection.id, &opened, &to, &from, &queued]);
    }
    let shown = after.status.connections.len();
    let part = match after.status.totals.connections {
        all if all > shown as u64 && shown >= SAMPLE => format!(" (of {shown} of {all} connections)"),
        _ => String::new(),
    };
    format!("{}{part}\n\n{peers}\n{connections}", headline(&after.status))
}

/// Bytes moved between two samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Rate {
    to: u64,
    from: u64,
}

/// The number of connections and the sum of their rates by peer, the largest first.
fn by_peer<'a>(rated: &[(&'a Connection, Rate)]) -> Vec<(&'a str, (usize, Rate))> {
    let mut sums = BTreeMap::<&str, (usize, Rate)>::new();
    for (connection, rate) in rated {
        let (count, sum) = sums.entry(&connection.peer).or_default();
        (*count, sum.to, sum.from) = (*count + 1, sum.to + rate.to, sum.from + rate.from);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, (_, sum))| Reverse(sum.to + sum.from));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(moment: Instant, connections: &[(&str, i64, u64, u64)]) -> Sample {
        let connection = |(peer, id, to, from): &(&str, i64, u64, u64)| Connection {
            peer: (*peer).into(),
            id: *id,
            target: format!("pod-{id}:80"),
            bytes_to_endpoint: *to,
            bytes_from_endpoint: *from,
            ..Connection::default()
        };
        let connections = connections.iter().map(connection).collect();
        Sample { status: Status { connections, ..Status::default() }, at: moment }
    }

    #[test]
    fn busiest_connections_come_first() {
        let start = Instant::now();
        let before = at(start, &[("a", 1, 1 << 30, 0), ("b", 1, 0, 1024)]);
        let after = at(
            start + Duration::from_secs(2),
            &[("a", 1, 1 << 30, 0), ("b", 1, 0, 1024 + 4096), ("b", 2, 8192, 0)],
        );
        let text = view(&before, &after, 2);
        let rows: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            rows[2..],
            [
                "AGENT CONNECTIONS TO ENDPOINTS FROM ENDPOINTS",
                "b 2 4.0 KiB/s 2.0 KiB/s",
                "a 1 0 B/s 0 B/s",
                "",
                "TARGET AGENT ID OPENED TO ENDPOINT FROM ENDPOINT QUEUED",
                "pod-2:80 b 2 - 4.0 KiB/s 0 B/s 0 B",
                "pod-1:80 b 1 - 0 B/s 2.0 KiB/s 0 B",
            ]
        );
    }
}
