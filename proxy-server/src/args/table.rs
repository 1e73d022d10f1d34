//! The flags of the proxy-server: one row for each, in the order of the help.

#![expect(clippy::needless_pass_by_value, reason = "a check gets the value of its flag")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flags::{
    BindHost, FlagError, GoDuration, Repeated, above_zero, bind_host, existing_file, keepalive_timeout,
    one_of, optional_duration, unresponsive_timeout,
};
use net::host_port::host_port;
use net::tls::{Accepted, CipherSuites, TlsFlagError, TlsVersion};

use crate::agent_stream::IdentityBinding;
use crate::backends::{ReadinessPolicy, Selection, Strategy};
use crate::frontend::Protocol;

pub(super) const MODES: [(&str, Protocol); 2] =
    [(Protocol::Grpc.name(), Protocol::Grpc), (Protocol::HttpConnect.name(), Protocol::HttpConnect)];

const BINDINGS: [(&str, IdentityBinding); 3] =
    [("off", IdentityBinding::Off), ("log", IdentityBinding::Log), ("enforce", IdentityBinding::Enforce)];

const SELECTIONS: [(&str, Selection); 2] =
    [("least-loaded", Selection::LeastLoaded), ("random", Selection::Random)];

const POLICIES: [(&str, ReadinessPolicy); 4] = [
    ("", ReadinessPolicy::FirstStrategy),
    ("first-strategy", ReadinessPolicy::FirstStrategy),
    ("any", ReadinessPolicy::Any),
    ("all", ReadinessPolicy::All),
];

flags::flags! {
    /// The flags of the frontends. TLS files may only be checked if there is a port.
    #[derive(Clone, Debug, PartialEq)]
    pub struct FrontendFlags {
        "Frontend (where kube-apiserver connects)" {
            /// A frontend: PROTOCOL+unix:PATH, PROTOCOL+unix:@NAME, PROTOCOL+tcp:PORT or PROTOCOL+tcp:HOST:PORT, where
            /// PROTOCOL is grpc or http-connect. Repeat the flag for several frontends. It replaces --mode, --uds-name,
            /// --server-port and --server-bind-address, which must not be given with it. All other flags of this
            /// section apply to each frontend, those of TLS to each port. (Not a flag of the Go proxy-server.)
            frontend: Repeated = "",
            /// Protocol of kube-apiserver: grpc or http-connect.
            mode: Protocol = "grpc" [go = (7, "Mode set to %q.")] => one_of(&MODES, "it must be grpc or http-connect"),
            /// Path of the Unix socket on which to listen without TLS; @NAME is an abstract socket. Empty: listen on
            /// --server-port with TLS.
            uds_name: PathBuf = "" [go = (8, "UDSName set to %q.")],
            /// Delete an existing socket, or an empty file or folder, at --uds-name before listening.
            delete_existing_uds_file: bool = "true" [go = (9, "DeleteUDSFile set to %v.")],
            /// Port for kube-apiserver. Set it to 0 with --uds-name.
            server_port: i64 = "8090" [go = (10, "Server port set to %d.")],
            /// Address for --server-port. Empty: all interfaces.
            server_bind_address: BindHost = "" [go = (11, "Server bind address set to %q.")] => bind_host,
            /// Certificate chain for kube-apiserver, PEM.
            server_cert: PathBuf = "" [go = (1, "ServerCert set to %q.")],
            /// Key of --server-cert, PEM.
            server_key: PathBuf = "" [go = (2, "ServerKey set to %q.")],
            /// CA certificates for kube-apiserver's client certificate, PEM. Required without --uds-name.
            server_ca_cert: PathBuf = "" [go = (3, "ServerCACert set to %q.")],
            /// Common names and alternative names of client certificates that the frontends admit. Empty: all certificates
            /// signed by --server-ca-cert. (Not a flag of the Go proxy-server.)
            frontend_allowed_names: Vec<String> = "",
            /// Idle time before a ping to a gRPC frontend. At least 1s; 0: 2h.
            frontend_keepalive_time: Duration = "1h0m0s" [go = (19, "Frontend keepalive time set to %v.")] => keepalive,
        }
    }
}

