//! The command line of the proxy-server: parses it into a typed [`Config`], or refuses it with one line.
//!
//! Each of `frontend`, `agents`, `access`, `routing`, `serving` and `kube` holds a group of flags as written (one field for
//! each flag, under its name) and the checks that turn the group into its part of the [`Config`]. Parsing binds, connects and
//! logs nothing; it checks only that files exist. Outside this module no flag is a string, unless it is free text.
//!
//! Names, defaults, spellings and errors are those of the Go proxy-server (v0.30 to v0.36).

mod access;
mod agents;
mod announce;
mod config;
mod frontend;
mod kube;
mod routing;
mod serving;

use std::ffi::OsString;

use flags::{Exit, FlagError, FlagSet, FlowFlags, Given, LogFlags};

pub use config::{
    AgentListener, Config, FrontendListener, IdentityBinding, KubeClient, Leases, Mode, ProxyStrategy,
    ReadinessPolicy, TokenAuth,
};

const ABOUT: &str = "carries kube-apiserver's connections to the agents of a cluster.";

/// Parses the process's command line, starting with the program name, and its environment.
pub fn parse(argv: impl Iterator<Item = OsString>) -> Result<Config, Exit> {
    parse_with(argv, |name| std::env::var_os(name))
}

/// Like [`parse`], with the environment as an argument.
pub fn parse_with(
    argv: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Config, Exit> {
    let mut raw = RawFlags::default();
    let given = raw.read(argv)?;
    Ok(raw.check(environment("PROXY_SERVER_ID"), given)?)
}

/// All flags as written on the command line.
#[derive(Debug, Default)]
struct RawFlags {
    frontend: frontend::RawFlags,
    agents: agents::RawFlags,
    access: access::RawFlags,
    routing: routing::RawFlags,
    serving: serving::RawFlags,
    kube: kube::RawFlags,
    flow: FlowFlags,
    log: LogFlags,
}

impl RawFlags {
    fn read(&mut self, argv: impl Iterator<Item = OsString>) -> Result<Given, Exit> {
        let mut set = FlagSet::new("proxy-server", env!("CARGO_PKG_VERSION"), ABOUT);
        self.frontend.register(&mut set);
        self.agents.register(&mut set);
        self.access.register(&mut set);
        self.routing.register(&mut set);
        self.flow.register(&mut set);
        self.serving.register(&mut set);
        self.kube.register(&mut set);
        self.log.register(&mut set);
        set.read_all(argv)
    }

    fn check(self, inherited_id: Option<OsString>, given: Given) -> Result<Config, FlagError> {
        let mut warnings = given.warnings;
        let frontend = self.frontend.check(&mut warnings)?;
        let agents = self.agents.check(&mut warnings)?;
        let access = self.access.check(agents.listener.client_ca.is_some(), &mut warnings)?;
        let routing = self.routing.check(inherited_id, &mut warnings)?;
        let serving = self.serving.check()?;
        let (leases, kube) = self.kube.check(access.token_auth.is_some(), &mut warnings)?;
        let flow = self.flow.check()?;
        let (log, log_warnings) = self.log.options()?;
        warnings.extend(log_warnings);
        let flag_lines = announce::lines(given.values, &routing.server_id);
        Ok(Config {
            frontend: frontend.listener,
            mode: frontend.mode,
            agent_listener: agents.listener,
            health: serving.health,
            admin: serving.admin,
            keepalive_time: agents.keepalive_time,
            unresponsive_timeout: agents.unresponsive_timeout,
            frontend_keepalive_time: frontend.keepalive_time,
            profiling: serving.profiling,
            server_id: routing.server_id,
            server_count: routing.server_count,
            strategies: routing.strategies,
            cipher_suites: agents.cipher_suites,
            tls_min_version: agents.tls_min_version,
            certificate_reload_interval: agents.certificate_reload_interval,
            readiness_policy: serving.readiness_policy,
            graceful_shutdown_timeout: routing.graceful_shutdown_timeout,
            dial_timeout: routing.dial_timeout,
            token_auth: access.token_auth,
            identity_binding: access.binding,
            trust_source_address: access.source_address,
            agent_names: access.agent_names,
            default_route_names: access.default_route_names,
            frontend_names: frontend.allowed_names,
            flow,
            leases,
            kube,
            log,
            flag_lines,
            warnings,
        })
    }
}
