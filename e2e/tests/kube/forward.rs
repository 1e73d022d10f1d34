//! kubectl port-forward.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::kube::Kubectl;
use e2e::payload::Payload;
use e2e::process::Process;
use e2e::wait::{DEADLINE, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::exec::taken;
use crate::world::Lane;

/// A running port-forward and its local end.
struct Forward {
    local: SocketAddr,
    _kubectl: Process,
}

impl Forward {
    async fn start(lane: &Lane, pod: &str, port: u16) -> Result<Self> {
        Self::start_by(lane.kubectl(), lane, pod, port).await
    }

    async fn start_by(kubectl: &Kubectl, lane: &Lane, pod: &str, port: u16) -> Result<Self> {
        let args =
            lane.args(&["port-forward", &format!("pod/{pod}"), &format!(":{port}"), "--address=127.0.0.1"]);
        let kubectl = kubectl.start(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
        let found = until("a forwarded port", DEADLINE, || async {
            kubectl
                .log()
                .iter()
                .find_map(|line| line.strip_prefix("Forwarding from ")?.split_once(" -> ")?.0.parse().ok())
        });
        let local = found.await.map_err(|error| kubectl.explain(&error))?;
        Ok(Self { local, _kubectl: kubectl })
    }

    async fn echoed(&self, payload: Payload) -> Result<()> {
        echo(TcpStream::connect(self.local).await?, payload).await
    }
}

/// Sends a payload, closes that direction, and reads the same payload to the end.
async fn echo(stream: TcpStream, payload: Payload) -> Result<()> {
    let (mut input, mut output) = stream.into_split();
    let sending = async {
        payload.send(&mut output).await?;
        output.shutdown().await
    };
    let (sent, received) =
        within("an echo", async { tokio::join!(sending, payload.receive_all(&mut input)) }).await?;
    sent?;
    received
}

/// Many concurrent connections, beside an idle one that is open all the time.
pub(crate) async fn many_at_once(lane: Lane) -> Result<()> {
    let endpoint = Endpoint::echo().await?;
    let forward = Forward::start(&lane, "app", endpoint.address().port()).await?;
    let silent = TcpStream::connect(forward.local).await?;
    let mut running = JoinSet::new();
    for seed in 0..40 {
        let local = forward.local;
        running
            .spawn(async move { echo(TcpStream::connect(local).await?, Payload::new(seed, 200_000)).await });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    echo(silent, Payload::new(99, 1_000)).await
}

/// 32 MiB in each direction over one connection.
pub(crate) async fn large(lane: Lane) -> Result<()> {
    let endpoint = Endpoint::echo().await?;
    let forward = Forward::start(&lane, "app", endpoint.address().port()).await?;
    forward.echoed(Payload::new(3, 32 * 1024 * 1024)).await
}

/// With SPDY up to the kubelet: by default kubectl wraps it into a WebSocket up to kube-apiserver.
pub(crate) async fn by_spdy(lane: Lane) -> Result<()> {
    let endpoint = Endpoint::echo().await?;
    let kubectl = lane.kubectl().with_env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
    let forward = Forward::start_by(&kubectl, &lane, "app", endpoint.address().port()).await?;
    forward.echoed(Payload::new(5, 2_000_000)).await
}

/// The client closes its direction, and gets its answer only after that.
pub(crate) async fn half_closed(lane: Lane) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let question = Payload::new(8, 100_000);
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        question.receive_all(&mut stream).await?;
        stream.write_all(b"all of it").await?;
        anyhow::Ok(())
    });
    let forward = Forward::start(&lane, "app", port).await?;
    let mut stream = TcpStream::connect(forward.local).await?;
    question.send(&mut stream).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await??;
    ensure!(answer == "all of it", "{answer:?}");
    answering.await?
}

/// With a WebSocket through the tunnel: this node announces that it accepts them. Before Kubernetes 1.36 it gets SPDY.
pub(crate) async fn by_websocket_to_the_kubelet(lane: Lane) -> Result<()> {
    let endpoint = Endpoint::echo().await?;
    let before = taken(&lane, "websocket_portforward").await?;
    let forward = Forward::start(&lane, "app-ws", endpoint.address().port()).await?;
    forward.echoed(Payload::new(4, 2_000_000)).await?;
    let after = taken(&lane, "websocket_portforward").await?;
    ensure!(
        (after > before) == lane.node().gets_websockets,
        "the kubelet was asked for {after} WebSockets, {before} before"
    );
    Ok(())
}
