//! Slow, failing and stuck agents: the others get their dials. The agents are scripted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::adversarial::{AdversarialAgent, AgentMeta, close_rsp, dial_rsp};
use e2e::frontend::Tunnel;
use e2e::http1::get;
use e2e::pair::{Pair, Setup};
use e2e::wait::{DEADLINE, until, within};
use proto::packet::Payload as Body;
use tokio_util::task::AbortOnDropHandle;

/// How an agent answers dials.
#[derive(Clone, Copy)]
enum Script {
    /// It accepts after this time.
    Accepts(Duration),
    /// It answers with this error.
    Fails(&'static str),
    /// It answers no packet.
    Silent,
}

/// A scripted agent, and the number of its dials.
struct Scripted {
    dials: Arc<AtomicU32>,
    _task: AbortOnDropHandle<()>,
}

impl Scripted {
    async fn start(pair: &Pair, meta: AgentMeta, script: Script) -> Result<Self> {
        let agent = AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &meta).await?;
        let dials = Arc::<AtomicU32>::default();
        let task = tokio::spawn(play(agent, script, Arc::clone(&dials)));
        Ok(Self { dials, _task: AbortOnDropHandle::new(task) })
    }

    fn dials(&self) -> u32 {
        self.dials.load(Ordering::Relaxed)
    }
}

async fn play(mut agent: AdversarialAgent, script: Script, dials: Arc<AtomicU32>) {
    let mut last_id = 0;
    while let Ok(Some(packet)) = agent.stream.next().await {
        let answer = match (packet.payload, script) {
            (Some(Body::DialRequest(request)), script) => {
                dials.fetch_add(1, Ordering::Relaxed);
                last_id += 1;
                match script {
                    Script::Accepts(after) => {
                        tokio::time::sleep(after).await;
                        dial_rsp(request.random, last_id, "")
                    }
                    Script::Fails(error) => dial_rsp(request.random, 0, error),
                    Script::Silent => continue,
                }
            }
            (_, Script::Silent) => continue,
            (Some(Body::CloseRequest(close)), _) => close_rsp(close.connect_id, ""),
            _ => continue,
        };
        if agent.stream.send(answer).await.is_err() {
            return;
        }
    }
}

const QUICK: Script = Script::Accepts(Duration::ZERO);

async fn server() -> Result<Pair> {
    Setup::grpc().agents(0).start().await
}

fn go(id: &str) -> AgentMeta {
    AgentMeta::new(id, "")
}

fn native(id: &str) -> AgentMeta {
    go(id).with("konnectivity-capabilities", "pings")
}

async fn connected(pair: &Pair, agents: f64) -> Result<()> {
    pair.server().wait_metric("ready_backends", &[("proxy_strategy", "default")], agents).await?;
    Ok(())
}

async fn dial(pair: &Pair) -> Result<()> {
    within("the dial", Tunnel::dial(pair.frontend().packets().await?, "10.0.0.1:443")).await??;
    Ok(())
}

#[tokio::test]
async fn a_slow_agent_gets_few_dials_and_a_metric_names_it() -> Result<()> {
    let pair = server().await?;
    let slow = Scripted::start(&pair, go("slow"), Script::Accepts(Duration::from_millis(900))).await?;
    let quick =
        [Scripted::start(&pair, go("a"), QUICK).await?, Scripted::start(&pair, go("b"), QUICK).await?];
    connected(&pair, 3.0).await?;
    for _ in 0..60 {
        dial(&pair).await?;
    }
    // It loses each comparison after its first dial, as long as its time is not forgotten.
    ensure!(slow.dials() <= 3, "the slow agent got {} of 60 dials", slow.dials());
    ensure!(quick.iter().all(|agent| agent.dials() >= 10), "both quick agents serve");
    // On a busy machine the others may be slow, too, for a moment.
    until("the metric names the slow agent", DEADLINE, || async {
        dial(&pair).await.ok()?;
        let labels = [("agent_id", "slow"), ("reason", "slow")];
        let named = pair.server().metric("agent_outlier", &labels).await.ok()?;
        (named > 0.0).then_some(())
    })
    .await
}

#[tokio::test]
async fn an_agent_that_fails_alone_costs_no_dial_and_is_ejected() -> Result<()> {
    let pair = server().await?;
    let failing = Scripted::start(
        &pair,
        go("failing"),
        Script::Fails("dial tcp 10.0.0.1:443: connect: no route to host"),
    )
    .await?;
    let _quick = Scripted::start(&pair, go("quick"), QUICK).await?;
    connected(&pair, 2.0).await?;
    until("the agent is ejected", DEADLINE, || async {
        dial(&pair).await.ok()?;
        let answer = get(pair.server().health, "/readyz?verbose").await.ok()?;
        answer.body.contains("[+]backends ok: 1 ejected: failing for ").then_some(())
    })
    .await?;
    let before = failing.dials();
    for _ in 0..10 {
        dial(&pair).await?;
    }
    ensure!(failing.dials() <= before + 1, "an ejected agent gets no dials");
    pair.server().process.wait_said("dials fail at this agent that succeed at others").await
}

#[tokio::test]
async fn a_target_that_every_agent_fails_keeps_its_error_and_ejects_no_agent() -> Result<()> {
    let pair = server().await?;
    let text = "dial tcp: lookup nowhere: no such host";
    let agents = [
        Scripted::start(&pair, go("a"), Script::Fails(text)).await?,
        Scripted::start(&pair, go("b"), Script::Fails(text)).await?,
    ];
    connected(&pair, 2.0).await?;
    for _ in 0..5 {
        let error = pair.frontend().dial_error("10.0.0.1:443").await?;
        ensure!(error.text() == text, "{error}");
    }
    ensure!(agents[0].dials() == 5 && agents[1].dials() == 5, "each dial asks both agents once");
    ensure!(pair.server().metric("agent_ejections_total", &[]).await? == 0.0, "nobody is to blame");
    Ok(())
}

#[tokio::test]
async fn a_dial_leaves_an_agent_that_answers_pings_and_no_packets() -> Result<()> {
    for stuck in [native("stuck"), go("stuck")] {
        let pair = server().await?;
        let stuck = Scripted::start(&pair, stuck, Script::Silent).await?;
        connected(&pair, 1.0).await?;
        let first = tokio::spawn({
            let frontend = pair.frontend().clone();
            async move { Tunnel::dial(frontend.packets().await?, "10.0.0.1:443").await }
        });
        until("the dial is sent", DEADLINE, || async { (stuck.dials() == 1).then_some(()) }).await?;
        let _quick = Scripted::start(&pair, go("quick"), QUICK).await?;
        within("the dial moves to the other agent", first).await???;
        pair.server().process.wait_said("packet unanswered, dials go to other agents").await?;
        for _ in 0..5 {
            dial(&pair).await?;
        }
        ensure!(stuck.dials() == 1, "a stuck agent gets no dials");
    }
    Ok(())
}
