//! Flags of the health and admin ports.

use flags::{Bind, BindHost, FlagError, FlagSet, ProfilingFlags};

use super::ReadinessPolicy;

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    health_bind_address: String,
    health_port: i64,
    admin_bind_address: String,
    admin_port: i64,
    profiling: ProfilingFlags,
    readiness_policy: String,
}

/// The checked values.
pub(super) struct Serving {
    pub(super) health: Bind,
    pub(super) admin: Bind,
    pub(super) profiling: bool,
    pub(super) readiness_policy: ReadinessPolicy,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            health_bind_address: String::new(),
            health_port: 8092,
            admin_bind_address: "127.0.0.1".into(),
            admin_port: 8095,
            profiling: ProfilingFlags::default(),
            readiness_policy: "first-strategy".into(),
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Health and administration");
        set.add("health-port", &mut self.health_port, "Port for /healthz, /readyz and /metrics.");
        set.add(
            "health-bind-address",
            &mut self.health_bind_address,
            "Address for --health-port. Empty: all interfaces.",
        );
        set.add(
            "readiness-policy",
            &mut self.readiness_policy,
            "Which of --proxy-strategies must have an agent for /readyz to succeed: first-strategy (as in Go), any or \
             all. (The Go proxy-server has no such flag.)",
        );
        set.add("admin-port", &mut self.admin_port, "Port for /metrics and, with profiling, /debug/pprof.");
        set.add(
            "admin-bind-address",
            &mut self.admin_bind_address,
            "Address for --admin-port. Empty: all interfaces.",
        );
        self.profiling.register(set);
    }

    pub(super) fn check(self) -> Result<Serving, FlagError> {
        let admin_port = port("admin-port", self.admin_port)?;
        let health_port = port("health-port", self.health_port)?;
        let profiling = self.profiling.check()?;
        let readiness_policy = match self.readiness_policy.as_str() {
            "first-strategy" | "" => ReadinessPolicy::FirstStrategy,
            "any" => ReadinessPolicy::Any,
            "all" => ReadinessPolicy::All,
            other => {
                let want = "it must be first-strategy, any or all";
                return Err(FlagError::value("readiness-policy", format_args!("{other:?}"), want));
            }
        };
        Ok(Serving {
            readiness_policy,
            health: Bind { host: BindHost::parse(&self.health_bind_address), port: health_port },
            admin: Bind { host: BindHost::parse(&self.admin_bind_address), port: admin_port },
            profiling,
        })
    }
}

/// A port that is neither reserved nor ephemeral, as the Go proxy-server requires.
pub(super) fn port(flag: &'static str, value: i64) -> Result<u16, FlagError> {
    let usable = u16::try_from(value).ok().filter(|port| (1_024..=49_151).contains(port));
    usable.ok_or_else(|| FlagError::value(flag, value, "it must be a port from 1024 to 49151"))
}
