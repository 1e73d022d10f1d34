//! Leaves a process 1 % of a CPU.

use std::fs::{create_dir, remove_dir, write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The hierarchy of cgroup v1 that limits CPU time.
const CPU: &str = "/sys/fs/cgroup/cpu";

/// The period of the limit, and the CPU time in it, in µs.
const PERIOD: u32 = 100_000;
const QUOTA: u32 = 1_000;

/// The limit of one process. Dropping it removes the limit.
#[derive(Debug)]
pub(super) enum Starved {
    /// By the quota of a cgroup.
    Quota(PathBuf),
    /// By SIGSTOP and SIGCONT: the nearest replacement where cgroup v1 is missing.
    Signals(AbortHandle, Pid),
}

impl Starved {
    pub(super) fn start(pid: u32) -> Result<Self> {
        if Path::new(CPU).join("cpu.cfs_quota_us").exists() || Path::new(CPU).join("cgroup.procs").exists() {
            let folder = Path::new(CPU).join(format!("knp{:08x}", rand::random::<u32>()));
            create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
            let starved = Self::Quota(folder.clone());
            write(folder.join("cpu.cfs_period_us"), PERIOD.to_string())?;
            write(folder.join("cpu.cfs_quota_us"), QUOTA.to_string()).context("no CPU quota")?;
            write(folder.join("cgroup.procs"), pid.to_string())?;
            return Ok(starved);
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?;
        let task = tokio::spawn(async move {
            let (run, stop) = (u64::from(QUOTA), u64::from(PERIOD - QUOTA));
            while kill_process(pid, Signal::STOP).is_ok() {
                sleep(Duration::from_micros(stop)).await;
                let _ = kill_process(pid, Signal::CONT);
                sleep(Duration::from_micros(run)).await;
            }
        });
        Ok(Self::Signals(task.abort_handle(), pid))
    }

    /// The share of the limit's periods in which the process had to wait for the next one, in percent; `None` if nothing counts
    /// them. Periods in which it did not run do not count.
    pub(super) fn throttled(&self) -> Option<f64> {
        let Self::Quota(folder) = self else { return None };
        let counts = std::fs::read_to_string(folder.join("cpu.stat")).ok()?;
        let count = |name: &str| {
            let lines = counts.lines().filter_map(|line| line.split_once(' '));
            { lines }.find(|(key, _)| *key == name)?.1.parse::<f64>().ok()
        };
        Some(100.0 * count("nr_throttled")? / count("nr_periods")?.max(1.0))
    }

    /// How the limit is enforced.
    pub(super) fn by(&self) -> &'static str {
        match self {
            Self::Quota(_) => "cpu.cfs_quota_us of cgroup v1",
            Self::Signals(..) => "SIGSTOP and SIGCONT: cgroup v1 is missing",
        }
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        match self {
            Self::Quota(folder) => {
                // A cgroup with processes cannot be removed: they move to the root first. An error is ignored, because the
                // process may have ended.
                let pids = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                for pid in pids.lines() {
                    let _ = write(Path::new(CPU).join("cgroup.procs"), pid);
                }
                let _ = remove_dir(folder);
            }
            Self::Signals(task, pid) => {
                task.abort();
                let _ = kill_process(*pid, Signal::CONT);
            }
        }
    }
}
