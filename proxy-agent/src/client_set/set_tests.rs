use grpc::{Code, WireError};
use net::tls::Validity;
use parking_lot::Mutex;
use serve::metrics::Registry;

use super::super::machine::CountSource;
use super::super::{ConnectStage, ServerAddress, ServerInfo};
use super::*;
use crate::captured_log::CapturedLog;

/// A load balancer in front of `servers`: answers attempts by the script, then round-robin.
#[derive(Default)]
struct Balancer {
    script: Mutex<Vec<Result<&'static str, ()>>>,
    count: usize,
    /// The lanes that servers accept.
    lanes: usize,
    /// Several addresses, each of the server of the same name; none: one address of all servers. "dead" never answers.
    hosts: &'static [&'static str],
    tries: Mutex<Vec<Instant>>,
    /// A lost stream's task goes on.
    lingers: bool,
    /// The token that ends each stream, by server.
    live: Arc<Mutex<HashMap<String, CancellationToken>>>,
    closed: Mutex<usize>,
    /// What each attempt told servers.
    told: Mutex<Vec<LiveStreams>>,
    /// The current client certificate.
    certificate: Mutex<Option<Validity>>,
    /// Lookups that fail before the first one that does not.
    failing_lookups: Mutex<usize>,
    /// Lookups that panic before the first one that does not.
    panicking_lookups: Mutex<usize>,
}

/// The script's attempt that panics.
const PANICS: Result<&str, ()> = Ok("panics");

/// When the script's attempt to a server whose name follows "late " is answered.
const LATE: Duration = Duration::from_secs(600);

thread_local! {
    /// The start of the test by the paused clock.
    static EPOCH: Instant = Instant::now();
}

struct FakeStream {
    server: String,
    lost: CancellationToken,
}

impl Connector for Balancer {
    type Stream = FakeStream;

    fn entries(&self) -> Vec<Address> {
        vec![Address { dial: ServerAddress { host: "balancer".into(), port: 8091 }, entry: 0 }]
    }

    async fn resolve(&self) -> Vec<Resolved> {
        let address =
            |host: &str| Address { dial: ServerAddress { host: host.into(), port: 8091 }, entry: 0 };
        let addresses = match self.hosts {
            [] => self.entries(),
            hosts => hosts.iter().map(|host| address(host)).collect(),
        };
        let panics = std::mem::take(&mut *self.panicking_lookups.lock());
        *self.panicking_lookups.lock() = panics.saturating_sub(1);
        assert_eq!(panics, 0, "injected");
        let mut failing = self.failing_lookups.lock();
        let error = (*failing > 0).then(|| "no such host".to_owned());
        *failing = failing.saturating_sub(1);
        vec![Resolved { addresses, error }]
    }

    async fn connect(
        &self,
        address: &Address,
        streams: LiveStreams,
    ) -> Result<ConnectedStream<FakeStream>, ConnectError> {
        self.told.lock().push(streams);
        let number = {
            let mut tries = self.tries.lock();
            tries.push(Instant::now());
            tries.len() - 1
        };
        let scripted = {
            let mut script = self.script.lock();
            if script.is_empty() { None } else { Some(script.remove(0)) }
        };
        let server = match scripted {
            Some(PANICS) => panic!("injected"),
            Some(Ok(server)) => match server.strip_prefix("late ") {
                Some(server) => {
                    tokio::time::sleep(LATE).await;
                    server.to_owned()
                }
                None => server.to_owned(),
            },
            Some(Err(())) => {
                return Err(ConnectError::at(ConnectStage::Stream, "the server's answer: refused"));
            }
            None if address.dial.host == "dead" => {
                tokio::time::sleep(Duration::from_secs(10)).await;
                return Err(ConnectError::at(ConnectStage::Stream, "the server's answer: timeout"));
            }
            None if !self.hosts.is_empty() => address.dial.host.clone(),
            None => format!("s{}", number % self.count),
        };
        let stream = FakeStream { server: server.clone(), lost: CancellationToken::new() };
        let presented = *self.certificate.lock();
        Ok(ConnectedStream {
            server_id: server.into(),
            info: ServerInfo { servers: self.count, lanes: self.lanes.max(1) },
            presented,
            stream,
        })
    }

