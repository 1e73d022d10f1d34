//! Flags of the connection to the proxy-servers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use flags::{
    FlagError, FlagSet, GoDuration, List, existing_file, header_text, optional_duration, pair, port,
    unresponsive_timeout,
};

use super::CertPair;

/// grpc-go's minimum for clients (`WithKeepaliveParams`); smaller values, including 0, are raised to it.
const LEAST_KEEPALIVE: Duration = Duration::from_secs(10);

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    proxy_server_host: String,
    proxy_server_port: i64,
    agent_cert: OsString,
    agent_key: OsString,
    ca_cert: OsString,
    alpn_proto: List,
    keepalive_time: GoDuration,
    unresponsive_timeout: GoDuration,
    service_account_token_path: OsString,
    certificate_reload_interval: GoDuration,
}

/// The checked values.
pub(super) struct Uplink {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) certificate: Option<CertPair>,
    pub(super) ca: Option<PathBuf>,
    pub(super) alpn_protos: Vec<String>,
    pub(super) keepalive_time: Duration,
    pub(super) unresponsive_timeout: Duration,
    pub(super) token_path: Option<PathBuf>,
    pub(super) certificate_reload_interval: Option<Duration>,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            proxy_server_host: "127.0.0.1".into(),
            proxy_server_port: 8091,
            agent_cert: OsString::new(),
            agent_key: OsString::new(),
            ca_cert: OsString::new(),
            alpn_proto: List::default(),
            keepalive_time: GoDuration::from_seconds(3_600),
            unresponsive_timeout: GoDuration::from_seconds(300),
            service_account_token_path: OsString::new(),
            certificate_reload_interval: GoDuration::from_seconds(10),
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Proxy-servers");
        set.add(
            "proxy-server-host",
            &mut self.proxy_server_host,
            "Name or address of the proxy-servers; their certificate must contain it.",
        );
        set.add("proxy-server-port", &mut self.proxy_server_port, "Agent port of the proxy-servers.");
        set.add(
            "ca-cert",
            &mut self.ca_cert,
            "CA certificates for the servers' certificates, PEM. Empty: the system's. (Required by the Go proxy-agent.)",
        );
        set.add("agent-cert", &mut self.agent_cert, "Client certificate chain for servers, PEM.");
        set.add("agent-key", &mut self.agent_key, "Key of --agent-cert, PEM.");
        set.add(
            "certificate-reload-interval",
            &mut self.certificate_reload_interval,
            "Interval at which the files of --ca-cert, --agent-cert and --agent-key are checked for changes. 0: they \
             are read only at the start. (The Go proxy-agent has no such flag.)",
        );
        set.add(
            "service-account-token-path",
            &mut self.service_account_token_path,
            "File with a bearer token for servers, read for each connect.",
        );
        set.add(
            "alpn-proto",
            &mut self.alpn_proto,
            "ALPN protocols to offer before h2 in the TLS handshake, so that a load balancer can recognize agents.",
        );
        set.add(
            "keepalive-time",
            &mut self.keepalive_time,
            "Idle time before a ping to a server. At least 10s; 0: 10s.",
        );
        set.add(
            "unresponsive-timeout",
            &mut self.unresponsive_timeout,
            "How long the agent keeps the connections of a server that answers no pings while its host still \
             acknowledges data. At least 10s. (Not a flag of the Go programs.)",
        );
    }

    pub(super) fn check(self, warnings: &mut Vec<String>) -> Result<Uplink, FlagError> {
        let certificate = pair(("agent-cert", self.agent_cert), ("agent-key", self.agent_key))?;
        let ca = existing_file("ca-cert", self.ca_cert)?;
        if ca.is_none() {
            warnings.push("--ca-cert is empty: servers are trusted by the system's authorities".to_owned());
        }
        let mut host = self.proxy_server_host;
        header_text("proxy-server-host", &host)?;
        if host.is_empty() {
            // grpc-go treats an address without a host as the local machine.
            host = "localhost".to_owned();
        }
        let invalid = self.alpn_proto.items.iter().find(|name| !(1..=255).contains(&name.len()));
        if let Some(name) = invalid {
            let want = "a protocol's name has 1 to 255 bytes";
            return Err(FlagError::value("alpn-proto", format_args!("{name:?}"), want));
        }
        Ok(Uplink {
            host,
            port: port("proxy-server-port", self.proxy_server_port)?,
            certificate: certificate.map(|(cert, key)| CertPair { cert, key }),
            ca,
            alpn_protos: self.alpn_proto.items,
            keepalive_time: self.keepalive_time.or_zero().max(LEAST_KEEPALIVE),
            unresponsive_timeout: unresponsive_timeout(self.unresponsive_timeout)?,
            certificate_reload_interval: optional_duration(
                "certificate-reload-interval",
                self.certificate_reload_interval,
            )?,
            token_path: existing_file("service-account-token-path", self.service_account_token_path)?,
        })
    }
}
