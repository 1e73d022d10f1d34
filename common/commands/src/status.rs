//! `status [LIST]`: what `/statusz` tells, as tables or as JSON.

use std::ffi::OsString;
use std::fmt::Write;

use flags::{Exit, closest, one_of};
use status::{Agent, Certificate, Status};

use crate::admin::{Admin, List};
use crate::table::{Table, age, between, bytes, duration, millis, shown};
use crate::{Program, not_asked, read};

const ABOUT: &str = "shows what the running program knows: its health, or one list. \
    Exit status 0: healthy; 1: not ready; 2: it cannot be asked.";

/// Failures that the overview shows.
const LAST: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    Table,
    Json,
}

flags::flags! {
    struct StatusFlags {
        "Output" {
            /// table or json.
            output: Output = "table" [letter = 'o']
                => one_of(&[("table", Output::Table), ("json", Output::Json)], "it must be table or json"),
        }
    }
}

const SERVER_LISTS: [&str; 4] = ["agents", "connections", "failures", "certificates"];
const AGENT_LISTS: [&str; 4] = ["servers", "connections", "failures", "certificates"];

pub(crate) async fn run(program: Program, line: Vec<OsString>) -> Result<Exit, Exit> {
    let (usage, lists) = match program {
        Program::Server => (" [agents|connections|failures|certificates]", SERVER_LISTS),
        Program::Agent => (" [servers|connections|failures|certificates]", AGENT_LISTS),
    };
    let (flags, admin, words): (StatusFlags, _, _) = read((program, "status", ABOUT), (usage, 1), line)?;
    let list = words.first().map_or("", String::as_str);
    if !list.is_empty() && !lists.contains(&list) {
        let meant = closest(list, lists).map(|meant| format!("did you mean {meant}? ")).unwrap_or_default();
        return Err(not_asked(&format!("unknown list {list:?}: {meant}the lists are {}", lists.join(", "))));
    }
    let admin = Admin::new(program, admin);
    let status = match list {
        "agents" | "servers" => admin.whole(List::Peers, "").await?,
        "connections" => admin.whole(List::Connections, "").await?,
        _ => admin.status("").await?,
    };
    let text = match flags.output {
        Output::Json => serde_json::to_string_pretty(&status).unwrap_or_default() + "\n",
        Output::Table => headline(&status) + "\n" + &body(&status, list),
    };
    Ok(Exit { code: u8::from(!is_healthy(&status)), ..Exit::show(text) })
}

fn is_healthy(status: &Status) -> bool {
    status.health.iter().all(|condition| condition.ok)
}

/// The health in words.
pub(crate) fn headline(status: &Status) -> String {
    let Status { build, id, totals, .. } = status;
    let failed = status.health.iter().filter(|condition| !condition.ok);
    let failed: Vec<String> =
        failed.map(|condition| format!("{}: {}", shown(&condition.name), shown(&condition.note))).collect();
    let verdict =
        if failed.is_empty() { "healthy".to_owned() } else { format!("NOT READY ({})", failed.join("; ")) };
    let (peers, peer) =
        if build.program == "proxy-agent" { (totals.servers, "server") } else { (totals.agents, "agent") };
    let mut parts = vec![counted(peers, peer), counted(totals.connections, "connection")];
    if totals.agents_unhealthy > 0 {
        parts.insert(1, format!("{} of them not ready", totals.agents_unhealthy));
    }
    let (program, version, parts) = (shown(&build.program), shown(&build.version), parts.join(", "));
    format!(
        "{program} {} ({version}, up {}) is {verdict}: {parts}",
        shown(id),
        age(&status.started, &status.now)
    )
}

fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn body(status: &Status, list: &str) -> String {
    let table = match list {
        "agents" => agents(status),
        "servers" => servers(status),
        "connections" => connections(status),
        "failures" => return failures(status, usize::MAX),
        "certificates" => certificates(status),
        _ => return overview(status),
    };
    table.to_string()
}

