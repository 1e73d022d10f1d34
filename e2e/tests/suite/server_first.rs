//! Server-first endpoints: their bytes follow the answer to the dial, never in the same read.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::adversarial::dial_req;
use e2e::endpoints::Endpoint;
use e2e::frontend::{Io, Mode};
use e2e::pair::{FRONTS, Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::wait::within;
use proto::packet::Payload as Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

/// How long an endpoint's payload waits for a client that sends nothing. A slower client may read both at once.
const BARRIER: Duration = Duration::from_millis(50);

const HEAD: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

#[tokio::test]
async fn a_greeting_arrives_whole() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let greeting = Payload::new(11, 300_000);
        let endpoint = Endpoint::greeter(greeting).await?;
        for round in 0..20 {
            let mut conn = pair.frontend().dial(&endpoint.target()).await?;
            let what = format!("greeting {round} by {mode:?} over {front:?}");
            within(&what, greeting.receive(&mut conn)).await??;
        }
    }
    Ok(())
}

/// Dials by hand; returns the first read of up to `size` bytes, and the socket.
async fn first_read(pair: &Pair, target: &str, size: usize) -> Result<(Vec<u8>, Box<dyn Io>)> {
    let mut socket = pair.frontend().socket().await?;
    socket.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()).await?;
    socket.flush().await?;
    let mut first = vec![0; size];
    let count = within("the head", socket.read(&mut first)).await??;
    first.truncate(count);
    Ok((first, socket))
}

/// kube-apiserver fails if bytes follow the head in the same read. In Go payload can even precede the head.
#[tokio::test]
async fn the_200_head_is_alone_in_its_read_on_a_unix_socket() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let greeting = Payload::new(12, 5);
    let endpoint = Endpoint::greeter(greeting).await?;
    let mut alone = 0;
    for round in 0..50 {
        let began = Instant::now();
        let (first, mut socket) = first_read(&pair, &endpoint.target(), 4_096).await?;
        let what = format!("round {round}: {:?}", String::from_utf8_lossy(&first));
        if began.elapsed() < BARRIER {
            ensure!(first == HEAD, "{what}");
            within(&format!("greeting {round}"), greeting.receive(&mut socket)).await??;
            alone += 1;
        } else {
            ensure!(first.starts_with(HEAD), "{what}");
        }
    }
    ensure!(alone > 0, "each round took {BARRIER:?}");
    Ok(())
}

/// On TLS the head is a separate record, and Go reads one record at a time. rustls, which the test uses, returns several
/// records at once: only the order is visible.
#[tokio::test]
async fn the_200_head_comes_before_the_greeting_on_tls() -> Result<()> {
    let pair = Setup::new(Mode::HttpConnect, Front::Tls).start().await?;
    let greeting = Payload::new(12, 5);
    let endpoint = Endpoint::greeter(greeting).await?;
    for round in 0..100 {
        let (first, mut socket) = first_read(&pair, &endpoint.target(), HEAD.len()).await?;
        ensure!(first == HEAD, "round {round}: {:?}", String::from_utf8_lossy(&first));
        within(&format!("greeting {round}"), greeting.receive(&mut socket)).await??;
    }
    Ok(())
}

#[tokio::test]
async fn the_dial_rsp_comes_before_the_greeting() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::source(Payload::new(13, 5)).await?;
    for random in 1..=50 {
        let mut stream = pair.frontend().packets().await?;
        stream.send(dial_req(random, &endpoint.target())).await?;
        let Some(Body::DialResponse(response)) = stream.expect("the DIAL_RSP").await?.payload else {
            anyhow::bail!("not the DIAL_RSP first");
        };
        let Some(Body::Data(data)) = stream.expect("the greeting").await?.payload else {
            anyhow::bail!("no DATA")
        };
        ensure!(data.connect_id == response.connect_id && data.data.len() == 5, "{data:?}");
        let Some(Body::CloseResponse(close)) = stream.expect("the CLOSE_RSP").await?.payload else {
            anyhow::bail!("no CLOSE_RSP");
        };
        ensure!(close.connect_id == response.connect_id && close.error.is_empty(), "{close:?}");
    }
    Ok(())
}

/// Bytes in the same write as the CONNECT head are payload.
#[tokio::test]
async fn bytes_behind_the_head_are_payload() -> Result<()> {
    for front in [Front::Unix, Front::Tls] {
        let pair = Setup::new(Mode::HttpConnect, front).start().await?;
        let endpoint = Endpoint::echo().await?;
        let mut socket = pair.frontend().socket().await?;
        let request = format!("CONNECT {} HTTP/1.1\r\nHost: x\r\n\r\nearly bird", endpoint.target());
        socket.write_all(request.as_bytes()).await?;
        socket.flush().await?;
        let mut head = vec![0; HEAD.len()];
        within("the head", socket.read_exact(&mut head)).await??;
        assert_eq!(head, HEAD);
        let mut echo = [0; 10];
        within("the echo", socket.read_exact(&mut echo)).await??;
        assert_eq!(&echo, b"early bird");
    }
    Ok(())
}

/// The target is in the request line, with any Host header or without one.
#[tokio::test]
async fn the_host_header_means_nothing() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let endpoint = Endpoint::echo().await?;
    for host in ["Host: 127.0.0.1\r\n", "Host: nonsense:1\r\n", "Host:\r\n", ""] {
        let mut socket = pair.frontend().socket().await?;
        socket.write_all(format!("CONNECT {} HTTP/1.1\r\n{host}\r\n", endpoint.target()).as_bytes()).await?;
        let mut head = vec![0; HEAD.len()];
        within("the head", socket.read_exact(&mut head)).await??;
        assert_eq!(head, HEAD, "{host:?}");
    }
    Ok(())
}
