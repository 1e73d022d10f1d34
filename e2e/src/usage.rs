//! Resource usage of a process from `/proc`: memory, descriptors, threads and CPU time.

use std::fs::{read_dir, read_to_string};
use std::time::Duration;

use anyhow::{Context, Result};

/// Linux reports CPU time in hundredths of a second on every current architecture.
const TICK: Duration = Duration::from_millis(10);

/// The usage of a process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Resident memory in KiB.
    pub rss_kib: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// CPU time since the start, user and system.
    pub cpu: Duration,
}

impl Usage {
    /// Resident memory in MiB.
    pub fn rss_mib(&self) -> u64 {
        self.rss_kib >> 10
    }

    /// Reads the figures of the process `pid`.
    pub fn of(pid: u32) -> Result<Self> {
        let status = read_to_string(format!("/proc/{pid}/status")).context("the process is gone")?;
        let field = |name: &str| -> u64 {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.split_whitespace().next())
                .and_then(|number| number.parse().ok())
                .unwrap_or(0)
        };
        let stat = read_to_string(format!("/proc/{pid}/stat")).context("the process is gone")?;
        Ok(Self {
            rss_kib: field("VmRSS:"),
            descriptors: read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0),
            threads: usize::try_from(field("Threads:")).unwrap_or(0),
            cpu: time(&stat),
        })
    }
}

/// CPU time since their start of the threads of process `pid` with this name.
pub fn thread_time(pid: u32, name: &str) -> Result<Duration> {
    let threads = read_dir(format!("/proc/{pid}/task")).context("the process is gone")?;
    let stats = threads.flatten().filter_map(|thread| read_to_string(thread.path().join("stat")).ok());
    let name = format!("({name})");
    Ok(stats.filter(|stat| stat.contains(&name)).map(|stat| time(&stat)).sum())
}

/// CPU time, user and system, from a line of `stat`.
fn time(stat: &str) -> Duration {
    // The name in parentheses may contain spaces, so fields are counted after it. utime and stime are fields 14 and 15.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2));
    TICK * fields.into_iter().flatten().filter_map(|number| number.parse::<u32>().ok()).sum::<u32>()
}

#[cfg(test)]
mod tests {
    use super::Usage;

    #[test]
    fn this_process_uses_something() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.rss_kib > 0 && usage.descriptors > 2 && usage.threads > 0);
    }
}
