//! The documents of `GET /statusz`, as both programs write them and the commands, the page and tests read them, and the columns
//! of their lists, which the commands and the page show.
//!
//! Readers ignore fields that they do not know; a field is removed or changes its meaning only with a new
//! [`Status::version`]. Times are RFC 3339 in UTC; durations are seconds as numbers. No field holds a secret: tokens,
//! keys and the values of flags that carry credentials are never in a document.

mod columns;
mod query;
mod rows;
pub mod words;

use std::collections::BTreeMap;

pub use columns::{Cell, Column, expires, first_texts};
pub use query::{LIMIT, List, MAX_LIMIT, Query};
pub use rows::{Page, Row};
use serde::{Deserialize, Serialize};

/// The version of the documents in this file.
pub const VERSION: u32 = 1;

/// The header that a POST to the admin port must have, with any value: a web page's request has none.
pub const COMMAND_HEADER: &str = "konnectivity-command";

/// The answer to `GET /statusz`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// The program.
    pub build: Build,
    /// When the process started.
    pub started: String,
    /// The writer's wall clock, to which all ages refer.
    pub now: String,
    /// The server's or agent's own id.
    pub id: String,
    /// The conditions of `/readyz?verbose`.
    pub health: Vec<Health>,
    /// Flags that differ from their defaults, by name; secrets are left out.
    pub flags: Vec<Flag>,
    /// The sockets on which the program listens.
    pub listeners: Vec<Listener>,
    /// The certificates that the program presents or trusts.
    pub certificates: Vec<Certificate>,
    /// Numbers of what the lists below hold in all.
    pub totals: Totals,
    /// Whether a list lacks entries, because a stream did not answer in time.
    pub incomplete: bool,
    /// The server's agents, or the page of them that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<Agent>,
    /// The agent's servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Server>,
    /// The live connections, or the page of them that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<Connection>,
    /// The last dials that failed, newest first, at most [`FAILURES`].
    pub failures: Vec<Failure>,
    /// The last peers that were refused, newest first, at most [`FAILURES`].
    pub refused: Vec<Refused>,
    /// The dials of the last 15 minutes, oldest first, one entry for each [`INTERVAL_SECONDS`].
    pub history: Vec<Interval>,
    /// Leases and token reviews, if the program uses the Kubernetes API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Kubernetes>,
}

impl Status {
    /// Whether an agent wrote it.
    pub fn is_agent(&self) -> bool {
        self.build.program == "proxy-agent"
    }

    /// Whether all conditions of readiness are met.
    pub fn is_ready(&self) -> bool {
        self.health.iter().all(|condition| condition.ok)
    }

    /// The certificates, next to expire first.
    pub fn certificates_by_expiry(&self) -> Vec<&Certificate> {
        let mut certificates: Vec<&Certificate> = self.certificates.iter().collect();
        certificates.sort_by(|one, two| one.not_after.cmp(&two.not_after));
        certificates
    }

    /// The sides whose certificate files have changed and cannot be used, and why.
    pub fn refused_changes(&self) -> BTreeMap<&str, &str> {
        let refused = self.certificates.iter().filter(|one| !one.change_refused.is_empty());
        refused.map(|one| (one.side.as_str(), one.change_refused.as_str())).collect()
    }
}

/// The number of failures, and of refused peers, that a program remembers.
pub const FAILURES: usize = 100;
/// The length of an interval of [`Status::history`], in seconds.
pub const INTERVAL_SECONDS: u64 = 15;
/// The number of intervals in [`Status::history`].
pub const INTERVALS: usize = 60;

/// The program and its version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Build {
    /// `proxy-server` or `proxy-agent`.
    pub program: String,
    /// For instance `0.36.0`.
    pub version: String,
    /// Whether the validated cryptographic module is in use.
    pub fips: bool,
}

/// One condition of readiness.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Its name in `/readyz?verbose`.
    pub name: String,
    /// Whether it is met.
    pub ok: bool,
    /// Why it is not met, or details; may be empty.
    pub note: String,
}

/// A flag and its value on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flag {
    /// Without dashes.
    pub name: String,
    /// In the flag's own grammar.
    pub value: String,
}

/// A socket on which the program listens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listener {
    /// `frontend`, `agents`, `health` or `admin`.
    pub name: String,
    /// An address with port, or the path of a Unix socket.
    pub address: String,
    /// For instance `grpc`, `http-connect` or `http`.
    pub protocol: String,
}

/// One certificate in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Certificate {
    /// Where it is used: `frontend`, `agents`, `servers` (at an agent) or `kubeconfig`.
    pub side: String,
    /// `presented` or `trusted`.
    pub role: String,
    /// The flag and the file that it was read from, for instance `--cluster-cert /pki/tls.crt`.
    pub source: String,
    /// The subject.
    pub subject: String,
    /// The issuer.
    pub issuer: String,
    /// The first moment at which it is valid.
    pub not_before: String,
    /// The last moment at which it is valid.
    pub not_after: String,
    /// The files of its side have changed, and cannot be used for this reason: it stays in use. Empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub change_refused: String,
}

