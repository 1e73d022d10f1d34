//! The state of the fake.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How requests fail.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The answer is delayed.
    Slow(Duration),
    /// No answer comes.
    Hang,
    /// The connection is closed instead of an answer.
    Close,
    /// Like `Close`, but the request takes effect.
    LostAnswer,
    /// This status with this reason.
    Status(u16, &'static str),
    /// Bytes that are not JSON.
    Nonsense,
}

/// A received request.
#[derive(Debug, Clone)]
pub struct Seen {
    /// `GET /path?query`.
    pub line: String,
    /// The `authorization` header.
    pub authorization: String,
    /// All headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The time of its arrival.
    pub at: Instant,
}

/// An open watch.
pub(crate) struct Watcher {
    pub(crate) namespace: String,
    pub(crate) selector: String,
    pub(crate) lines: mpsc::UnboundedSender<String>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) version: u64,
    /// Versions up to this one are discarded.
    pub(crate) compacted: u64,
    pub(crate) leases: BTreeMap<(String, String), Value>,
    pub(crate) history: Vec<(u64, &'static str, Value)>,
    pub(crate) watchers: Vec<Watcher>,
    /// Watches that stay open without events.
    pub(crate) silenced: Vec<Watcher>,
    pub(crate) reviews: HashMap<String, Value>,
    pub(crate) bearer: Option<String>,
    pub(crate) faults: Vec<(String, Fault)>,
    pub(crate) seen: Vec<Seen>,
    pub(crate) at_once: usize,
    pub(crate) most_at_once: usize,
}

impl State {
    pub(crate) fn list(&self, namespace: &str) -> Vec<Value> {
        self.leases.iter().filter(|((ns, _), _)| ns == namespace).map(|(_, lease)| lease.clone()).collect()
    }

    /// Writes a lease with a new version.
    pub(crate) fn write(&mut self, namespace: &str, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        lease["metadata"]["namespace"] = namespace.into();
        let name = lease["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let old = self.leases.insert((namespace.to_owned(), name), lease.clone());
        self.notify(if old.is_some() { "MODIFIED" } else { "ADDED" }, &lease);
        lease
    }

    pub(crate) fn put(&mut self, namespace: &str, name: &str, labels: &Value, spec: &Value) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "labels": labels }, "spec": spec,
        });
        self.write(namespace, lease);
    }

    pub(crate) fn delete(&mut self, namespace: &str, name: &str) -> Option<Value> {
        let mut lease = self.leases.remove(&(namespace.to_owned(), name.to_owned()))?;
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.notify("DELETED", &lease);
        Some(lease)
    }

    pub(crate) fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.history.clear();
        let gone = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version" });
        let line = line("ERROR", &gone);
        for watcher in self.watchers.drain(..) {
            let _ = watcher.lines.send(line.clone());
        }
    }

    fn notify(&mut self, kind: &'static str, lease: &Value) {
        self.history.push((self.version, kind, lease.clone()));
        self.watchers.retain(|watcher| match watcher.event(kind, lease) {
            Some(line) => watcher.lines.send(line).is_ok(),
            None => !watcher.lines.is_closed(),
        });
    }
}

impl Watcher {
    /// The line of this watch for an event, if the event concerns it.
    pub(crate) fn event(&self, kind: &str, lease: &Value) -> Option<String> {
        let ours =
            lease["metadata"]["namespace"] == self.namespace.as_str() && matches(&self.selector, lease);
        ours.then(|| line(kind, lease))
    }
}

pub(crate) fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

/// Evaluates equality selectors separated by commas; the tests use no others.
pub(crate) fn matches(selector: &str, lease: &Value) -> bool {
    selector.split(',').filter(|part| !part.is_empty()).all(|part| match part.split_once('=') {
        Some((key, value)) => lease["metadata"]["labels"][key] == value.trim_start_matches('='),
        None => !lease["metadata"]["labels"][part].is_null(),
    })
}
