//! HTTP/2 conformance by h2spec, on the gRPC frontend's Unix socket (behind the `:authority` patch), on its port, and on the
//! agent port. h2spec uses plain TCP: a relay adds the socket, or TLS with a client certificate.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::frontend::{Frontend, Io, Mode, tls_over};
use e2e::pair::{Front, Pair, Setup};
use e2e::process::{Process, Recipe};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// The cases of h2spec 2.2.1.
const CASES: usize = 145;

/// These cases expect a DATA frame in the answer, but their request (no POST, or no gRPC) is refused with one HEADERS frame.
const NO_BODY: [&str; 2] = [
    "generic/2 Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
    "generic/2 Sends a PRIORITY frame on half-closed (remote) stream",
];

/// This case sends 20 KiB without regard to our SETTINGS, which permit frames of 128 KiB.
const LARGE_FRAMES: &str =
    "http2/4.2 Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE";

/// This case opens one stream more than the limit. Whether the streams overlap is a race, because each request is refused and
/// that ends its stream. The test `grpc::streams_above_the_limit_are_refused` is deterministic.
const RACE: &str =
    "http2/5.1.2 Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded";

/// The server for h2spec: connects each of its connections to one that `dial` makes. Dropping it ends it.
struct Relay {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Relay {
    async fn start<F>(dial: impl Fn() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = Result<Box<dyn Io>>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            let mut carried = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let backend = dial();
                carried.spawn(async move {
                    // A peer that breaks the rules is disconnected, so errors are expected here.
                    if let Ok(mut backend) = backend.await {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut backend).await;
                    }
                });
            }
        });
        Ok(Self { address, accepting })
    }

    async fn to_frontend(frontend: &Frontend) -> Result<Self> {
        let frontend = frontend.clone();
        Self::start(move || {
            let frontend = frontend.clone();
            async move { frontend.socket().await }
        })
        .await
    }

    async fn to_agent_port(pair: &Pair) -> Result<Self> {
        let (config, address) = (pair.pki.agent_client()?, pair.server().agent_address());
        Self::start(move || {
            let config = config.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                Ok(Box::new(tls_over(stream, config).await?) as Box<dyn Io>)
            }
        })
        .await
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Runs all cases; returns their number, and the failed ones.
async fn judge(relay: &Relay, folder: &Path) -> Result<(usize, BTreeSet<String>)> {
    let program = std::env::var("H2SPEC").context("H2SPEC must hold the path of h2spec, see hack/nightly")?;
    let report = folder.join("report.xml");
    let port = relay.address.port().to_string();
    let report_arg = report.to_str().context("a path of text")?;
    let args = ["-h", "127.0.0.1", "-p", &port, "-o", "20", "-j", report_arg].map(str::to_owned).into();
    let mut process =
        Process::spawn(Recipe { name: "h2spec".into(), program: program.into(), args, env: Vec::new() })?;
    // The exit status says only whether any case failed; the report names them.
    process.exit(Duration::from_secs(300)).await?;
    let text = std::fs::read_to_string(report)?;
    let mut failed = BTreeSet::new();
    let cases: Vec<&str> = text.split("<testcase ").skip(1).collect();
    for case in &cases {
        if case.contains("<error>") || case.contains("<failure>") {
            let of = |name: &str| {
                case.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split('"').next())
            };
            failed.insert(format!(
                "{} {}",
                of("package").context("a package")?,
                of("classname").context("a name")?
            ));
        }
    }
    Ok((cases.len(), failed))
}

async fn conforms(relay: Relay, exceptions: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (cases, mut failed) = judge(&relay, folder.path()).await?;
    failed.remove(RACE);
    ensure!(cases == CASES, "{cases} cases");
    let known: BTreeSet<String> = exceptions.iter().map(|case| (*case).to_owned()).collect();
    ensure!(failed.is_subset(&known), "failed: {failed:#?}, known: {known:#?}");
    Ok(())
}

#[tokio::test]
async fn frontends_behind_the_patch_of_authorities() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    conforms(Relay::to_frontend(pair.frontend()).await?, &NO_BODY).await
}

#[tokio::test]
async fn frontends_by_tls() -> Result<()> {
    let pair = Setup::new(Mode::Grpc, Front::Tls).agents(0).start().await?;
    conforms(Relay::to_frontend(pair.frontend()).await?, &NO_BODY).await
}

#[tokio::test]
async fn agents() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let [one, other] = NO_BODY;
    conforms(Relay::to_agent_port(&pair).await?, &[one, other, LARGE_FRAMES]).await
}