    async fn close(&self, _stream: FakeStream) {
        *self.closed.lock() += 1;
    }

    fn certificate_validity(&self) -> Option<Validity> {
        *self.certificate.lock()
    }
}

impl<C: Connector> Connector for Arc<C> {
    type Stream = C::Stream;

    fn entries(&self) -> Vec<Address> {
        C::entries(self)
    }

    async fn resolve(&self) -> Vec<Resolved> {
        C::resolve(self).await
    }

    async fn connect(
        &self,
        address: &Address,
        streams: LiveStreams,
    ) -> Result<ConnectedStream<C::Stream>, ConnectError> {
        C::connect(self, address, streams).await
    }

    async fn close(&self, stream: C::Stream) {
        C::close(self, stream).await;
    }

    fn certificate_validity(&self) -> Option<Validity> {
        C::certificate_validity(self)
    }
}

/// The controls of the streams, in the order in which they were opened.
type Controls = Arc<Mutex<Vec<(String, LinkControl)>>>;

struct FakeLinks {
    live: Arc<Mutex<HashMap<String, CancellationToken>>>,
    drained: Arc<Mutex<usize>>,
    controls: Controls,
    /// Whether a stopped stream ends.
    obedient: bool,
    lingers: bool,
    /// Whether servers accept lanes.
    lanes: bool,
}

impl LinkRunner<FakeStream> for FakeLinks {
    async fn run(self: Arc<Self>, _server_id: Arc<str>, stream: FakeStream, control: LinkControl) -> LinkEnd {
        let before = self.live.lock().insert(stream.server.clone(), stream.lost.clone());
        let retired = self
            .controls
            .lock()
            .iter()
            .any(|(name, control)| *name == stream.server && control.retire.is_cancelled());
        assert!(
            self.lanes || retired || before.is_none_or(|before| before.is_cancelled()),
            "two streams to {}",
            stream.server
        );
        self.controls.lock().push((stream.server.clone(), control.clone()));
        let LinkControl { drain, stop, observer, .. } = control;
        let drained = Arc::clone(&self.drained);
        let draining = async {
            drain.cancelled().await;
            *drained.lock() += 1;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = draining => unreachable!("pending"),
            () = stream.lost.cancelled() => {
                let end = LinkEnd::Failed(WireError { code: Code::Unavailable, message: "lost".into() });
                observer(ServerState::Lost(end.clone()));
                if self.lingers {
                    stop.cancelled().await;
                }
                end
            }
            () = stop.cancelled(), if self.obedient => LinkEnd::Stopped,
        }
    }
}

struct Rig {
    balancer: Arc<Balancer>,
    servers: watch::Receiver<Servers>,
    leases: watch::Sender<Option<Leased>>,
    metrics: Metrics,
    drained: Arc<Mutex<usize>>,
    controls: Controls,
    drain: CancellationToken,
    stop: CancellationToken,
    run: tokio::task::JoinHandle<RunEnd>,
}

impl Rig {
    fn new(count: usize, script: Vec<Result<&'static str, ()>>) -> Self {
        Self::with(count, script, true)
    }

    fn with(count: usize, script: Vec<Result<&'static str, ()>>, obedient: bool) -> Self {
        Self::behind(Balancer { count, script: Mutex::new(script), ..Balancer::default() }, obedient)
    }

