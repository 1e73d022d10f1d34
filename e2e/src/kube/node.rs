//! The node behind the tunnel: one process that acts as kubelet, container runtime, pod, webhook and aggregated API.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::net::TcpStream;

use super::{Files, NODE_ADDRESS, Tools, inside};
use crate::ports::Lease;
use crate::process::{Process, Recipe};
use crate::wait::{DEADLINE, until};

/// A running node.
#[derive(Debug)]
pub struct Node {
    /// The process.
    pub process: Process,
    /// The kubelet's API, which also serves the webhook and the aggregated API.
    pub address: SocketAddr,
    /// The pods' web server, without TLS.
    pub web: SocketAddr,
    /// Whether kube-apiserver passes WebSockets to a kubelet that announces that it accepts them. Kubernetes does so from 1.36;
    /// an older kube-apiserver translates them to SPDY for each kubelet.
    pub gets_websockets: bool,
    logs: PathBuf,
    _ports: [Lease; 2],
}

impl Node {
    /// Starts it on [`NODE_ADDRESS`], or on 127.0.0.2 outside of the namespace, and waits until it listens.
    pub async fn start(tools: &Tools, files: &Files) -> Result<Self> {
        let host: IpAddr = if inside() { NODE_ADDRESS } else { "127.0.0.2" }.parse()?;
        let ports = [Lease::new()?, Lease::new()?];
        let [address, web] = [&ports[0], &ports[1]].map(|lease| SocketAddr::new(host, lease.port()));
        let logs = files.path("logs");
        std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        let args = vec![
            format!("--address={address}"),
            format!("--web-address={web}"),
            format!("--tls-cert-file={}", files.kubelet.cert.display()),
            format!("--tls-private-key-file={}", files.kubelet.key.display()),
            format!("--client-ca-file={}", files.ca.display()),
            format!("--log-dir={}", logs.display()),
        ];
        let mut process = Process::spawn(Recipe {
            name: "kubelet".into(),
            program: tools.kubelet(),
            args,
            env: Vec::new(),
        })?;
        for address in [address, web] {
            let found = until("a kubelet that listens", DEADLINE, || async move {
                TcpStream::connect(address).await.ok()
            });
            found.await.map_err(|error| process.explain(&error))?;
        }
        process.check_alive()?;
        let gets_websockets = tools.minor()? >= 36;
        Ok(Self { process, address, web, gets_websockets, logs, _ports: ports })
    }

    /// The log file of a container.
    pub fn log(&self, namespace: &str, pod: &str, container: &str) -> PathBuf {
        self.logs.join(format!("{namespace}_{pod}_{container}.log"))
    }

    /// The folder of all logs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }
}
