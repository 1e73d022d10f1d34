//! The document of `/statusz`, from what the server's parts tell.
//!
//! Agents are listed in the order of their ids, connections in that of their agents' ids. A page in this order builds only
//! its own rows: entries before it are counted.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use driver::{LiveConnection, SharedTraffic};
use serve::statusz::{Facts, ago, connections, rfc3339, seconds, stall, unix};
use status::words::duration;
use status::{Agent, Connection, Kubernetes, List, Page, Query, Status, Totals};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::agent_stream::{LinkFacts, LinkHandle};
use crate::backends::{AgentDescription, AgentView, BackendManager, LinkId, is_slow, median_dial_time};
use crate::metrics::Metrics;

/// Agents after which other tasks of the thread run, for instance a health probe.
const AGENTS_AT_ONCE: usize = 256;

/// Identifiers of an agent in the document, at most: agents choose their number.
const IDENTIFIERS: usize = 32;

/// What the document is made of.
#[derive(Clone)]
pub(crate) struct StatusSources {
    pub(crate) facts: Facts,
    pub(crate) backends: BackendManager<LinkHandle>,
    pub(crate) metrics: Metrics,
    /// The server renews this lease.
    pub(crate) lease: Option<String>,
    /// The server uses the Kubernetes API.
    pub(crate) has_api: bool,
}

impl StatusSources {
    /// The document that a query asks for.
    pub(crate) async fn document(self, query: Query) -> Status {
        let views = self.backends.agents();
        let mut status = Status { totals: self.totals(&views), ..self.facts.document() };
        self.metrics.journal.fill(&mut status);
        status.kubernetes = self.has_api.then(|| self.kubernetes());
        if query.list != Some(List::Connections) {
            let now = Instant::now();
            status.agents = agents(&self.backends, &query, median_dial_time(&views, now), now).await;
        }
        if query.list != Some(List::Peers) {
            (status.connections, status.incomplete) = connection_page(&self.backends, &query).await;
        }
        status
    }

    fn kubernetes(&self) -> Kubernetes {
        let renewed = self.metrics.lease_renewed.peek().map_or(0, |renewed| renewed.get());
        let state =
            if renewed > 0 { format!("renewed {}", unix(renewed)) } else { "never renewed".to_owned() };
        let lease = self.lease.as_ref().map(|lease| format!("{lease}, {state}")).unwrap_or_default();
        Kubernetes { lease, last_error: self.metrics.journal.api_error(), ..Kubernetes::default() }
    }

    fn totals(&self, agents: &[AgentView]) -> Totals {
        let gauge = |count: i64| u64::try_from(count).unwrap_or_default();
        Totals {
            agents: self.backends.agent_count() as u64,
            agents_unhealthy: agents.iter().filter(|agent| !agent.ready).count() as u64,
            connections: gauge(self.metrics.established.count()),
            pending_dials: gauge(self.metrics.dials.pending.count()),
            ..Totals::default()
        }
    }
}

/// The page of agents. `median`: their expected dial time.
async fn agents(
    backends: &BackendManager<LinkHandle>,
    query: &Query,
    median: Duration,
    now: Instant,
) -> Vec<Agent> {
    let (mut page, ids) = (Page::new(query), backends.agent_ids());
    let skipped = page.skip(ids.len());
    for (at, id) in ids.iter().enumerate().skip(skipped) {
        if page.wanted() == 0 {
            break;
        }
        if let Some(description) = backends.describe(id) {
            page.push(agent(id, description, median, now));
        }
        if at % AGENTS_AT_ONCE == 0 {
            yield_now().await;
        }
    }
    page.finish()
}

