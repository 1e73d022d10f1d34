//! Flags of the health and admin ports.

use std::time::Duration;

use flags::{Bind, BindHost, FlagError, FlagSet, GoDuration, ProfilingFlags, optional_duration, port};

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    health_server_host: String,
    health_server_port: i64,
    admin_bind_address: String,
    admin_server_port: i64,
    profiling: ProfilingFlags,
    min_ready_servers: i64,
    drain_timeout: GoDuration,
}

/// The checked values.
pub(super) struct Serving {
    pub(super) health: Bind,
    pub(super) admin: Bind,
    pub(super) profiling: bool,
    pub(super) min_ready_servers: usize,
    pub(super) drain_timeout: Option<Duration>,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            health_server_host: String::new(),
            health_server_port: 8093,
            admin_bind_address: "127.0.0.1".into(),
            admin_server_port: 8094,
            profiling: ProfilingFlags::default(),
            min_ready_servers: 1,
            drain_timeout: GoDuration::ZERO,
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Health and administration");
        set.add(
            "health-server-port",
            &mut self.health_server_port,
            "Port for /healthz, /readyz and /metrics.",
        );
        set.add(
            "health-server-host",
            &mut self.health_server_host,
            "Address for --health-server-port. Empty: all interfaces.",
        );
        set.add(
            "min-ready-servers",
            &mut self.min_ready_servers,
            "Number of connected servers for /readyz to succeed. Above 0. (The Go proxy-agent has no such flag.)",
        );
        set.add(
            "drain-timeout",
            &mut self.drain_timeout,
            "After the first SIGTERM or SIGINT: exit once no connection is left, or after this time. 0: drain until \
             the second signal, as in Go. (The Go proxy-agent has no such flag.)",
        );
        set.add("admin-server-port", &mut self.admin_server_port, "Port for /debug/pprof, with profiling.");
        set.add(
            "admin-bind-address",
            &mut self.admin_bind_address,
            "Address for --admin-server-port. Empty: all interfaces.",
        );
        self.profiling.register(set);
    }

    pub(super) fn check(self) -> Result<Serving, FlagError> {
        let health_port = port("health-server-port", self.health_server_port)?;
        let admin_port = port("admin-server-port", self.admin_server_port)?;
        let profiling = self.profiling.check()?;
        let min_ready_servers =
            usize::try_from(self.min_ready_servers).ok().filter(|count| *count > 0).ok_or_else(|| {
                FlagError::value("min-ready-servers", self.min_ready_servers, "it must be above 0")
            })?;
        Ok(Serving {
            min_ready_servers,
            drain_timeout: optional_duration("drain-timeout", self.drain_timeout)?,
            health: Bind { host: BindHost::parse(&self.health_server_host), port: health_port },
            admin: Bind { host: BindHost::parse(&self.admin_bind_address), port: admin_port },
            profiling,
        })
    }
}
