//! Flags that control how the agent finds all servers and keeps a stream to each.

use std::time::Duration;

use flags::{FlagError, FlagSet, GoDuration};

use super::ServerCountSource;

/// Shorter intervals would be busy loops, as in Go.
const LEAST_INTERVAL: Duration = Duration::from_millis(1);

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    sync_interval: GoDuration,
    sync_interval_cap: GoDuration,
    probe_interval: GoDuration,
    sync_forever: bool,
    server_count_source: String,
    xfr_channel_size: i64,
    warn_on_channel_limit: bool,
}

/// The checked values.
pub(super) struct Sync {
    pub(super) interval: Duration,
    pub(super) cap: Duration,
    pub(super) forever: bool,
    pub(super) count_source: ServerCountSource,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            sync_interval: GoDuration::from_seconds(1),
            sync_interval_cap: GoDuration::from_seconds(10),
            probe_interval: GoDuration::from_seconds(1),
            sync_forever: false,
            server_count_source: "default".into(),
            xfr_channel_size: 150,
            warn_on_channel_limit: false,
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Finding all servers");
        set.add("sync-interval", &mut self.sync_interval, "Time between tries to reach missing servers.");
        set.add(
            "sync-interval-cap",
            &mut self.sync_interval_cap,
            "Upper limit to which --sync-interval backs off while servers cannot be reached.",
        );
        set.add(
            "probe-interval",
            &mut self.probe_interval,
            "Time between checks of the established connections.",
        )
        .no_effect("a lost stream is noticed at once");
        set.add(
            "sync-forever",
            &mut self.sync_forever,
            "Continue to look for servers when the known number is connected.",
        );
        set.add(
            "server-count-source",
            &mut self.server_count_source,
            "Source of the number of servers: default (leases with --count-server-leases, else the count that servers \
             send) or max (the larger of both).",
        );
        set.add("xfr-channel-size", &mut self.xfr_channel_size, "Packets queued for a connection. Above 0.")
            .no_effect("what may be queued is limited in bytes, not in packets");
        set.add("warn-on-channel-limit", &mut self.warn_on_channel_limit, "")
            .no_effect("there is no channel to be full");
    }

    pub(super) fn check(self, warnings: &mut Vec<String>) -> Result<Sync, FlagError> {
        if self.xfr_channel_size <= 0 {
            return Err(FlagError::value("xfr-channel-size", self.xfr_channel_size, "it must be above 0"));
        }
        if self.sync_interval > self.sync_interval_cap {
            let want = format!("it must not be above --sync-interval-cap={}", self.sync_interval_cap);
            return Err(FlagError::value("sync-interval", self.sync_interval, want));
        }
        let count_source = match self.server_count_source.as_str() {
            "" | "default" => ServerCountSource::Default,
            "max" => ServerCountSource::Max,
            other => {
                let want = "it must be default or max";
                return Err(FlagError::value("server-count-source", format_args!("{other:?}"), want));
            }
        };
        let mut interval = |flag: &str, given: GoDuration| {
            if given.or_zero() < LEAST_INTERVAL {
                warnings.push(format!("--{flag}={given}: it counts as 1ms, less would be a busy loop"));
            }
            given.or_zero().max(LEAST_INTERVAL)
        };
        Ok(Sync {
            interval: interval("sync-interval", self.sync_interval),
            cap: interval("sync-interval-cap", self.sync_interval_cap),
            forever: self.sync_forever,
            count_source,
        })
    }
}