fn agent(id: &str, description: AgentDescription<LinkHandle>, median: Duration, now: Instant) -> Agent {
    let (state, reason) = state(&description, median, now);
    let AgentDescription { identifiers, stats, handles, .. } = description;
    let announced = identifiers.default_route.then(|| "default-route=true".to_owned()).into_iter();
    let announced = announced.chain(identifiers.hosts.iter().map(|host| named(host)));
    let announced = announced.chain(identifiers.networks.iter().map(|network| format!("cidr={network}")));
    let facts = || handles.iter().map(|handle| &*handle.facts);
    let oldest = facts().next();
    let text = |of: fn(&LinkFacts) -> &String| oldest.map(of).cloned().unwrap_or_default();
    let sum = |of: fn(&SharedTraffic) -> u64| facts().map(|facts| of(&facts.traffic)).sum();
    let rtts = facts().filter_map(|facts| facts.keepalive.last_rtt());
    let (dials_ok, dials_failed) = stats.dials();
    let last_failure = stats.last_failure().map(|(at, error)| (rfc3339(at), error));
    let (last_failed, last_failure) = last_failure.unwrap_or_default();
    Agent {
        id: id.to_owned(),
        identity: text(|facts| &facts.identity),
        addresses: facts().map(|facts| facts.address.to_string()).collect(),
        version: text(|facts| &facts.version),
        native: oldest.is_some_and(|facts| facts.native),
        identifiers: announced.take(IDENTIFIERS).collect(),
        zone: identifiers.zone.as_deref().unwrap_or_default().to_owned(),
        since: facts().map(|facts| facts.since).min().map(rfc3339).unwrap_or_default(),
        streams: handles.len() as u64,
        rtt_seconds: rtts.max().map(seconds),
        expected_dial_seconds: Some(stats.expected(now)).filter(|time| !time.is_zero()).map(seconds),
        connections: sum(|traffic| traffic.connections() as u64),
        bytes_to_agent: sum(SharedTraffic::sent),
        bytes_from_agent: sum(SharedTraffic::received),
        dials_ok,
        dials_failed,
        last_failed,
        last_failure,
        state: state.to_owned(),
        reason,
    }
}

/// An identifier as in `--agent-identifiers`. `ipv4`, `ipv6` and `host` share one name space, so the value tells the kind.
fn named(host: &str) -> String {
    match host.parse() {
        Ok(IpAddr::V4(_)) => format!("ipv4={host}"),
        Ok(IpAddr::V6(_)) => format!("ipv6={host}"),
        Err(_) => format!("host={host}"),
    }
}

/// `median`: the agents' expected dial time.
fn state(agent: &AgentDescription<LinkHandle>, median: Duration, now: Instant) -> (&'static str, String) {
    if let Some(rest) = agent.stats.ejected_for(now) {
        ("ejected", format!("its dials fail, those of others do not; tried again in {} s", rest.as_secs()))
    } else if agent.draining {
        ("draining", "it asked for no new dials".to_owned())
    } else if agent.silent {
        ("unresponsive", "pings are unanswered".to_owned())
    } else if agent.unresponsive {
        ("unresponsive", "packets are unanswered".to_owned())
    } else {
        let expected = agent.stats.expected(now);
        let slow = is_slow(expected, median).then(|| {
            let [takes, median] = [expected, median].map(|time| duration(time.as_secs_f64()));
            format!("dials take {takes}, the median {median}")
        });
        ("ready", slow.unwrap_or_default())
    }
}

/// The page of connections, and whether entries are missing.
async fn connection_page(backends: &BackendManager<LinkHandle>, query: &Query) -> (Vec<Connection>, bool) {
    let (wall, now) = (serve::statusz::now(), Instant::now());
    let count = |handle: &LinkHandle| handle.facts.traffic.connections();
    let streams = backends.streams(|handle| count(handle) > 0).into_iter();
    let streams =
        streams.map(|(agent_id, link, handle)| (count(&handle), (agent_id, link, handle))).collect();
    connections(streams, query, |(agent_id, link, handle), skip, limit| {
        let live = handle.connections(skip, limit);
        async move { live.await.into_iter().map(|live| row((&agent_id, link), live, wall, now)).collect() }
    })
    .await
}

