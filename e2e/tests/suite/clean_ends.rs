//! Connections that end as kube-apiserver's do: no byte is lost, and nothing is counted as a loss.

use anyhow::{Result, ensure};
use e2e::frontend::{Frontend, Mode};
use e2e::metrics::{AGENT, SERVER, Scrape};
use e2e::pair::{Front, Pair, Setup};
use e2e::wait::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const REQUEST: [u8; 100] = [b'?'; 100];
const ANSWER: [u8; 3_000] = [b'!'; 3_000];
/// The last bytes of a direction, such as TLS's close_notify; the other end may be gone by then.
const LAST_BYTES: [u8; 24] = [b'.'; 24];
const EXCHANGES: usize = 300;
const AT_ONCE: usize = 8;

/// Which side closes, and which side sends last bytes before that.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// The client, after it has read the answer; then the endpoint closes.
    ClientFirst,
    /// The client, with last bytes that the endpoint does not read.
    ClientWithLastBytes,
    /// The endpoint, after its answer and its last bytes, which the client does not read.
    EndpointFirst,
    /// Both at once, each with last bytes.
    Both,
}

const MANNERS: [Manner; 4] =
    [Manner::ClientFirst, Manner::ClientWithLastBytes, Manner::EndpointFirst, Manner::Both];

async fn answer(mut socket: TcpStream, manner: Manner) -> Result<()> {
    let mut request = REQUEST;
    socket.read_exact(&mut request).await?;
    socket.write_all(&ANSWER).await?;
    match manner {
        Manner::ClientFirst => drop(socket.read(&mut request).await),
        // The rest is not read, so the close is a reset.
        Manner::ClientWithLastBytes => drop(socket.read(&mut request[..1]).await),
        Manner::EndpointFirst | Manner::Both => socket.write_all(&LAST_BYTES).await?,
    }
    Ok(())
}

/// An endpoint for each manner; it ends with the test's runtime.
async fn endpoint(manner: Manner) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let target = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(answer(socket, manner));
        }
    });
    Ok(target)
}

async fn exchange(frontend: &Frontend, target: &str, manner: Manner) -> Result<()> {
    let mut conn = frontend.dial(target).await?;
    conn.write_all(&REQUEST).await?;
    let mut read = ANSWER;
    within("the answer", conn.read_exact(&mut read)).await??;
    ensure!(read == ANSWER, "another answer");
    if matches!(manner, Manner::ClientWithLastBytes | Manner::Both) {
        // The endpoint may have closed.
        let _ = conn.write_all(&LAST_BYTES).await;
    }
    Ok(())
}

/// The losses that the two programs have counted, by series.
async fn losses(pair: &Pair) -> Result<Vec<String>> {
    let at_rest = |scrape: &Scrape| scrape.busy().is_empty();
    let server = pair.server().wait_metrics("a server at rest", at_rest).await?;
    let agent = pair.agent().wait_metrics("an agent at rest", at_rest).await?;
    let families = ["connection_resets_total", "dropped_packets_total"];
    let names = [SERVER, AGENT].map(|prefix| families.map(|family| format!("{prefix}{family}")));
    let lines = server.text.lines().chain(agent.text.lines());
    let lost = lines.filter(|line| names.as_flattened().iter().any(|name| line.starts_with(name)));
    Ok(lost.filter(|line| !line.ends_with(" 0")).map(str::to_owned).collect())
}

#[tokio::test]
async fn exchanges_that_miss_nothing_count_no_loss() -> Result<()> {
    for (mode, front) in
        [(Mode::HttpConnect, Front::Unix), (Mode::HttpConnect, Front::Tls), (Mode::Grpc, Front::Unix)]
    {
        let pair = Setup::new(mode, front).start().await?;
        let mut targets = Vec::new();
        for manner in MANNERS {
            targets.push((endpoint(manner).await?, manner));
        }
        let mut running = JoinSet::new();
        for (target, manner) in targets.into_iter().cycle().take(EXCHANGES) {
            if running.len() == AT_ONCE {
                running.join_next().await.transpose()?.transpose()?;
            }
            let frontend = pair.frontend().clone();
            running.spawn(async move { exchange(&frontend, &target, manner).await });
        }
        while let Some(outcome) = running.join_next().await {
            outcome??;
        }
        let lost = losses(&pair).await?;
        ensure!(lost.is_empty(), "{mode:?} {front:?}: {lost:#?}");
    }
    Ok(())
}
