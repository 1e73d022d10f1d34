//! The API server is stopped for longer than the duration of a lease. Runs alone, because all cases use this API server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::adversarial::connect_with_token;
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::payload::Payload;
use e2e::process::Signal;
use e2e::wait::{DEADLINE, until};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::world::World;

/// Duration of the stop: leases last 30 s and are renewed every 15 s.
const STILL: Duration = Duration::from_secs(50);

/// Resumes the API server when the case ends, with any result.
struct Stopped(Arc<World>);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.cluster.apiserver().process.signal(Signal::CONT);
    }
}

/// Whether every thread of a process is stopped.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

pub(crate) async fn a_standstill_of_the_api_changes_nothing(world: Arc<World>) -> Result<()> {
    let installation = world.install("outage").await?;
    let (known, new) = (
        installation.agent_token("agent", "node-1").await?,
        installation.agent_token("agent", "node-2").await?,
    );
    let path = installation.file("token", &known)?;
    let mut setup = installation.with_tokens().await?.servers(2).agents(1);
    for arg in ["--enable-lease-controller", "--server-count=1", "--lease-namespace=outage"] {
        setup = setup.server_arg(arg);
    }
    setup = setup
        .agent_arg(format!("--service-account-token-path={path}"))
        .agent_arg("--count-server-leases")
        .agent_arg("--lease-namespace=outage")
        .agent_arg(format!("--kubeconfig={}", installation.kubeconfig("agent").await?.display()));
    let pair = setup.start().await?;
    let endpoint = Endpoint::echo().await?;
    let conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;

    world.cluster.apiserver().process.signal(Signal::STOP)?;
    let stopped = Stopped(Arc::clone(&world));
    let pid = world.cluster.apiserver().process.pid();
    until("a standstill", DEADLINE, || async { stands_still(pid).then_some(()) }).await?;
    let began = Instant::now();
    let connect = async |token: &str| connect_with_token(&pair, "late", "", token).await;
    drop(connect(&known).await??);
    let refused = connect(&new).await?.err().map(|status| status.code());
    assert_eq!(refused, Some(Code::Unavailable), "after {:?}", began.elapsed());
    let mut looks = 0;
    while began.elapsed() < STILL {
        let scrape = pair.agent().metrics().await?;
        let count = |name: &str| scrape.value(&format!("konnectivity_network_proxy_agent_{name}"), &[]);
        let (known, open) = (count("known_server_count"), count("open_server_connections"));
        ensure!(
            (known, open) == (2.0, 2.0),
            "{known} servers and {open} streams after {:?}",
            began.elapsed()
        );
        looks += 1;
        sleep(Duration::from_secs(1)).await;
    }
    ensure!(looks > 10, "{looks} looks");
    for server in &pair.servers {
        works(&server.frontend, &endpoint.target()).await?;
    }
    drop(stopped);

    until("the new agent", DEADLINE, || async { connect(&new).await.ok()?.ok() }).await.map(drop)?;
    // No server deletes leases that could not be renewed, and the count does not fall until they are renewed.
    let returned = Instant::now();
    while returned.elapsed() < Duration::from_secs(20) {
        let known = pair.agent().metric("known_server_count", &[]).await?;
        ensure!(known == 2.0, "{known} servers {:?} after the return", returned.elapsed());
        sleep(Duration::from_secs(1)).await;
    }
    let mut holders = installation.holders().await?;
    holders.sort();
    assert_eq!(holders, ["server-0", "server-1"]);
    echo(conn, Payload::new(2, 100_000)).await.map(drop)
}
