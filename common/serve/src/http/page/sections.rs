//! The tables of the page.

use status::{
    Agent, Certificate, Connection, Failure, Flag, Health, List, Listener, Refused, Row, Server, Status,
};

use super::html::Html;
use super::table::{Table, View};

/// Adds all tables. Failures and refused peers are filtered too.
pub(super) fn show(html: &mut Html, view: &View<'_>) {
    let Status { totals, agents, servers, connections, failures, refused, .. } = view.status;
    if view.status.is_agent() {
        SERVERS.show(html, view, servers, totals.servers);
    } else {
        AGENTS.show(html, view, agents, totals.agents);
    }
    CONNECTIONS.show(html, view, connections, totals.connections);
    let has = |texts: &[&str]| texts.iter().any(|text| text.contains(&view.query.filter));
    let failed = failures.iter().filter(|one| has(&[&one.target, &one.peer, &one.reason, &one.error]));
    FAILURES.show(html, view, failed, totals.failed_dials);
    let refused = refused.iter().filter(|one| has(&[&one.listener, &one.peer, &one.error]));
    let table = if view.status.is_agent() { ATTEMPTS } else { REFUSED };
    table.show(html, view, refused, totals.refused);
    let certificates = view.status.certificates_by_expiry();
    let total = certificates.len() as u64;
    CERTIFICATES.show(html, view, certificates, total);
    short(html, view, &HEALTH, &view.status.health);
    short(html, view, &LISTENERS, &view.status.listeners);
    short(html, view, &FLAGS, &view.status.flags);
}

/// A table without filter and pages.
fn short<R>(html: &mut Html, view: &View<'_>, table: &Table<R>, rows: &[R]) {
    table.show(html, view, rows, rows.len() as u64);
}

const AGENTS: Table<Agent> = Table {
    id: "agents",
    title: "Agents",
    caption: "Connected agents, by id. \u{201c}Dials failed\u{201d} includes dials that another agent then took over; the totals above do not.",
    empty: "No agent is connected. The table of refused peers below may show why.",
    list: Some(List::Peers),
    columns: Agent::COLUMNS,
};

const SERVERS: Table<Server> = Table {
    id: "servers",
    title: "Servers",
    caption: "Connected servers, by id",
    empty: "No server is connected. Failed attempts below may tell why.",
    list: Some(List::Peers),
    columns: Server::COLUMNS,
};

const CONNECTIONS: Table<Connection> = Table {
    id: "connections",
    title: "Connections",
    caption: "Open connections",
    empty: "No connection is open.",
    list: Some(List::Connections),
    columns: Connection::COLUMNS,
};

const FAILURES: Table<Failure> = Table {
    id: "failures",
    title: "Failed dials",
    caption: "The last 100 failed dials, newest first",
    empty: "No dial has failed.",
    list: None,
    columns: Failure::COLUMNS,
};

const REFUSED: Table<Refused> = Table {
    id: "refused",
    title: "Refused peers",
    caption: "The last 100 peers whose handshake or request was refused, newest first",
    empty: "No peer was refused.",
    list: None,
    columns: Refused::COLUMNS,
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
    columns: Certificate::COLUMNS,
};

const HEALTH: Table<Health> = Table {
    id: "health",
    title: "Conditions",
    caption: "The conditions of /readyz",
    empty: "There are no conditions.",
    list: None,
    columns: Health::COLUMNS,
};

const LISTENERS: Table<Listener> = Table {
    id: "listeners",
    title: "Listeners",
    caption: "Sockets on which the program listens",
    empty: "No socket is bound.",
    list: None,
    columns: Listener::COLUMNS,
};

const FLAGS: Table<Flag> = Table {
    id: "flags",
    title: "Flags",
    caption: "Flags that differ from their defaults",
    empty: "All flags have their defaults.",
    list: None,
    columns: Flag::COLUMNS,
};
