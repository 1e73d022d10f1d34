//! Agents that fail, disappear, return and toggle, at the tables.

use std::time::Duration;

use tokio::time::{Instant, advance};

use serve::metrics::Registry;

use super::*;

const S: Duration = Duration::from_secs(1);

fn manager(strategies: &[Strategy]) -> BackendManager<()> {
    BackendManager::new(strategies, RouteMetrics::register(&mut Registry::default()))
}

fn fail(agent: &Registration<()>) {
    let now = Instant::now();
    (0..3).for_each(|_| agent.stats.blame(now, now));
}

fn sweep(manager: &BackendManager<()>) -> u64 {
    manager.sweep(&manager.agents(), Instant::now())
}

fn ejected(manager: &BackendManager<()>) -> Vec<(String, Duration)> {
    let agents = manager.agents();
    AgentView::ejected(&agents, Instant::now()).into_iter().map(|(id, rest)| (id.to_owned(), rest)).collect()
}

/// Ejects the agent and waits until it is tried again.
async fn put_on_trial(manager: &BackendManager<()>, agent: &Registration<()>) {
    fail(agent);
    assert_eq!(sweep(manager), 1);
    advance(5 * S).await;
    sweep(manager);
    assert_eq!(ejected(manager), []);
}

#[tokio::test(start_paused = true)]
async fn dials_chosen_at_once_try_an_agent_by_one() {
    let manager = manager(&[Strategy::Default]);
    let (tried, other) = (manager.join("tried", ""), manager.join("other", ""));
    put_on_trial(&manager, &tried).await;
    let choices: Vec<_> = (0..64).map(|_| manager.choose("", &[]).unwrap()).collect();
    let tries = choices.iter().filter(|choice| choice.link == tried.id).count();
    assert!(tries <= 1, "{tries} dials try the agent");
    drop(choices);
    let only = manager.choose("", &[other.id]).unwrap();
    assert_eq!(only.link, tried.id);
    assert_eq!(manager.choose("", &[]).unwrap().link, other.id);
    only.pending.reached(Instant::now());
    let more: Vec<_> = (0..64).map(|_| manager.choose("", &[]).unwrap()).collect();
    assert!(more.iter().filter(|choice| choice.link == tried.id).count() > 16, "it serves again");
}

#[tokio::test(start_paused = true)]
async fn the_only_match_is_tried_by_one_dial_while_another_strategy_serves() {
    let manager = manager(&[Strategy::DestHost, Strategy::Default]);
    let (tried, other) = (manager.join("tried", "host=n"), manager.join("other", ""));
    put_on_trial(&manager, &tried).await;
    let first = manager.choose("n", &[]).unwrap();
    assert_eq!(first.link, tried.id);
    let second = manager.choose("n", &[]).unwrap();
    assert_eq!(second.link, other.id);
    drop((other, second));
    assert_eq!(manager.choose("n", &[]).unwrap().link, tried.id, "there is no other agent");
}

#[tokio::test(start_paused = true)]
async fn reconnecting_ends_no_ejection() {
    let manager = manager(&[Strategy::Default]);
    let (agent, _other) = (manager.join("a", ""), manager.join("b", ""));
    fail(&agent);
    assert_eq!(sweep(&manager), 1);
    advance(2 * S).await;
    drop(agent);
    assert_eq!(ejected(&manager), []);
    let agent = manager.join("a", "");
    assert_eq!(ejected(&manager), [("a".to_owned(), 3 * S)]);
    assert!((0..64).all(|_| manager.choose("", &[]).unwrap().link != agent.id));
    drop(agent);
    advance(4 * S).await;
    let _agent = manager.join("a", "");
    assert_eq!(ejected(&manager), [], "its time is up");
}

#[tokio::test(start_paused = true)]
async fn ejections_of_absent_agents_are_bounded() {
    let manager = manager(&[Strategy::Default]);
    let agents: Vec<_> = (0..2_500).map(|n| manager.join(&format!("{n:04}"), "")).collect();
    agents.iter().take(1_250).for_each(fail);
    assert_eq!(sweep(&manager), 1_250);
    drop(agents);
    let _again: Vec<_> = (0..2_500).map(|n| manager.join(&format!("{n:04}"), "")).collect();
    assert_eq!(ejected(&manager).len(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn invented_ids_do_not_displace_old_or_used_ones_from_the_metric() {
    let mut registry = Registry::default();
    let metrics = OutlierMetrics::register(&mut registry);
    let manager = manager(&[Strategy::Default]);
    let known = manager.join("node-1", "");
    advance(S).await;
    let invented: Vec<_> = (0..100).map(|n| manager.join(&format!("a-{n:02}"), "")).collect();
    advance(S).await;
    let used = manager.join("node-2", "");
    used.stats.dialed(None);
    for agent in invented.iter().chain([&known, &used]) {
        manager.set_unresponsive(agent.id, true);
    }
    metrics.set(&manager.agents(), Instant::now());
    let text = serve::metrics::Exposition::new(registry).scrape();
    assert_eq!(text.matches("agent_outlier{").count(), 10, "{text}");
    assert!(text.contains("agent_id=\"node-1\"") && text.contains("agent_id=\"node-2\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_ejected_agent_that_answers_serves_before_one_that_does_not() {
    let manager = manager(&[Strategy::Default]);
    let (alive, dead) = (manager.join("alive", ""), manager.join("dead", ""));
    fail(&alive);
    assert_eq!(sweep(&manager), 1);
    assert!(!manager.is_another_better(dead.id, ""));
    manager.set_unresponsive(dead.id, true);
    assert!(manager.is_another_better(dead.id, ""), "a dial that waits for the dead one moves");
    assert!((0..64).all(|_| manager.choose("", &[]).unwrap().link == alive.id));
    manager.set_unresponsive(alive.id, true);
    assert!(manager.choose("", &[]).is_some(), "one that does not answer is the last resort");
}

#[tokio::test(start_paused = true)]
async fn agents_that_cannot_serve_are_not_half_of_those_that_can_be_ejected() {
    let manager = manager(&[Strategy::Default]);
    let agents = ["a", "b", "dead", "draining"].map(|agent| manager.join(agent, ""));
    manager.set_unresponsive(agents[2].id, true);
    manager.set_draining(agents[3].id);
    agents.iter().take(2).for_each(fail);
    assert_eq!(sweep(&manager), 1);
    assert_eq!(sweep(&manager), 0, "an ejected agent counts as one that can serve");
}