    fn behind(balancer: Balancer, obedient: bool) -> Self {
        let balancer = Arc::new(balancer);
        let drained = Arc::<Mutex<usize>>::default();
        let controls = Controls::default();
        let links = FakeLinks {
            live: Arc::clone(&balancer.live),
            drained: Arc::clone(&drained),
            controls: Arc::clone(&controls),
            obedient,
            lingers: balancer.lingers,
            lanes: balancer.lanes > 1,
        };
        let settings = SyncSettings {
            interval: Duration::from_secs(1),
            cap: Duration::from_secs(10),
            forever: false,
            count_source: CountSource::Default,
            lanes: 2,
        };
        let metrics = crate::metrics::register(&mut Registry::default());
        let (leases, leases_rx) = watch::channel(None);
        let mut set = ClientSet::new(Arc::clone(&balancer), links, settings, leases_rx, metrics.clone());
        // Unix time, derived from the paused clock.
        set.clock = || EPOCH.with(|epoch| i64::try_from(epoch.elapsed().as_secs()).unwrap());
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let servers = set.servers();
        let run = tokio::spawn(set.run(drain.clone(), stop.clone()));
        Self { balancer, servers, leases, metrics, drained, controls, drain, stop, run }
    }

    async fn until(&mut self, known: usize, open: usize) {
        let reached = self.servers.wait_for(|servers| (servers.known, servers.open) == (known, open));
        let reached = timeout(Duration::from_secs(60), reached).await;
        assert!(reached.is_ok(), "never {open} of {known}");
    }

    fn end_stream(&self, server: &str) {
        self.balancer.live.lock()[server].cancel();
    }