flags::flags! {
    /// The flags of the agent port, and of TLS on both ports.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AgentFlags {
        "Agents" {
            /// Port for agents.
            agent_port: u16 = "8091" [go = (12, "Agent port set to %d.")] => port,
            /// Address for --agent-port. Empty: all interfaces.
            agent_bind_address: BindHost = "" [go = (13, "Agent bind address set to %q.")] => bind_host,
            /// Certificate chain for agents, PEM. Required.
            cluster_cert: Option<PathBuf> = "" [go = (4, "ClusterCert set to %q.")] => existing_file,
            /// Key of --cluster-cert, PEM. Required.
            cluster_key: Option<PathBuf> = "" [go = (5, "ClusterKey set to %q.")] => existing_file,
            /// CA certificates for agents' client certificates, PEM. Empty: no client certificate is requested.
            cluster_ca_cert: Option<PathBuf> = "" [go = (6, "ClusterCACert set to %q.")] => existing_file,
            /// Idle time before a ping to an agent. At least 1s; 0: 2h. Above 10s: 10s.
            keepalive_time: Duration = "1h0m0s" [go = (18, "Keepalive time set to %v.")] => keepalive,
            /// Time after which a stream with an unanswered ping ends as half-open, if the agent answers on another stream.
            /// If it answers on none but its host acknowledges data, --unresponsive-timeout applies. At least 1s; 0 means
            /// 20s. (Not a flag of the Go programs.)
            keepalive_timeout: Duration = "20s" => keepalive_timeout,
            /// Time for which the server keeps the connections of an agent that answers no pings while its host
            /// acknowledges data. At least 10s. (Not a flag of the Go programs.)
            unresponsive_timeout: Duration = "5m0s" => unresponsive_timeout,
            /// Allowed TLS 1.2 cipher suites of both TLS listeners, by their Go names. Empty: all secure ones. The
            /// suites of TLS 1.3 cannot be configured.
            cipher_suites: Accepted<CipherSuites> = "" [go = (35, "CipherSuites set to [%q].")]
                => |flag, names: Vec<String>| tls(flag, CipherSuites::parse(&names)),
            /// Minimum TLS version of both TLS listeners: VersionTLS12 or VersionTLS13; VersionTLS10 and VersionTLS11
            /// are accepted and mean VersionTLS12. Empty: VersionTLS12.
            tls_min_version: Accepted<TlsVersion> = "" [go = (36, "TLSMinVersion set to %q.")]
                => |flag, text: String| tls(flag, TlsVersion::parse(&text)),
            /// Interval at which both TLS listeners check their certificate, key and CA files for changes. 0: the files
            /// are read only at the start. (The Go proxy-server has no such flag.)
            certificate_reload_interval: Option<Duration> = "10s" => optional_duration,
        }
    }
}

flags::flags! {
    /// The flags that decide which agents are admitted and what they may claim.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AccessFlags {
        "Authentication of agents" {
            /// Refuse to start if agents are not authenticated. (Not a flag of the Go proxy-server.)
            require_agent_auth: bool = "false",
            /// Namespace of the agents' service account.
            agent_namespace: String = "" [go = (24, "AgentNamespace set to %q.")],
            /// Service account whose tokens admit agents. The Kubernetes API reviews each token.
            agent_service_account: String = "" [go = (25, "AgentServiceAccount set to %q.")],
            /// Audience that agents' tokens must have.
            authentication_audience: String = "" [go = (26, "AuthenticationAudience set to %q.")],
            /// Interval at which the tokens of open agent streams are reviewed again. A stream ends once its token is
            /// refused: at most this interval plus 10s after the token expires. At least 1m; 0: never. (Not a flag of
            /// the Go proxy-server.)
            token_review_interval: Option<Duration> = "0s" => optional_duration,
            /// What to do if an agent's certificate or token does not prove its id or identifiers: off (nothing), log
            /// (log and count it) or enforce (refuse the agent). (Not a flag of the Go proxy-server.)
            agent_identity_binding: IdentityBinding = "log" => one_of(&BINDINGS, "it must be off, log or enforce"),
            /// With --agent-identity-binding: an agent may claim the source address of its connection. Use it only if
            /// nothing between agents and this server translates addresses, such as a NodePort or a load balancer. (Not
            /// a flag of the Go proxy-server.)
            agent_identity_source_address: bool = "false",
            /// Common names and alternative names of client certificates that the agent port admits. Empty: all
            /// certificates signed by --cluster-ca-cert. (Not a flag of the Go proxy-server.)
            agent_allowed_names: Vec<String> = "",
            /// Names of agents that may announce default-route and cidr if --agent-identity-binding is enforce: names in
            /// their certificate, or the user or node of their token. (Not a flag of the Go proxy-server.)
            default_route_allowed_names: Vec<String> = "",
        }
    }
}

