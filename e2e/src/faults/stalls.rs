//! Readers and endpoints that stall or are slow, and endpoints that do not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::load::{Load, dialed, ensure_calm};
use super::{Base, Context, Times, alone, networked, within};
use crate::endpoints::{Endpoint, FullQueue};
use crate::exchange::works;
use crate::frontend::{Conn, Frontend, SharedConnection};
use crate::pair::{Pair, Setup};
use crate::payload::Payload;
use crate::wait::{DEADLINE, until, within_limit};

/// Growth of a process beside the counted bytes: the allocator's reserve.
const SPARE_MIB: u64 = 64;

/// Downloads of this payload, one after the other, are what the other readers do.
const DOWNLOAD: Payload = Payload::new(7, 256 << 10);

/// One of a hundred readers reads nothing, or one byte a second; the others keep their throughput.
pub(super) fn slow_reader(context: &Context) -> Result<Times> {
    const OTHERS: usize = 99;
    const WINDOW: Duration = Duration::from_millis(1_500);
    alone(async || {
        let pair = context.with(Setup::http_connect()).start().await?;
        let (source, endless) =
            (Endpoint::source(DOWNLOAD).await?, Endpoint::asked(Payload::new(8, 1 << 40)).await?);
        let base = Base::of(&pair)?;
        let carried = Arc::<AtomicU64>::default();
        let mut readers = JoinSet::new();
        for _ in 0..OTHERS {
            readers.spawn(download(pair.frontend().clone(), source.target(), Arc::clone(&carried)));
        }
        let throughput = async || {
            let before = carried.load(Ordering::Relaxed);
            sleep(WINDOW).await;
            carried.load(Ordering::Relaxed) - before
        };
        throughput().await;
        let mut kept = Vec::new();
        for bytes_per_second in [0, 1, 0] {
            let without = throughput().await;
            let mut conn = pair.frontend().dial(&endless.target()).await?;
            conn.write_all(b"!").await?;
            let slow = tokio::spawn(async move {
                while bytes_per_second > 0 && conn.read_u8().await.is_ok() {
                    sleep(Duration::from_secs(1)).await;
                }
                std::future::pending::<Conn>().await
            });
            // The slow one's window is full.
            sleep(WINDOW / 3).await;
            kept.push(throughput().await as f64 / without.max(1) as f64);
            slow.abort();
        }
        // Of three comparisons the median counts, because the machine disturbs single ones.
        kept.sort_unstable_by(f64::total_cmp);
        let kept = kept.get(1).copied().unwrap_or_default();
        ensure!(kept >= 0.95, "the others kept {:.0} % of their throughput", kept * 100.0);
        let ended = Instant::now();
        ensure!(readers.try_join_next().is_none(), "a download failed");
        readers.shutdown().await;
        base.back(context, &pair).await?;
        let recovered = ended.elapsed();
        let note = format!("others keep {:.0} %", kept * 100.0);
        Ok(Times { recovered: Some(recovered), noticed: None, note })
    })
}

async fn download(frontend: Frontend, target: String, carried: Arc<AtomicU64>) -> Result<()> {
    loop {
        let mut conn = frontend.dial(&target).await?;
        within_limit("a download", DEADLINE, DOWNLOAD.receive_all(&mut conn)).await??;
        carried.fetch_add(DOWNLOAD.length(), Ordering::Relaxed);
    }
}

/// Uploads to endpoints behind a link of 8 kbit/s. Without the limit they end with every byte.
pub(super) fn slow_endpoint(context: &Context) -> Result<Times> {
    const UPLOADS: usize = 20;
    const UPLOAD: Payload = Payload::new(3, 1 << 20);
    /// What both programs may hold for one connection.
    const HELD: u64 = (128 << 10) + (256 << 10);
    networked(1, async |network| {
        let pair = context.with(Setup::http_connect()).start().await?;
        let (slow, echo) = (Endpoint::sink_in(&network.far[0]).await?, Endpoint::echo().await?);
        let others = Load::start(pair.frontend(), &echo.target(), 4);
        let before = others.next(200).await?;
        let resident = pair.server().process.usage()?.rss_mib() + pair.agent().process.usage()?.rss_mib();
        let mut uploads = dialed(pair.frontend(), &slow.target(), UPLOADS).await?;
        let shape = ["tc", "qdisc", "add", "dev", "port1", "root", "tbf", "rate", "8kbit"];
        network.router.exec(&[&shape[..], &["burst", "2kb", "limit", "64kb"]].concat())?;
        let mut sending = JoinSet::new();
        for mut conn in uploads.drain(..) {
            sending.spawn(async move {
                UPLOAD.send(&mut conn).await?;
                conn.shutdown().await?;
                anyhow::Ok(conn)
            });
        }
        let beside = others.next(400).await?;
        ensure_calm(before, beside)?;
        ensure!(sending.try_join_next().is_none(), "an upload ended over 8 kbit/s");
        let grown = (pair.server().process.usage()?.rss_mib() + pair.agent().process.usage()?.rss_mib())
            .saturating_sub(resident);
        let most = ((UPLOADS as u64 * HELD) >> 20) + SPARE_MIB;
        ensure!(grown <= most, "the programs grew by {grown} MiB, not {most}");
        network.router.exec(&["tc", "qdisc", "del", "dev", "port1", "root"])?;
        let healed = Instant::now();
        let received = slow.wait_received(UPLOADS).await?;
        for upload in &received {
            UPLOAD.check(&upload.digest)?;
        }
        let recovered = healed.elapsed();
        Ok(Times {
            recovered: Some(recovered),
            noticed: None,
            note: format!("others' p99 {before:.1?} -> {beside:.1?}; +{grown} MiB"),
        })
    })
}