    fn pauses(&self) -> Vec<Duration> {
        self.balancer.tries.lock().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn set_completes_and_replaces_lost_streams() {
    let mut rig = Rig::new(3, vec![]);
    rig.until(3, 3).await;
    assert_eq!(rig.metrics.server_connections.count(), 3);
    assert!(rig.pauses().iter().all(|pause| (0.025..=0.052).contains(&pause.as_secs_f64())));
    let tries = rig.balancer.tries.lock().len();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(rig.balancer.tries.lock().len(), tries, "a complete set rests");
    rig.end_stream("s1");
    rig.until(3, 2).await;
    assert_eq!(rig.metrics.server_connections.count(), 2);
    rig.until(3, 3).await;
}

#[tokio::test(start_paused = true)]
async fn stream_that_is_lost_is_replaced_while_its_task_goes_on() {
    let mut rig = Rig::behind(Balancer { count: 3, lingers: true, ..Balancer::default() }, true);
    rig.until(3, 3).await;
    rig.end_stream("s1");
    rig.until(3, 2).await;
    assert_eq!(rig.metrics.server_connections.count(), 2);
    rig.until(3, 3).await;
    let named = rig.balancer.told.lock().last().unwrap().others.clone();
    assert!(!named.contains(&2), "the lost stream is named: {named:?}");
    rig.stop.cancel();
    assert_eq!(rig.run.await.unwrap(), RunEnd::Stopped);
    assert_eq!(
        (rig.metrics.lost.counter(LostReason::RecvError).get(), rig.metrics.server_connections.count()),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn servers_are_told_which_streams_the_agent_has() {
    let mut rig = Rig::new(3, vec![]);
    rig.until(3, 3).await;
    rig.end_stream("s1");
    rig.until(3, 2).await;
    rig.until(3, 3).await;
    let told = rig.balancer.told.lock().clone();
    assert!(told.iter().all(|one| one.name.process == told[0].name.process));
    let numbers: Vec<u64> = told.iter().map(|told| told.name.number).collect();
    assert_eq!(numbers, (1..=told.len() as u64).collect::<Vec<_>>());
    let others: Vec<Vec<u64>> = told
        .iter()
        .map(|told| {
            let mut others = told.others.clone();
            others.sort_unstable();
            others
        })
        .collect();
    // The second stream, which led to s1, is lost. Duplicates are not kept.
    assert_eq!(others[..4], [vec![], vec![1], vec![1, 2], vec![1, 3]]);
    assert!(others[4..].iter().all(|others| *others == [1, 3]), "{others:?}");
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_closed_and_errors_back_off() {
    let script = vec![Err(()), Err(()), Err(()), Ok("a"), Ok("a"), Ok("b")];
    let mut rig = Rig::new(2, script);
    rig.until(2, 2).await;
    assert_eq!(*rig.balancer.closed.lock(), 1);
    let (pauses, expected) = (rig.pauses(), [1.0, 1.5, 2.25]);
    for (pause, expected) in pauses.iter().zip(expected) {
        assert!((expected..expected * 1.1001).contains(&pause.as_secs_f64()), "{pause:?} for {expected} s");
    }
    assert!(pauses[3..].iter().all(|pause| pause.as_millis() < 100), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dead_address_does_not_delay_the_others() {
    let hosts = &["dead", "a", "b"];
    let mut rig = Rig::behind(Balancer { count: 3, hosts, ..Balancer::default() }, true);
    let began = Instant::now();
    rig.until(3, 2).await;
    assert_eq!((began.elapsed(), rig.balancer.tries.lock().len()), (Duration::ZERO, 3));
    rig.end_stream("a");
    rig.until(3, 1).await;
    rig.until(3, 2).await;
    assert!(began.elapsed() <= Duration::from_secs(1), "the attempt at the dead address still runs");
    assert_eq!((rig.balancer.tries.lock().len(), *rig.balancer.closed.lock()), (4, 0));
    rig.stop.cancel();
    assert_eq!(rig.run.await.unwrap(), RunEnd::Stopped);
}

#[tokio::test(start_paused = true)]
async fn server_that_does_not_answer_does_not_stop_the_search() {
    for (late, open) in [("late s1", 2), ("late s2", 3)] {
        let script = [Ok("s0"), Ok(late), Ok(late)].into_iter().chain([Ok("s0"), Ok("s1")].repeat(1_000));
        let mut rig = Rig::new(3, script.collect());
        rig.until(3, 1).await;
        while rig.servers.borrow().open < 2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(rig.balancer.tries.lock()[0].elapsed() < LATE, "found beside the late server");
        // Later a lost stream is replaced.
        rig.end_stream("s1");
        rig.until(3, 1).await;
        rig.until(3, 2).await;
        assert_eq!(rig.metrics.connect_failures.counter(ConnectStage::Stream).get(), 1, "the second attempt");
        let closed = *rig.balancer.closed.lock();
        tokio::time::sleep(LATE).await;
        assert_eq!(rig.servers.borrow().open, open, "the first one waited for its answer");
        assert!(open == 3 || *rig.balancer.closed.lock() > closed);
        let tries = rig.balancer.tries.lock().len();
        tokio::time::sleep(LATE).await;
        assert_eq!(rig.balancer.tries.lock().len() == tries, open == 3, "a complete set rests");
    }
}

#[tokio::test(start_paused = true)]
async fn leases_are_believed() {
    let mut rig = Rig::new(3, vec![Ok("s0")]);
    rig.leases.send(Some(Leased { count: 1, ..Leased::default() })).unwrap();
    rig.until(1, 1).await;
    rig.leases.send(Some(Leased { count: 3, ..Leased::default() })).unwrap();
    rig.until(3, 3).await;
    rig.leases.send(Some(Leased { count: 2, ..Leased::default() })).unwrap();
    rig.until(2, 3).await;
    let holders = ["s0", "unreachable"].map(Arc::from).into();
    rig.leases.send(Some(Leased { count: 2, holders, ..Leased::default() })).unwrap();
    rig.until(4, 3).await;
    drop(rig.leases);
    rig.stop.cancel();
    assert_eq!(rig.run.await.unwrap(), RunEnd::Stopped);
}

#[tokio::test(start_paused = true)]
async fn draining_asks_every_server_and_opens_nothing_more() {
    let mut rig = Rig::new(2, vec![]);
    rig.until(2, 2).await;
    rig.drain.cancel();
    // A stream that ends before the loop sees the signal gets no DRAIN.
    let asked = async {
        while *rig.drained.lock() < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(1), asked).await.expect("both are asked");
    rig.end_stream("s0");
    rig.until(2, 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((rig.balancer.tries.lock().len(), *rig.drained.lock()), (2, 2));
    rig.end_stream("s1");
    assert_eq!(rig.run.await.unwrap(), RunEnd::Drained);
    assert_eq!(rig.metrics.server_connections.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_every_stream() {
    let mut rig = Rig::new(2, vec![]);
    rig.until(2, 2).await;
    rig.stop.cancel();
    assert_eq!(rig.run.await.unwrap(), RunEnd::Stopped);
    assert_eq!(rig.metrics.server_connections.count(), 0);
    assert_eq!(rig.servers.borrow().open, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_stop_is_cut_off() {
    let mut rig = Rig::with(1, vec![], false);
    rig.until(1, 1).await;
    let began = Instant::now();
    rig.stop.cancel();
    assert_eq!(rig.run.await.unwrap(), RunEnd::Stopped);
    assert_eq!(began.elapsed(), STOP_TIMEOUT);
    let gauge = || async {
        while rig.metrics.server_connections.count() != 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(1), gauge()).await.expect("the task is gone");
}

/// Waits until that many streams were opened.
async fn opened(rig: &Rig, count: usize) {
    let opened = async {
        while rig.controls.lock().len() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), opened).await.expect("another stream");
}

fn retired(rig: &Rig) -> Vec<bool> {
    rig.controls.lock().iter().map(|(_, control)| control.retire.is_cancelled()).collect()
}

#[tokio::test(start_paused = true)]
async fn unresponsive_stream_is_kept_until_another_is_open() {
    let mut rig = Rig::new(1, vec![Ok("s0"), Err(()), Err(())]);
    rig.until(1, 1).await;
    let (_, control) = rig.controls.lock()[0].clone();
    (control.observer)(ServerState::Unresponsive);
    opened(&rig, 2).await;
    assert_eq!(retired(&rig), [true, false]);
    assert_eq!(rig.metrics.retiring_connections.count(), 1, "the first goes on until nothing is left in it");
    assert_eq!(rig.metrics.server_connections.count(), 1, "one server");
    assert_eq!(rig.servers.borrow().open, 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.balancer.tries.lock().len(), 4, "and then rests");
    (control.observer)(ServerState::Unresponsive);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.balancer.tries.lock().len(), 4, "a retired stream needs no successor");
    assert_eq!(rig.metrics.unresponsive.get(), 1, "its silence is expected");
    rig.stop.cancel();
    assert_eq!(rig.run.await.unwrap(), RunEnd::Stopped);
    assert_eq!((rig.metrics.server_connections.count(), rig.metrics.retiring_connections.count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn stream_that_answers_again_is_not_replaced() {
    let mut rig = Rig::new(1, vec![Ok("s0"), Err(()), Err(()), Err(()), Err(())]);
    rig.until(1, 1).await;
    let (_, control) = rig.controls.lock()[0].clone();
    (control.observer)(ServerState::Unresponsive);
    while rig.balancer.tries.lock().len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (control.observer)(ServerState::Responsive);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.balancer.tries.lock().len(), 3);
    assert_eq!(retired(&rig), [false]);
}

#[tokio::test(start_paused = true)]
async fn newer_certificate_is_presented_before_the_old_one_expires() {
    EPOCH.with(|_| {});
    let mut rig = Rig::new(2, vec![]);
    *rig.balancer.certificate.lock() = Some(Validity { not_before: 0, not_after: 1_000 });
    rig.until(2, 2).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    *rig.balancer.certificate.lock() = Some(Validity { not_before: 500, not_after: 1_500 });
    tokio::time::sleep(Duration::from_secs(190)).await;
    assert_eq!(retired(&rig), [false, false], "there is time");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(retired(&rig), [true, true, false, false]);
    rig.until(2, 2).await;
    tokio::time::sleep(Duration::from_secs(350)).await;
    assert_eq!(retired(&rig).len(), 4, "the newer one lasts");
}

#[tokio::test(start_paused = true)]
async fn goaway_leads_to_another_stream_and_a_drain() {
    let mut rig = Rig::new(1, vec![Ok("s0"), Err(())]);
    rig.until(1, 1).await;
    let (_, control) = rig.controls.lock()[0].clone();
    (control.observer)(ServerState::GoingAway);
    opened(&rig, 2).await;
    assert_eq!(retired(&rig), [true, false]);
    assert!(control.drain.is_cancelled());
    assert_eq!((rig.metrics.server_connections.count(), rig.metrics.retiring_connections.count()), (1, 1));
}

/// Such as the last server, or one whose successor has another id.
#[tokio::test(start_paused = true)]
async fn after_goaway_a_drained_stream_neither_counts_as_open_nor_wants_a_successor() {
    for (attempt, open) in [(Err(()), 0), (Ok("successor"), 1)] {
        let mut script = vec![attempt; 1_000];
        script[0] = Ok("s0");
        let mut rig = Rig::new(1, script);
        rig.until(1, 1).await;
        let (_, control) = rig.controls.lock()[0].clone();
        (control.observer)(ServerState::GoingAway);
        opened(&rig, 1 + open).await;
        (control.observer)(ServerState::Unreplaced);
        control.retire.cancelled().await;
        rig.until(1, open).await;
        assert!(control.drain.is_cancelled());
        let gauges = (rig.metrics.server_connections.count(), rig.metrics.retiring_connections.count());
        assert_eq!(gauges, (open as i64, 1));
        let tries = rig.balancer.tries.lock().len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(rig.balancer.tries.lock().len() > tries, open == 0, "seeks only a missing server");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_and_losses_are_counted() {
    let mut rig = Rig::new(2, vec![Ok("s0"), Err(()), Ok("s0"), Ok("s1")]);
    rig.until(2, 2).await;
    let attempts = |result| rig.metrics.attempts.counter(result).get();
    let [connected, duplicate, error] =
        [AttemptResult::Connected, AttemptResult::Duplicate, AttemptResult::Error].map(attempts);
    assert_eq!((connected, duplicate, error), (2, 1, 1));
    rig.balancer.live.lock()["s0"].cancel();
    rig.until(2, 1).await;
    assert_eq!(rig.metrics.lost.counter(LostReason::RecvError).get(), 1);
    rig.stop.cancel();
    assert_eq!(rig.run.await.unwrap(), RunEnd::Stopped);
    let lost = [LostReason::RecvError, LostReason::Eof].map(|reason| rig.metrics.lost.counter(reason).get());
    assert_eq!(lost, [1, 0], "a stop loses nothing");
}

#[tokio::test(start_paused = true)]
async fn lanes_count_as_one_server() {
    let mut rig = Rig::behind(Balancer { count: 2, lanes: 4, ..Balancer::default() }, true);
    rig.until(2, 2).await;
    opened(&rig, 4).await;
    assert_eq!(rig.metrics.server_connections.count(), 2);
    let tries = rig.balancer.tries.lock().len();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(rig.balancer.tries.lock().len(), tries, "a complete set rests");
    rig.end_stream("s1");
    opened(&rig, 5).await;
    assert_eq!((rig.metrics.server_connections.count(), rig.servers.borrow().open), (2, 2));
    assert_eq!(rig.metrics.lost.counter(LostReason::RecvError).get(), 0, "the server is not lost");
    let controls = rig.controls.lock().clone();
    let living: Vec<_> = controls.iter().filter(|(server, _)| server == "s0").collect();
    for (_, control) in &living {
        (control.observer)(ServerState::Unresponsive);
    }
    opened(&rig, 7).await;
    assert_eq!(rig.metrics.unresponsive.get(), 1, "one server");
    assert_eq!((rig.metrics.server_connections.count(), rig.metrics.retiring_connections.count()), (2, 2));
    rig.drain.cancel();
    let drained = async {
        while *rig.drained.lock() < 6 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(1), drained).await.expect("each lane is drained");
    rig.stop.cancel();
    // The drain, which finds no connection, may end the run as well.
    rig.run.await.unwrap();
    assert_eq!((rig.metrics.server_connections.count(), rig.metrics.retiring_connections.count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn panicking_attempt_is_retried_and_leaves_the_other_streams_open() {
    let mut rig = Rig::new(2, vec![Ok("s0"), PANICS, PANICS, Ok("s1")]);
    rig.until(2, 1).await;
    rig.until(2, 2).await;
    assert_eq!(rig.metrics.attempts.counter(AttemptResult::Error).get(), 2);
    assert_eq!(rig.metrics.connect_failures.counter(ConnectStage::Task).get(), 2);
    assert_eq!(rig.controls.lock().len(), 2, "no stream was replaced");
    let error = rig.servers.borrow().last_error.clone().unwrap().0;
    assert!(error.contains("panicked"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn panicking_lookups_fail_and_prevent_no_attempt() {
    let panicking_lookups = Mutex::new(usize::MAX);
    let mut rig = Rig::behind(Balancer { count: 3, panicking_lookups, ..Balancer::default() }, true);
    rig.until(3, 3).await;
    rig.end_stream("s1");
    rig.until(3, 2).await;
    rig.until(3, 3).await;
    assert_ne!(*rig.balancer.panicking_lookups.lock(), usize::MAX, "a lookup has panicked");
}

#[tokio::test(start_paused = true)]
async fn server_that_toggles_is_logged_once_a_minute() {
    let log = CapturedLog::new();
    let mut script = vec![Err(()); 1_000];
    script[0] = Ok("s0");
    let mut rig = Rig::new(1, script);
    rig.until(1, 1).await;
    let (_, control) = rig.controls.lock()[0].clone();
    for toggle in 0..20 {
        let state = if toggle % 2 == 0 { ServerState::Unresponsive } else { ServerState::Responsive };
        (control.observer)(state);
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    let text = log.text();
    let count = |part: &str| text.matches(part).count();
    let lines = (count("\"keepalive ping unanswered, "), count("\"keepalive ping answered again"));
    assert_eq!((rig.metrics.unresponsive.get(), lines), (10, (2, 2)), "{text}");
    assert!(text.contains("suppressed=7"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn log_names_the_server_that_every_attempt_reaches() {
    let log = CapturedLog::new();
    let script = Mutex::new(vec![Ok("s0"); 1_000]);
    let mut rig = Rig::behind(Balancer { count: 2, script, ..Balancer::default() }, true);
    rig.until(2, 1).await;
    let stuck = rig.servers.wait_for(|servers| servers.last_error.is_some()).await.unwrap().clone();
    assert_eq!(&*stuck.last_error.unwrap().0, &format!("1 of 2 servers: {STUCK}"));
    let text = log.text();
    let lines: Vec<_> =
        text.lines().filter(|line| line.contains("no attempt reaches a missing server")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].ends_with("serverID=\"s0\" open=1 known=2"), "{}", lines[0]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_logged_with_their_address_or_name() {
    let log = CapturedLog::new();
    let (script, failing_lookups) = (Mutex::new(vec![Err(()); 4]), Mutex::new(3));
    let mut rig = Rig::behind(Balancer { count: 1, script, failing_lookups, ..Balancer::default() }, true);
    rig.until(1, 1).await;
    let text = log.text();
    let count = |part: &str| text.matches(part).count();
    let found = [
        count("\"cannot connect once\" err=\"the server's answer: refused\" address=\"balancer:8091\""),
        count("\"server name lookup failed\" name=\"balancer\" err=\"no such host\""),
        count("\"server name lookup works again\" name=\"balancer\""),
    ];
    assert_eq!(found, [4, 1, 1], "{text}");
}