fn overview(status: &Status) -> String {
    let totals = &status.totals;
    let mut text = format!(
        "dials: {} succeeded, {} failed, {} pending; refused peers: {}\n",
        totals.dials, totals.failed_dials, totals.pending_dials, totals.refused
    );
    let notes = status.health.iter().filter(|condition| condition.ok && !condition.note.is_empty());
    for condition in notes {
        let _ = writeln!(text, "{}: {}", shown(&condition.name), shown(&condition.note));
    }
    if let Some(kubernetes) = &status.kubernetes
        && !kubernetes.last_error.is_empty()
    {
        let _ = writeln!(text, "Kubernetes API: {}", shown(&kubernetes.last_error));
    }
    if let Some(next) = by_end(status).first() {
        let (left, subject) = (left(next, &status.now), shown(&next.subject));
        let _ = writeln!(text, "next certificate to end: {left}, {subject} ({})", shown(&next.source));
    }
    let flags = status.flags.iter().map(|flag| format!("--{}={}", shown(&flag.name), shown(&flag.value)));
    let flags = flags.collect::<Vec<_>>().join(" ");
    let _ = writeln!(text, "flags that differ from their defaults: {}\n", shown(&flags));
    let mut listeners = Table::new(&["LISTENER", "ADDRESS", "PROTOCOL"]);
    for listener in &status.listeners {
        listeners.row([&listener.name, &listener.address, &listener.protocol]);
    }
    text + &listeners.to_string() + "\n" + &failures(status, LAST)
}

fn agents(status: &Status) -> Table {
    let mut table = Table::new(&[
        "AGENT",
        "STATE",
        "AGE",
        "STREAMS",
        "RTT",
        "CONNS",
        "TO AGENT",
        "FROM AGENT",
        "DIALS",
        "FAILED",
        "VERSION",
        "ZONE",
        "ADDRESSES",
        "REASON",
    ]);
    for agent in &status.agents {
        let Agent { id, state, streams, connections, dials_ok, dials_failed, zone, reason, .. } = agent;
        let version = if agent.native { agent.version.as_str() } else { "upstream" };
        let rtt = agent.rtt_seconds.map(millis).unwrap_or_default();
        let (age, addresses) = (age(&agent.since, &status.now), agent.addresses.join(","));
        let (to, from) = (bytes(agent.bytes_to_agent), bytes(agent.bytes_from_agent));
        table.row([
            id,
            state,
            &age,
            streams,
            &rtt,
            connections,
            &to,
            &from,
            dials_ok,
            dials_failed,
            &version,
            zone,
            &addresses,
            reason,
        ]);
    }
    table
}

fn servers(status: &Status) -> Table {
    let mut table = Table::new(&["SERVER", "STATE", "AGE", "STREAMS", "RTT", "CONNS", "KIND", "ADDRESSES"]);
    for server in &status.servers {
        let kind = if server.native { "native" } else { "upstream" };
        let rtt = server.rtt_seconds.map(millis).unwrap_or_default();
        let (age, addresses) = (age(&server.since, &status.now), server.addresses.join(","));
        table.row([
            &server.id,
            &server.state,
            &age,
            &server.streams,
            &rtt,
            &server.connections,
            &kind,
            &addresses,
        ]);
    }
    table
}

fn connections(status: &Status) -> Table {
    let peer = if status.build.program == "proxy-agent" { "SERVER" } else { "AGENT" };
    let mut table =
        Table::new(&["TARGET", peer, "ID", "AGE", "TO ENDPOINT", "FROM ENDPOINT", "QUEUED", "STALLED"]);
    for connection in &status.connections {
        let stalled = connection.stalled_seconds.map(|seconds| format!("{seconds:.1} s")).unwrap_or_default();
        let (to, from) = (bytes(connection.bytes_to_endpoint), bytes(connection.bytes_from_endpoint));
        let (age, queued) = (age(&connection.since, &status.now), bytes(connection.queued));
        table.row([
            &connection.target,
            &connection.peer,
            &connection.id,
            &age,
            &to,
            &from,
            &queued,
            &stalled,
        ]);
    }
    table
}

/// The last dials that failed and the peers that were refused, at most `most` of each.
fn failures(status: &Status, most: usize) -> String {
    let mut dials = Table::new(&["FAILED DIAL", "TARGET", "PEER", "AFTER", "REASON", "ERROR"]);
    for failure in status.failures.iter().take(most) {
        let (ago, after) = (ago(&failure.time, &status.now), millis(failure.seconds));
        dials.row([&ago, &failure.target, &failure.peer, &after, &failure.reason, &failure.error]);
    }
    let mut peers = Table::new(&["REFUSED PEER", "AT", "PEER", "TIMES", "ERROR"]);
    for refused in status.refused.iter().take(most) {
        let ago = ago(&refused.time, &status.now);
        peers.row([&ago, &refused.listener, &refused.peer, &refused.count, &refused.error]);
    }
    let tables: Vec<String> =
        [dials, peers].into_iter().filter(|table| !table.is_empty()).map(|table| table.to_string()).collect();
    if tables.is_empty() { "no failed dial and no refused peer\n".to_owned() } else { tables.join("\n") }
}

