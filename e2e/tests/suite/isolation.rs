//! A stalled connection delays only itself, whichever side stalls.

use anyhow::Result;
use e2e::endpoints::Endpoint;
use e2e::exchange::echoed;
use e2e::figures::say;
use e2e::frontend::Mode;
use e2e::pair::{FRONTS, Front, Setup};
use e2e::payload::Payload;
use e2e::stalls::{
    FlowControl, UNDELAYED, beside_stalls, no_connection_was_reset, others_are_served, stalled_endpoints,
    stalled_readers,
};
use e2e::wait::within;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::statusz::wait_status;

#[tokio::test]
async fn stalled_reader_does_not_delay_others() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let stalled = stalled_readers(&pair, 20).await?;
        others_are_served(&pair, UNDELAYED).await?;
        no_connection_was_reset(&pair).await?;
        drop(stalled);
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn stalled_endpoint_does_not_delay_others() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let (endpoint, clients) = stalled_endpoints(&pair, 20).await?;
        others_are_served(&pair, UNDELAYED).await?;
        no_connection_was_reset(&pair).await?;
        // The endpoints' sockets close with unread bytes, which resets them.
        drop((clients, endpoint));
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

/// A stalled reader gets every byte when it reads again, however long it waited.
#[tokio::test]
async fn reader_that_resumes_gets_everything() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let pair = Setup::new(mode, Front::Unix).start().await?;
        let payload = Payload::new(5, 16 << 20);
        let endpoint = Endpoint::source(payload).await?;
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        others_are_served(&pair, UNDELAYED).await?;
        // A slow reader that holds up its stream is reset after two to four seconds.
        wait_status(pair.server().admin, "a stall", |status| {
            status.connections.iter().any(|one| one.stalled_seconds.is_some_and(|stall| stall >= 5.0))
        })
        .await?;
        no_connection_was_reset(&pair).await?;
        within("everything", payload.receive_all(&mut conn)).await??;
    }
    Ok(())
}

/// A thousand of each with CONNECT, and a hundred with gRPC, because the windows of gRPC clients take 1 MiB each in this
/// process. The nightly run uses a thousand for both: `endurance stalls`.
#[tokio::test]
async fn thousand_stalled_readers_do_not_delay_others() -> Result<()> {
    let figures = beside_stalls(Setup::http_connect(), FlowControl::BOTH, 1_000).await?;
    say("a thousand stalled, http-connect", &figures);
    figures.check()
}

#[tokio::test]
async fn hundred_stalled_readers_do_not_delay_others_by_grpc() -> Result<()> {
    let figures = beside_stalls(Setup::grpc(), FlowControl::BOTH, 100).await?;
    say("a hundred stalled, grpc", &figures);
    figures.check()
}

/// If segments are larger than a socket's share of scarce TCP memory, the link becomes very slow for all of its connections.
#[tokio::test]
async fn the_agent_port_bounds_its_segments() -> Result<()> {
    let pair = Setup::new(Mode::Grpc, Front::Unix).start().await?;
    let stream = TcpStream::connect(pair.server().agent_address()).await?;
    let largest = SockRef::from(&stream).tcp_mss()?;
    anyhow::ensure!(largest <= 32_000, "segments of {largest} bytes");
    Ok(())
}

/// Runs several pairs concurrently in which at least one program has no connection flow control.
async fn without_flow_control(mode: Mode, cases: &[FlowControl], count: usize, args: &[&str]) -> Result<()> {
    let mut running = JoinSet::new();
    for &flow_control in cases {
        let setup =
            args.iter().fold(flow_control.setup(mode), |setup, arg| setup.server_arg(*arg).agent_arg(*arg));
        running.spawn(beside_stalls(setup, flow_control, count));
    }
    while let Some(figures) = running.join_next().await {
        let figures = figures??;
        say(&format!("{count} stalled, {}", mode.flag()), &figures);
        figures.check()?;
    }
    Ok(())
}

/// A stalled connection is reset, and the others continue.
#[tokio::test]
async fn without_flow_control_a_stalled_reader_is_reset_and_others_go_on() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        without_flow_control(mode, &FlowControl::NOT_BOTH, 1, &[]).await?;
    }
    Ok(())
}

/// The limit is 1 MiB for each connection here, so that stalls take effect soon. The nightly run uses a thousand connections
/// with 8 MiB, and every combination of programs without flow control: `endurance stalls`.
#[tokio::test]
async fn without_flow_control_hundred_stalled_readers_do_not_delay_others_by_grpc() -> Result<()> {
    let neither = FlowControl { server: false, agent: false };
    without_flow_control(Mode::Grpc, &[neither], 100, &["--connection-memory-limit=1Mi"]).await
}

#[tokio::test]
async fn without_flow_control_hundred_stalled_readers_do_not_delay_others_by_http_connect() -> Result<()> {
    let args = ["--connection-memory-limit=1Mi"];
    without_flow_control(Mode::HttpConnect, &FlowControl::NOT_BOTH, 100, &args).await
}

/// At the limit the largest stalled connections are reset, and new dials are refused with a reason.
#[tokio::test]
async fn memory_stays_below_its_limit() -> Result<()> {
    let pair = Setup::http_connect().server_arg("--memory-limit=16Mi").start().await?;
    let limit = f64::from(16_u32 << 20);
    anyhow::ensure!(pair.server().metric("queued_bytes_limit", &[]).await? == limit, "the limit is shown");
    let endpoint = Endpoint::source(Payload::new(7, 64 << 20)).await?;
    let mut conns = Vec::new();
    let mut refused = 0;
    for _ in 0..300 {
        match pair.frontend().dial(&endpoint.target()).await {
            Ok(conn) => conns.push(conn),
            Err(error) => {
                anyhow::ensure!(error.text().contains("--memory-limit"), "refused with {}", error.text());
                refused += 1;
                break;
            }
        }
        let queued = pair.server().metric("queued_bytes", &[]).await?;
        anyhow::ensure!(queued <= limit * 1.25, "{queued} bytes wait");
    }
    anyhow::ensure!(refused > 0, "300 stalled connections and no dial was refused");
    drop(conns);
    pair.server().wait_metric("queued_bytes", &[], 0.0).await?;
    echoed(pair.frontend(), &Endpoint::echo().await?.target(), Payload::new(1, 1_000)).await
}

/// Bytes for endpoints that do not read fill the agent's limit.
#[tokio::test]
async fn agent_near_its_memory_limit_refuses_dials() -> Result<()> {
    let pair = Setup::http_connect().agent_arg("--memory-limit=16Mi").start().await?;
    let mut stalled = Vec::new();
    for _ in 0..300 {
        match stalled_endpoints(&pair, 1).await {
            Ok(another) => stalled.push(another),
            Err(error) => {
                let text = format!("{error:#}");
                anyhow::ensure!(text.contains("--memory-limit"), "refused with {text}");
                let agent = pair.agent();
                agent.wait_metric("endpoint_dial_failure_total", &[("reason", "unknown")], 1.0).await?;
                return Ok(());
            }
        }
    }
    anyhow::bail!("300 stalled endpoints and no dial was refused")
}
