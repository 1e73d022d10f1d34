//! The parts that all cases share: the cluster, the node, and the places where servers listen.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use e2e::frontend::{Mode, Place};
use e2e::kube::{self, ApiServer, Cluster, Egress, Kubectl, Node, Output, Session, Tools};
use e2e::metrics::Scrape;
use e2e::pair::Front;
use e2e::pki::Pki;
use e2e::ports::Lease;
use e2e::wait::{DEADLINE, until};
use tempfile::TempDir;

/// The kinds of connections from a kube-apiserver to a proxy-server.
pub(crate) const FRONTENDS: [(&str, Mode, Front); 3] = [
    ("grpc-uds", Mode::Grpc, Front::Unix),
    ("connect-uds", Mode::HttpConnect, Front::Unix),
    ("connect-tls", Mode::HttpConnect, Front::Tls),
];

/// The places where servers listen, whichever servers run, and the certificates that frontends and agents trust.
pub(crate) struct Ground {
    /// One for each kind, in order.
    pub(crate) places: Vec<Place>,
    pub(crate) pki: Pki,
    folder: Arc<TempDir>,
    _port: Lease,
}

impl Ground {
    pub(crate) fn lay() -> Result<Self> {
        let folder = Arc::new(tempfile::Builder::new().prefix("knp").tempdir()?);
        let pki = Pki::create(folder.path())?;
        let port = Lease::new()?;
        let place = |(name, _, front): &(&str, Mode, Front)| match front {
            Front::Unix => Place::Unix(folder.path().join(format!("{name}.sock"))),
            Front::Tls => Place::Tls(([127, 0, 0, 1], port.port()).into()),
        };
        Ok(Self { places: FRONTENDS.iter().map(place).collect(), pki, folder, _port: port })
    }
}

/// The running cluster, with one kube-apiserver for each kind, in order.
pub(crate) struct World {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) node: Arc<Node>,
    pub(crate) ground: Ground,
}

impl World {
    pub(crate) async fn start(tools: &Tools, ground: Ground) -> Result<Self> {
        let egress = |((_, mode, _), place): (&(&str, Mode, Front), &Place)| Egress {
            mode: *mode,
            place: place.clone(),
            pki: ground.pki.clone(),
        };
        let egress: Vec<Egress> = FRONTENDS.iter().zip(&ground.places).map(egress).collect();
        let cluster = Arc::new(Cluster::start(tools, &egress).await?);
        let node = Arc::new(Node::start(tools, cluster.files()).await?);
        kube::nodes(cluster.kubectl(), &node).await?;
        kube::extensions(&cluster, &node).await?;
        Ok(Self { cluster, node, ground })
    }

    /// The lanes of a phase, each with a separate namespace and workload.
    pub(crate) async fn lanes(&self, phase: &str) -> Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        for (index, (frontend, ..)) in FRONTENDS.iter().enumerate() {
            let name = format!("{phase}-{frontend}");
            kube::workload(self.cluster.kubectl(), &self.node, &name).await?;
            let scratch = self.ground.folder.path().join(&name);
            std::fs::create_dir_all(&scratch)?;
            let (cluster, node) = (self.cluster.clone(), self.node.clone());
            lanes.push(Lane(Arc::new(Parts { cluster, node, index, name, scratch })));
        }
        for lane in &lanes {
            lane.wait_for_workload().await?;
        }
        Ok(lanes)
    }
}

/// kube-apiserver's egress dials so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dials {
    pub(crate) started: f64,
    pub(crate) failed: f64,
    pub(crate) succeeded: f64,
}

/// kube-apiserver cancels a dial after half a minute.
const IDLE_WITHIN: Duration = Duration::from_secs(60);

/// One kube-apiserver with its connection to a proxy-server, and a separate namespace.
#[derive(Clone)]
pub(crate) struct Lane(Arc<Parts>);

struct Parts {
    cluster: Arc<Cluster>,
    node: Arc<Node>,
    index: usize,
    name: String,
    scratch: PathBuf,
}

impl Lane {
    /// Phase and kind; also the namespace.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn apiserver(&self) -> &ApiServer {
        &self.0.cluster.apiservers()[self.0.index]
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        self.apiserver().kubectl()
    }

    pub(crate) fn node(&self) -> &Node {
        &self.0.node
    }

    /// A separate folder of this lane.
    pub(crate) fn scratch(&self) -> &Path {
        &self.0.scratch
    }

    /// Runs kubectl in the lane's namespace.
    pub(crate) async fn run(&self, args: &[&str]) -> Result<Output> {
        self.kubectl().run(&self.args(args).iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Runs kubectl in the lane's namespace; a failure is an error.
    pub(crate) async fn ok(&self, args: &[&str]) -> Result<String> {
        self.kubectl().ok(&self.args(args).iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Starts an interactive kubectl in the lane's namespace.
    pub(crate) fn session(&self, args: &[&str]) -> Result<Session> {
        Session::start(self.kubectl(), &self.args(args).iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Arguments with the lane's namespace.
    pub(crate) fn args(&self, args: &[&str]) -> Vec<String> {
        let namespace = format!("--namespace={}", self.name());
        std::iter::once(namespace).chain(args.iter().map(|arg| (*arg).to_owned())).collect()
    }

    /// kube-apiserver's metrics about its egress dials.
    pub(crate) async fn dials(&self) -> Result<Dials> {
        let scrape: Scrape = self.apiserver().metrics().await?;
        let count = |name: &str| scrape.value(&format!("apiserver_egress_dialer_{name}"), &[]);
        Ok(Dials {
            started: count("dial_start_total"),
            failed: count("dial_failure_count"),
            succeeded: count("dial_duration_seconds_count"),
        })
    }

    /// Waits until kube-apiserver has no open dial: dials that began without an agent may still be open.
    pub(crate) async fn idle(&self) -> Result<Dials> {
        let what = format!("no egress dial under way at {}", self.name());
        until(&what, IDLE_WITHIN, || async {
            let dials = self.dials().await.ok()?;
            (dials.started == dials.failed + dials.succeeded).then_some(dials)
        })
        .await
    }

    /// The other kube-apiservers see new objects a moment later.
    async fn wait_for_workload(&self) -> Result<()> {
        let what = format!("pods at the kube-apiserver of {}", self.name());
        until(&what, DEADLINE, || async {
            self.ok(&["get", "pods/app", "pods/app-ws", "services/web"]).await.ok()
        })
        .await
        .map(drop)
    }
}
