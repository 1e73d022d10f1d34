//! Flags of the agent port, and of TLS on both ports.

use std::ffi::OsString;
use std::time::Duration;

use flags::{
    Bind, BindHost, FlagError, FlagSet, GoDuration, List, existing_file, optional_duration, pair,
    unresponsive_timeout,
};
use transport::tls::{Accepted, CipherSuites, TlsFlagError, TlsVersion};

use super::AgentListener;
use super::serving::port;

/// The default of both keepalive flags.
pub(super) const HOUR: GoDuration = GoDuration::from_seconds(3_600);

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    agent_bind_address: String,
    agent_port: i64,
    cluster_cert: OsString,
    cluster_key: OsString,
    cluster_ca_cert: OsString,
    keepalive_time: GoDuration,
    unresponsive_timeout: GoDuration,
    cipher_suites: List,
    tls_min_version: String,
    certificate_reload_interval: GoDuration,
}

/// The checked values.
pub(super) struct Agents {
    pub(super) listener: AgentListener,
    pub(super) keepalive_time: Duration,
    pub(super) unresponsive_timeout: Duration,
    pub(super) cipher_suites: CipherSuites,
    pub(super) tls_min_version: TlsVersion,
    pub(super) certificate_reload_interval: Option<Duration>,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            agent_bind_address: String::new(),
            agent_port: 8091,
            cluster_cert: OsString::new(),
            cluster_key: OsString::new(),
            cluster_ca_cert: OsString::new(),
            keepalive_time: HOUR,
            unresponsive_timeout: GoDuration::from_seconds(300),
            cipher_suites: List::default(),
            tls_min_version: String::new(),
            certificate_reload_interval: GoDuration::from_seconds(10),
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Agents");
        set.add("agent-port", &mut self.agent_port, "Port for agents.");
        set.add(
            "agent-bind-address",
            &mut self.agent_bind_address,
            "Address for --agent-port. Empty: all interfaces.",
        );
        set.add("cluster-cert", &mut self.cluster_cert, "Certificate chain for agents, PEM. Required.");
        set.add("cluster-key", &mut self.cluster_key, "Key of --cluster-cert, PEM. Required.");
        set.add(
            "cluster-ca-cert",
            &mut self.cluster_ca_cert,
            "CA certificates for agents' client certificates, PEM. Empty: no client certificate is requested.",
        );
        set.add(
            "keepalive-time",
            &mut self.keepalive_time,
            "Idle time before a ping to an agent. At least 1s; 0: 2h.",
        );
        set.add(
            "unresponsive-timeout",
            &mut self.unresponsive_timeout,
            "How long the server keeps the connections of an agent that answers no pings while its host still \
             acknowledges data. At least 10s. (Not a flag of the Go programs.)",
        );
        set.add(
            "cipher-suites",
            &mut self.cipher_suites,
            "Allowed TLS 1.2 cipher suites of both TLS listeners, by their Go names. Empty: all secure ones. The \
             suites of TLS 1.3 cannot be configured.",
        );
        set.add(
            "tls-min-version",
            &mut self.tls_min_version,
            "Minimum TLS version of both TLS listeners: VersionTLS12 or VersionTLS13; VersionTLS10 and VersionTLS11 \
             are accepted and mean VersionTLS12. Empty: VersionTLS12.",
        );
        set.add(
            "certificate-reload-interval",
            &mut self.certificate_reload_interval,
            "Interval at which both TLS listeners check their certificate, key and CA files for changes. 0: the files \
             are read only at the start. (The Go proxy-server has no such flag.)",
        );
    }

    pub(super) fn check(self, warnings: &mut Vec<String>) -> Result<Agents, FlagError> {
        let pair = pair(("cluster-cert", self.cluster_cert), ("cluster-key", self.cluster_key))?;
        let client_ca = existing_file("cluster-ca-cert", self.cluster_ca_cert)?;
        let port = port("agent-port", self.agent_port)?;
        let tls_min_version =
            accepted("tls-min-version", TlsVersion::parse(&self.tls_min_version), warnings)?;
        let cipher_suites =
            accepted("cipher-suites", CipherSuites::parse(&self.cipher_suites.items), warnings)?;
        let certificate_reload_interval =
            optional_duration("certificate-reload-interval", self.certificate_reload_interval)?;
        let (cert, key) = pair.ok_or(FlagError::Empty {
            flag: "cluster-cert",
            fix: "give --cluster-cert and --cluster-key, agents connect with TLS only",
        })?;
        let bind = Bind { host: BindHost::parse(&self.agent_bind_address), port };
        Ok(Agents {
            listener: AgentListener { bind, cert, key, client_ca },
            keepalive_time: keepalive(self.keepalive_time),
            unresponsive_timeout: unresponsive_timeout(self.unresponsive_timeout)?,
            cipher_suites,
            tls_min_version,
            certificate_reload_interval,
        })
    }
}

/// Returns the value of a TLS flag and adds its warnings to `warnings`.
fn accepted<T>(
    flag: &'static str,
    parsed: Result<Accepted<T>, TlsFlagError>,
    warnings: &mut Vec<String>,
) -> Result<T, FlagError> {
    let refusal = |error: TlsFlagError| FlagError::value(flag, format_args!("{:?}", error.value), error.want);
    let Accepted { value, warnings: texts } = parsed.map_err(refusal)?;
    if !texts.is_empty() {
        warnings.push(format!("--{flag}: {}", texts.join("; ")));
    }
    Ok(value)
}

/// grpc-go's rule for servers (`KeepaliveParams`): 0 means two hours, and anything below one second means one second.
pub(super) fn keepalive(flag: GoDuration) -> Duration {
    if flag == GoDuration::ZERO {
        return Duration::from_secs(7_200);
    }
    flag.or_zero().max(Duration::from_secs(1))
}
