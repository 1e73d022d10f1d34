//! The tables of the page.

use status::{
    Agent, Certificate, Connection, Failure, Flag, Health, List, Listener, Refused, Row, Server, Status,
};

use super::html::Html;
use super::table::{Column, PEER, Table, View, amount, badge, failures, lines};
use super::words::{DAY, bytes, duration, number};

/// A certificate that ends within this time is marked.
pub(super) const WARN: f64 = 30.0 * DAY;
/// A certificate that ends within this time is marked as a fault.
pub(super) const FAULT: f64 = 7.0 * DAY;

/// Adds all tables. Failures and refused peers are filtered too.
pub(super) fn show(html: &mut Html, view: &View<'_>) {
    let Status { totals, agents, servers, connections, .. } = view.status;
    match view.is_server() {
        true => AGENTS.show(html, view, agents, totals.agents, Agent::FIELDS),
        false => SERVERS.show(html, view, servers, totals.servers, Server::FIELDS),
    }
    CONNECTIONS.show(html, view, connections, totals.connections, Connection::FIELDS);
    let has = |texts: &[&str]| texts.iter().any(|text| text.contains(&view.query.filter));
    let failed = |one: &&Failure| has(&[&one.target, &one.peer, &one.reason, &one.error]);
    let failed: Vec<_> = view.status.failures.iter().filter(failed).cloned().collect();
    FAILURES.show(html, view, &failed, totals.failed_dials, &[]);
    let refused = |one: &&Refused| has(&[&one.listener, &one.peer, &one.error]);
    let refused: Vec<_> = view.status.refused.iter().filter(refused).cloned().collect();
    let table = if view.is_server() { REFUSED } else { ATTEMPTS };
    table.show(html, view, &refused, totals.refused, &[]);
    let certificates = certificates(view);
    CERTIFICATES.show(html, view, &certificates, certificates.len() as u64, &[]);
    short(html, view, &HEALTH, &view.status.health);
    short(html, view, &LISTENERS, &view.status.listeners);
    short(html, view, &FLAGS, &view.status.flags);
}

/// A table without filter and pages.
fn short<R>(html: &mut Html, view: &View<'_>, table: &Table<R>, rows: &[R]) {
    table.show(html, view, rows, rows.len() as u64, &[]);
}

/// The certificates, next to end first.
pub(super) fn certificates(view: &View<'_>) -> Vec<Certificate> {
    let mut certificates = view.status.certificates.clone();
    certificates.sort_by(|one, two| one.not_after.cmp(&two.not_after));
    certificates
}

const fn column<R>(title: &'static str, cell: fn(&mut Html, &R, &View<'_>)) -> Column<R> {
    Column { title, sort: "", numeric: false, cell }
}

