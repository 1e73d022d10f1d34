//! The lists as tables: the columns that the status page and the command `status` show.

use crate::words::{self, ago, bytes, count, duration};
use crate::{
    Agent, Certificate, Connection, Failure, Flag, Health, List, Listener, Refused, Row, Server, Status,
};

/// A column: its cells, and the field by which it is sorted (empty for none).
#[derive(Debug)]
pub struct Column<R> {
    title: &'static str,
    /// The name of the field in queries.
    pub sort: &'static str,
    /// Aligned to the right, the largest first by the first click.
    pub numeric: bool,
    /// Absent from the page, which shows it as a detail of another column.
    pub is_detail: bool,
    /// The value of a row.
    pub cell: fn(&R) -> Cell<'_>,
}

/// A value of a row, and how it is shown.
#[derive(Debug)]
pub enum Cell<'a> {
    /// A text.
    Text(&'a str),
    /// The same, put together.
    Owned(String),
    /// A text of which the page shows three lines, and the whole as a title.
    Long(&'a str),
    /// Several texts.
    Texts(&'a [String]),
    /// A text, and a less important one.
    Detailed(&'a str, &'a str),
    /// A state that is good or bad, and its reason, which may be empty.
    State(bool, &'a str, &'a str),
    /// A count.
    Number(u64),
    /// A count of failures.
    Failures(u64),
    /// An amount of bytes.
    Bytes(u64),
    /// Seconds, if they are known.
    Seconds(Option<f64>),
    /// The seconds of a stall, if there is one.
    Stalled(Option<f64>),
    /// A time in the past.
    Ago(&'a str),
    /// A time at which a certificate expires.
    Expires(&'a str),
}

/// A number, or a text in the order of bytes. Equal numbers end a comparison: an empty text beside each would be compared,
/// which is slow, because it has no memory.
#[derive(PartialEq, PartialOrd)]
pub(crate) enum Key<'a> {
    Number(f64),
    Text(&'a str),
}

use Cell::{
    Ago, Bytes, Detailed, Expires, Failures, Long, Number, Owned, Seconds, Stalled, State, Text, Texts,
};

impl<R> Column<R> {
    /// The title in the table of this program.
    pub fn title(&self, status: &Status) -> &'static str {
        match (self.title, status.is_agent()) {
            (PEER, true) => "Server",
            (PEER, false) => "Agent",
            (title, _) => title,
        }
    }
}

impl Cell<'_> {
    /// The key that orders a list. Absent amounts are below all others.
    pub(crate) fn key(&self) -> Key<'_> {
        match *self {
            Number(count) | Failures(count) | Bytes(count) => Key::Number(count as f64),
            Seconds(time) | Stalled(time) => Key::Number(time.unwrap_or(-1.0)),
            Text(text) | Long(text) | Detailed(text, _) | State(_, text, _) | Ago(text) | Expires(text) => {
                Key::Text(text)
            }
            Owned(_) | Texts(_) => Key::Number(0.0),
        }
    }

    /// The value as plain text, without its details.
    pub fn text(&self, now: &str) -> String {
        match *self {
            Text(text) | Long(text) => text.to_owned(),
            Owned(ref text) => text.clone(),
            Texts(texts) => match first_texts(texts) {
                (first, None) => first.join(","),
                (first, Some(others)) => format!("{} {others}", first.join(",")),
            },
            Detailed(text, _) | State(_, text, _) => text.to_owned(),
            Number(count) | Failures(count) => count.to_string(),
            Bytes(count) => bytes(count),
            Seconds(time) | Stalled(time) => time.map(duration).unwrap_or_default(),
            Ago(time) => ago(time, now),
            Expires(time) => match expires(time, now).as_str() {
                "" => time.to_owned(),
                left => format!("{time} ({left})"),
            },
        }
    }
}

/// The first texts of a list that a peer may have made long, and for instance `and 3 others` if there are more.
pub fn first_texts(texts: &[String]) -> (&[String], Option<String>) {
    const MOST: usize = 4;
    let (first, others) = texts.split_at(texts.len().min(MOST));
    (first, (!others.is_empty()).then(|| format!("and {}", count(others.len() as u64, "other"))))
}

/// When a certificate expires, for instance `in 3 d 12 h`; empty if a text is no time.
pub fn expires(time: &str, now: &str) -> String {
    match words::seconds(now, time) {
        Some(left) if left < 0.0 => format!("expired {} ago", duration(-left)),
        Some(left) => format!("in {}", duration(left)),
        None => String::new(),
    }
}

/// The title of the column of a connection's peer: `Agent` at a server, `Server` at an agent.
const PEER: &str = "Agent or server";

const fn column<R>(title: &'static str, cell: fn(&R) -> Cell<'_>) -> Column<R> {
    Column { title, sort: "", numeric: false, is_detail: false, cell }
}

const fn sorted<R>(title: &'static str, sort: &'static str, cell: fn(&R) -> Cell<'_>) -> Column<R> {
    Column { title, sort, numeric: false, is_detail: false, cell }
}

const fn figure<R>(title: &'static str, sort: &'static str, cell: fn(&R) -> Cell<'_>) -> Column<R> {
    Column { title, sort, numeric: true, is_detail: false, cell }
}

const fn detail<R>(title: &'static str, sort: &'static str, cell: fn(&R) -> Cell<'_>) -> Column<R> {
    Column { title, sort, numeric: false, is_detail: true, cell }
}

fn release(native: bool, version: &str) -> Cell<'_> {
    Text(match version.strip_prefix("konnectivity/").unwrap_or(version) {
        _ if !native => "upstream",
        "" => "native",
        version => version,
    })
}

