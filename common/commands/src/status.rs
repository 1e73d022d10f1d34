//! `status [LIST]`: what `/statusz` tells, as tables or as JSON.

use std::ffi::OsString;
use std::fmt::Write;

use flags::{Exit, closest, one_of};
use status::words::{duration, plural, seconds};
use status::{List, Status, expires};

use crate::admin::Admin;
use crate::table::{Table, shown};
use crate::{Program, not_asked, read};

const ABOUT: &str = "shows what the running program knows: its health, or one list. \
    Exit status 0: healthy; 1: not ready; 2: it cannot be asked.";

/// The line below an incomplete list of connections.
const MISSING: &str = "connections are missing, because a stream did not answer within 2 s\n";

/// Failures that the overview shows.
const MAX_OVERVIEW_FAILURES: usize = 5;

flags::flags! {
    struct StatusFlags {
        "Output" {
            /// table or json.
            json("output"): bool = "table" [letter = 'o']
                => one_of(&[("table", false), ("json", true)], "it must be table or json"),
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
        "agents" | "servers" => admin.all_pages(List::Peers).await?,
        "connections" => admin.all_pages(List::Connections).await?,
        _ => admin.status("").await?,
    };
    let text = match flags.json {
        true => serde_json::to_string_pretty(&status).unwrap_or_default() + "\n",
        false => headline(&status) + "\n" + &body(&status, list),
    };
    Ok(Exit { code: u8::from(!status.is_ready()), ..Exit::show(text) })
}

/// The health in words.
pub(crate) fn headline(status: &Status) -> String {
    let Status { build, id, totals, .. } = status;
    let failed = status.health.iter().filter(|condition| !condition.ok);
    let failed: Vec<String> =
        failed.map(|condition| format!("{}: {}", shown(&condition.name), shown(&condition.note))).collect();
    let verdict =
        if failed.is_empty() { "healthy".to_owned() } else { format!("NOT READY ({})", failed.join("; ")) };
    let counted = |count, noun| format!("{count} {}", plural(count, noun));
    let peers = match (status.is_agent(), totals.servers, totals.known_servers) {
        (false, ..) => counted(totals.agents, "agent"),
        (true, servers, known) if servers < known => format!("{servers} of {}", counted(known, "server")),
        (true, servers, _) => counted(servers, "server"),
    };
    let mut parts = vec![peers, counted(totals.connections, "connection")];
    if totals.agents_unhealthy > 0 {
        parts.insert(1, format!("{} of them not ready", totals.agents_unhealthy));
    }
    let (program, version, parts) = (shown(&build.program), shown(&build.version), parts.join(", "));
    let up = seconds(&status.started, &status.now).map(duration).unwrap_or_default();
    format!("{program} {} ({version}, up {up}) is {verdict}: {parts}", shown(id), up = shown(&up))
}

fn body(status: &Status, list: &str) -> String {
    let table = match list {
        "agents" => Table::of(&status.agents, status),
        "servers" => Table::of(&status.servers, status),
        "connections" => Table::of(&status.connections, status),
        "failures" => return failures(status, usize::MAX),
        "certificates" => Table::of(status.certificates_by_expiry(), status),
        _ => return overview(status),
    };
    table.to_string() + if status.incomplete && list == "connections" { MISSING } else { "" }
}

fn overview(status: &Status) -> String {
    let totals = &status.totals;
    let mut text = format!(
        "dials: {} succeeded, {} failed, {} pending; {}: {}\n",
        totals.dials,
        totals.failed_dials,
        totals.pending_dials,
        refused(status),
        totals.refused
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
    for (side, why) in status.refused_changes() {
        let (side, why) = (shown(side), shown(why));
        let _ = writeln!(text, "changed certificate files of {side} cannot be used: {why}");
    }
    if let Some(next) = status.certificates_by_expiry().first() {
        let (left, subject) = (shown(&expires(&next.not_after, &status.now)), shown(&next.subject));
        let _ = writeln!(text, "next certificate to expire: {left}, {subject} ({})", shown(&next.source));
    }
    let flags = status.flags.iter().map(|flag| format!("--{}={}", shown(&flag.name), shown(&flag.value)));
    let flags = flags.collect::<Vec<_>>().join(" ");
    let _ = writeln!(text, "flags that differ from their defaults: {}\n", shown(&flags));
    let listeners = Table::of(&status.listeners, status);
    text + &listeners.to_string() + "\n" + &failures(status, MAX_OVERVIEW_FAILURES)
}

/// The last dials that failed and the peers that were refused, at most `most` of each.
fn failures(status: &Status, most: usize) -> String {
    let mut tables = Vec::new();
    if !status.failures.is_empty() {
        let dials = Table::of(status.failures.iter().take(most), status);
        tables.push(format!("failed dials:\n{dials}"));
    }
    if !status.refused.is_empty() {
        let peers = Table::of(status.refused.iter().take(most), status);
        tables.push(format!("{}:\n{peers}", refused(status)));
    }
    if tables.is_empty() {
        format!("no failed dials and no {}\n", refused(status))
    } else {
        tables.join("\n")
    }
}

/// What [`Status::refused`] lists.
fn refused(status: &Status) -> &'static str {
    if status.is_agent() { "failed attempts" } else { "refused peers" }
}

#[cfg(test)]
mod tests {
    use status::{
        Agent, Build, Certificate, Connection, Failure, Flag, Health, Listener, Refused, Server, Totals,
    };

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
            "proxy-server s0 (0.36.0, up 2 h 5 min) is healthy: 2 agents, 1 of them not ready, 1 connection";
        assert_eq!(headline(&status), line);
        assert!(status.is_ready());
        status.health[0].ok = false;
        status.health[0].note = "no connection\nto any agent".into();
        let line = headline(&status);
        assert!(line.contains("is NOT READY (backend: no connection\\nto any agent)"), "{line}");
        assert!(!status.is_ready());
    }

    #[test]
    fn agent_tells_how_many_servers_it_knows_and_its_failed_attempts() {
        let mut status = server();
        status.build.program = "proxy-agent".into();
        for (servers, known_servers, words) in
            [(1, 2, "1 of 2 servers"), (0, 1, "0 of 1 server"), (2, 2, "2 servers"), (1, 0, "1 server")]
        {
            status.totals = Totals { servers, known_servers, refused: 3, ..Totals::default() };
            let line = headline(&status);
            assert!(line.ends_with(&format!("is healthy: {words}, 0 connections")), "{line}");
        }
        let text = body(&status, "");
        assert!(text.contains("0 pending; failed attempts: 3\n"), "{text}");
        assert!(text.ends_with("no failed dials and no failed attempts\n"), "{text}");
    }

    #[test]
    fn a_clock_that_was_set_back_and_times_that_are_none_are_shown() {
        let mut status = Status { now: "2025-12-31T23:00:00Z".into(), ..server() };
        assert!(headline(&status).contains(", up 0 µs)"), "{}", headline(&status));
        status.started = String::new();
        assert!(headline(&status).contains(", up -)"), "{}", headline(&status));
        for (not_after, left) in [("", "-"), ("2025-12-31T22:55:00Z", "expired 5 min ago")] {
            status.certificates = vec![Certificate { not_after: not_after.into(), ..Certificate::default() }];
            let text = body(&status, "");
            assert!(text.contains(&format!("next certificate to expire: {left}, - (-)\n")), "{text}");
        }
    }

    #[test]
    fn lists_are_tables() {
        let mut status = server();
        status.agents.push(Agent {
            id: "node-1".into(),
            identity: "system:node:1".into(),
            addresses: vec!["10.0.0.1:40000".into()],
            version: "0.36.0".into(),
            native: true,
            identifiers: (1..7).map(|at| format!("host=h{at}")).collect(),
            zone: "a".into(),
            since: "2026-01-01T02:04:57Z".into(),
            streams: 1,
            rtt_seconds: Some(0.0123),
            expected_dial_seconds: Some(0.025),
            connections: 5_120,
            bytes_to_agent: 2048,
            dials_ok: 6_000,
            dials_failed: 2_000,
            state: "ejected".into(),
            reason: "its own failures stand out".into(),
            ..Agent::default()
        });
        status.servers.push(Server {
            id: "s0".into(),
            addresses: vec!["10.0.0.2:8091".into()],
            state: "ready".into(),
            ..Server::default()
        });
        status.connections.push(Connection {
            stream: 3,
            id: 7,
            peer: "node-1".into(),
            target: "pod:80".into(),
            since: "2026-01-01T02:04:57Z".into(),
            queued: 1024,
            stalled_seconds: Some(1.5),
            client: "10.0.0.5:40000".into(),
            ..Connection::default()
        });
        status.failures.push(Failure {
            time: "2026-01-01T02:04:57Z".into(),
            target: "pod:80".into(),
            peer: "node-1".into(),
            reason: "timeout".into(),
            error: "no answer".into(),
            seconds: 0.25,
        });
        status.refused.push(Refused {
            time: "2026-01-01T02:04:57Z".into(),
            listener: "agents".into(),
            peer: "10.0.0.9".into(),
            error: "no token".into(),
            count: 3,
        });
        let certificate = |subject: &str, not_after: &str| Certificate {
            side: "agents".into(),
            role: "presented".into(),
            source: "--cluster-cert a.crt".into(),
            subject: subject.into(),
            issuer: "CN=ca".into(),
            not_after: not_after.into(),
            ..Certificate::default()
        };
        status.certificates = vec![
            certificate("later", "2027-01-01T00:00:00Z"),
            certificate("sooner", "2026-01-02T02:05:00Z"),
            certificate("expired", "2026-01-01T02:00:00Z"),
            certificate("unread", ""),
        ];
        status.certificates[0].change_refused = "no END line".into();
        let agents = "\
            AGENT   STATE    CONNECTIONS  DIALS OK  DIALS FAILED  TO AGENT  FROM AGENT  RTT    DIAL TIME  CONNECTED  ADDRESS         \
            STREAMS  VERSION  ZONE  IDENTITY       REASON                      IDENTIFIERS\n\
            node-1  ejected  5120         6000      2000          2.0 KiB   0 B         12 ms  25 ms      3.0 s ago  10.0.0.1:40000  \
            1        0.36.0   a     system:node:1  its own failures stand out  \
            host=h1,host=h2,host=h3,host=h4 and 2 others\n";
        let servers = "\
            SERVER  STATE  CONNECTIONS  RTT  CONNECTED  ADDRESS        STREAMS  PROTOCOL\n\
            s0      ready  0            -    -          10.0.0.2:8091  0        upstream\n";
        let connections = "\
            TARGET  AGENT   STREAM  ID  OPENED     TO ENDPOINT  FROM ENDPOINT  QUEUED   STALLED FOR  CLIENT\n\
            pod:80  node-1  3       7   3.0 s ago  0 B          0 B            1.0 KiB  1.5 s        10.0.0.5:40000\n";
        let failures = "failed dials:\n\
            TARGET  WHEN       THROUGH  TOOK    REASON   ERROR\n\
            pod:80  3.0 s ago  node-1   250 ms  timeout  no answer\n\n\
            refused peers:\n\
            PEER      LAST       AT      TIMES  ERROR\n\
            10.0.0.9  3.0 s ago  agents  3      no token\n";
        let certificates = "\
            SUBJECT  EXPIRES                                   USE                SOURCE                ISSUER  REFUSED CHANGE\n\
            unread   -                                         agents, presented  --cluster-cert a.crt  CN=ca   -\n\
            expired  2026-01-01T02:00:00Z (expired 5 min ago)  agents, presented  --cluster-cert a.crt  CN=ca   -\n\
            sooner   2026-01-02T02:05:00Z (in 1 d)             agents, presented  --cluster-cert a.crt  CN=ca   -\n\
            later    2027-01-01T00:00:00Z (in 364 d 21 h)      agents, presented  --cluster-cert a.crt  CN=ca   no END line\n";
        for (list, text) in [
            ("agents", agents),
            ("servers", servers),
            ("connections", connections),
            ("failures", failures),
            ("certificates", certificates),
        ] {
            assert_eq!(body(&status, list), text, "{list}");
        }
        status.incomplete = true;
        assert_eq!(body(&status, "connections"), connections.to_owned() + MISSING);
        let text = body(&status, "");
        assert!(
            text.contains("\nchanged certificate files of agents cannot be used: no END line\n"),
            "{text}"
        );
    }

    #[test]
    fn overview_has_failures_and_flags() {
        let mut status = server();
        assert!(body(&status, "").ends_with("no failed dials and no refused peers\n"));
        status.flags.push(Flag { name: "mode".into(), value: "http-connect".into() });
        for port in 0..7 {
            let target = format!("pod:{port}");
            status.failures.push(Failure {
                target,
                time: "2026-01-01T02:04:57Z".into(),
                ..Failure::default()
            });
        }
        status.listeners.push(Listener {
            name: "agents".into(),
            address: "[::]:8091".into(),
            protocol: "grpc".into(),
        });
        let text = body(&status, "");
        assert!(text.contains("--mode=http-connect"), "{text}");
        let listeners = "LISTENER  ADDRESS    PROTOCOL\nagents    [::]:8091  grpc\n\n";
        assert!(text.contains(listeners), "{text}");
        assert_eq!(text.matches("3.0 s ago").count(), MAX_OVERVIEW_FAILURES, "{text}");
        assert_eq!(body(&status, "failures").matches("3.0 s ago").count(), 7);
    }
}