flags::flags! {
    /// The flags of this replica and of its choice of agents.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ReplicaFlags {
        "This replica and its choice of agents" {
            /// Unique id of this replica. Empty: the environment variable PROXY_SERVER_ID.
            server_id: String = ""
                [go = (22, "ServerID set to %s.")] [default_shown = "PROXY_SERVER_ID, or a new UUID"],
            /// Number of server replicas to which agents connect. At least 1.
            server_count: i64 = "1" [go = (23, "ServerCount set to %d.")],
            /// File with the number for --server-count, from 1 to 1000, which the server reads again when it changes.
            /// Replace the file by a rename. The server announces a new number to connected native agents, and to Go
            /// agents when they connect. Empty: none. (Not a flag of the Go proxy-server.)
            server_count_file: Option<PathBuf> = "" => existing_file,
            /// Strategies to choose an agent, comma-separated, tried in order: default (any agent), destHost (the agent
            /// that announced the target's host), defaultRoute (an agent with default-route=true).
            proxy_strategies: Vec<Strategy> = "default" [go = (31, "ProxyStrategies set to %q.")] => strategies,
            /// Choice among the agents that a strategy finds: least-loaded (of two random agents, the one with the shorter
            /// expected dial time) or random (as in Go 0.36). (Not a flag of the Go proxy-server.)
            agent_selection: Selection = "least-loaded" => one_of(&SELECTIONS, "it must be least-loaded or random"),
            /// Zone whose agents the strategies default and defaultRoute prefer: those with the identifier zone=NAME. Empty: no
            /// zone. (Not a flag of the Go proxy-server.)
            prefer_zone: Option<Arc<str>> = "" => zone,
            /// Deadline of one dial and all its attempts. 0: 25s.
            backend_dial_timeout: Option<Duration> = "0s" [go = (39, "BackendDialTimeout set to %v.")]
                => optional_duration,
            /// Time for connections to finish after the first SIGTERM or SIGINT; new dials still succeed. 0: none.
            graceful_shutdown_timeout: Option<Duration> = "0s" [go = (38, "GracefulShutdownTimeout set to %v.")]
                => optional_duration,
            /// Number of packets queued for each stream. Above 0.
            xfr_channel_size: usize = "10" [go = (37, "XfrChannelSize set to %d.")]
                [no_effect = "queues are limited in bytes, not in packets"] => above_zero,
            /// Number of packets queued for each HTTP CONNECT client. At least 0. (A flag of Go proxy-servers after v0.36.)
            frontend_write_channel_size: i64 = "10"
                [no_effect = "queues are limited in bytes, not in packets"] => not_negative,
            warn_on_channel_limit: bool = "true"
                [no_effect = "it is deprecated, full queues show in the metric full_receive_channels"],
        }
    }
}

flags::flags! {
    /// The flags of the health and admin ports; [`flags::ProfilingFlags`] continue them.
    #[derive(Clone, Debug, PartialEq)]
    pub struct PortFlags {
        "Health and administration" {
            /// Port for /healthz, /readyz and /metrics.
            health_port: u16 = "8092" [go = (16, "Health port set to %d.")] => port,
            /// Address for --health-port. Empty: all interfaces.
            health_bind_address: BindHost = "" [go = (17, "Health bind address set to %q.")] => bind_host,
            /// Which of --proxy-strategies must have an agent for /readyz to succeed: first-strategy (as in Go), any or
            /// all. (The Go proxy-server has no such flag.)
            readiness_policy: ReadinessPolicy = "first-strategy" => one_of(&POLICIES, "it must be first-strategy, any or all"),
            /// Port for the status page /, /statusz, /metrics, the commands and, with profiling, /debug/pprof.
            admin_port: u16 = "8095" [go = (14, "Admin port set to %d.")] => port,
            /// Address for --admin-port. Empty: all interfaces.
            admin_bind_address: BindHost = "127.0.0.1" [go = (15, "Admin bind address set to %q.")] => bind_host,
            /// Let `probe --agent=ID` dial any address through this agent. Every process on this machine can then connect to
            /// everything that agents can reach. (Not a flag of the Go programs.)
            allow_probe_dials: bool = "false",
        }
    }
}

