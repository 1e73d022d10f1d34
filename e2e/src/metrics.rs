//! Reads a program's metrics as Prometheus would: the 0.0.4 text format over HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::http1;
use crate::wait::until;

/// The prefix of the server's metrics.
pub const SERVER: &str = "konnectivity_network_proxy_server_";
/// The prefix of the agent's metrics.
pub const AGENT: &str = "konnectivity_network_proxy_agent_";

/// Prefix, name and labels.
type Gauge = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Gauges of open items.
const LIVE: [Gauge; 10] = [
    (SERVER, "established_connections", &[]),
    (SERVER, "pending_backend_dials", &[]),
    (SERVER, "http_connections", &[]),
    (SERVER, "grpc_connections", &[("service_method", "Proxy")]),
    (SERVER, "full_receive_channels", &[]),
    (SERVER, "full_frontend_write_queues", &[]),
    (SERVER, "blocked_frontend_write_channels", &[]),
    (SERVER, "queued_bytes", &[]),
    (AGENT, "open_endpoint_connections", &[]),
    (AGENT, "queued_bytes", &[]),
];

/// One sample of a scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The full name, with `_bucket`, `_sum` or `_count` for histograms.
    pub name: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    /// The text as received.
    pub text: String,
    /// Its samples in order.
    pub samples: Vec<Sample>,
    /// The type of each family.
    pub types: BTreeMap<String, String>,
}

impl Scrape {
    /// Fetches and parses `/metrics`.
    pub async fn fetch(address: SocketAddr) -> Result<Self> {
        let answer = http1::get(address, "/metrics").await?;
        anyhow::ensure!(answer.head.status == 200, "/metrics answered {}", answer.head.status);
        Self::parse(answer.body)
    }

    /// Parses the text format.
    pub fn parse(text: String) -> Result<Self> {
        let mut samples = Vec::new();
        let mut types = BTreeMap::new();
        for line in text.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                types.insert(name.to_owned(), kind.to_owned());
            } else if !line.is_empty() && !line.starts_with('#') {
                samples.push(sample(line).with_context(|| format!("a bad line: {line:?}"))?);
            }
        }
        Ok(Self { text, samples, types })
    }

    /// The sum over all samples of that name whose labels include `labels`; `None` if there is no such sample.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut matching = self
            .samples
            .iter()
            .filter(|sample| sample.name == name)
            .filter(|sample| {
                labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|have| have == value))
            })
            .map(|sample| sample.value)
            .peekable();
        matching.peek().is_some().then(|| matching.sum())
    }

    /// Like [`Scrape::sum`], but an absent sample counts as zero, because metrics with labels appear at first use.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.sum(name, labels).unwrap_or(0.0)
    }

    /// The gauges of open items that are not zero, with their values; empty for an idle server or agent.
    pub fn busy(&self) -> Vec<String> {
        let values = LIVE.iter().map(|(of, name, labels)| (name, self.value(&format!("{of}{name}"), labels)));
        values.filter(|(_, value)| *value != 0.0).map(|(name, value)| format!("{name} = {value}")).collect()
    }
}

/// Scrapes until the condition holds, or fails after `limit` with the last text.
pub async fn wait_for(
    what: &str,
    address: SocketAddr,
    limit: Duration,
    condition: impl Fn(&Scrape) -> bool,
) -> Result<Scrape> {
    let last = parking_lot::Mutex::new(Scrape::default());
    let found = until(what, limit, || async {
        let scrape = Scrape::fetch(address).await.ok()?;
        let holds = condition(&scrape);
        *last.lock() = scrape.clone();
        holds.then_some(scrape)
    })
    .await;
    found.map_err(|error| {
        let last = last.into_inner();
        let ours: Vec<&str> = last
            .text
            .lines()
            .filter(|line| line.starts_with("konnectivity") && !line.contains("_bucket"))
            .collect();
        anyhow::anyhow!("{error:#}; the last scrape of {address}:\n  {}", ours.join("\n  "))
    })
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let (name, labels) = match series.split_once('{') {
        None => (series, BTreeMap::new()),
        Some((name, rest)) => (name, labels(rest.strip_suffix('}')?)?),
    };
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Parses `a="b",c="d"`, with backslash escapes inside the quotes.
fn labels(text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, tail) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = tail.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(key.to_owned(), value);
        rest = tail.get(end + 1..)?;
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::{AGENT, SERVER, Scrape};

    #[test]
    fn the_text_format_is_read() {
        let text =
            "# HELP a x\n# TYPE a counter\na{k=\"v\\\"1\",l=\"\"} 2\na{k=\"w\"} 3\nb 1e-06\n".to_owned();
        let scrape = Scrape::parse(text).unwrap();
        assert_eq!(scrape.sum("a", &[]), Some(5.0));
        assert_eq!(scrape.sum("a", &[("k", "v\"1")]), Some(2.0));
        assert_eq!(scrape.sum("b", &[]), Some(1e-6));
        assert_eq!(scrape.sum("c", &[]), None);
        assert_eq!(scrape.types["a"], "counter");
    }

    #[test]
    fn live_connections_count_as_busy() {
        let scrape = |text: &str| Scrape::parse(text.to_owned()).unwrap();
        let text = format!(
            "{SERVER}grpc_connections{{service_method=\"Connect\"}} 2\n{AGENT}queued_bytes 0\n{SERVER}ready_backends 1\n"
        );
        assert_eq!(scrape(&text).busy(), [""; 0]);
        let text = format!("{text}{AGENT}open_endpoint_connections 3\n");
        assert_eq!(scrape(&text).busy(), ["open_endpoint_connections = 3"]);
    }
}
