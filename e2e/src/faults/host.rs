//! The host: descriptors, the clock, the disk of the log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fake_apiserver::FakeApi;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::load::Load;
use super::{Base, Context, Times, alone, within};
use crate::endpoints::Endpoint;
use crate::exchange::{echo, works};
use crate::metrics::SERVER;
use crate::pair::{Pair, Setup};
use crate::payload::Payload;
use crate::process::Process;
use crate::program::{Program, script};
use crate::wait::{DEADLINE, until};

/// The soft limit of open descriptors of a process. Dropping it restores the limit.
struct Descriptors(Option<Pid>, Rlimit);

impl Descriptors {
    fn limit(process: &Process, open: usize) -> Result<Self> {
        let pid = i32::try_from(process.pid()).ok().and_then(Pid::from_raw);
        let open = open as u64;
        let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
        Ok(Self(pid, prlimit(pid, Resource::Nofile, Rlimit { current: Some(open), maximum: hard })?))
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = prlimit(self.0, Resource::Nofile, Rlimit { ..self.1 });
    }
}

/// The agent has 64 descriptors left for endpoints, then the server has none for clients.
pub(super) fn descriptors(context: &Context) -> Result<Times> {
    const LEFT: usize = 64;
    alone(async || {
        let pair = context.with(Setup::http_connect()).start().await?;
        let endpoint = Endpoint::echo().await?;
        works(pair.frontend(), &endpoint.target()).await?;
        let base = Base::of(&pair)?;
        let limited =
            Descriptors::limit(&pair.agent().process, pair.agent().process.usage()?.descriptors + LEFT)?;
        let (mut conns, began) = (Vec::new(), Instant::now());
        let refusal = loop {
            match pair.frontend().dial(&endpoint.target()).await {
                Ok(conn) => conns.push(conn),
                Err(error) => break error,
            }
            // Some of the descriptors that were counted as open belonged to a scrape.
            ensure!(conns.len() < LEFT * 2, "{} connections with {LEFT} descriptors", conns.len());
        };
        let noticed = began.elapsed();
        ensure!(refusal.status() == Some(503) || !context.is_native(), "refused by {refusal}");
        let cpu = knocked(&pair, &endpoint).await?;
        ensure!(cpu <= 5.0, "{cpu:.1} % of a CPU without descriptors");
        conns.truncate(1);
        let healed = Instant::now();
        until("a dial", DEADLINE, || async { works(pair.frontend(), &endpoint.target()).await.ok() }).await?;
        let recovered = within("dials worked", healed, Duration::from_secs(1))?;
        drop(limited);
        let conn = conns.pop().context("a connection")?;
        drop(echo(conn, Payload::new(1, 1 << 20)).await.context("a connection from before")?);
        base.back(context, &pair).await?;
        Ok(Times::new(noticed, recovered).note(format!("{cpu:.1} % CPU")))
    })
}

/// Clients connect to a server that has no descriptors; returns its CPU time meanwhile, in percent.
async fn knocked(pair: &Pair, endpoint: &Endpoint) -> Result<f64> {
    const TIME: Duration = Duration::from_secs(2);
    let server = &pair.server().process;
    // Below every descriptor that is or becomes free.
    let limited = Descriptors::limit(server, 4)?;
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let (frontend, target) = (pair.frontend().clone(), endpoint.target());
        clients.spawn(async move { frontend.dial(&target).await.map(drop) });
    }
    let before = server.usage()?.cpu;
    sleep(TIME).await;
    let cpu = server.usage()?.cpu.saturating_sub(before);
    drop(limited);
    clients.shutdown().await;
    Ok(cpu.as_secs_f64() / TIME.as_secs_f64() * 100.0)
}

/// A program's clock, by libfaketime. Its monotonic clock stays.
struct FakeClock {
    offset: PathBuf,
    program: PathBuf,
}

impl FakeClock {
    fn of(program: &Path, folder: &Path, name: &str) -> Result<Self> {
        const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
        ensure!(Path::new(LIBRARY).exists(), "libfaketime is missing: install Debian's libfaketime");
        let offset = folder.join(format!("{name}.offset"));
        let text = format!(
            "exec env LD_PRELOAD={LIBRARY} FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1 \
             FAKETIME_DONT_FAKE_MONOTONIC=1 {} \"$@\"",
            offset.display(),
            program.display()
        );
        let clock = Self { offset, program: script(folder, name, &text)? };
        clock.set("+0")?;
        Ok(clock)
    }

    /// Replaces the file at once, because the program reads it at any time.
    fn set(&self, offset: &str) -> Result<()> {
        let fresh = self.offset.with_extension("fresh");
        std::fs::write(&fresh, offset)?;
        Ok(std::fs::rename(&fresh, &self.offset)?)
    }
}