flags::flags! {
    /// The flags of the leases and of the Kubernetes API client.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KubeFlags {
        "Kubernetes" {
            /// Publish a lease for this replica and delete expired leases.
            enable_lease_controller: bool = "false" [go = (32, "EnableLeaseController set to %v.")],
            /// Namespace of the leases.
            lease_namespace: String = "kube-system" [go = (33, "LeaseNamespace set to %s.")],
            /// Labels of the leases: KEY=VALUE, comma-separated.
            lease_label: BTreeMap<String, String> = "k8s-app=konnectivity-server" [go = (34, "LeaseLabel set to %s.")]
                => labels,
            /// Address at which agents reach this replica directly, HOST:PORT. The server writes it into an annotation
            /// of its lease, and agents with --count-server-leases dial it. Empty: none. (Not a flag of the Go
            /// proxy-server.)
            advertise_address: Option<String> = "" => advertise_address,
            /// Kubeconfig for the Kubernetes API, for leases and token reviews. Empty: the pod's service account.
            kubeconfig: Option<PathBuf> = "" [go = (27, "KubeconfigPath set to %q.")] => existing_file,
            /// Limit of requests to the Kubernetes API per second. 0 or less: no limit, except 32 token reviews at
            /// once.
            kubeconfig_qps: f32 = "0" [go = (28, "KubeconfigQPS set to %f.")],
            /// Limit of requests to the Kubernetes API in one burst above --kubeconfig-qps. 0 or less: 10.
            kubeconfig_burst: i64 = "0" [go = (29, "KubeconfigBurst set to %d.")],
            /// Media type of requests to the Kubernetes API.
            kube_api_content_type: String = "application/vnd.kubernetes.protobuf"
                [go = (30, "APIContentType set to %v.")] [no_effect = "requests are JSON"],
        }
    }
}

/// Parses names separated by commas, in order. Empty names are skipped; blanks are not trimmed.
fn strategies(flag: &'static str, text: String) -> Result<Vec<Strategy>, FlagError> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&text);
    let known = [Strategy::Default, Strategy::DestHost, Strategy::DefaultRoute];
    let known = known.map(|strategy| (strategy.name(), strategy));
    let named = one_of(&known, "the strategies are default, destHost and defaultRoute");
    let names = bare.split(',').filter(|name| !name.is_empty());
    let strategies: Vec<_> = names.map(|name| named(flag, name.to_owned())).collect::<Result<_, _>>()?;
    if strategies.is_empty() {
        let fix = "name at least one of default, destHost and defaultRoute";
        return Err(FlagError::empty(flag, fix));
    }
    Ok(strategies)
}

/// A port that is neither reserved nor ephemeral, as the Go proxy-server requires.
pub(super) fn port(flag: &'static str, value: i64) -> Result<u16, FlagError> {
    let usable = u16::try_from(value).ok().filter(|port| (1_024..=49_151).contains(port));
    usable.ok_or_else(|| FlagError::value(flag, value, "it must be a port from 1024 to 49151"))
}

fn zone(_flag: &'static str, text: String) -> Result<Option<Arc<str>>, FlagError> {
    Ok((!text.is_empty()).then(|| text.into()))
}

/// grpc-go's rule for servers (`KeepaliveParams`): 0 means two hours, and anything below one second means one second.
fn keepalive(_flag: &'static str, given: GoDuration) -> Result<Duration, FlagError> {
    if given == GoDuration::ZERO {
        return Ok(Duration::from_secs(7_200));
    }
    Ok(given.or_zero().max(Duration::from_secs(1)))
}

fn tls<T>(flag: &'static str, parsed: Result<Accepted<T>, TlsFlagError>) -> Result<Accepted<T>, FlagError> {
    parsed.map_err(|error| FlagError::value(flag, format_args!("{:?}", error.value), error.want))
}

fn not_negative(flag: &'static str, value: i64) -> Result<i64, FlagError> {
    if value < 0 { Err(FlagError::value(flag, value, "it must not be below 0")) } else { Ok(value) }
}

/// `HOST:PORT` or `[ADDRESS]:PORT`.
fn advertise_address(flag: &'static str, text: String) -> Result<Option<String>, FlagError> {
    if text.is_empty() || host_port(&text).is_some() {
        return Ok(Some(text).filter(|text| !text.is_empty()));
    }
    Err(FlagError::value(flag, format_args!("{text:?}"), "it must be HOST:PORT or [ADDRESS]:PORT"))
}

/// Parses `KEY=VALUE` pairs separated by commas, and trims blanks. Each pair has exactly one `=`; key and value are not checked
/// further. Bad labels are refused even with the controller off, as in Go once its listeners are up.
fn labels(flag: &'static str, text: String) -> Result<BTreeMap<String, String>, FlagError> {
    let want = "it must be KEY=VALUE, or several by commas";
    let label = |pair: &str| {
        let parts = pair.split_once('=').filter(|(_, value)| !value.contains('='));
        let (key, value) = parts.ok_or_else(|| FlagError::value(flag, format_args!("{text:?}"), want))?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    };
    text.split(',').map(label).collect()
}