fn ago(time: &str, now: &str) -> String {
    between(time, now).map(|time| duration(time) + " ago").unwrap_or_default()
}

/// The certificates, the first to end first.
fn by_end(status: &Status) -> Vec<&Certificate> {
    let mut certificates: Vec<&Certificate> = status.certificates.iter().collect();
    certificates.sort_by(|one, other| one.not_after.cmp(&other.not_after));
    certificates
}

fn left(certificate: &Certificate, now: &str) -> String {
    match between(now, &certificate.not_after) {
        Some(left) => format!("in {}", duration(left)),
        None => "ENDED".to_owned(),
    }
}

fn certificates(status: &Status) -> Table {
    let mut table = Table::new(&["ENDS", "AT", "SIDE", "ROLE", "SUBJECT", "ISSUER", "SOURCE"]);
    for certificate in by_end(status) {
        let Certificate { side, role, source, subject, issuer, not_after, .. } = certificate;
        table.row([&left(certificate, &status.now), not_after, side, role, subject, issuer, source]);
    }
    table
}

#[cfg(test)]
mod tests {
    use status::{Build, Failure, Flag, Health, Totals};

    use super::*;

    fn server() -> Status {
        Status {
            build: Build { program: "proxy-server".into(), version: "0.36.0".into(), fips: false },
            id: "s0".into(),
            started: "2026-01-01T00:00:00Z".into(),
            now: "2026-01-01T02:05:00Z".into(),
            health: vec![Health { name: "backend".into(), ok: true, note: String::new() }],
            totals: Totals { agents: 2, agents_unhealthy: 1, connections: 1, ..Totals::default() },
            ..Status::default()
        }
    }

    #[test]
    fn first_line_tells_the_health_in_words() {
        let mut status = server();
        let line =
            "proxy-server s0 (0.36.0, up 2h5m) is healthy: 2 agents, 1 of them not ready, 1 connection";
        assert_eq!(headline(&status), line);
        assert!(is_healthy(&status));
        status.health[0].ok = false;
        status.health[0].note = "no connection\nto any agent".into();
        let line = headline(&status);
        assert!(line.contains("is NOT READY (backend: no connection\\nto any agent)"), "{line}");
        assert!(!is_healthy(&status));
    }

    #[test]
    fn lists_are_tables() {
        let mut status = server();
        status.agents.push(Agent {
            id: "node-1".into(),
            state: "ejected".into(),
            since: "2026-01-01T02:04:00Z".into(),
            bytes_to_agent: 2048,
            reason: "its own failures stand out".into(),
            ..Agent::default()
        });
        let text = body(&status, "agents");
        assert!(text.contains("node-1  ejected  1m0s  0        -    0      2.0 KiB   0 B"), "{text}");
        assert!(text.contains("upstream") && text.ends_with("its own failures stand out\n"), "{text}");
        let certificate = |subject: &str, not_after: &str| Certificate {
            subject: subject.into(),
            not_after: not_after.into(),
            ..Certificate::default()
        };
        status.certificates = vec![
            certificate("later", "2027-01-01T00:00:00Z"),
            certificate("sooner", "2026-01-02T02:05:00Z"),
            certificate("ended", "2026-01-01T02:00:00Z"),
        ];
        let ends: Vec<String> =
            body(&status, "certificates").lines().skip(1).map(|line| line[..10].trim().into()).collect();
        assert_eq!(ends, ["ENDED", "in 1d0h", "in 364d21h"]);
    }

    #[test]
    fn overview_has_failures_and_flags() {
        let mut status = server();
        assert!(body(&status, "").ends_with("no failed dial and no refused peer\n"));
        status.flags.push(Flag { name: "mode".into(), value: "http-connect".into() });
        for port in 0..7 {
            let target = format!("pod:{port}");
            status.failures.push(Failure {
                target,
                time: "2026-01-01T02:04:57Z".into(),
                ..Failure::default()
            });
        }
        let text = body(&status, "");
        assert!(text.contains("--mode=http-connect"), "{text}");
        assert_eq!(text.matches("3s ago").count(), LAST, "{text}");
        assert_eq!(body(&status, "failures").matches("3s ago").count(), 7);
    }
}
