//! Unsent bytes between agents and servers; and the emulated wide area network itself: it delays, drops, queues and interrupts
//! as configured.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::endpoints::Endpoint;
use e2e::figures::say;
use e2e::frontend::{Mode, Place};
use e2e::netns::if_possible;
use e2e::pair::{Front, Setup};
use e2e::program::Program;
use e2e::sockets::options;
use e2e::wait::{DEADLINE, until};
use e2e::wan::{Bulk, Cell, Conditions, Event, FAR, Subject, Timing, WideArea, measure};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

const MBIT: u64 = 1_000_000;

/// A path, or `None` if this machine has no namespaces or no TUN devices. In CI an error is returned instead.
fn area(conditions: &Conditions) -> Result<Option<WideArea>> {
    if_possible("SKIPPED: no wide area network can be emulated here", WideArea::new(conditions))
}

fn conditions(rtt: u64, loss: f64, rate: u64) -> Conditions {
    let rtt = Duration::from_millis(rtt);
    Conditions { rtt, loss, reorder: 0.0, rate, congestion_control: "reno".into(), seed: 1 }
}

/// A socket on the near side, connected to one on the far side.
async fn sockets(area: &WideArea) -> Result<(UdpSocket, UdpSocket)> {
    let far = area.far.enter(|| Ok(std::net::UdpSocket::bind((FAR, 0))?))?;
    far.set_nonblocking(true)?;
    let far = UdpSocket::from_std(far)?;
    let near = UdpSocket::bind((area.near.address, 0)).await?;
    near.connect(far.local_addr()?).await?;
    Ok((near, far))
}

/// Waits until this number of packets has left the path or was lost.
async fn settled(area: &WideArea, packets: u64) -> Result<()> {
    let count = || {
        let (arrived, lost) = area.counts();
        (arrived + lost >= packets).then_some(())
    };
    until("packets that arrived or were lost", DEADLINE, || async { count() }).await
}

/// The shortest of several round trips.
async fn shortest(near: &UdpSocket, far: &UdpSocket) -> Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..20 {
        let sent = Instant::now();
        near.send(&[7; 64]).await?;
        let echo = async {
            let (size, peer) = far.recv_from(&mut [0; 64]).await?;
            far.send_to(&[7; 64][..size], peer).await?;
            near.recv(&mut [0; 64]).await
        };
        timeout(DEADLINE, echo).await.context("no echo")??;
        least = least.min(sent.elapsed());
    }
    Ok(least)
}

#[test]
fn round_trip_is_as_long_as_it_is_set() -> Result<()> {
    let Some(area) = area(&conditions(40, 0.0, 200 * MBIT))? else { return Ok(()) };
    area.near.block_on(|| async {
        let (near, far) = sockets(&area).await?;
        for millis in [40, 10, 80] {
            let rtt = Duration::from_millis(millis);
            area.set_rtt(rtt);
            let least = shortest(&near, &far).await?;
            ensure!((rtt..rtt + Duration::from_millis(25)).contains(&least), "{rtt:?}: {least:?}");
        }
        Ok(())
    })
}

#[test]
fn loss_and_blackouts_are_as_they_are_set() -> Result<()> {
    const PACKETS: u64 = 3_000;
    let Some(area) = area(&conditions(2, 0.2, 200 * MBIT))? else { return Ok(()) };
    area.near.block_on(|| async {
        let (near, _far) = sockets(&area).await?;
        for batch in 1..=PACKETS / 50 {
            for _ in 0..50 {
                near.send(&[7; 64]).await?;
            }
            settled(&area, 50 * batch).await?;
        }
        let (arrived, lost) = area.counts();
        ensure!((PACKETS * 17 / 100..PACKETS * 23 / 100).contains(&lost), "{lost} lost, {arrived} arrived");
        area.set_blackout(true);
        for _ in 0..50 {
            near.send(&[7; 64]).await?;
        }
        settled(&area, arrived + lost + 50).await?;
        ensure!(area.counts().0 == arrived, "{arrived} arrived before, {} now", area.counts().0);
        Ok(())
    })
}

#[test]
fn burst_is_sent_at_the_rate_and_the_excess_is_lost() -> Result<()> {
    let rate = 10 * MBIT;
    let Some(area) = area(&conditions(20, 0.0, rate))? else { return Ok(()) };
    area.near.block_on(|| async {
        let (near, _far) = sockets(&area).await?;
        let began = Instant::now();
        for _ in 0..300 {
            // 1,500 bytes with both headers.
            near.send(&[7; 1472]).await?;
        }
        settled(&area, 300).await?;
        let (took, (arrived, lost)) = (began.elapsed(), area.counts());
        ensure!(arrived >= 100 && lost > 0, "{arrived} arrived, {lost} lost");
        // The kernel's own small packets are counted, but take no time.
        let least = Duration::from_micros((arrived - 10) * 1500 * 8 * 1_000_000 / rate);
        ensure!(took >= least, "{arrived} packets in {took:?}, {least:?} at least");
        Ok(())
    })
}

/// An endpoint or a client may stall, and then it holds kernel memory, so its unsent bytes have a fixed limit. On the connection
/// between agent and server a fixed limit would let a fast path run dry.
#[tokio::test]
async fn connections_to_endpoints_and_clients_have_a_fixed_bound_of_unsent_bytes() -> Result<()> {
    const FIXED: u32 = 128 << 10;
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let pair = Setup::new(mode, Front::Tls).start().await?;
        let endpoint = Endpoint::echo().await?;
        let _conn = pair.frontend().dial(&endpoint.target()).await?;
        let port = endpoint.address().port();
        let Place::Tls(frontend) = pair.frontend().place else { bail!("not a port") };
        let bounds = |pid, port| options(pid, port, |socket| socket.tcp_notsent_lowat());
        let (server, agent) = (pair.server().process.pid(), pair.agent().process.pid());
        let (endpoints, servers) = (bounds(agent, port)?, bounds(agent, pair.server().agent_port())?);
        let clients = bounds(server, frontend.port())?;
        ensure!(endpoints.iter().eq([&FIXED]), "to endpoints: {endpoints:?}");
        ensure!(clients.iter().eq([&FIXED]), "to clients: {clients:?}");
        ensure!(!servers.is_empty() && !servers.contains(&FIXED), "to servers: {servers:?}");
    }
    Ok(())
}

/// A ping waits for the path's queue, which holds 150 ms here, and for little else: half a megabyte before it would add half a
/// second.
#[test]
fn ping_beside_a_download_waits_for_the_path_and_not_for_the_programs() -> Result<()> {
    let conditions = conditions(20, 0.0, 8 * MBIT);
    if area(&conditions)?.is_none() {
        return Ok(());
    }
    let cell = Cell { conditions, bulk: Bulk::Down(1), event: Event::None, dials: false };
    let subject =
        Subject::pair("native", &Program::Server.path()?, &Program::Agent.path()?, Mode::HttpConnect, &[]);
    let second = Duration::from_secs(1);
    let figures =
        measure(&cell, &subject, Timing { warm_up: 2 * second, measured: 3 * second, grace: second })?;
    say("a ping beside a download at 8 Mbit/s", format!("{figures:?}"));
    ensure!(figures.ping_p50 < 500.0, "{figures:?}");
    Ok(())
}
