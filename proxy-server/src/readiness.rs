//! The readiness of this replica, and the reasons why it is not ready.
//!
//! Readiness states facts about this replica: whether it accepts connections, and whether it has an agent for them. It never
//! depends on what clients should do about that.

use net::listen::Reach;
use serve::http::health::Condition;
use serve::logs::Peer;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backends::{AgentView, BackendManager, ReadinessPolicy, Strategy};

/// Readiness conditions that follow from the life of the process. Shared between the listeners and the health port.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// The name of each frontend, and whether clients can reach its listener. A Unix socket updates it itself.
    frontends: Vec<(String, Reach)>,
    /// Canceled when a shutdown begins.
    draining: CancellationToken,
}

impl Readiness {
    /// No frontend listens yet.
    pub(crate) fn new(frontends: impl Iterator<Item = String>, draining: CancellationToken) -> Self {
        let unbound = |name| {
            let reach = Reach::default();
            reach.set(Some(String::new()));
            (name, reach)
        };
        Readiness { frontends: frontends.map(unbound).collect(), draining }
    }

    /// For each frontend whether clients can reach its listener.
    pub(crate) fn listening(&self) -> impl Iterator<Item = Reach> {
        self.frontends.iter().map(|(_, reach)| reach.clone())
    }

    /// Every condition, in the order of their importance.
    pub(crate) fn conditions<L: Clone>(
        &self,
        backends: &BackendManager<L>,
        policy: ReadinessPolicy,
    ) -> Vec<Condition> {
        let unbound =
            self.frontends.iter().filter_map(|(name, reach)| Some((name.as_str(), reach.obstacle()?)));
        let (unbound, obstacles): (Vec<&str>, Vec<String>) = unbound.unzip();
        let not_bound = match self.frontends.len() {
            1 => "the frontend's port or socket is not bound".to_owned(),
            _ => format!("the ports or sockets of these frontends are not bound: {}", unbound.join(", ")),
        };
        let lacking = backends.lacking(policy);
        let note = match (lacking.first(), backends.agent_count()) {
            (None, _) => doubts(backends),
            (_, 0) => String::new(),
            (Some(strategy), agents) => {
                format!("{agents} connected, without --agent-identifiers for {}", strategy.name())
            }
        };
        vec![
            Condition::extra("shutdown", !self.draining.is_cancelled(), "the server is shutting down"),
            Condition::extra("frontend", unbound.is_empty(), not_bound).noting(obstacles.join("; ")),
            Condition::check("backends", lacking.is_empty(), no_agent(policy, &lacking)).noting(note),
        ]
    }
}

/// What is wrong with the agents although dials find one.
fn doubts<L: Clone>(backends: &BackendManager<L>) -> String {
    let agents = backends.agents();
    let mut doubts = vec![ejected(&agents)];
    if !agents.is_empty() && agents.iter().all(|agent| !agent.ready) {
        doubts.push(match agents.len() {
            1 => "the only agent is not ready: it drains, is ejected or does not answer".to_owned(),
            all => format!("none of {all} agents is ready: all drain, are ejected or do not answer"),
        });
    }
    doubts.extend(backends.empty_zone().map(|zone| format!("no agent has zone={zone} of --prefer-zone")));
    doubts.retain(|doubt| !doubt.is_empty());
    doubts.join("; ")
}

/// The ejected agents, for `?verbose`: at most ten, because agents choose their ids.
fn ejected(agents: &[AgentView]) -> String {
    let ejected = AgentView::ejected(agents, Instant::now());
    if ejected.is_empty() {
        return String::new();
    }
    let few = ejected.iter().take(10).map(|(id, rest)| format!("{} for {} s", Peer(id), rest.as_secs()));
    format!("{} ejected: {}", ejected.len(), few.collect::<Vec<_>>().join(", "))
}

