//! Dials over scripted links, in paused time.

use parking_lot::Mutex;
use serve::metrics::{Exposition, Registry};

use super::*;
use crate::agent_stream::LinkFacts;
use crate::agent_stream::testing::Command;
use crate::backends::{
    AgentView, Backend, Identifiers, OutlierMetrics, Registration, Selection, Strategy, keep_sweeping,
};
use crate::captured_log::CapturedLog;
use crate::limits::MAX_PENDING_DIALS;
use crate::metrics::Metrics;

/// A link's reaction to each dial.
#[derive(Debug, Clone)]
enum Script {
    Open(Duration),
    Fail(Duration, DialFailure),
    Silent,
}

/// The events on all links of a test.
#[derive(Default)]
struct World {
    sent: Mutex<Vec<String>>,
    canceled: Mutex<usize>,
}

fn link(script: Script, world: Arc<World>) -> LinkHandle {
    let (handle, mut commands) = LinkHandle::new(LinkFacts::default());
    tokio::spawn(async move {
        while let Some(command) = commands.recv().await {
            match *command {
                Command::Dial { protocol, address, mut reply, .. } => {
                    world.sent.lock().push(format!("{protocol} {address}"));
                    let script = script.clone();
                    tokio::spawn(async move {
                        let (after, outcome) = match script {
                            Script::Open(after) => (after, Ok(OpenConnection::detached().0)),
                            Script::Fail(after, error) => (after, Err(error)),
                            Script::Silent => return reply.closed().await,
                        };
                        sleep(after).await;
                        drop(reply.send(outcome));
                    });
                }
                Command::CancelDial { .. } => *world.canceled.lock() += 1,
                _ => {}
            }
        }
    });
    handle
}

/// A dialer over links a, b, ... that share a host, so that it tries them in this order.
struct Bench {
    world: Arc<World>,
    dialer: Dialer,
    scrape: Exposition,
    metrics: Metrics,
    kept: Vec<Registration<LinkHandle>>,
}

fn bench(timeout: Duration, budget: Budget, scripts: &[Script]) -> Bench {
    let mut registry = Registry::default();
    let metrics = crate::metrics::register(&mut registry);
    let routes = metrics.routes.clone();
    let backends = BackendManager::with_selection(&[Strategy::DestHost], Selection::Random, None, routes);
    let dialer = Dialer::new(backends, budget, MemoryLimiter::new(1 << 20), timeout, metrics.dials.clone());
    let (world, scrape) = (Arc::default(), Exposition::new(registry));
    let mut bench = Bench { world, dialer, scrape, metrics, kept: Vec::new() };
    bench.kept = scripts.iter().zip('a'..).map(|(script, name)| bench.register(script, name)).collect();
    bench
}

impl Bench {
    fn register(&self, script: &Script, name: char) -> Registration<LinkHandle> {
        self.register_handle(link(script.clone(), Arc::clone(&self.world)), name)
    }

    fn register_handle(&self, handle: LinkHandle, name: char) -> Registration<LinkHandle> {
        let identifiers = Identifiers::parse("host=node").unwrap();
        let backend =
            Backend { agent_id: name.to_string().into(), identifiers, process: None, owner: None, handle };
        self.dialer.backends.register(backend).unwrap()
    }

    /// Ejects agents that stand out, and returns their ids.
    async fn eject(&self) -> Vec<String> {
        let backends = self.dialer.backends.clone();
        let outliers = OutlierMetrics::register(&mut Registry::default());
        let _ = tokio::time::timeout(SOON, keep_sweeping(backends, outliers)).await;
        let agents = self.dialer.backends.agents();
        AgentView::ejected(&agents, Instant::now()).into_iter().map(|(id, _)| id.to_owned()).collect()
    }

    async fn dial(&self) -> Result<Dialed, DialFailure> {
        self.dial_staged(&mut DialStages::default()).await
    }

    /// Dials, and counts the outcome as a frontend does.
    async fn dial_staged(&self, stages: &mut DialStages) -> Result<Dialed, DialFailure> {
        let target = Target::new("tcp", "node:443");
        let outcome = self.dialer.dial(&target, stages).await;
        match &outcome {
            Ok(_) => self.metrics.dials.opened(stages),
            Err(failure) => {
                self.metrics.dials.failed(&target, stages, failure.metric(), &failure.to_string())
            }
        }
        outcome
    }

    /// Dials, and returns the agent that carries the connection.
    async fn dialed_by(&self) -> String {
        let mut stages = DialStages::default();
        self.dial_staged(&mut stages).await.unwrap();
        stages.agent.unwrap().to_string()
    }

