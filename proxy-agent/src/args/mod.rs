//! The command line of the proxy-agent: parses it into a typed [`Config`], or refuses it with one line.
//!
//! Each of `uplink`, `identity`, `sync`, `endpoints`, `serving` and `kube` holds a group of flags as written (one field for
//! each flag, under its name) and the checks that turn the group into its part of the [`Config`]; `identifiers` and `selector`
//! parse two kinds of values. Parsing binds, connects and logs nothing; it checks only that files exist. Outside this module no
//! flag is a string, unless it is free text.
//!
//! Names, defaults, spellings and errors are those of the Go proxy-agent (v0.30 to its current main branch).

mod announce;
mod config;
mod endpoints;
mod identifiers;
mod identity;
mod kube;
mod selector;
mod serving;
mod sync;
mod uplink;

use std::ffi::OsString;

use flags::{Exit, FlagError, FlagSet, FlowFlags, Given, LogFlags};

pub use config::{CertPair, Config, KubeClient, Leases, ServerCountSource};
pub use identifiers::{IdentifierError, Identifiers};
pub use selector::{LabelSelector, SelectorError};

const ABOUT: &str = "dials a cluster's endpoints on behalf of the proxy-servers it connects to.";

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
    Ok(raw.check(environment("PROXY_AGENT_ID"), given)?)
}

/// All flags as written on the command line.
#[derive(Debug, Default)]
struct RawFlags {
    uplink: uplink::RawFlags,
    identity: identity::RawFlags,
    sync: sync::RawFlags,
    endpoints: endpoints::RawFlags,
    serving: serving::RawFlags,
    kube: kube::RawFlags,
    flow: FlowFlags,
    log: LogFlags,
}

impl RawFlags {
    fn read(&mut self, argv: impl Iterator<Item = OsString>) -> Result<Given, Exit> {
        let mut set = FlagSet::new("proxy-agent", env!("CARGO_PKG_VERSION"), ABOUT);
        self.uplink.register(&mut set);
        self.identity.register(&mut set);
        self.sync.register(&mut set);
        self.endpoints.register(&mut set);
        self.flow.register(&mut set);
        self.serving.register(&mut set);
        self.kube.register(&mut set);
        self.log.register(&mut set);
        set.read_all(argv)
    }

    fn check(self, inherited_id: Option<OsString>, given: Given) -> Result<Config, FlagError> {
        let mut warnings = given.warnings;
        let uplink = self.uplink.check(&mut warnings)?;
        let serving = self.serving.check()?;
        let flow = self.flow.check()?;
        let sync = self.sync.check(&mut warnings)?;
        let endpoints = self.endpoints.check(&mut warnings)?;
        let (agent_id, agent_identifiers) = self.identity.check(inherited_id)?;
        let (leases, kube) = self.kube.check(&mut warnings)?;
        if sync.count_source == ServerCountSource::Max && !leases.counted {
            warnings.push("--server-count-source=max has no effect: leases are not counted".to_owned());
        }
        let (log, log_warnings) = self.log.options()?;
        warnings.extend(log_warnings);
        let flag_lines = announce::lines(given.values, &agent_id);
        Ok(Config {
            proxy_server_host: uplink.host,
            proxy_server_port: uplink.port,
            certificate: uplink.certificate,
            ca: uplink.ca,
            alpn_protos: uplink.alpn_protos,
            keepalive_time: uplink.keepalive_time,
            unresponsive_timeout: uplink.unresponsive_timeout,
            service_account_token_path: uplink.token_path,
            certificate_reload_interval: uplink.certificate_reload_interval,
            agent_id,
            agent_identifiers,
            sync_interval: sync.interval,
            sync_interval_cap: sync.cap,
            sync_forever: sync.forever,
            server_count_source: sync.count_source,
            allow_cloud_metadata: endpoints.allow_cloud_metadata,
            deny_destinations: endpoints.deny,
            allow_destinations: endpoints.allow,
            health: serving.health,
            admin: serving.admin,
            min_ready_servers: serving.min_ready_servers,
            drain_timeout: serving.drain_timeout,
            profiling: serving.profiling,
            flow,
            leases,
            kube,
            log,
            flag_lines,
            warnings,
        })
    }
}
