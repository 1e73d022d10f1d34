//! One kube-apiserver, with or without an egress selector.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Etcd, Files, Kubectl, Tools, kubeconfig};
use crate::frontend::{Mode, Place};
use crate::http1::{Answer, get_over};
use crate::metrics::Scrape;
use crate::pki::{Pki, client};
use crate::ports::Lease;
use crate::process::{Process, Recipe};
use crate::wait::until;

/// Time limit for the start of a kube-apiserver on a busy machine.
const START: Duration = Duration::from_secs(120);

/// How a kube-apiserver connects to nodes, pods, webhooks and aggregated APIs.
#[derive(Clone, Debug)]
pub struct Egress {
    /// The protocol.
    pub mode: Mode,
    /// Where the proxy-server listens; gRPC uses Unix sockets only.
    pub place: Place,
    /// The frontend's certificates.
    pub pki: Pki,
}

impl Egress {
    /// The EgressSelectorConfiguration.
    pub(super) fn configuration(&self) -> String {
        let transport = match &self.place {
            Place::Unix(path) => json!({ "uds": { "udsName": path } }),
            Place::Tls(address) => json!({ "tcp": {
                "url": format!("https://{address}"),
                "tlsConfig": {
                    "caBundle": self.pki.front_ca,
                    "clientCert": self.pki.front_client.cert,
                    "clientKey": self.pki.front_client.key,
                },
            } }),
        };
        let protocol = match self.mode {
            Mode::Grpc => "GRPC",
            Mode::HttpConnect => "HTTPConnect",
        };
        let selection: Value = json!({
            "name": "cluster",
            "connection": { "proxyProtocol": protocol, "transport": transport },
        });
        json!({
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [selection],
        })
        .to_string()
    }
}

/// A running kube-apiserver.
#[derive(Debug)]
pub struct ApiServer {
    /// The process.
    pub process: Process,
    port: Lease,
    kubeconfig: PathBuf,
    kubectl: Kubectl,
    files: Arc<Files>,
}

impl ApiServer {
    /// Starts another kube-apiserver on the same etcd, without waiting; `egress` is an EgressSelectorConfiguration.
    pub fn start(
        tools: &Tools,
        index: usize,
        etcd: &Etcd,
        egress: Option<&str>,
        files: Arc<Files>,
    ) -> Result<Self> {
        let port = Lease::new()?;
        let mut args = flags(&files, etcd.address(), port.port());
        if let Some(configuration) = egress {
            let file = files.write(&format!("egress-{index}"), configuration)?;
            args.push(format!("--egress-selector-config-file={}", file.display()));
        }
        let name = format!("kube-apiserver {index}");
        let process = Process::spawn(Recipe { name, program: tools.apiserver(), args, env: Vec::new() })?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.port()));
        let kubeconfig = files.write(
            &format!("admin-{index}.kubeconfig"),
            &kubeconfig::with_certificate(&files, address, &files.admin),
        )?;
        let kubectl = Kubectl::new(tools.kubectl(), kubeconfig.clone(), files.path(&format!("home-{index}")));
        Ok(Self { process, port, kubeconfig, kubectl, files })
    }

    /// Its TLS address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.port()))
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &std::path::Path {
        &self.kubeconfig
    }

    /// Writes a kubeconfig with a bearer token; `name` must be unique.
    pub fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let content = kubeconfig::with_token(&self.files, self.address(), token);
        self.files.write(&format!("{name}-{}.kubeconfig", self.port.port()), &content)
    }

    /// The administrator's kubectl.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Waits until `/readyz` is 200.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let (files, address, process) = (&self.files, self.address(), &mut self.process);
        let mut alive = Ok(());
        let found = until("a ready kube-apiserver", START, || {
            alive = process.check_alive();
            let dead = alive.is_err();
            async move {
                let answer = get(files, address, "/readyz").await.ok();
                (dead || answer.is_some_and(|answer| answer.head.status == 200)).then_some(())
            }
        });
        let found = found.await;
        alive?;
        found.map_err(|error| self.process.explain(&error))
    }

    /// GETs a path as administrator.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        get(&self.files, self.address(), path).await
    }

    /// Its metrics.
    pub async fn metrics(&self) -> Result<Scrape> {
        let answer = self.get("/metrics").await?;
        ensure!(answer.head.status == 200, "/metrics answered {}", answer.head.status);
        Scrape::parse(answer.body)
    }
}

async fn get(files: &Files, address: SocketAddr, path: &str) -> Result<Answer> {
    let config = client(&files.ca, &files.admin, &["http/1.1"])?;
    let socket = TcpStream::connect(address).await.context("cannot connect to kube-apiserver")?;
    let stream = TlsConnector::from(config).connect(address.ip().into(), socket).await?;
    get_over(stream, "localhost", path).await
}

fn flags(files: &Files, etcd: SocketAddr, port: u16) -> Vec<String> {
    let path = |path: &std::path::Path| path.display().to_string();
    vec![
        format!("--etcd-servers=http://{etcd}"),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        "--advertise-address=127.0.0.1".into(),
        "--endpoint-reconciler-type=none".into(),
        format!("--tls-cert-file={}", path(&files.apiserver.cert)),
        format!("--tls-private-key-file={}", path(&files.apiserver.key)),
        format!("--client-ca-file={}", path(&files.ca)),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", path(&files.tokens.cert)),
        format!("--service-account-signing-key-file={}", path(&files.tokens.key)),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--authorization-mode=RBAC".into(),
        // Pods have no service account here, because no controller creates one.
        "--disable-admission-plugins=ServiceAccount".into(),
        format!("--kubelet-certificate-authority={}", path(&files.ca)),
        format!("--kubelet-client-certificate={}", path(&files.kubelet_client.cert)),
        format!("--kubelet-client-key={}", path(&files.kubelet_client.key)),
        "--kubelet-preferred-address-types=InternalIP".into(),
    ]
}
