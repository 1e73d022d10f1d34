//! `top`: agents (or servers) and connections by bytes per second, refreshed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use flags::{Exit, FlagError, GoDuration};
use status::words::{ago, bytes, count};
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
        let lines = terminal_lines();
        let view = view(&before, &after, rows, lines);
        if flags.once {
            return Ok(Exit::show(view));
        }
        // A terminal goes home, clears, and cuts long lines instead of wrapping them.
        let text = match lines {
            Some(_) => format!("\x1b[H\x1b[2J\x1b[?7l{view}\x1b[?7h"),
            None => format!("\n{view}"),
        };
        let mut stdout = std::io::stdout();
        if stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_err() {
            // The end tries again, and tells why that fails.
            return Ok(Exit::show(text));
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
        status.connections.sort_by_key(key);
        status.connections.dedup_by_key(|one| key(one));
    }
    Ok(Sample { status, at: Instant::now() })
}

/// Identifies a connection in several samples. Its time of opening does not: the program computes it for each document from two
/// clocks.
fn key(connection: &Connection) -> (u64, i64) {
    (connection.stream, connection.id)
}

/// The lines of the terminal, if standard output is one.
fn terminal_lines() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_row)).filter(|lines| *lines > 0)
}

/// At most `rows` rows of each table, and at most `lines` lines with that of the cursor.
fn view(before: &Sample, after: &Sample, rows: usize, lines: Option<usize>) -> String {
    // The headline, two heads, two empty lines, the line of what is not shown, and the cursor's.
    let room = lines.map_or(usize::MAX, |lines| lines.saturating_sub(7));
    let seconds = (after.at - before.at).as_secs_f64();
    let peer = if after.status.is_agent() { "SERVER" } else { "AGENT" };
    let old: HashMap<_, _> = before.status.connections.iter().map(|one| (key(one), one)).collect();
    let rate = |connection| {
        let old = old.get(&key(connection));
        // The bytes that an older connection moved before it entered the sample are unknown.
        let is_new = connection.since >= before.status.now;
        let moved = |of: fn(&Connection) -> u64| {
            let unknown = if is_new { 0 } else { of(connection) };
            of(connection).saturating_sub(old.map_or(unknown, |old| of(old)))
        };
        Rate { to: moved(|one| one.bytes_to_endpoint), from: moved(|one| one.bytes_from_endpoint) }
    };
    let mut rated: Vec<_> = after.status.connections.iter().map(|one| (one, rate(one))).collect();
    let per_second = |bytes_moved: u64| bytes((bytes_moved as f64 / seconds) as u64) + "/s";

    let mut peers = Table::new(&[peer, "CONNECTIONS", "TO ENDPOINTS", "FROM ENDPOINTS"]);
    let by_peer = by_peer(&rated);
    let shown_peers = by_peer.len().min(rows).min(room / 2);
    for (id, (count, rate)) in &by_peer[..shown_peers] {
        peers.row([&id, &count, &per_second(rate.to), &per_second(rate.from)]);
    }
    let mut connections =
        Table::new(&["TARGET", peer, "STREAM", "ID", "OPENED", "TO ENDPOINT", "FROM ENDPOINT", "QUEUED"]);
    rated.sort_by_key(|(_, rate)| Reverse(rate.to + rate.from));
    let listed = rated.len();
    let shown = listed.min(rows).min(room - shown_peers);
    for (connection, rate) in rated.into_iter().take(shown) {
        let (to, from) = (per_second(rate.to), per_second(rate.from));
        let (opened, queued) = (ago(&connection.since, &after.status.now), bytes(connection.queued));
        let Connection { target, peer, stream, id, .. } = connection;
        connections.row([target, peer, stream, id, &opened, &to, &from, &queued]);
    }
    let part = match after.status.totals.connections {
        all if all > listed as u64 && listed >= SAMPLE => format!(" (of {listed} of {all} connections)"),
        _ => String::new(),
    };
    let hidden = [(by_peer.len() - shown_peers, &*peer.to_lowercase()), (listed - shown, "connection")];
    let hidden = hidden.into_iter().filter(|(number, _)| *number > 0);
    let hidden: Vec<_> = hidden.map(|(number, noun)| count(number as u64, noun)).collect();
    let hidden =
        if hidden.is_empty() { String::new() } else { format!("not shown: {}\n", hidden.join(", ")) };
    let text = format!("{}{part}\n\n{peers}\n{connections}{hidden}", headline(&after.status));
    // Of a terminal with less than 8 lines.
    text.split_inclusive('\n').take(lines.map_or(usize::MAX, |lines| lines - 1)).collect()
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

    /// Connections by agent, stream and id, with their bytes to and from the endpoint.
    fn at(moment: Instant, connections: &[(&str, u64, i64, u64, u64)]) -> Sample {
        let connection = |(peer, stream, id, to, from): &(&str, u64, i64, u64, u64)| Connection {
            peer: (*peer).into(),
            stream: *stream,
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
        let before = at(start, &[("a", 1, 1, 1 << 30, 0), ("b", 2, 1, 0, 1024)]);
        let after = at(
            start + Duration::from_secs(2),
            &[("a", 1, 1, 1 << 30, 0), ("b", 2, 1, 0, 1024 + 4096), ("b", 2, 2, 8192, 0)],
        );
        assert_eq!(
            rows(&view(&before, &after, 2, None))[2..],
            [
                "AGENT CONNECTIONS TO ENDPOINTS FROM ENDPOINTS",
                "b 2 4.0 KiB/s 2.0 KiB/s",
                "a 1 0 B/s 0 B/s",
                "",
                "TARGET AGENT STREAM ID OPENED TO ENDPOINT FROM ENDPOINT QUEUED",
                "pod-2:80 b 2 2 - 4.0 KiB/s 0 B/s 0 B",
                "pod-1:80 b 2 1 - 0 B/s 2.0 KiB/s 0 B",
                "not shown: 1 connection",
            ]
        );
    }

    fn rows(text: &str) -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn connections_of_two_streams_of_an_agent_are_not_confused() {
        let idle = [("a", 1, 1, 1 << 30, 0), ("a", 2, 1, 0, 0)];
        let start = Instant::now();
        let text = view(&at(start, &idle), &at(start + Duration::from_secs(1), &idle), 2, None);
        assert!(!text.contains("iB/s"), "{text}");
    }

    #[test]
    fn connections_that_enter_the_sample_late_are_not_fast() {
        let start = Instant::now();
        let mut before = at(start, &[("b", 1, 1, 0, 0)]);
        before.status.now = "2026-11-28T10:00:02.000Z".into();
        let mut after = at(
            start + Duration::from_secs(1),
            &[("a", 1, 2, 0, 1 << 30), ("b", 1, 1, 0, 512), ("c", 1, 3, 0, 256)],
        );
        let opened = ["2026-11-28T09:00:00.000Z", "2026-11-28T10:00:00.001Z", "2026-11-28T10:00:02.001Z"];
        for (connection, since) in after.status.connections.iter_mut().zip(opened) {
            connection.since = since.into();
        }
        let text = rows(&view(&before, &after, 3, None));
        assert_eq!(text[3..6], ["b 1 0 B/s 512 B/s", "c 1 0 B/s 256 B/s", "a 1 0 B/s 0 B/s"]);
    }

    #[test]
    fn view_fits_the_terminal() {
        let connections: Vec<_> = (0..40).map(|id| (["a", "b", "c"][id % 3], 1, id as i64, 0, 0)).collect();
        let start = Instant::now();
        let (before, after) = (at(start, &connections), at(start + Duration::from_secs(1), &connections));
        let fitted = |lines| rows(&view(&before, &after, 15, Some(lines)));
        for lines in 1..60 {
            let text = fitted(lines);
            assert!(text.len() < lines.max(2), "{lines}: {text:?}");
        }
        assert_eq!(fitted(12).len(), 11);
        assert_eq!(fitted(12)[10], "not shown: 1 agent, 37 connections");
        assert_eq!(fitted(60).last().unwrap(), "not shown: 25 connections");
    }
}
