//! The command line of the proxy-server: parses it into a typed [`Config`], or refuses it with one line.
//!
//! `table` has one row for each flag and the checks of single values; `frontend`, `access` and this file have the checks of
//! several flags together. Parsing binds, connects and logs nothing; it checks only that files exist. Outside this module no
//! flag is a string, unless it is free text.
//!
//! Names, defaults, spellings and errors are those of the Go proxy-server (v0.30 to v0.36).

mod access;
mod announce;
mod config;
mod frontend;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;

use flags::{
    Bind, BindHost, Exit, FlagError, FlagSet, FlowOptions, Given, LogOptions, ProfilingFlags, RecordOptions,
    identity, pair,
};
use grpc::KeepaliveFlags;
use net::tls::Accepted;
use uuid::Uuid;

pub use config::{AgentListener, Config, FrontendConfig, FrontendListener, KubeClient, Leases, TokenAuth};
use table::{AccessFlags, AgentFlags, FrontendFlags, KubeFlags, PortFlags, ReplicaFlags};

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
    let set = FlagSet::new("proxy-server", env!("CARGO_PKG_VERSION"), ABOUT).usage(commands::SERVER_USAGE);
    let set =
        set.group::<FrontendFlags>().group::<AgentFlags>().group::<AccessFlags>().group::<ReplicaFlags>();
    let set = set.group::<FlowOptions>().group::<PortFlags>().group::<ProfilingFlags>().group::<KubeFlags>();
    Ok(config(
        set.group::<RecordOptions>().group::<LogOptions>().read(argv)?,
        environment("PROXY_SERVER_ID"),
    )?)
}

/// The configuration that the flags give. `inherited_id` is the environment's server id.
fn config(given: Given, inherited_id: Option<OsString>) -> Result<Config, FlagError> {
    let mut warnings = given.warnings.clone();
    warnings.extend(given.ignored());
    let frontend: FrontendFlags = given.group()?;
    let frontends = frontend::frontends(&frontend, &given, &mut warnings)?;
    let agents: AgentFlags = given.group()?;
    let tls_min_version = value("tls-min-version", agents.tls_min_version, &mut warnings);
    let cipher_suites = value("cipher-suites", agents.cipher_suites, &mut warnings);
    let files = [agents.cluster_cert, agents.cluster_key, agents.cluster_ca_cert];
    let agent_listener = agent_listener(agents.agent_bind_address, agents.agent_port, files)?;
    let access: AccessFlags = given.group()?;
    let token_auth = access::token_auth(&access, agent_listener.client_ca.is_some(), &mut warnings)?;
    let replica: ReplicaFlags = given.group()?;
    let server_id = identity("server-id", replica.server_id, inherited_id, || Uuid::new_v4().to_string())?;
    if replica.server_count < 1 {
        let count = replica.server_count;
        warnings.push(format!("--server-count={count}: it counts as 1, this replica exists"));
    }
    let (ports, shown): (PortFlags, ProfilingFlags) = (given.group()?, given.group()?);
    let (status_on_any_address, profiling) = (shown.status_on_any_address, shown.check()?);
    let kube: KubeFlags = given.group()?;
    if kube.kubeconfig.is_some() && token_auth.is_none() && !kube.enable_lease_controller {
        warnings.push("--kubeconfig has no effect: there are neither leases nor token reviews".to_owned());
    }
    if kube.advertise_address.is_some() && !kube.enable_lease_controller {
        warnings.push("--advertise-address has no effect: there are no leases".to_owned());
    }
    let (leases, kube) = kubernetes(kube);
    let (flow, records, log): (FlowOptions, RecordOptions, LogOptions) =
        (given.group()?, given.group()?, given.group()?);
    warnings.extend(log.warnings());
    Ok(Config {
        frontends,
        agent_listener,
        health: Bind { host: ports.health_bind_address, port: ports.health_port },
        admin: Bind { host: ports.admin_bind_address, port: ports.admin_port },
        keepalive: KeepaliveFlags {
            time: agents.keepalive_time,
            timeout: agents.keepalive_timeout,
            unresponsive_timeout: agents.unresponsive_timeout,
        },
        frontend_keepalive_time: frontend.frontend_keepalive_time,
        profiling,
        allow_probe_dials: ports.allow_probe_dials,
        status_on_any_address,
        changed_flags: given.changed,
        flag_lines: announce::lines(given.values, &server_id),
        server_id,
        server_count: u32::try_from(replica.server_count.max(1)).unwrap_or(u32::MAX),
        server_count_file: replica.server_count_file,
        strategies: replica.proxy_strategies,
        agent_selection: replica.agent_selection,
        prefer_zone: (!replica.prefer_zone.is_empty()).then(|| replica.prefer_zone.into()),
        cipher_suites,
        tls_min_version,
        certificate_reload_interval: agents.certificate_reload_interval,
        readiness_policy: ports.readiness_policy,
        graceful_shutdown_timeout: replica.graceful_shutdown_timeout.unwrap_or_default(),
        dial_timeout: replica.backend_dial_timeout,
        token_auth,
        identity_binding: access.agent_identity_binding,
        trust_source_address: access.agent_identity_source_address,
        agent_names: access.agent_allowed_names,
        default_route_names: access.default_route_allowed_names,
        frontend_names: frontend.frontend_allowed_names,
        flow,
        leases,
        kube,
        records,
        log,
        warnings,
    })
}

fn kubernetes(flags: KubeFlags) -> (Leases, KubeClient) {
    let enabled = flags.enable_lease_controller;
    let leases = Leases {
        enabled,
        namespace: flags.lease_namespace,
        labels: flags.lease_label,
        advertise_address: flags.advertise_address,
    };
    let client = KubeClient {
        kubeconfig: flags.kubeconfig,
        qps: flags.kubeconfig_qps,
        burst: flags.kubeconfig_burst,
        content_type: flags.kube_api_content_type,
    };
    (leases, client)
}

/// The agent port. `files` are its certificate, its key and the authorities of agents' certificates.
fn agent_listener(
    host: BindHost,
    port: u16,
    [cert, key, client_ca]: [Option<PathBuf>; 3],
) -> Result<AgentListener, FlagError> {
    let pair = pair(("cluster-cert", cert), ("cluster-key", key))?;
    let (cert, key) = pair.ok_or(FlagError::Empty {
        flag: "cluster-cert",
        fix: "give --cluster-cert and --cluster-key, agents connect with TLS only",
    })?;
    Ok(AgentListener { bind: Bind { host, port }, cert, key, client_ca })
}

/// The value of a TLS flag, whose warnings are added to `warnings`.
fn value<T>(flag: &str, accepted: Accepted<T>, warnings: &mut Vec<String>) -> T {
    if !accepted.warnings.is_empty() {
        warnings.push(format!("--{flag}: {}", accepted.warnings.join("; ")));
    }
    accepted.value
}
