//! The command line of the proxy-server: parses it into a typed [`Config`], or refuses it with one line.
//!
//! `table` has one row for each flag and the checks of single values; `frontend` and this file have the checks of several flags
//! together. Parsing binds, connects and logs nothing; it checks only that files exist. Outside this module no
//! flag is a string, unless it is free text.
//!
//! Names, defaults, spellings and errors are those of the Go proxy-server (v0.30 to v0.36).

mod config;
mod frontend;
mod table;

use std::ffi::OsString;
use std::time::Duration;

use flags::{
    Exit, FlagError, FlagSet, FlowOptions, Given, GoDuration, LogOptions, ProfilingFlags, RecordOptions,
    identity, pair,
};
use grpc::KeepaliveFlags;
use net::tls::{Accepted, TlsVersion};
use uuid::Uuid;

pub use config::{Config, FrontendConfig, FrontendListener, TlsFiles, TokenAuth};
use table::{AccessFlags, AgentFlags, FrontendFlags, KubeFlags, PortFlags, ReplicaFlags};

use crate::agent_stream::IdentityBinding;
use crate::backends::Strategy;
use crate::frontend::Protocol;

const ABOUT: &str = "carries kube-apiserver's connections to the agents of a cluster.";

/// Shorter intervals would load the API server without effect: an accepted token is cached for a minute.
const MIN_REVIEW_INTERVAL: Duration = Duration::from_secs(60);