impl Row for Agent {
    const COLUMNS: &'static [Column<Self>] = &[
        sorted("Agent", "id", |agent| Text(&agent.id)),
        sorted("State", "state", |agent| State(agent.state == "ready", &agent.state, &agent.reason)),
        figure("Connections", "connections", |agent| Number(agent.connections)),
        figure("Dials ok", "dials_ok", |agent| Number(agent.dials_ok)),
        figure("Dials failed", "dials_failed", |agent| Failures(agent.dials_failed)),
        figure("To agent", "bytes_to_agent", |agent| Bytes(agent.bytes_to_agent)),
        figure("From agent", "bytes_from_agent", |agent| Bytes(agent.bytes_from_agent)),
        figure("RTT", "rtt_seconds", |agent| Seconds(agent.rtt_seconds)),
        figure("Dial time", "expected_dial_seconds", |agent| Seconds(agent.expected_dial_seconds)),
        sorted("Connected", "since", |agent| Ago(&agent.since)),
        column("Address", |agent| Texts(&agent.addresses)),
        figure("Streams", "streams", |agent| Number(agent.streams)),
        sorted("Version", "version", |agent| release(agent.native, &agent.version)),
        sorted("Zone", "zone", |agent| Text(&agent.zone)),
        sorted("Identity", "identity", |agent| Long(&agent.identity)),
        detail("Reason", "reason", |agent| Text(&agent.reason)),
        column("Identifiers", |agent| Texts(&agent.identifiers)),
    ];
    const LIST: Option<List> = Some(List::Peers);

    fn contains(&self, text: &str) -> bool {
        let texts = [&self.id, &self.identity, &self.zone].into_iter();
        texts.chain(&self.addresses).chain(&self.identifiers).any(|one| one.contains(text))
    }
}

impl Row for Server {
    const COLUMNS: &'static [Column<Self>] = &[
        sorted("Server", "id", |server| Text(&server.id)),
        sorted("State", "state", |server| State(server.state == "ready", &server.state, "")),
        figure("Connections", "connections", |server| Number(server.connections)),
        figure("RTT", "rtt_seconds", |server| Seconds(server.rtt_seconds)),
        sorted("Connected", "since", |server| Ago(&server.since)),
        column("Address", |server| Texts(&server.addresses)),
        figure("Streams", "streams", |server| Number(server.streams)),
        column("Protocol", |server| release(server.native, "")),
    ];
    const LIST: Option<List> = Some(List::Peers);

    fn contains(&self, text: &str) -> bool {
        self.id.contains(text) || self.addresses.iter().any(|one| one.contains(text))
    }
}

impl Row for Connection {
    const COLUMNS: &'static [Column<Self>] = &[
        sorted("Target", "target", |connection| Text(&connection.target)),
        sorted(PEER, "peer", |connection| Text(&connection.peer)),
        sorted("Stream", "stream", |connection| Number(connection.stream)),
        column("ID", |connection| Owned(connection.id.to_string())),
        sorted("Opened", "since", |connection| Ago(&connection.since)),
        figure("To endpoint", "bytes_to_endpoint", |connection| Bytes(connection.bytes_to_endpoint)),
        figure("From endpoint", "bytes_from_endpoint", |connection| Bytes(connection.bytes_from_endpoint)),
        figure("Queued", "queued", |connection| Bytes(connection.queued)),
        figure("Stalled for", "stalled_seconds", |connection| Stalled(connection.stalled_seconds)),
        sorted("Client", "client", |connection| Text(&connection.client)),
    ];
    const LIST: Option<List> = Some(List::Connections);

    fn contains(&self, text: &str) -> bool {
        [&self.peer, &self.target, &self.client].into_iter().any(|one| one.contains(text))
    }
}