    /// (dials sent, dials canceled, counted outcomes); no dial may be pending.
    async fn sum(&self) -> (usize, usize, Vec<String>) {
        // Paused time advances once every link has handled its commands.
        sleep(Duration::from_millis(1)).await;
        assert_eq!(self.dialer.metrics.pending.get(), 0);
        let scrape = self.scrape.scrape();
        let value = |name: &str| scrape.lines().find_map(|line| line.split_once(name)?.1.parse::<f64>().ok());
        let mut told = Vec::new();
        if let (Some(count), Some(seconds)) =
            (value("dial_duration_seconds_count "), value("dial_duration_seconds_sum "))
        {
            told.push(format!("{count} in {:?}", Duration::from_secs_f64(seconds)));
        }
        let failures = scrape.lines().filter_map(|line| line.split_once("dial_failure_count{reason=\""));
        told.extend(failures.filter_map(|(_, rest)| Some(rest.strip_suffix("\"} 1")?.to_owned())));
        (self.world.sent.lock().len(), *self.world.canceled.lock(), told)
    }
}

const SOON: Duration = Duration::from_millis(10);

fn many() -> Budget {
    Budget::new(MAX_PENDING_DIALS, 100)
}

#[tokio::test(start_paused = true)]
async fn opens_through_the_chosen_agent() {
    let bench = bench(Duration::ZERO, many(), &[Script::Open(SOON)]);
    assert_eq!(bench.dialed_by().await, "a");
    assert_eq!(*bench.world.sent.lock(), ["tcp node:443"]);
    assert_eq!(bench.sum().await, (1, 0, vec!["1 in 10ms".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn without_an_agent_it_fails_at_once() {
    let bench = bench(Duration::ZERO, many(), &[]);
    sleep(FIRST_AGENT_TIMEOUT).await;
    let began = Instant::now();
    assert_eq!(bench.dial().await.unwrap_err(), DialFailure::NoAgent);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(bench.sum().await, (0, 0, vec!["no_agent".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn without_an_agent_any_more_it_fails_at_once() {
    let mut bench = bench(Duration::ZERO, many(), &[Script::Silent]);
    bench.kept.clear();
    let began = Instant::now();
    assert_eq!(bench.dial().await.unwrap_err(), DialFailure::NoAgent);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// The agents of a server that restarts need a moment.
#[tokio::test(start_paused = true)]
async fn right_after_the_start_it_waits_for_an_agent() {
    for (agent_after, outcome) in [(4, "opened"), (6, "No agent available")] {
        let bench = bench(Duration::ZERO, many(), &[]);
        let agent = async {
            sleep(Duration::from_secs(agent_after)).await;
            bench.register(&Script::Open(Duration::ZERO), 'a')
        };
        let (dialed, _agent) = tokio::join!(bench.dial(), agent);
        let dialed = dialed.map_or_else(|failure| failure.to_string(), |_| "opened".to_owned());
        assert_eq!(dialed, outcome);
    }
}

/// After a restart, streams come and go before they stay, and agents of other hosts may come first.
#[tokio::test(start_paused = true)]
async fn a_dial_that_waits_for_the_first_agent_also_gets_the_one_after_it() {
    for (gap, outcome) in [(900, "opened"), (1_200, "No agent available")] {
        let bench = bench(Duration::ZERO, many(), &[]);
        let agents = async {
            sleep(Duration::from_secs(1)).await;
            drop(bench.register(&Script::Open(Duration::ZERO), 'a'));
            sleep(Duration::from_millis(gap)).await;
            bench.register(&Script::Open(Duration::ZERO), 'b')
        };
        let (dialed, _agent) = tokio::join!(bench.dial(), agents);
        let dialed = dialed.map_or_else(|failure| failure.to_string(), |_| "opened".to_owned());
        assert_eq!(dialed, outcome);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agents_refusal_is_final() {
    let refused = DialFailure::refused("dial tcp 1.2.3.4:9: connect: connection refused");
    let bench = bench(Duration::ZERO, many(), &[Script::Fail(SOON, refused.clone()), Script::Open(SOON)]);
    assert_eq!(bench.dial().await.unwrap_err(), refused);
    assert_eq!(bench.sum().await, (1, 0, vec!["error_response".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_agents_own_is_tried_once_on_another_agent() {
    for text in [
        "dial tcp 1.2.3.4:9: i/o timeout",
        "dial tcp 1.2.3.4:9: connect: no route to host",
        "dial tcp 1.2.3.4:9: connect: network is unreachable",
        "dial tcp: lookup nowhere on 10.0.0.10:53: no such host",
        "dial tcp: lookup a.b on 10.0.0.10:53: read udp 10.0.0.1:9->10.0.0.10:53: read: connection refused",
        "dial tcp 1.2.3.4:9: socket: too many open files",
    ] {
        assert!(!DialFailure::refused(text).is_the_endpoints(), "{text}");
        let own = Script::Fail(SOON, DialFailure::refused(text));
        let saved = bench(Duration::ZERO, many(), &[own.clone(), Script::Open(SOON)]);
        assert_eq!(saved.dialed_by().await, "b", "{text}");
        assert_eq!(saved.sum().await, (2, 0, vec!["1 in 20ms".to_owned()]));

        let refused = Script::Fail(SOON, DialFailure::refused("connect: connection refused"));
        let elsewhere = bench(Duration::ZERO, many(), &[own.clone(), refused]);
        let told = elsewhere.dial().await.unwrap_err().to_string();
        assert_eq!(told, "connect: connection refused", "the endpoint's answer counts more than {text}");

        let everywhere = bench(Duration::ZERO, many(), &[own.clone(), own.clone(), Script::Open(SOON)]);
        assert_eq!(everywhere.dial().await.unwrap_err().to_string(), text);
        assert_eq!(everywhere.sum().await, (2, 0, vec!["error_response".to_owned()]));

        let alone = bench(Duration::ZERO, many(), &[own]);
        assert_eq!(alone.dial().await.unwrap_err().to_string(), text);
        assert_eq!(alone.sum().await.0, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_agents_own_is_not_tried_on_an_agent_that_does_not_answer() {
    let own = DialFailure::refused("dial tcp 1.2.3.4:9: connect: no route to host");
    let bench = bench(Duration::ZERO, many(), &[Script::Fail(SOON, own.clone()), Script::Silent]);
    bench.dialer.backends.set_unresponsive(bench.kept[1].id, true);
    assert_eq!(bench.dial().await.unwrap_err(), own);
    assert_eq!(bench.sum().await.0, 1);
}

#[tokio::test(start_paused = true)]
async fn only_an_open_connection_proves_that_the_first_agent_is_to_blame() {
    let own = Script::Fail(SOON, DialFailure::refused("dial tcp 1.2.3.4:9: i/o timeout"));
    for second in ["connect: connection refused", "destination is denied"] {
        let second = Script::Fail(SOON, DialFailure::refused(second));
        let bench = bench(Duration::ZERO, many(), &[own.clone(), second]);
        for _ in 0..5 {
            bench.dial().await.unwrap_err();
        }
        assert_eq!(bench.eject().await, [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_swallows_dials_is_ejected() {
    let bench = bench(Duration::from_secs(7), many(), &[Script::Silent, Script::Open(SOON)]);
    for _ in 0..3 {
        assert_eq!(bench.dial().await.unwrap_err(), DialFailure::TimedOut);
    }
    assert_eq!(bench.eject().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn two_agents_without_an_answer_of_the_endpoint_end_before_a_webhook_call() {
    let own = DialFailure::refused("dial tcp 1.2.3.4:9: i/o timeout");
    for first in [SOON, Duration::from_secs(5)] {
        let bench = bench(Duration::ZERO, many(), &[Script::Fail(first, own.clone()), Script::Silent]);
        let started = Instant::now();
        assert_eq!(bench.dial().await.unwrap_err(), own);
        let took = started.elapsed();
        assert!(took <= BOTH_TRIES_TIMEOUT + SOON, "kube-apiserver waits 10 s for a webhook: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_try_after_an_answer_stays_within_the_strategy() {
    let own = DialFailure::refused("dial tcp 1.2.3.4:9: i/o timeout");
    let mut bench = bench(Duration::ZERO, many(), &[]);
    let routes = bench.metrics.routes.clone();
    bench.dialer.backends = BackendManager::with_selection(
        &[Strategy::DestHost, Strategy::Default],
        Selection::Random,
        None,
        routes,
    );
    let _named = bench.register(&Script::Fail(SOON, own.clone()), 'a');
    let elsewhere = Backend {
        agent_id: "b".into(),
        identifiers: Identifiers::default(),
        process: None,
        owner: None,
        handle: link(Script::Open(SOON), Arc::clone(&bench.world)),
    };
    let _elsewhere = bench.dialer.backends.register(elsewhere).unwrap();
    assert_eq!(bench.dial().await.unwrap_err(), own);
    assert_eq!(bench.world.sent.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn agents_whose_own_failures_stand_out_get_no_dials() {
    let own = DialFailure::refused("dial tcp 1.2.3.4:9: connect: no route to host");
    let bench = bench(Duration::ZERO, many(), &[Script::Fail(SOON, own), Script::Open(SOON)]);
    for _ in 0..3 {
        assert_eq!(bench.dialed_by().await, "b");
    }
    assert_eq!(bench.eject().await, ["a"]);
    assert_eq!(bench.world.sent.lock().len(), 6);
    assert_eq!(bench.dialed_by().await, "b");
    assert_eq!(bench.world.sent.lock().len(), 7, "the first agent was not asked");
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_the_agent_gave_up_is_final() {
    let bench = bench(
        Duration::ZERO,
        many(),
        &[Script::Fail(SOON, mux::DialError::Closed.into()), Script::Open(SOON)],
    );
    assert_eq!(bench.dial().await.unwrap_err(), DialFailure::Closed);
    assert_eq!(bench.sum().await, (1, 0, vec!["backend_close".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_impossible_answer_is_final_too() {
    let bad = Script::Fail(SOON, mux::DialError::BadAnswer.into());
    let bench = bench(Duration::ZERO, many(), &[bad, Script::Open(SOON)]);
    let answer = bench.dial().await.unwrap_err().http_response();
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    assert_eq!(bench.sum().await, (1, 0, vec!["error_response".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_lost_or_full_link_is_replaced_once() {
    for (failure, label) in [(DialFailure::LinkLost, "backend_close"), (DialFailure::Full, "no_agent")] {
        let failing = Script::Fail(SOON, failure.clone());
        // A limit of one: the first attempt releases its slot before the second begins.
        let one = Budget::new(1, 1);
        let saved = bench(Duration::ZERO, one, &[failing.clone(), Script::Open(SOON)]);
        assert_eq!(saved.dialed_by().await, "b");
        assert_eq!(saved.sum().await, (2, 0, vec!["1 in 20ms".to_owned()]), "a saved dial is no failure");

        let lost = bench(Duration::ZERO, many(), &[failing.clone(), failing, Script::Open(SOON)]);
        assert_eq!(lost.dial().await.unwrap_err(), failure);
        assert_eq!(lost.sum().await, (2, 0, vec![label.to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_is_reported_when_there_is_no_other_agent() {
    for failure in [DialFailure::LinkLost, DialFailure::Full] {
        let bench = bench(Duration::ZERO, many(), &[Script::Fail(SOON, failure.clone())]);
        assert_eq!(bench.dial().await.unwrap_err(), failure);
        assert_eq!(bench.sum().await.0, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_deadline_covers_both_attempts() {
    let after = Duration::from_secs(20);
    let bench = bench(Duration::ZERO, many(), &[Script::Fail(after, DialFailure::LinkLost), Script::Silent]);
    let started = Instant::now();
    assert_eq!(bench.dial().await.unwrap_err(), DialFailure::TimedOut);
    assert_eq!(started.elapsed().as_secs(), DEFAULT_DIAL_TIMEOUT.as_secs());
    assert_eq!(bench.sum().await, (2, 1, vec!["backend_dial_timeout".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_behind_the_deadline() {
    let bench = bench(SOON, many(), &[]);
    let _lost = bench.register_handle(LinkHandle::new(LinkFacts::default()).0, 'a');
    let _other = bench.register(&Script::Open(SOON), 'b');
    let outcome = bench
        .dialer
        .try_twice(&Target::new("tcp", "node:443"), Instant::now(), &mut DialStages::default())
        .await;
    assert_eq!(outcome.unwrap_err(), DialFailure::TimedOut);
    assert_eq!(bench.sum().await.0, 0);
}

#[tokio::test(start_paused = true)]
async fn the_flag_sets_the_deadline() {
    let bench = bench(SOON, many(), &[Script::Silent]);
    let started = Instant::now();
    assert_eq!(bench.dial().await.unwrap_err(), DialFailure::TimedOut);
    assert!(started.elapsed() < 2 * SOON);
}

#[tokio::test(start_paused = true)]
async fn a_frontend_that_leaves_cancels() {
    let bench = bench(Duration::ZERO, many(), &[Script::Silent]);
    assert!(tokio::time::timeout(SOON, bench.dial()).await.is_err());
    assert_eq!(bench.sum().await, (1, 1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn dials_beyond_the_pending_limit_wait() {
    let bench = bench(Duration::from_secs(1), Budget::new(1, 100), &[Script::Open(SOON)]);
    let (first, second) = tokio::join!(bench.dial(), bench.dial());
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(bench.sum().await.2, ["2 in 30ms"]);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_the_deadline_too() {
    let bench = bench(SOON, Budget::new(0, 100), &[Script::Open(SOON)]);
    assert_eq!(bench.dial().await.unwrap_err(), DialFailure::SendFailed);
    assert_eq!(bench.sum().await, (0, 0, vec!["backend_dial_timeout".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn connections_are_limited_until_they_end() {
    let bench = bench(Duration::ZERO, Budget::new(9, 1), &[Script::Open(SOON), Script::Open(SOON)]);
    let first = bench.dial().await.unwrap();
    assert_eq!(bench.dial().await.unwrap_err(), DialFailure::Full);
    drop(first.place);
    assert!(bench.dial().await.is_ok());
    assert_eq!(bench.sum().await, (2, 0, vec!["2 in 20ms".to_owned(), "no_agent".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn dials_that_a_limit_refuses_are_logged_once_a_minute() {
    let log = CapturedLog::new();
    let full = bench(SOON, Budget::new(9, 0), &[Script::Open(SOON)]);
    let busy = bench(SOON, Budget::new(0, 9), &[Script::Open(SOON)]);
    for _ in 0..70 {
        assert_eq!(full.dial().await.unwrap_err(), DialFailure::Full);
        assert_eq!(busy.dial().await.unwrap_err(), DialFailure::SendFailed);
        sleep(Duration::from_secs(1) - SOON).await;
    }
    let text = log.text();
    for failure in [DialFailure::Full, DialFailure::SendFailed] {
        let error = format!("\"DIAL_REQ to Backend failed\" err=\"{failure}\"");
        let lines: Vec<_> = text.lines().filter(|line| line.contains(&error)).collect();
        let numbers: Vec<_> = lines.iter().filter_map(|line| line.split_once("suppressed=")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(numbers[0].1.starts_with('0') && numbers[1].1.starts_with("59"), "{text}");
    }
}

/// Marks the first link unresponsive after that time.
async fn first_falls_silent(bench: &Bench, after: Duration) {
    sleep(after).await;
    bench.dialer.backends.set_unresponsive(bench.kept[0].id, true);
}

#[tokio::test(start_paused = true)]
async fn a_dial_leaves_an_agent_that_ceases_to_answer_for_one_that_does() {
    let bench = bench(Duration::ZERO, many(), &[Script::Silent, Script::Open(SOON)]);
    let (agent, ()) = tokio::join!(bench.dialed_by(), first_falls_silent(&bench, 5 * SOON));
    assert_eq!(agent, "b");
    assert_eq!(bench.sum().await, (2, 1, vec!["1 in 210ms".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_dial_leaves_each_agent_that_ceases_to_answer() {
    let bench = bench(Duration::ZERO, many(), &[Script::Silent, Script::Silent, Script::Open(SOON)]);
    let silences = async {
        first_falls_silent(&bench, SOON).await;
        sleep(BETTER_AGENT_POLL_INTERVAL).await;
        bench.dialer.backends.set_unresponsive(bench.kept[1].id, true);
    };
    let (agent, ()) = tokio::join!(bench.dialed_by(), silences);
    assert_eq!(agent, "c");
    assert_eq!(bench.sum().await, (3, 2, vec!["1 in 410ms".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_dial_waits_for_an_agent_that_ceases_to_answer_while_there_is_no_other() {
    let after = 100 * SOON;
    let alone = bench(Duration::ZERO, many(), &[Script::Open(after)]);
    let (agent, ()) = tokio::join!(alone.dialed_by(), first_falls_silent(&alone, SOON));
    assert_eq!(agent, "a");
    assert_eq!(alone.sum().await, (1, 0, vec!["1 in 1s".to_owned()]));
    // Both links are silent until a third one registers.
    let both = bench(Duration::ZERO, many(), &[Script::Silent, Script::Silent]);
    both.dialer.backends.set_unresponsive(both.kept[1].id, true);
    let third = async {
        first_falls_silent(&both, SOON).await;
        sleep(after).await;
        assert_eq!(both.world.sent.lock().len(), 1, "the dial waits");
        both.register(&Script::Open(SOON), 'c')
    };
    let (agent, _third) = tokio::join!(both.dialed_by(), third);
    assert_eq!(agent, "c");
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_meets_a_full_agent_moves_once_there_is_room() {
    let bench = bench(Duration::ZERO, Budget::new(9, 2), &[Script::Silent, Script::Open(SOON)]);
    let held = bench.dialer.reserve(bench.dialer.backends.choose("node", &[]).unwrap()).unwrap();
    let room = async {
        first_falls_silent(&bench, SOON).await;
        sleep(100 * SOON).await;
        assert_eq!(bench.world.sent.lock().len(), 1, "there is no slot for a second dial");
        drop(held);
    };
    let (agent, ()) = tokio::join!(bench.dialed_by(), room);
    assert_eq!(agent, "b");
}
