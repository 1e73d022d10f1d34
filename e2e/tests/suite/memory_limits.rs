//! Adversarial peers that fill the server's memory: before authentication, and with frames of a few bytes. The server's memory
//! stays within a limit, and the server serves other clients meanwhile.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use e2e::adversarial::{CONNECT, SmallFrames, endless};
use e2e::endpoints::Endpoint;
use e2e::figures::{percentile, say};
use e2e::floods::{Flood, Kind, SPARE};
use e2e::frontend::{Conn, Io, tls_socket};
use e2e::pair::Pair;
use e2e::wait::{DEADLINE, until, within};
use fake_apiserver::Fault;
use http::{HeaderMap, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::tokens::{USER, World};
use crate::unauthenticated_peers::ensure_prompt;

/// A client that uses an echo during the attack, and the server's memory before the attack and its maximum, in MiB.
struct Bystander {
    conn: Conn,
    _endpoint: Endpoint,
    before: u64,
    most: u64,
}

fn resident_mib(pair: &Pair) -> Result<u64> {
    Ok(pair.server().process.usage()?.rss_mib())
}

impl Bystander {
    async fn begin(pair: &Pair) -> Result<Self> {
        let endpoint = Endpoint::echo().await?;
        let conn = pair.frontend().dial(&endpoint.target()).await?;
        let mut bystander = Self { conn, _endpoint: endpoint, before: resident_mib(pair)?, most: 0 };
        bystander.ping().await?;
        Ok(bystander)
    }

    async fn ping(&mut self) -> Result<()> {
        within("a ping", async {
            self.conn.write_all(b"!").await?;
            self.conn.flush().await?;
            self.conn.read_u8().await
        })
        .await??;
        Ok(())
    }

    /// Pings until the attack is over. Nine tenths of the pings stay prompt.
    async fn beside<T>(&mut self, pair: &Pair, attack: impl Future<Output = Result<T>>) -> Result<T> {
        let mut times = [Vec::new(), Vec::new()];
        let mut attack = pin!(attack);
        let mut done = None;
        while done.is_none() || times[1].len() < 20 {
            let now = usize::from(times[0].len() >= 100);
            let began = Instant::now();
            self.ping().await?;
            times[now].push(began.elapsed());
            if now == 0 {
                continue;
            }
            self.most = self.most.max(resident_mib(pair)?);
            let pause = sleep(Duration::from_millis(2));
            tokio::select! {
                result = &mut attack, if done.is_none() => done = Some(result?),
                () = pause => {}
            }
        }
        let [before, beside] = times.each_mut().map(|times| percentile(times, 90).unwrap_or_default());
        say("attack", format!("ping p90: {before:?} -> {beside:?}"));
        ensure_prompt(before, beside)?;
        done.context("an attack that ended")
    }

    /// Checks that the server serves this client, and that its memory has never grown by more than `most` MiB.
    async fn check(mut self, pair: &Pair, most: u64) -> Result<()> {
        self.ping().await?;
        let grown = self.most.max(resident_mib(pair)?).saturating_sub(self.before);
        ensure!(grown <= most + SPARE, "the server has grown by {grown} MiB, not {most}");
        Ok(())
    }
}

/// Disconnects the attackers, and waits until the server has freed their memory.
async fn recovers(pair: &Pair, before: u64, attackers: Vec<SmallFrames>) -> Result<()> {
    drop(attackers);
    until("memory given back", DEADLINE, async || {
        resident_mib(pair).is_ok_and(|now| now <= before + 2 * SPARE).then_some(())
    })
    .await
}

fn headers(pairs: &[(&'static str, &str)]) -> Result<HeaderMap> {
    pairs.iter().map(|(name, value)| Ok(((*name).parse()?, HeaderValue::try_from(*value)?))).collect()
}

async fn agent_port(pair: &Pair) -> Result<Box<dyn Io>> {
    Ok(Box::new(tls_socket(pair.server().agent_address(), pair.pki.agent_client()?).await?))
}

/// Connects to the agent port with tokens whose review hangs, opens streams with `open`, and sends `bytes` on each meanwhile.
async fn under_review<F: Future<Output = Result<SmallFrames>>>(
    pair: &Pair,
    count: usize,
    open: impl Fn(Box<dyn Io>, HeaderMap) -> F,
    bytes: Bytes,
    frame: usize,
) -> Result<Vec<SmallFrames>> {
    let meta = headers(&[("agentid", "a"), ("authorization", "Bearer unknown")])?;
    let mut sending = JoinSet::new();
    for _ in 0..count {
        let mut peer = open(agent_port(pair).await?, meta.clone()).await?;
        let bytes = bytes.clone();
        sending.spawn(async move {
            peer.send(&bytes, frame).await;
            peer
        });
    }
    Ok(sending.join_all().await)
}

/// A pair with an authenticated agent. From now on the API server answers no token review.
async fn while_reviews_hang(limit: &str) -> Result<(World, Pair)> {
    let world = World::new().await?;
    world.knows("known", USER, "node-1");
    let pair = world.setup("known")?.server_arg(format!("--memory-limit={limit}")).start().await?;
    world.api.set_fault("tokenreviews", Fault::Hang);
    Ok((world, pair))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_body_is_not_held_while_its_token_is_reviewed() -> Result<()> {
    let (_world, pair) = while_reviews_hang("32Mi").await?;
    let mut bystander = Bystander::begin(&pair).await?;
    let before = bystander.before;
    let open = async |socket, meta| SmallFrames::open(socket, CONNECT, &meta, 8, 0).await;
    let peers = bystander.beside(&pair, under_review(&pair, 24, open, endless(1 << 20), 16 << 10)).await?;
    bystander.check(&pair, 24 * 2).await?;
    recovers(&pair, before, peers).await
}

/// HTTP/2's first windows admit 65,535 frames from a peer that does not acknowledge the server's windows.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn frames_of_a_byte_are_not_held_before_admission() -> Result<()> {
    let (_world, pair) = while_reviews_hang("128Mi").await?;
    let mut bystander = Bystander::begin(&pair).await?;
    let before = bystander.before;
    let open = async |socket, meta| SmallFrames::open_unread(socket, CONNECT, &meta).await;
    let peers = bystander.beside(&pair, under_review(&pair, 10, open, endless(60_000), 1)).await?;
    bystander.check(&pair, 0).await?;
    recovers(&pair, before, peers).await
}

/// Runs a flood beside a client that pings and dials. The server grows by at most `most` MiB, and nine tenths of the pings and
/// dials stay prompt.
async fn flooded(kind: Kind, peers: usize, pieces: usize, most: u64) -> Result<()> {
    let flood = Flood { kind, peers, pieces, elsewhere: false };
    let outcome = flood.run("128Mi").await?;
    say("flood", format!("{flood:?}: {outcome}"));
    ensure!(outcome.grown() <= most + SPARE, "the server has grown by {} MiB, not {most}", outcome.grown());
    ensure!(outcome.kept() <= SPARE, "the server keeps {} MiB after the flood", outcome.kept());
    let refused = match kind {
        Kind::AgentsWithFragments | Kind::ClientsWithoutADial => peers,
        _ => 0,
    };
    ensure!(outcome.ended == refused, "the server has ended {} of {peers} streams", outcome.ended);
    for times in [&outcome.pings, &outcome.dials] {
        let [before, beside] = times.each_ref().map(|times| times.percentile(90));
        ensure_prompt(before, beside)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_stream_that_stands_still_is_held_at_its_bytes() -> Result<()> {
    flooded(Kind::AgentsThatReadNothing, 8, 100_000, 64).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stray_data_of_agents_is_read_and_not_held() -> Result<()> {
    flooded(Kind::AgentsWithStrayData, 8, 60_000, 4).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_with_frames_of_a_byte_are_not_read_on() -> Result<()> {
    flooded(Kind::AgentsWithFragments, 4, 150_000, 4).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_messages_to_a_stalled_endpoint_are_held_at_their_bytes() -> Result<()> {
    flooded(Kind::ClientsOfAStalledEndpoint, 32, 4_000, 32).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_frames_of_a_byte_are_not_read_on() -> Result<()> {
    flooded(Kind::ClientsWithoutADial, 4, 250_000, 4).await
}