/// Numbers of what the program holds in all, whatever page was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Connected agents (server), by id.
    pub agents: u64,
    /// Agents that are ejected, draining or unresponsive (server).
    pub agents_unhealthy: u64,
    /// Connected servers (agent), by id.
    pub servers: u64,
    /// Servers that exist, as far as the agent knows.
    pub known_servers: u64,
    /// Open connections.
    pub connections: u64,
    /// Dials that wait for an answer.
    pub pending_dials: u64,
    /// Failed dials since the start, without those that another agent took over.
    pub failed_dials: u64,
    /// Dials that succeeded since the start.
    pub dials: u64,
    /// Refused peers since the start.
    pub refused: u64,
}

/// One agent, as its server sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    /// The id that the agent claims.
    pub id: String,
    /// The identity that authentication vouches for; empty without authentication.
    pub identity: String,
    /// The addresses of its streams.
    pub addresses: Vec<String>,
    /// Its version, if it is native and tells it.
    pub version: String,
    /// Whether it speaks the native extensions.
    pub native: bool,
    /// What it announces for strategies, for instance `ipv4=10.0.0.1`.
    pub identifiers: Vec<String>,
    /// Its zone; empty if it has none.
    pub zone: String,
    /// When its oldest stream was admitted.
    pub since: String,
    /// Its streams (lanes).
    pub streams: u64,
    /// The lower RTT of the last two pings, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_seconds: Option<f64>,
    /// The expected time of a dial, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_dial_seconds: Option<f64>,
    /// Open connections.
    pub connections: u64,
    /// Payload bytes from clients to the agent.
    pub bytes_to_agent: u64,
    /// Payload bytes from the agent to clients.
    pub bytes_from_agent: u64,
    /// Dials that reached an endpoint.
    pub dials_ok: u64,
    /// Dials that failed, with those that another agent took over.
    pub dials_failed: u64,
    /// When the last one of them failed (RFC 3339). Empty if none has.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_failed: String,
    /// Why it failed; another agent may have opened the connection. Empty if none has failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_failure: String,
    /// `ready`, `draining`, `unresponsive` or `ejected`.
    pub state: String,
    /// Why it is not ready, for instance `its dials fail, those of others do not; tried again in 20 s`, or that it
    /// is slow: `dials take 991 ms, the median 7.0 ms`; otherwise empty.
    pub reason: String,
}

/// One server, as an agent sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// The server's id.
    pub id: String,
    /// The addresses of the streams to it, each once.
    pub addresses: Vec<String>,
    /// Whether it speaks the native extensions.
    pub native: bool,
    /// When the oldest stream to it was opened.
    pub since: String,
    /// The streams to it (lanes).
    pub streams: u64,
    /// The lower RTT of the last two pings, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_seconds: Option<f64>,
    /// Open connections.
    pub connections: u64,
    /// `ready`, `draining`, or `unresponsive`.
    pub state: String,
}

/// One live connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// Identifies the connection within its stream.
    pub id: i64,
    /// The number of its agent stream: the program numbers its streams from 1 and never reuses a number.
    pub stream: u64,
    /// The agent's id (server), or the server's id (agent).
    pub peer: String,
    /// The host and port that the client asked for.
    pub target: String,
    /// The client's address, after its certificate's name if it has one (server).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// When it was established.
    pub since: String,
    /// Payload bytes from the client to the endpoint.
    pub bytes_to_endpoint: u64,
    /// Payload bytes from the endpoint to the client.
    pub bytes_from_endpoint: u64,
    /// Bytes that wait for the local reader.
    pub queued: u64,
    /// For how long the local reader has taken nothing while bytes wait, in seconds; absent if it does not stall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled_seconds: Option<f64>,
}

/// One dial that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// When it failed.
    pub time: String,
    /// The host and port that the client asked for.
    pub target: String,
    /// The agent that was tried last; empty if there was none.
    pub peer: String,
    /// The reason label of the metrics.
    pub reason: String,
    /// The error text.
    pub error: String,
    /// How long the dial took, in seconds.
    pub seconds: f64,
}

/// One peer that was refused: a failed handshake, a refused Connect, a duplicate id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// When it was last refused.
    pub time: String,
    /// The listener, or the server at an agent.
    pub listener: String,
    /// The address without its port: a peer that tries again has another port.
    pub peer: String,
    /// The reason.
    pub error: String,
    /// How often since the first time.
    pub count: u64,
}

/// The dials of one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interval {
    /// Dials that succeeded.
    pub dials: u32,
    /// Dials that failed.
    pub failures: u32,
}

/// What the program does with the Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    /// The lease that the server renews, and its state; empty if it has none.
    pub lease: String,
    /// Servers counted by leases (agent).
    pub leases_counted: u64,
    /// The result of the last request that failed, and when; empty if none has.
    pub last_error: String,
}

/// The answer to `POST /probe?target=HOST:PORT` at a server. With `agent=ID` the server dials the target through this agent,
/// and with `then=tls` or `then=http` waits for the endpoint's first byte; without it nothing is dialed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probe {
    /// Which agents a dial of the target may use, and why.
    pub selection: String,
    /// What was done, in order; the last one may have failed.
    pub stages: Vec<Stage>,
}

/// One stage of a probe.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stage {
    /// `frontend`, `dial`, `tls` or `http`; if a dial failed `selection`, `agent` or `connect`.
    pub name: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether it succeeded.
    pub ok: bool,
    /// What was found, or the error.
    pub note: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_survive_a_reader_of_another_version() {
        let text = r#"{"version":2,"build":{"program":"proxy-server","new":1},"agents":[{"id":"a"}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!((status.version, status.agents[0].id.as_str()), (2, "a"));
        let round: Status = serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
        assert_eq!(round, status);
    }
}
