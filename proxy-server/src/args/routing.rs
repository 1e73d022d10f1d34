//! Flags of this replica and of its choice of agents.

use std::ffi::OsString;
use std::time::Duration;

use flags::{FlagError, FlagSet, GoDuration, identity};
use uuid::Uuid;

use super::ProxyStrategy;

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    server_id: String,
    server_count: i64,
    proxy_strategies: String,
    backend_dial_timeout: GoDuration,
    graceful_shutdown_timeout: GoDuration,
    xfr_channel_size: i64,
    frontend_write_channel_size: i64,
    warn_on_channel_limit: bool,
}

/// The checked values.
pub(super) struct Routing {
    pub(super) server_id: String,
    pub(super) server_count: u32,
    pub(super) strategies: Vec<ProxyStrategy>,
    pub(super) dial_timeout: Option<Duration>,
    pub(super) graceful_shutdown_timeout: Duration,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            server_id: String::new(),
            server_count: 1,
            proxy_strategies: "default".into(),
            backend_dial_timeout: GoDuration::ZERO,
            graceful_shutdown_timeout: GoDuration::ZERO,
            xfr_channel_size: 10,
            frontend_write_channel_size: 10,
            warn_on_channel_limit: true,
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("This replica and its choice of agents");
        set.add(
            "server-id",
            &mut self.server_id,
            "Unique id of this replica. Empty: the environment variable PROXY_SERVER_ID.",
        )
        .default_shown("PROXY_SERVER_ID, or a new UUID");
        set.add(
            "server-count",
            &mut self.server_count,
            "Replicas that agents should connect to. At least 1.",
        );
        set.add(
            "proxy-strategies",
            &mut self.proxy_strategies,
            "Strategies to choose an agent, comma-separated, tried in order: default (any agent), destHost (the agent \
             that announced the target's host), defaultRoute (an agent with default-route=true).",
        );
        set.add(
            "backend-dial-timeout",
            &mut self.backend_dial_timeout,
            "Deadline of one dial through agents, including its retry. 0: 25s.",
        );
        set.add(
            "graceful-shutdown-timeout",
            &mut self.graceful_shutdown_timeout,
            "Time for connections to finish after the first SIGTERM or SIGINT; new dials still succeed. 0: none.",
        );
        set.add("xfr-channel-size", &mut self.xfr_channel_size, "Packets queued for each stream. Above 0.")
            .no_effect("what may be queued is limited in bytes, not in packets");
        set.add(
            "frontend-write-channel-size",
            &mut self.frontend_write_channel_size,
            "Packets queued for each HTTP CONNECT client. At least 0. (A flag of Go proxy-servers after v0.36.)",
        )
        .no_effect("what may be queued is limited in bytes, not in packets");
        set.add("warn-on-channel-limit", &mut self.warn_on_channel_limit, "")
            .no_effect("it is deprecated, full queues show in the metric full_receive_channels");
    }

    pub(super) fn check(
        self,
        inherited_id: Option<OsString>,
        warnings: &mut Vec<String>,
    ) -> Result<Routing, FlagError> {
        let strategies = strategies(&self.proxy_strategies)?;
        if self.xfr_channel_size <= 0 {
            return Err(FlagError::value("xfr-channel-size", self.xfr_channel_size, "it must be above 0"));
        }
        if self.frontend_write_channel_size < 0 {
            let size = self.frontend_write_channel_size;
            return Err(FlagError::value("frontend-write-channel-size", size, "it must not be below 0"));
        }
        if self.server_count < 1 {
            warnings
                .push(format!("--server-count={}: it counts as 1, this replica exists", self.server_count));
        }
        let dial_timeout = not_negative("backend-dial-timeout", self.backend_dial_timeout)?;
        Ok(Routing {
            server_id: identity("server-id", self.server_id, inherited_id, || Uuid::new_v4().to_string())?,
            server_count: u32::try_from(self.server_count.max(1)).unwrap_or(u32::MAX),
            strategies,
            dial_timeout: (!dial_timeout.is_zero()).then_some(dial_timeout),
            graceful_shutdown_timeout: not_negative(
                "graceful-shutdown-timeout",
                self.graceful_shutdown_timeout,
            )?,
        })
    }
}

/// Parses names separated by commas, in order. Empty names are skipped; blanks are not trimmed.
fn strategies(text: &str) -> Result<Vec<ProxyStrategy>, FlagError> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let names = bare.split(',').filter(|name| !name.is_empty());
    let known = |name: &str| {
        let want = "the strategies are default, destHost and defaultRoute";
        ProxyStrategy::named(name)
            .ok_or_else(|| FlagError::value("proxy-strategies", format_args!("{name:?}"), want))
    };
    let strategies: Vec<_> = names.map(known).collect::<Result<_, _>>()?;
    if strategies.is_empty() {
        let fix = "name at least one of default, destHost and defaultRoute";
        return Err(FlagError::Empty { flag: "proxy-strategies", fix });
    }
    Ok(strategies)
}

fn not_negative(flag: &'static str, duration: GoDuration) -> Result<Duration, FlagError> {
    if duration < GoDuration::ZERO {
        return Err(FlagError::value(flag, duration, "it must not be below 0"));
    }
    Ok(duration.or_zero())
}
