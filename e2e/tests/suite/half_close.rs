//! The end of one direction leaves the other one open, if the frontend can express it.

use std::io::Cursor;

use anyhow::Result;
use e2e::endpoints::Endpoint;
use e2e::http1::read_head;
use e2e::pair::{Front, Setup};
use e2e::payload::{Payload, digest_of};
use e2e::wait::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use e2e::frontend::{Io, Mode, Place, tls_socket};

const CONNECT: [Front; 2] = [Front::Unix, Front::Tls];

/// An upload, its end, and only then the answer.
#[tokio::test]
async fn a_client_that_sends_no_more_still_gets_the_answer() -> Result<()> {
    for front in CONNECT {
        let pair = Setup::new(Mode::HttpConnect, front).start().await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (question, answer) = (Payload::new(1, 3 << 20), Payload::new(2, 5 << 20));
        let target = listener.local_addr()?.to_string();
        let endpoint = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await?;
            let asked = digest_of(&mut socket).await?;
            answer.send(&mut socket).await?;
            socket.shutdown().await?;
            anyhow::Ok(asked)
        });
        let mut conn = pair.frontend().dial(&target).await?;
        question.send(&mut conn).await?;
        conn.shutdown().await?;
        within("the answer", answer.receive_all(&mut conn)).await??;
        question.check(&within("the endpoint", endpoint).await???)?;
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

/// The endpoint speaks first to a client that sends nothing behind its request.
#[tokio::test]
async fn a_client_that_ends_with_its_request_gets_the_endpoints_bytes() -> Result<()> {
    for front in CONNECT {
        let pair = Setup::new(Mode::HttpConnect, front).start().await?;
        let payload = Payload::new(5, 1 << 20);
        let endpoint = Endpoint::source(payload).await?;
        let request = format!("CONNECT {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", endpoint.target());
        let mut socket: Box<dyn Io> = if let Place::Tls(address) = pair.frontend().place {
            let mut socket = tls_socket(address, pair.pki.frontend_client(&["http/1.1"])?).await?;
            socket.write_all(request.as_bytes()).await?;
            // Without FIN, as clients of Go and OpenSSL do.
            socket.get_mut().1.send_close_notify();
            socket.flush().await?;
            Box::new(socket)
        } else {
            let mut socket = pair.frontend().socket().await?;
            socket.write_all(request.as_bytes()).await?;
            socket.shutdown().await?;
            socket
        };
        let (head, rest) = within("the answer", read_head(&mut socket)).await??;
        assert_eq!(head.status, 200, "{front:?}");
        // A client that is slow to read gets both in one read.
        let mut received = Cursor::new(rest).chain(socket);
        within("the payload", payload.receive_all(&mut received)).await??;
        drop(received);
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_endpoint_that_sends_no_more_still_takes_the_upload() -> Result<()> {
    for front in CONNECT {
        let pair = Setup::new(Mode::HttpConnect, front).start().await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let target = listener.local_addr()?.to_string();
        let upload = Payload::new(3, 3 << 20);
        let endpoint = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await?;
            socket.write_all(b"go on").await?;
            socket.shutdown().await?;
            anyhow::Ok(digest_of(&mut socket).await?)
        });
        let mut conn = pair.frontend().dial(&target).await?;
        let mut words = Vec::new();
        within("the endpoint's end", conn.read_to_end(&mut words)).await??;
        assert_eq!(words, b"go on");
        upload.send(&mut conn).await?;
        conn.shutdown().await?;
        upload.check(&within("the endpoint", endpoint).await???)?;
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

/// A gRPC client has no half-close: the endpoint's end is a CLOSE_RSP, which ends the connection.
#[tokio::test]
async fn an_endpoints_end_closes_a_grpc_connection() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let payload = Payload::new(4, 1 << 20);
    let endpoint = Endpoint::source(payload).await?;
    let mut conn = pair.frontend().dial(&endpoint.target()).await?;
    within("the payload", payload.receive_all(&mut conn)).await??;
    endpoint.wait_open(0).await?;
    pair.server().wait_metric("established_connections", &[], 0.0).await?;
    Ok(())
}