/// A thousand dials of an endpoint that drops SYNs, beside ordinary dials.
pub(super) fn syns_dropped(context: &Context) -> Result<Times> {
    const DIALS: usize = 1_000;
    alone(async || {
        let pair = context.with(Setup::http_connect()).start().await?;
        let (silent, echo) = (FullQueue::new()?, Endpoint::echo().await?);
        let base = Base::of(&pair)?;
        let others = Load::start(pair.frontend(), &echo.target(), 2);
        let before = others.next(100).await?;
        let (mut waiting, began) = (JoinSet::new(), Instant::now());
        for _ in 0..DIALS {
            let (frontend, target) = (pair.frontend().clone(), silent.target());
            waiting.spawn(async move {
                let began = Instant::now();
                let error = frontend.dial_error(&target).await?;
                anyhow::Ok((began.elapsed(), error.status()))
            });
        }
        let mut noticed = Duration::ZERO;
        while let Some(ended) = waiting.join_next().await {
            let (took, status) = ended??;
            ensure!(status == Some(504) || !context.is_native(), "a dropped SYN is {status:?}");
            noticed = noticed.max(took);
        }
        let beside = others.since(began, 200).await?;
        ensure!(noticed <= Duration::from_millis(5_500), "the last answer came after {noticed:.2?}");
        ensure_calm(before.min(Duration::from_millis(25)), beside)?;
        let ended = Instant::now();
        drop(others);
        base.back(context, &pair).await?;
        Ok(Times::new(noticed, ended.elapsed()).note(format!("others' p99 {before:.1?} -> {beside:.1?}")))
    })
}

/// Ten thousand connections, as streams of one gRPC connection, whose clients read nothing.
pub(super) fn ten_thousand_stalled(context: &Context) -> Result<Times> {
    const COUNT: usize = 10_000;
    const LIMIT_MIB: u64 = 512;
    /// Of the connections themselves, in the server and the agent.
    const EACH_KIB: u64 = 32;
    alone(async || {
        let setup = Setup::grpc()
            .server_arg(format!("--memory-limit={LIMIT_MIB}Mi"))
            .agent_arg(format!("--memory-limit={LIMIT_MIB}Mi"));
        let pair = context.with(setup).start().await?;
        let (source, echo) = (Endpoint::source(Payload::new(7, 1 << 20)).await?, Endpoint::echo().await?);
        let shared = SharedConnection::open(pair.frontend(), 16 << 10).await?;
        let (mut stalled, mut refused) = (Vec::with_capacity(COUNT), 0);
        while stalled.len() + refused < COUNT {
            let mut dials = JoinSet::new();
            for _ in 0..50 {
                let (shared, target) = (shared.clone(), source.target());
                dials.spawn(async move { shared.dial(&target).await });
            }
            while let Some(dialed) = dials.join_next().await {
                match dialed? {
                    Ok(conn) => stalled.push(conn),
                    Err(error) if error.text().contains("--memory-limit") => refused += 1,
                    Err(error) => return Err(error).context("a dial that stalls"),
                }
            }
        }
        let began = Instant::now();
        until("a dial beside them", DEADLINE, || async { works(pair.frontend(), &echo.target()).await.ok() })
            .await?;
        let recovered = within("a dial succeeded", began, Duration::from_secs(10))?;
        within_limit("full queues", DEADLINE * 4, filled(&pair)).await??;
        let most = LIMIT_MIB + LIMIT_MIB / 4 + ((COUNT as u64 * EACH_KIB) >> 10) + SPARE_MIB;
        let resident = [pair.server().process.usage()?.rss_mib(), pair.agent().process.usage()?.rss_mib()];
        ensure!(resident.iter().all(|mib| *mib <= most), "{resident:?} MiB resident, not {most}");
        drop((stalled, shared));
        at_rest(&pair).await?;
        let note = format!("{} MiB and {} MiB; {refused} dials refused", resident[0], resident[1]);
        Ok(Times { recovered: Some(recovered), noticed: None, note })
    })
}

/// Returns when the server's queues have stopped growing for a second.
async fn filled(pair: &Pair) -> Result<()> {
    let mut most = 0.0;
    loop {
        let queued = pair.server().metric("queued_bytes", &[]).await?;
        if queued <= most {
            return Ok(());
        }
        most = queued;
        sleep(Duration::from_secs(1)).await;
    }
}

async fn at_rest(pair: &Pair) -> Result<()> {
    pair.server().wait_metric("established_connections", &[], 0.0).await?;
    pair.server().wait_metric("queued_bytes", &[], 0.0).await?;
    pair.agent().wait_metric("open_endpoint_connections", &[], 0.0).await.map(drop)
}
