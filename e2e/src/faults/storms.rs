//! Thousands of clients and agents at once.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Context, Times, alone, within};
use crate::endpoints::Endpoint;
use crate::exchange::works;
use crate::figures::percentile;
use crate::frontend::{Mode, SharedConnection};
use crate::pair::{Front, Setup};
use crate::scale::{Auth, Fleet, Plan};
use crate::wait::within_limit;

/// Time limit of each storm.
const ALL_UP: Duration = Duration::from_secs(60);

/// Ten thousand connections at once, half of them by HTTP CONNECT (a descriptor each in this process) and half as streams of one
/// gRPC connection; then two thousand agents at once.
pub(super) fn storms(context: &Context) -> Result<Times> {
    const CONNECTIONS: usize = 10_000;
    const AGENTS: usize = 2_000;
    const ENDPOINTS: usize = 16;
    alone(async || {
        let setup = Setup::http_connect()
            .and(Mode::Grpc, Front::Unix)
            .server_arg("--proxy-strategies=defaultRoute")
            .agent("steady", "default-route=true");
        let pair = context.with(setup).start().await?;
        // One accept queue (1,024) would overflow: the kernel then drops handshakes' last segments and, for tens of seconds, FINs.
        let mut endpoints = Vec::new();
        for _ in 0..ENDPOINTS {
            endpoints.push(Endpoint::echo().await?);
        }
        let shared = SharedConnection::open(pair.server().further.first().context("gRPC")?, 16 << 10).await?;
        let began = Instant::now();
        let mut dials = JoinSet::new();
        for number in 0..CONNECTIONS {
            let (frontend, shared, target) =
                (pair.frontend().clone(), shared.clone(), endpoints[number / 2 % ENDPOINTS].target());
            dials.spawn(async move {
                match number % 2 {
                    0 => frontend.dial(&target).await,
                    _ => shared.dial(&target).await,
                }
            });
        }
        let mut conns = Vec::with_capacity(CONNECTIONS);
        let up = async {
            while let Some(conn) = dials.join_next().await {
                conns.push(conn??);
            }
            anyhow::Ok(())
        };
        within_limit("all connections", ALL_UP, up).await??;
        let connected = within("all connections were up", began, ALL_UP)?;
        drop(conns);
        for endpoint in &endpoints {
            endpoint.wait_open(0).await?;
        }
        let (agents, p99) = agents(&pair, &endpoints[0], AGENTS).await?;
        Ok(Times::new(connected, agents).note(format!("dials beside {AGENTS} agents p99 {p99:.1?}")))
    })
}

/// Connects light agents at once, beside a client that dials through the steady one.
async fn agents(pair: &crate::pair::Pair, endpoint: &Endpoint, count: usize) -> Result<(Duration, Duration)> {
    let plan = Plan { server: pair.server().agent_address(), first: 0, count, auth: Auth::Certificate };
    // Their handshakes would delay the client's own tasks, so they run on a thread of their own.
    let elsewhere = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (began, mut times) = (Instant::now(), Vec::new());
    let fleet = {
        let _entered = elsewhere.enter();
        Fleet::start(&plan, pair.folder())?
    };
    while fleet.connected() < count {
        let dialed = Instant::now();
        works(pair.frontend(), &endpoint.target()).await?;
        times.push(dialed.elapsed());
        within("the agents were up", began, ALL_UP)?;
    }
    let all = began.elapsed();
    drop(fleet);
    elsewhere.shutdown_background();
    let p99 = percentile(&mut times, 99).unwrap_or_default();
    ensure!(p99 <= Duration::from_millis(250), "dials beside {count} agents: p99 {p99:.1?}");
    Ok((all, p99))
}
