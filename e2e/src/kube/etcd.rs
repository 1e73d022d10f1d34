//! etcd: one member, without TLS, on the loopback interface.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

use super::{Files, Tools};
use crate::http1;
use crate::ports::Lease;
use crate::process::{Process, Recipe};
use crate::wait::{DEADLINE, until};

/// A running etcd.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    client: Lease,
    _peer: Lease,
}

impl Etcd {
    /// Starts etcd; its data is in the cluster's folder.
    pub fn start(tools: &Tools, files: &Files) -> Result<Self> {
        let (client, peer) = (Lease::new()?, Lease::new()?);
        let client_url = format!("http://127.0.0.1:{}", client.port());
        let peer_url = format!("http://127.0.0.1:{}", peer.port());
        let args = vec![
            "--name=only".into(),
            format!("--data-dir={}", files.path("etcd").display()),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=only={peer_url}"),
            // The data need not survive a power failure.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        let process =
            Process::spawn(Recipe { name: "etcd".into(), program: tools.etcd(), args, env: Vec::new() })?;
        Ok(Self { process, client, _peer: peer })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.client.port()))
    }

    /// Waits until it is the leader.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let address = self.address();
        let found = until("a healthy etcd", DEADLINE, || async move {
            http1::get(address, "/health").await.ok().filter(|answer| answer.head.status == 200)
        });
        found.await.map(drop).map_err(|error| self.process.explain(&error))
    }
}
