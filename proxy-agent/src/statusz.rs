//! The document of `/statusz`, from what the agent's parts tell.
//!
//! Servers are listed in the order of their ids, connections in that of their servers' ids.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use driver::LiveConnection;
use serve::statusz::{Facts, ago, connections, rfc3339, seconds, stall};
use status::{Connection, Kubernetes, List, Page, Query, Server, Status, Totals};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client_set::Leased;
use crate::link::{OpenLink, OpenLinks};
use crate::metrics::Metrics;

/// What the document is made of.
#[derive(Clone)]
pub(crate) struct StatusSources {
    pub(crate) facts: Facts,
    pub(crate) metrics: Metrics,
    pub(crate) open: OpenLinks,
    /// The servers by their leases, if the agent counts them.
    pub(crate) leased: Option<watch::Receiver<Option<Leased>>>,
}

impl StatusSources {
    /// The document that a query asks for.
    pub(crate) async fn document(self, query: Query) -> Status {
        let gauge = |count: i64| u64::try_from(count).unwrap_or_default();
        let totals = Totals {
            servers: gauge(self.metrics.server_connections.count()),
            known_servers: gauge(self.metrics.known_servers.get()),
            connections: gauge(self.metrics.endpoint_connections.count()),
            ..Totals::default()
        };
        let mut status = Status { totals, ..self.facts.document() };
        self.metrics.journal.fill(&mut status);
        status.kubernetes = self.leased.as_ref().map(|leased| Kubernetes {
            leases_counted: leased.borrow().as_ref().map_or(0, |leased| leased.count as u64),
            last_error: self.metrics.journal.api_error(),
            ..Kubernetes::default()
        });
        let links = self.open.all();
        if query.list != Some(List::Connections) {
            let mut page = Page::new(&query);
            links
                .chunk_by(|one, two| one.server_id == two.server_id)
                .for_each(|links| page.push(server(links)));
            status.servers = page.finish();
        }
        if query.list != Some(List::Peers) {
            (status.connections, status.incomplete) = connection_page(links, &query).await;
        }
        status
    }
}

/// A server, by its streams.
fn server(links: &[Arc<OpenLink>]) -> Server {
    let rtts = links.iter().filter_map(|link| link.keepalive.last_rtt());
    let addresses: BTreeSet<_> = links.iter().map(|link| &link.address).collect();
    let state = if links.iter().all(|link| link.is_unresponsive()) {
        "unresponsive"
    } else if links.iter().all(|link| link.drain.is_cancelled()) {
        "draining"
    } else {
        "ready"
    };
    Server {
        id: links.first().map(|link| link.server_id.to_string()).unwrap_or_default(),
        addresses: addresses.into_iter().cloned().collect(),
        native: links.iter().any(|link| link.native),
        since: links.iter().map(|link| link.since).min().map(rfc3339).unwrap_or_default(),
        streams: links.len() as u64,
        rtt_seconds: rtts.max().map(seconds),
        connections: links.iter().map(|link| link.traffic.connections() as u64).sum(),
        state: state.to_owned(),
    }
}

/// The page of connections, and whether entries are missing.
async fn connection_page(links: Vec<Arc<OpenLink>>, query: &Query) -> (Vec<Connection>, bool) {
    let (wall, now) = (serve::statusz::now(), Instant::now());
    let streams = links.into_iter().map(|link| (link.traffic.connections(), link)).collect();
    connections(streams, query, |link: Arc<OpenLink>, skip, limit| {
        let live = link.connections(skip, limit);
        async move { live.await.into_iter().map(|live| row(&link, live, wall, now)).collect() }
    })
    .await
}

fn row(link: &OpenLink, live: LiveConnection, wall: SystemTime, now: Instant) -> Connection {
    Connection {
        id: live.id.0,
        stream: link.number,
        peer: link.server_id.to_string(),
        target: live.target.into(),
        client: live.client.into(),
        since: ago(wall, now, live.since),
        bytes_to_endpoint: live.received,
        bytes_from_endpoint: live.sent,
        queued: live.queued as u64,
        stalled_seconds: stall(live.stalled),
    }
}
