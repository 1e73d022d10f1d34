//! The tables of the page.

use status::{Row, Status};

use super::html::Html;
use super::table::{Table, View};

/// Adds all tables.
pub(super) fn show(html: &mut Html, view: &View<'_>) {
    let Status { totals, agents, servers, connections, failures, refused, .. } = view.status;
    if view.status.is_agent() {
        SERVERS.show(html, view, servers, totals.servers);
    } else {
        AGENTS.show(html, view, agents, totals.agents);
    }
    CONNECTIONS.show(html, view, connections, totals.connections);
    FAILURES.show(html, view, failures, totals.failed_dials);
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
fn short<R: Row>(html: &mut Html, view: &View<'_>, table: &Table, rows: &[R]) {
    table.show(html, view, rows, rows.len() as u64);
}

const AGENTS: Table = Table {
    id: "agents",
    title: "Agents",
    caption: "Connected agents, by id. \u{201c}Dials failed\u{201d} includes dials that another agent then took over; the totals above do not.",
    empty: "No agent is connected. The table of refused peers below may show why.",
};

const SERVERS: Table = Table {
    id: "servers",
    title: "Servers",
    caption: "Connected servers, by id",
    empty: "No server is connected. Failed attempts below may tell why.",
};

const CONNECTIONS: Table = Table {
    id: "connections",
    title: "Connections",
    caption: "Open connections",
    empty: "No connection is open.",
};

const FAILURES: Table = Table {
    id: "failures",
    title: "Failed dials",
    caption: "The last 100 failed dials, newest first",
    empty: "No dial has failed.",
};

const REFUSED: Table = Table {
    id: "refused",
    title: "Refused peers",
    caption: "The last 100 peers whose handshake or request was refused, newest first",
    empty: "No peer was refused.",
};

/// The same at an agent.
const ATTEMPTS: Table = Table {
    title: "Failed attempts",
    caption: "The last 100 failed attempts to connect to a server, newest first",
    empty: "No attempt has failed.",
    ..REFUSED
};

const CERTIFICATES: Table = Table {
    id: "certificates",
    title: "Certificates",
    caption: "Certificates in use, next to expire first",
    empty: "No certificate is in use.",
};

const HEALTH: Table = Table {
    id: "health",
    title: "Conditions",
    caption: "The conditions of /readyz",
    empty: "There are no conditions.",
};

const LISTENERS: Table = Table {
    id: "listeners",
    title: "Listeners",
    caption: "Sockets on which the program listens",
    empty: "No socket is bound.",
};

const FLAGS: Table = Table {
    id: "flags",
    title: "Flags",
    caption: "Flags that differ from their defaults",
    empty: "All flags have their defaults.",
};
