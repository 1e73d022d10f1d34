//! Peers that send bodies before they are authenticated. The server holds little of them, others are served meanwhile, and the
//! memory comes back.

use anyhow::{Result, ensure};
use bytes::Bytes;
use e2e::endpoints::Endpoint;
use e2e::frontend::{Conn, Io, tls_socket};
use e2e::pair::Pair;
use e2e::wait::{DEADLINE, until, within};
use e2e::wild::{SmallFrames, endless};
use fake_apiserver::Fault;
use http::{HeaderMap, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::tokens::{USER, World};

/// What the server's allocator and its log may take beside what is asserted, in MiB.
const SPARE: u64 = 24;

/// One client that uses an echo beside the attackers, and what the server's memory was before them.
struct Bystander {
    conn: Conn,
    _endpoint: Endpoint,
    before: u64,
}

fn resident_mib(pair: &Pair) -> Result<u64> {
    Ok(pair.server().process.usage()?.rss_kib >> 10)
}

impl Bystander {
    async fn begin(pair: &Pair) -> Result<Self> {
        let endpoint = Endpoint::echo().await?;
        let conn = pair.frontend().dial(&endpoint.target()).await?;
        let mut bystander = Self { conn, _endpoint: endpoint, before: resident_mib(pair)? };
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

    /// It is served, and the server has grown by so many MiB at most.
    async fn check(mut self, pair: &Pair, most: u64) -> Result<()> {
        self.ping().await?;
        let grown = resident_mib(pair)?.saturating_sub(self.before);
        ensure!(grown <= most + SPARE, "the server has grown by {grown} MiB, not {most}");
        Ok(())
    }
}

/// The attackers leave: what they held is given back.
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

/// Connections to the agent port that present tokens nobody can judge, and send `bytes` on each stream meanwhile.
async fn under_review(
    pair: &Pair,
    count: usize,
    streams: usize,
    bytes: Bytes,
    frame: usize,
) -> Result<Vec<SmallFrames>> {
    let meta = headers(&[("agentid", "a"), ("authorization", "Bearer unknown")])?;
    let mut sending = JoinSet::new();
    for _ in 0..count {
        let socket = agent_port(pair).await?;
        let mut peer = SmallFrames::open(socket, "/AgentService/Connect", &meta, streams, 0).await?;
        let bytes = bytes.clone();
        sending.spawn(async move {
            peer.send(&bytes, frame).await;
            peer
        });
    }
    Ok(sending.join_all().await)
}

/// A pair whose agent is known, and whose server is told nothing about other tokens from now on.
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
    let bystander = Bystander::begin(&pair).await?;
    let before = bystander.before;
    let peers = under_review(&pair, 24, 8, endless(1 << 20), 16 << 10).await?;
    bystander.check(&pair, 24 * 2).await?;
    recovers(&pair, before, peers).await
}