fn row((agent_id, link): (&str, LinkId), live: LiveConnection, wall: SystemTime, now: Instant) -> Connection {
    Connection {
        id: live.id.0,
        stream: link.0,
        peer: agent_id.to_owned(),
        target: live.target.into(),
        client: live.client.into(),
        since: ago(wall, now, live.since),
        bytes_to_endpoint: live.sent,
        bytes_from_endpoint: live.received,
        queued: live.queued as u64,
        stalled_seconds: stall(live.stalled),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use driver::Traffic;
    use mux::ConnectId;
    use serve::logs::VerbosityLevel;
    use serve::metrics::{Exposition, Registry};

    use super::*;
    use crate::agent_stream::testing::Command;
    use crate::backends::{Backend, Identifiers, OutlierMetrics, Registration, Strategy};

    const AGENTS: usize = 16_000;
    const CONNECTIONS: usize = 50_000;

    /// The connections of an agent.
    fn count(agent: usize) -> usize {
        if agent.is_multiple_of(8) { 18 } else { 1 }
    }

    fn live(agent: usize, at: usize) -> LiveConnection {
        let (id, since) = (ConnectId(at as i64 + 1), Instant::now());
        let target = format!("10.{}.{}.{at}:443", agent / 256, agent % 256).into();
        LiveConnection {
            id,
            target,
            client: "10.0.0.5:40000".into(),
            since,
            sent: (agent as u64 * 18 + at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20,
            received: at as u64,
            queued: 0,
            stalled: None,
        }
    }

    /// A server with many agents, each with a task that counts the connections that it tells.
    struct World {
        sources: StatusSources,
        told: Arc<AtomicUsize>,
        agents: Vec<Registration<LinkHandle>>,
    }

    impl World {
        fn new(agents: usize) -> Self {
            let metrics = crate::metrics::register(&mut Registry::default());
            let backends = BackendManager::new(&[Strategy::Default], metrics.routes.clone());
            let told = Arc::new(AtomicUsize::new(0));
            let agent = |agent: usize| {
                let traffic = SharedTraffic::default();
                traffic.set(&Traffic {
                    connections: count(agent),
                    sent: 7,
                    received: 9,
                    ..Traffic::default()
                });
                let facts = LinkFacts { traffic, native: true, ..LinkFacts::default() };
                let (handle, mut commands) = LinkHandle::new(facts);
                let told = Arc::clone(&told);
                tokio::spawn(async move {
                    while let Some(command) = commands.recv().await {
                        if let Command::Report { skip, limit, reply } = *command {
                            let rows = (skip..count(agent)).take(limit).map(|at| live(agent, at));
                            let rows: Vec<_> = rows.collect();
                            told.fetch_add(rows.len(), Ordering::Relaxed);
                            let _ = reply.send(rows);
                        }
                    }
                });
                let identifiers = Identifiers::parse(&format!(
                    "host=node-{agent}&ipv4=10.0.0.1&ipv6=::1&cidr=10.0.0.0/8&default-route=true&zone=a"
                ))
                .unwrap();
                let agent_id = format!("agent-{agent:05}").into();
                backends
                    .register(Backend { agent_id, identifiers, process: None, owner: None, handle })
                    .unwrap()
            };
            let agents = (0..agents).map(agent).collect();
            let facts = Facts::new("proxy-server", "1", "server", &[], VerbosityLevel::new(4));
            let sources = StatusSources { facts, backends, metrics, lease: None, has_api: false };
            World { sources, told, agents }
        }

        /// A document, and the number of connections that agents told for it.
        async fn document(&self, query: &str) -> (Status, usize) {
            self.told.store(0, Ordering::Relaxed);
            let began = serve::statusz::now();
            let status = self.sources.clone().document(Query::parse(query).unwrap()).await;
            let bytes = serde_json::to_string(&status).unwrap().len();
            println!("{query:?}: {bytes} bytes in {:?}", began.elapsed().unwrap_or_default());
            (status, self.told.load(Ordering::Relaxed))
        }
    }

    /// The paused clock keeps a busy machine from a time-out.
    #[tokio::test(start_paused = true)]
    async fn page_over_16000_agents_and_50000_connections_builds_its_rows_only() {
        assert_eq!((0..AGENTS).map(count).sum::<usize>(), CONNECTIONS);
        let world = World::new(AGENTS);
        for offset in [0, 25_000, 49_900] {
            let query = format!("list=connections&offset={offset}&limit=100");
            let (status, told) = world.document(&query).await;
            assert_eq!((status.connections.len(), told), (100, 100), "{query}");
            assert_eq!((status.totals.agents, status.agents.len()), (AGENTS as u64, 0));
        }
        let (status, told) = world.document("list=agents&offset=15999&limit=1000").await;
        assert_eq!((status.agents[0].id.as_str(), status.agents.len(), told), ("agent-15999", 1, 0));
        let (status, told) = world.document("").await;
        assert_eq!((status.agents.len(), status.connections.len(), told), (100, 100, 100));
        let (status, told) = world.document("list=connections&sort=-bytes_from_endpoint&limit=100").await;
        assert_eq!((status.connections[0].bytes_from_endpoint, told), (17, CONNECTIONS));
        let (status, _) = world.document("list=agents&sort=-connections&limit=2").await;
        assert_eq!((status.agents[0].id.as_str(), status.agents[0].connections), ("agent-00000", 18));
        assert!(!status.incomplete);
    }

    #[tokio::test(start_paused = true)]
    async fn agent_is_described_with_its_state() {
        let world = World::new(3);
        let backends = &world.sources.backends;
        let id = |agent: &str| backends.streams_of_agent(agent)[0];
        backends.set_draining(id("agent-00000"));
        backends.set_unresponsive(id("agent-00001"), true);
        backends.set_stuck(id("agent-00002"), true);
        let (status, _) = world.document("list=agents").await;
        let states: Vec<_> =
            status.agents.iter().map(|agent| (agent.state.as_str(), agent.reason.as_str())).collect();
        let unresponsive = |reason| ("unresponsive", reason);
        assert_eq!(states[0], ("draining", "it asked for no new dials"));
        assert_eq!(
            states[1..],
            [unresponsive("pings are unanswered"), unresponsive("packets are unanswered")]
        );
        assert_eq!(status.totals.agents_unhealthy, 3);
        assert_eq!(
            status.agents[0].identifiers,
            ["default-route=true", "host=node-0", "ipv4=10.0.0.1", "ipv6=::1", "cidr=10.0.0.0/8"]
        );
        assert_eq!((status.agents[0].bytes_to_agent, status.agents[0].bytes_from_agent), (7, 9));
    }

    #[tokio::test(start_paused = true)]
    async fn ready_agent_that_the_metric_calls_slow_has_a_reason() {
        let world = World::new(3);
        let mut registry = Registry::default();
        let (metrics, now) = (OutlierMetrics::register(&mut registry), Instant::now());
        let (exposition, ms) = (Exposition::new(registry), Duration::from_millis);
        world.agents.iter().for_each(|agent| agent.stats.sample(now, ms(7)));
        for (took, reason) in [
            (27, ""),
            (29, "dials take 29 ms, the median 7.0 ms"),
            (991, "dials take 991 ms, the median 7.0 ms"),
        ] {
            world.agents[1].stats.sample(now, ms(took));
            metrics.set(&world.sources.backends.agents(), now);
            let is_named = exposition.scrape().contains("{agent_id=\"agent-00001\",reason=\"slow\"} 1");
            let (status, _) = world.document("list=agents").await;
            let states = status.agents.iter().map(|agent| (agent.state.as_str(), agent.reason.as_str()));
            assert!(states.eq([("ready", ""), ("ready", reason), ("ready", "")]), "{:?}", status.agents);
            assert_eq!(is_named, !reason.is_empty());
        }
    }
}