impl Row for Failure {
    const COLUMNS: &'static [Column<Self>] = &[
        column("Target", |failure| Text(&failure.target)),
        column("When", |failure| Ago(&failure.time)),
        column("Through", |failure| Text(&failure.peer)),
        figure("Took", "", |failure| Seconds(Some(failure.seconds))),
        detail("Reason", "", |failure| Text(&failure.reason)),
        column("Error", |failure| Detailed(&failure.error, &failure.reason)),
    ];

    fn contains(&self, text: &str) -> bool {
        [&self.target, &self.peer, &self.reason, &self.error].into_iter().any(|one| one.contains(text))
    }
}

impl Row for Refused {
    const COLUMNS: &'static [Column<Self>] = &[
        column("Peer", |refused| Text(&refused.peer)),
        column("Last", |refused| Ago(&refused.time)),
        column("At", |refused| Text(&refused.listener)),
        figure("Times", "", |refused| Number(refused.count)),
        column("Error", |refused| Text(&refused.error)),
    ];

    fn contains(&self, text: &str) -> bool {
        [&self.listener, &self.peer, &self.error].into_iter().any(|one| one.contains(text))
    }
}

impl Row for Certificate {
    const COLUMNS: &'static [Column<Self>] = &[
        column("Subject", |one| Text(if one.subject.is_empty() { "unknown" } else { &one.subject })),
        column("Expires", |one| Expires(&one.not_after)),
        column("Use", |one| Owned(format!("{}, {}", one.side, one.role))),
        column("Source", |one| Detailed(&one.source, &one.change_refused)),
        column("Issuer", |one| Text(&one.issuer)),
        detail("Refused change", "", |one| Text(&one.change_refused)),
    ];
}

impl Row for Health {
    const COLUMNS: &'static [Column<Self>] = &[
        column("Condition", |health| Text(&health.name)),
        column("State", |health| State(health.ok, if health.ok { "met" } else { "not met" }, "")),
        column("Details", |health| Text(&health.note)),
    ];
}

impl Row for Listener {
    const COLUMNS: &'static [Column<Self>] = &[
        column("Listener", |listener| Text(&listener.name)),
        column("Address", |listener| Text(&listener.address)),
        column("Protocol", |listener| Text(&listener.protocol)),
    ];
}

impl Row for Flag {
    const COLUMNS: &'static [Column<Self>] = &[
        column("Flag", |flag| Owned(format!("--{}", flag.name))),
        column("Value", |flag| Text(&flag.value)),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields by which a list is sorted are those of its document.
    fn sorts<R: Row + serde::Serialize>(row: &R) {
        let document = serde_json::to_value(row).unwrap();
        let mut sorts = R::COLUMNS.iter().map(|column| column.sort).filter(|sort| !sort.is_empty());
        assert_eq!(sorts.find(|sort| document.get(sort).is_none()), None);
    }

    #[test]
    fn columns_are_sorted_by_fields() {
        let some = Some(1.0);
        sorts(&Agent { rtt_seconds: some, expected_dial_seconds: some, ..Agent::default() });
        sorts(&Server { rtt_seconds: some, ..Server::default() });
        sorts(&Connection { stalled_seconds: some, client: "unix".to_owned(), ..Connection::default() });
    }

    #[test]
    fn cells_are_plain_text() {
        let now = "2026-01-01T00:00:00Z";
        let texts: Vec<_> = (0..6).map(|at| format!("host=h{at}")).collect();
        for (cell, text) in [
            (Texts(&texts[..4]), "host=h0,host=h1,host=h2,host=h3"),
            (Texts(&texts[..5]), "host=h0,host=h1,host=h2,host=h3 and 1 other"),
            (Texts(&texts), "host=h0,host=h1,host=h2,host=h3 and 2 others"),
            (Number(5_120), "5120"),
            (Failures(5_120), "5120"),
            (State(false, "ejected", "why"), "ejected"),
            (Expires("2026-03-03T07:00:00Z"), "2026-03-03T07:00:00Z (in 61 d 7 h)"),
            (Expires("2025-12-31T23:55:00Z"), "2025-12-31T23:55:00Z (expired 5 min ago)"),
            (Expires("?"), "?"),
            (Ago("2026-01-01T00:00:09Z"), "0 µs ago"),
            (Ago("?"), ""),
        ] {
            assert_eq!(cell.text(now), text);
        }
    }
}