/// Go's text, and the names of the strategies if the policy needs more than one.
fn no_agent(policy: ReadinessPolicy, lacking: &[Strategy]) -> String {
    let text = "no connection to any proxy agent";
    if policy != ReadinessPolicy::All {
        return text.to_owned();
    }
    let names: Vec<&str> = lacking.iter().map(|strategy| strategy.name()).collect();
    format!("{text} for the strategies: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::{RouteMetrics, Selection};
    use serve::metrics::Registry;

    fn failing(readiness: &Readiness, backends: &BackendManager<()>, policy: ReadinessPolicy) -> Vec<String> {
        let conditions = readiness.conditions(backends, policy);
        assert_eq!(conditions.len(), 3, "each is listed");
        conditions
            .into_iter()
            .filter_map(|condition| Some(format!("{}: {}", condition.name, condition.result.err()?)))
            .collect()
    }

    #[test]
    fn each_policy_asks_its_strategies() {
        let readiness = Readiness::new(std::iter::empty(), CancellationToken::new());
        let backends = BackendManager::new(
            &[Strategy::DestHost, Strategy::DefaultRoute],
            RouteMetrics::register(&mut Registry::default()),
        );
        let (first, any, all) = (ReadinessPolicy::FirstStrategy, ReadinessPolicy::Any, ReadinessPolicy::All);
        let go = ["backends: no connection to any proxy agent"];
        assert_eq!(failing(&readiness, &backends, first), go);
        assert_eq!(failing(&readiness, &backends, any), go);
        let both = ["backends: no connection to any proxy agent for the strategies: destHost, defaultRoute"];
        assert_eq!(failing(&readiness, &backends, all), both);
        let route = backends.join("a", "default-route=true");
        assert_eq!(failing(&readiness, &backends, first), go);
        assert_eq!(failing(&readiness, &backends, any), [""; 0]);
        let conditions = readiness.conditions(&backends, first);
        assert_eq!(conditions[2].note, "1 connected, without --agent-identifiers for destHost");
        let host = ["backends: no connection to any proxy agent for the strategies: destHost"];
        assert_eq!(failing(&readiness, &backends, all), host);
        let named = backends.join("b", "host=n");
        for policy in [first, any, all] {
            assert_eq!(failing(&readiness, &backends, policy), [""; 0], "{policy:?}");
        }
        drop((route, named));
    }

    #[test]
    fn readiness_says_that_no_agent_is_ready_and_that_the_zone_is_empty() {
        let readiness = Readiness::new(std::iter::empty(), CancellationToken::new());
        let (metrics, zone) = (RouteMetrics::register(&mut Registry::default()), "near".into());
        let backends =
            BackendManager::with_selection(&[Strategy::Default], Selection::default(), Some(&zone), metrics);
        let note = || readiness.conditions(&backends, ReadinessPolicy::default())[2].note.clone();
        assert_eq!(note(), "");
        let far = backends.join("a", "");
        assert_eq!(note(), "no agent has zone=near of --prefer-zone");
        backends.set_unresponsive(far.id, true);
        assert!(note().starts_with("the only agent is not ready: it drains, is ejected or does not answer;"));
        backends.set_unresponsive(far.id, false);
        let near = backends.join("b", "zone=near");
        assert_eq!(note(), "");
        backends.set_unresponsive(far.id, true);
        assert_eq!(note(), "");
        backends.set_draining(near.id);
        assert_eq!(note(), "none of 2 agents is ready: all drain, are ejected or do not answer");
    }

    #[test]
    fn readiness_begins_with_a_listener_and_ends_with_a_signal() {
        let draining = CancellationToken::new();
        let readiness = Readiness::new(["grpc+unix:/s".to_owned()].into_iter(), draining.clone());
        let listening = readiness.listening().next().unwrap();
        let backends =
            BackendManager::new(&[Strategy::Default], RouteMetrics::register(&mut Registry::default()));
        let first = |readiness: &Readiness| {
            failing(readiness, &backends, ReadinessPolicy::default()).first().cloned().unwrap_or_default()
        };
        assert_eq!(first(&readiness), "frontend: the frontend's port or socket is not bound");
        listening.set(None);
        assert_eq!(first(&readiness), "backends: no connection to any proxy agent");
        listening.set(Some("/s: no such file".to_owned()));
        assert_eq!(readiness.conditions(&backends, ReadinessPolicy::default())[1].note, "/s: no such file");
        assert_eq!(first(&readiness), "frontend: the frontend's port or socket is not bound");
        draining.cancel();
        assert_eq!(first(&readiness), "shutdown: the server is shutting down");
    }

    #[test]
    fn readiness_names_the_frontends_that_do_not_listen() {
        let names = ["grpc+unix:/s", "grpc+tcp:8090", "http-connect+tcp:8091"];
        let readiness = Readiness::new(names.iter().map(ToString::to_string), CancellationToken::new());
        let backends =
            BackendManager::new(&[Strategy::Default], RouteMetrics::register(&mut Registry::default()));
        let first = || failing(&readiness, &backends, ReadinessPolicy::default())[0].clone();
        let listening: Vec<_> = readiness.listening().collect();
        let text = "frontend: the ports or sockets of these frontends are not bound: ";
        assert_eq!(first(), format!("{text}grpc+unix:/s, grpc+tcp:8090, http-connect+tcp:8091"));
        listening[0].set(None);
        listening[2].set(None);
        assert_eq!(first(), format!("{text}grpc+tcp:8090"));
        listening[1].set(None);
        assert_eq!(first(), "backends: no connection to any proxy agent");
    }
}