const fn sorted<R>(title: &'static str, sort: &'static str, cell: fn(&mut Html, &R, &View<'_>)) -> Column<R> {
    Column { title, sort, numeric: false, cell }
}

const fn figure<R>(title: &'static str, sort: &'static str, cell: fn(&mut Html, &R, &View<'_>)) -> Column<R> {
    Column { title, sort, numeric: true, cell }
}

/// Adds text; closures for cells return nothing.
fn put(html: &mut Html, text: impl std::fmt::Display) {
    html.text(text);
}

fn state(html: &mut Html, state: &str, reason: &str) {
    badge(html, if state == "ready" { "good" } else { "bad" }, state);
    if !reason.is_empty() {
        html.raw("<br><span class=\"more\">").text(reason).raw("</span>");
    }
}

fn release(html: &mut Html, native: bool, version: &str) {
    let version = version.strip_prefix("konnectivity/").unwrap_or(version);
    html.text(if native { version } else { "upstream" });
    html.raw(if native && version.is_empty() { "native" } else { "" });
}

const AGENTS: Table<Agent> = Table {
    id: "agents",
    title: "Agents",
    caption: "Connected agents, by id",
    empty: "No agent is connected. The table of refused peers below may show why.",
    list: Some(List::Peers),
    columns: &[
        sorted("Agent", "id", |html, agent, _| put(html, &agent.id)),
        sorted("State", "state", |html, agent, _| state(html, &agent.state, &agent.reason)),
        figure("Connections", "connections", |html, agent, _| put(html, number(agent.connections))),
        figure("Dials", "dials_ok", |html, agent, _| put(html, number(agent.dials_ok))),
        figure("Failed", "dials_failed", |html, agent, _| failures(html, agent.dials_failed)),
        figure("To agent", "bytes_to_agent", |html, agent, _| put(html, bytes(agent.bytes_to_agent))),
        figure("From agent", "bytes_from_agent", |html, agent, _| put(html, bytes(agent.bytes_from_agent))),
        figure("RTT", "rtt_seconds", |html, agent, _| amount(html, agent.rtt_seconds)),
        figure("Dial time", "expected_dial_seconds", |html, agent, _| {
            amount(html, agent.expected_dial_seconds);
        }),
        sorted("Connected", "since", |html, agent, view| view.ago(html, &agent.since)),
        column("Address", |html, agent, _| lines(html, &agent.addresses)),
        figure("Streams", "streams", |html, agent, _| put(html, number(agent.streams))),
        sorted("Version", "version", |html, agent, _| release(html, agent.native, &agent.version)),
        sorted("Zone", "zone", |html, agent, _| put(html, &agent.zone)),
        column("Identifiers", |html, agent, _| lines(html, &agent.identifiers)),
        sorted("Identity", "identity", |html, agent, _| put(html, &agent.identity)),
    ],
};

const SERVERS: Table<Server> = Table {
    id: "servers",
    title: "Servers",
    caption: "Connected servers, by id",
    empty: "No server is connected. Failed attempts below may tell why.",
    list: Some(List::Peers),
    columns: &[
        sorted("Server", "id", |html, server, _| put(html, &server.id)),
        sorted("State", "state", |html, server, _| state(html, &server.state, "")),
        figure("Connections", "connections", |html, server, _| put(html, number(server.connections))),
        figure("RTT", "rtt_seconds", |html, server, _| amount(html, server.rtt_seconds)),
        sorted("Connected", "since", |html, server, view| view.ago(html, &server.since)),
        column("Address", |html, server, _| lines(html, &server.addresses)),
        figure("Streams", "streams", |html, server, _| put(html, number(server.streams))),
        column("Protocol", |html, server, _| release(html, server.native, "")),
    ],
};

const CONNECTIONS: Table<Connection> = Table {
    id: "connections",
    title: "Connections",
    caption: "Open connections",
    empty: "No connection is open.",
    list: Some(List::Connections),
    columns: &[
        sorted("Target", "target", |html, connection, _| put(html, &connection.target)),
        sorted(PEER, "peer", |html, one, _| put(html, &one.peer)),
        sorted("Opened", "since", |html, connection, view| view.ago(html, &connection.since)),
        figure("To endpoint", "bytes_to_endpoint", |html, one, _| put(html, bytes(one.bytes_to_endpoint))),
        figure("From endpoint", "bytes_from_endpoint", |html, one, _| {
            put(html, bytes(one.bytes_from_endpoint))
        }),
        figure("Queued", "queued", |html, connection, _| put(html, bytes(connection.queued))),
        figure("Stalled for", "stalled_seconds", |html, connection, _| {
            if let Some(stalled) = connection.stalled_seconds {
                html.raw("<strong class=\"bad\">").text(duration(stalled)).raw("</strong>");
            }
        }),
    ],
};

const FAILURES: Table<Failure> = Table {
    id: "failures",
    title: "Failed dials",
    caption: "The last 100 failed dials, newest first",
    empty: "No dial has failed.",
    list: None,
    columns: &[
        column("Target", |html, failure, _| put(html, &failure.target)),
        column("When", |html, failure, view| view.ago(html, &failure.time)),
        column("Through", |html, failure, _| put(html, &failure.peer)),
        column("Error", |html, failure, _| {
            html.text(&failure.error).raw("<br><span class=\"more\">").text(&failure.reason).raw("</span>");
        }),
        figure("Took", "", |html, failure, _| put(html, duration(failure.seconds))),
    ],
};

const REFUSED: Table<Refused> = Table {
    id: "refused",
    title: "Refused peers",
    caption: "The last 100 peers whose handshake or request was refused, newest first",
    empty: "No peer was refused.",
    list: None,
    columns: &[
        column("Peer", |html, refused, _| put(html, &refused.peer)),
        column("Last", |html, refused, view| view.ago(html, &refused.time)),
        column("At", |html, refused, _| put(html, &refused.listener)),
        column("Error", |html, refused, _| put(html, &refused.error)),
        figure("Times", "", |html, refused, _| put(html, number(refused.count))),
    ],
};

/// The same at an agent.
const ATTEMPTS: Table<Refused> = Table {
    title: "Failed attempts",
    caption: "The last 100 failed attempts to connect to a server, newest first",
    empty: "No attempt has failed.",
    ..REFUSED
};

const CERTIFICATES: Table<Certificate> = Table {
    id: "certificates",
    title: "Certificates",
    caption: "Certificates in use, next to expire first",
    empty: "No certificate is in use.",
    list: None,
    columns: &[
        column("Subject", |html, certificate, _| {
            html.text(if certificate.subject.is_empty() { "unknown" } else { &certificate.subject });
        }),
        column("Expires", ends),
        column("Use", |html, one, _| {
            html.text(&one.side).raw(", ").text(&one.role);
        }),
        column("Source", |html, certificate, _| put(html, &certificate.source)),
        column("Issuer", |html, certificate, _| put(html, &certificate.issuer)),
    ],
};

fn ends(html: &mut Html, certificate: &Certificate, view: &View<'_>) {
    let day = |time: &str| time.split('T').next().unwrap_or_default().to_owned();
    if let Some(left) = view.age(&certificate.not_after).map(|age| -age) {
        let (class, text) = match left {
            left if left < 0.0 => ("bad", format!("expired {} ago", duration(-left))),
            left if left < FAULT => ("bad", format!("in {}", duration(left))),
            left if left < WARN => ("warn", format!("in {}", duration(left))),
            left => ("plain", format!("in {}", duration(left))),
        };
        badge(html, class, &text);
    }
    html.raw("<br><time class=\"more\" datetime=\"").text(&certificate.not_after).raw("\">");
    html.text(day(&certificate.not_after)).raw("</time>");
}

const HEALTH: Table<Health> = Table {
    id: "health",
    title: "Conditions",
    caption: "The conditions of /readyz",
    empty: "There are no conditions.",
    list: None,
    columns: &[
        column("Condition", |html, health, _| put(html, &health.name)),
        column("State", |html, health, _| match health.ok {
            true => badge(html, "good", "met"),
            false => badge(html, "bad", "not met"),
        }),
        column("Details", |html, health, _| put(html, &health.note)),
    ],
};

const LISTENERS: Table<Listener> = Table {
    id: "listeners",
    title: "Listeners",
    caption: "Sockets on which the program listens",
    empty: "No socket is bound.",
    list: None,
    columns: &[
        column("Listener", |html, listener, _| put(html, &listener.name)),
        column("Address", |html, listener, _| put(html, &listener.address)),
        column("Protocol", |html, listener, _| put(html, &listener.protocol)),
    ],
};

const FLAGS: Table<Flag> = Table {
    id: "flags",
    title: "Flags",
    caption: "Flags that differ from their defaults",
    empty: "All flags have their defaults.",
    list: None,
    columns: &[
        column("Flag", |html, flag, _| {
            html.raw("--").text(&flag.name);
        }),
        column("Value", |html, flag, _| put(html, &flag.value)),
    ],
};