/// Parses a command line, starting with the program name, and its environment.
pub fn parse(
    argv: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Config, Exit> {
    let set = FlagSet::new("proxy-server", env!("CARGO_PKG_VERSION"), ABOUT).usage(commands::SERVER_USAGE);
    let set =
        set.group::<FrontendFlags>().group::<AgentFlags>().group::<AccessFlags>().group::<ReplicaFlags>();
    let set = set.group::<FlowOptions>().group::<PortFlags>().group::<ProfilingFlags>().group::<KubeFlags>();
    let set = set.group::<RecordOptions>().group::<LogOptions>();
    set.parse(argv, |given| config(given, environment("PROXY_SERVER_ID")))
}

/// The configuration that the flags give. `inherited_id` is the environment's server id.
fn config(given: Given, inherited_id: Option<OsString>) -> Result<Config, FlagError> {
    let mut warnings = given.warnings.clone();
    warnings.extend(given.ignored());
    let frontend: FrontendFlags = given.group()?;
    let (frontends, frontend_tls) = frontend::frontends(&frontend, &given, &mut warnings)?;
    let agents: AgentFlags = given.group()?;
    warn("tls-min-version", &agents.tls_min_version, &mut warnings);
    warn("cipher-suites", &agents.cipher_suites, &mut warnings);
    let agent_tls = agent_tls(&agents)?;
    let access: AccessFlags = given.group()?;
    let token_auth = token_auth(&access, agent_tls.client_ca.is_some(), &mut warnings)?;
    let mut replica: ReplicaFlags = given.group()?;
    replica.server_id =
        identity("server-id", replica.server_id, inherited_id, || Uuid::new_v4().to_string())?;
    if replica.server_count < 1 {
        let count = replica.server_count;
        warnings.push(format!("--server-count={count}: it counts as 1, this replica exists"));
    }
    replica.server_count = replica.server_count.clamp(1, u32::MAX.into());
    if replica.proxy_strategies.iter().rev().skip(1).any(|strategy| *strategy == Strategy::Default) {
        let why = "default finds every agent, so the strategies after it are never asked";
        warnings.push(format!("--proxy-strategies: {why}"));
    }
    let ports = given.group()?;
    let profiling = given.group::<ProfilingFlags>()?.check()?;
    let kube: KubeFlags = given.group()?;
    let (flow, records, log): (_, _, LogOptions) = (given.group()?, given.group()?, given.group()?);
    warnings.extend(log.warnings());
    let mut config = Config {
        frontends,
        frontend_tls,
        agent_tls,
        keepalive: KeepaliveFlags {
            time: agents.keepalive_time,
            half_open_timeout: agents.keepalive_timeout,
            unresponsive_timeout: agents.unresponsive_timeout,
        },
        token_auth,
        flag_lines: given.announce(&[("server-id", &replica.server_id)]),
        changed_flags: given.changed,
        frontend,
        agents,
        access,
        replica,
        ports,
        profiling,
        flow,
        kube,
        records,
        log,
        warnings,
    };
    config.warnings.extend(useless(&config));
    Ok(config)
}

/// Warnings about flags that have no effect beside the others.
fn useless(config: &Config) -> Vec<String> {
    let (tokens, leases) = (config.token_auth.is_some(), config.kube.enable_lease_controller);
    let (no_api, api) = (!tokens && !leases, "there are neither leases nor token reviews");
    let no_rate = config.kube.kubeconfig_qps <= 0.0;
    let is_unix = |frontend: &FrontendConfig| matches!(frontend.listener, FrontendListener::Unix(_));
    let is_grpc = |frontend: &FrontendConfig| frontend.protocol == Protocol::Grpc;
    let tls13 = config.agents.tls_min_version.value == TlsVersion::Tls13;
    let zones = [Strategy::Default, Strategy::DefaultRoute];
    let zoned = config.replica.proxy_strategies.iter().any(|strategy| zones.contains(strategy));
    let unproven = config.access.agent_identity_binding == IdentityBinding::Off
        || !tokens && config.agent_tls.client_ca.is_none();
    let flags = [
        ("kubeconfig", no_api, api),
        ("kubeconfig-qps", no_api, api),
        ("kubeconfig-burst", no_api, api),
        ("kubeconfig-burst", !no_api && no_rate, "--kubeconfig-qps sets no limit"),
        ("lease-namespace", !leases, "there are no leases"),
        ("lease-label", !leases, "there are no leases"),
        ("advertise-address", !leases, "there are no leases"),
        ("server-bind-address", config.frontends.iter().all(is_unix), "the frontend is a Unix socket"),
        ("delete-existing-uds-file", !config.frontends.iter().any(is_unix), "no frontend is a Unix socket"),
        ("frontend-keepalive-time", !config.frontends.iter().any(is_grpc), "no frontend's protocol is grpc"),
        ("cipher-suites", tls13, "the suites of TLS 1.3 cannot be configured"),
        ("prefer-zone", !zoned, "--proxy-strategies has neither default nor defaultRoute"),
        ("token-review-interval", !tokens, "agents do not show tokens"),
        (
            "agent-identity-source-address",
            unproven,
            "agents are not authenticated, or --agent-identity-binding is off",
        ),
        config.records.sample_ratio_without_effect(),
    ];
    flags::without_effect(&config.changed_flags, &flags)
}

fn agent_tls(flags: &AgentFlags) -> Result<TlsFiles, FlagError> {
    let (cert, key) = (flags.cluster_cert.clone(), flags.cluster_key.clone());
    let pair = pair(("cluster-cert", cert), ("cluster-key", key))?;
    let (cert, key) = pair.ok_or_else(|| {
        let fix = "give --cluster-cert and --cluster-key, agents connect with TLS only";
        FlagError::empty("cluster-cert", fix)
    })?;
    Ok(TlsFiles { cert, key, client_ca: flags.cluster_ca_cert.clone() })
}

/// Adds the warnings about the flag's value.
fn warn<T>(flag: &str, accepted: &Accepted<T>, warnings: &mut Vec<String>) {
    if !accepted.warnings.is_empty() {
        warnings.push(format!("--{flag}: {}", accepted.warnings.join("; ")));
    }
}

/// How tokens authenticate agents, if they do. `by_certificate`: agents authenticate by certificate. Either all three token
/// flags are set or none; certificates and tokens exclude each other.
fn token_auth(
    flags: &AccessFlags,
    by_certificate: bool,
    warnings: &mut Vec<String>,
) -> Result<Option<TokenAuth>, FlagError> {
    let texts = [
        ("agent-namespace", &flags.agent_namespace),
        ("agent-service-account", &flags.agent_service_account),
        ("authentication-audience", &flags.authentication_audience),
    ];
    let given = texts.iter().find(|(_, text)| !text.is_empty()).map(|(flag, _)| *flag);
    let authenticated = by_certificate || given.is_some();
    certificates_that_are_needed(flags, by_certificate, authenticated)?;
    warn_of_access(flags, warnings);
    let Some(given) = given else { return Ok(None) };
    if by_certificate {
        let fix = "agents show either a certificate or a token, drop one";
        return Err(FlagError::conflict("cluster-ca-cert", given, fix));
    }
    if let Some((missing, _)) = texts.iter().find(|(_, text)| text.is_empty()) {
        let fix = "token authentication takes all of --agent-namespace, --agent-service-account and \
                   --authentication-audience";
        return Err(FlagError::needs(given, missing, fix));
    }
    let [namespace, service_account, audience] = texts.map(|(_, text)| text.clone());
    let review_every = flags.token_review_interval.map(|interval| interval.max(MIN_REVIEW_INTERVAL));
    Ok(Some(TokenAuth { namespace, service_account, audience, review_every }))
}

/// Flags that need agents' certificates, or agents that authenticate in one of the two ways.
fn certificates_that_are_needed(
    flags: &AccessFlags,
    by_certificate: bool,
    authenticated: bool,
) -> Result<(), FlagError> {
    let authenticate = "give the authorities of agents' certificates, or authenticate agents by token";
    let enforced = flags.agent_identity_binding == IdentityBinding::Enforce;
    let lacking = [
        (
            "agent-allowed-names",
            !flags.agent_allowed_names.is_empty() && !by_certificate,
            "names are those of certificates",
        ),
        ("require-agent-auth", flags.require_agent_auth && !authenticated, authenticate),
        ("agent-identity-binding", enforced && !authenticated, authenticate),
    ];
    match lacking.into_iter().find(|(_, lacking, _)| *lacking) {
        Some((flag, _, fix)) => Err(FlagError::needs(flag, "cluster-ca-cert", fix)),
        None => Ok(()),
    }
}

fn warn_of_access(flags: &AccessFlags, warnings: &mut Vec<String>) {
    let binding = flags.agent_identity_binding;
    if !flags.default_route_allowed_names.is_empty() && binding != IdentityBinding::Enforce {
        let without = "refuses nobody without --agent-identity-binding=enforce";
        warnings.push(format!("--default-route-allowed-names {without}"));
    }
    if let Some(interval) = flags.token_review_interval
        && interval < MIN_REVIEW_INTERVAL
    {
        warnings.push(format!("--token-review-interval={}: it counts as 1m", GoDuration::from(interval)));
    }
}
