//! The `process_*` families, read from `/proc/self` at each scrape.
//!
//! They have the names and meanings of Go's process collector. Values that cannot be read are omitted.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::{Resource, getrlimit};

/// Reads `/proc`. Register it once, on a registry without a prefix.
#[derive(Debug, Default)]
pub struct ProcessCollector {}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let (stat, network) = (Stat::read(), network_octets());
        let start = stat.as_ref().and_then(|stat| Some(boot_time()? + stat.start_seconds));
        let of_stat = |value: fn(&Stat) -> f64| stat.as_ref().map(value);
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                of_stat(|stat| stat.resident_bytes),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                of_stat(|stat| stat.virtual_bytes),
            ),
            ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", start),
            ("process_open_fds", "Number of open file descriptors.", open_descriptors()),
            ("process_max_fds", "Maximum number of open file descriptors.", Some(limit(Resource::Nofile))),
            (
                "process_virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes.",
                Some(limit(Resource::As)),
            ),
        ];
        for (name, help, value) in gauges {
            let Some(gauge) = value.map(ConstGauge::new) else { continue };
            gauge.encode(encoder.encode_descriptor(name, &ended(help), None, gauge.metric_type())?)?;
        }
        // Those of the network namespace, as in Go.
        let [received, sent] =
            ["received", "sent"].map(|way| format!("Number of bytes {way} by the process over the network."));
        let counters = [
            (
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
                of_stat(|stat| stat.cpu_seconds),
            ),
            ("process_network_receive_bytes_total", &received, network.map(|(received, _)| received)),
            ("process_network_transmit_bytes_total", &sent, network.map(|(_, sent)| sent)),
        ];
        for (name, help, value) in counters {
            let Some(counter) = value.map(ConstCounter::new) else { continue };
            counter.encode(encoder.encode_descriptor(name, &ended(help), None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

/// The library adds a full stop to each HELP except a collector's, and `text` removes one.
fn ended(help: &str) -> String {
    format!("{help}.")
}

/// Values of `/proc/self/stat`. Source: proc_pid_stat(5).
#[derive(Debug)]
struct Stat {
    cpu_seconds: f64,
    /// In seconds since boot.
    start_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl Stat {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field is the command in parentheses, which may contain parentheses: split at the last one.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // `number` is the field's number in the manual; the first one here is number 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = to_float(rustix::param::clock_ticks_per_second());
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            start_seconds: field(22)? / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * to_float(rustix::param::page_size() as u64),
        })
    }
}

/// Since Linux 6.2 the directory's size, as in Go: a walk takes 33 ms for 50,000 descriptors, and probes wait for it.
fn open_descriptors() -> Option<f64> {
    const DIRECTORY: &str = "/proc/self/fd";
    let size = fs::metadata(DIRECTORY).ok()?.len();
    // A walk also counts its own descriptor, as in Go.
    let count = if size > 0 { size } else { fs::read_dir(DIRECTORY).ok()?.count() as u64 };
    Some(to_float(count))
}

/// The machine's boot time, in seconds of Unix time.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// A soft limit; no limit is `u64::MAX`, as in Go.
fn limit(resource: Resource) -> f64 {
    to_float(getrlimit(resource).current.unwrap_or(u64::MAX))
}

/// InOctets and OutOctets of the line `IpExt` in `/proc/self/net/netstat`: names on one line, values on the next.
fn network_octets() -> Option<(f64, f64)> {
    let text = fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
        pairs.filter(|(name, _)| *name == wanted).find_map(|(_, value)| value.parse::<f64>().ok())
    };
    Some((value("InOctets")?, value("OutOctets")?))
}

#[allow(clippy::cast_precision_loss, reason = "the exposition format knows floats only")]
fn to_float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let head = "7 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10";
        let stat = Stat::parse(&format!("{head} 150 50 0 0 20 0 4 0 1000 4096 2 0")).expect("parses");
        let ticks = to_float(rustix::param::clock_ticks_per_second());
        assert_eq!(stat.cpu_seconds, 200.0 / ticks);
        assert_eq!(stat.start_seconds, 1000.0 / ticks);
        assert_eq!(stat.virtual_bytes, 4096.0);
        assert!(Stat::parse("7 (a S").is_none());
    }

    #[test]
    fn families_of_go_are_there_with_its_help() {
        let scrape = crate::metrics::Exposition::new(Default::default()).scrape();
        let helps: Vec<&str> =
            scrape.lines().filter_map(|line| line.strip_prefix("# HELP process_")).collect();
        assert_eq!(
            helps,
            [
                "cpu_seconds_total Total user and system CPU time spent in seconds.",
                "max_fds Maximum number of open file descriptors.",
                "network_receive_bytes_total Number of bytes received by the process over the network.",
                "network_transmit_bytes_total Number of bytes sent by the process over the network.",
                "open_fds Number of open file descriptors.",
                "resident_memory_bytes Resident memory size in bytes.",
                "start_time_seconds Start time of the process since unix epoch in seconds.",
                "virtual_memory_bytes Virtual memory size in bytes.",
                "virtual_memory_max_bytes Maximum amount of virtual memory available in bytes.",
            ]
        );
    }
}