/// The wall clock of the agent, and then that of the servers, jumps. Leases carry the servers' wall clock.
pub(super) fn clock(_: &Context) -> Result<Times> {
    /// Within this time the agent's number of servers must be right again.
    const RIGHT: Duration = Duration::from_secs(15);
    alone(async || {
        let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
        let server = FakeClock::of(&Program::Server.path()?, folder.path(), "server")?;
        let agent = FakeClock::of(&Program::Agent.path()?, folder.path(), "agent")?;
        let kubeconfig = format!("--kubeconfig={}", api.kubeconfig(folder.path(), "{token: t}")?.display());
        let pair = Setup::http_connect()
            .servers(2)
            .programs(server.program.clone(), agent.program.clone())
            .server_arg("--enable-lease-controller")
            .server_arg("--server-count=1")
            .server_arg(&kubeconfig)
            .agent_arg("--count-server-leases")
            .agent_arg(&kubeconfig)
            .start()
            .await?;
        pair.agent().wait_metric("known_server_count", &[], 2.0).await?;
        let endpoint = Endpoint::echo().await?;
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        let mut wrong = Duration::ZERO;
        let today = renewed(&api)?;
        for (clock, offsets) in [(&agent, ["+1h", "-1d", "+0"]), (&server, ["-1h", "+1d", "+0"])] {
            for offset in offsets {
                clock.set(offset)?;
                wrong = wrong.max(wrong_for(&pair, RIGHT).await.context(offset)?);
                ensure!(
                    wrong < RIGHT - Duration::from_millis(500),
                    "the number of servers is wrong after {offset}"
                );
                let is_injected = offset.ends_with('d') && std::ptr::eq(clock, &server);
                if is_injected {
                    let jumped = || async { renewed(&api).is_ok_and(|day| day != today).then_some(()) };
                    until("a lease with the servers' new clock", DEADLINE, jumped).await?;
                }
                conn = echo(conn, Payload::new(1, 100_000)).await.context(offset)?;
                works(pair.frontend(), &endpoint.target()).await.context(offset)?;
            }
        }
        Ok(Times { recovered: Some(wrong), noticed: None, note: "6 jumps".into() })
    })
}

/// Watches the agent for this time; returns the last moment at which its number of servers was wrong.
///
/// # Errors
/// It lost a connection.
async fn wrong_for(pair: &Pair, time: Duration) -> Result<Duration> {
    let (jumped, mut wrong) = (Instant::now(), Duration::ZERO);
    while jumped.elapsed() < time {
        if pair.agent().metric("known_server_count", &[]).await? != 2.0 {
            wrong = jumped.elapsed();
        }
        let open = pair.agent().metric("open_server_connections", &[]).await?;
        ensure!(open == 2.0, "{open} connections");
        sleep(Duration::from_millis(200)).await;
    }
    Ok(wrong)
}

/// The day on which a server renewed its lease, by its own clock.
fn renewed(api: &FakeApi) -> Result<String> {
    let leases = api.leases("kube-system");
    let time =
        leases.first().and_then(|lease| lease["spec"]["renewTime"].as_str()?.get(..10).map(str::to_owned));
    time.context("a renewed lease")
}

/// A file system of this many KiB in memory. Dropping it removes it.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new(kib: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let size = format!("size={kib}k");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(folder.path())
            .status()
            .context("cannot run mount")?;
        ensure!(mount.success(), "cannot mount a tmpfs: {mount}");
        Ok(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// The disk of both programs' logs is full, beside traffic.
pub(super) fn log_disk_full(context: &Context) -> Result<Times> {
    alone(async || {
        let disk = SmallDisk::new(256)?;
        let log = disk.0.path().join("server.log");
        let setup = Setup::http_connect()
            .server_arg("--logtostderr=false")
            .server_arg("--alsologtostderr=false")
            .server_arg(format!("--log-file={}", log.display()))
            .server_arg("-v=5");
        let pair = context.with(setup).start().await?;
        let endpoint = Endpoint::echo().await?;
        let base = Base::of(&pair)?;
        let filler = disk.0.path().join("filler");
        // A write error means that the disk is full.
        let _ = std::fs::write(&filler, vec![1; 256 << 10]);
        let full = Instant::now();
        let load = Load::start(pair.frontend(), &endpoint.target(), 4);
        let name = format!("{SERVER}log_lines_lost_total");
        pair.server().wait_metrics("lost lines", |scrape| scrape.value(&name, &[]) > 0.0).await?;
        let noticed = full.elapsed();
        let p99 = load.since(full, 300).await?;
        std::fs::remove_file(&filler)?;
        let (healed, size) = (Instant::now(), std::fs::metadata(&log)?.len());
        until("new lines", DEADLINE, || async { (std::fs::metadata(&log).ok()?.len() > size).then_some(()) })
            .await?;
        let recovered = healed.elapsed();
        let lost = pair.server().metric("log_lines_lost_total", &[]).await?;
        drop(load);
        base.back(context, &pair).await?;
        Ok(Times::new(noticed, recovered).note(format!("{lost} lines lost; p99 {p99:.1?}")))
    })
}
