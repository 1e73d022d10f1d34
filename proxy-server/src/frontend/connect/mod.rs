//! The HTTP CONNECT frontend: one connection, one request, then bytes.
//!
//! ```text
//!   read the head ──▶ dial ──▶ 200 alone ──▶ attach (the link's task takes the socket)
//!        │              │
//!        │ refused      │ failed: its answer, then close
//!        ▼              ▼ the client has gone: the dial is dropped, which cancels it
//!      close          close
//! ```
//!
//! Never parses anything after the head, never serves a second request, never buffers more than [`MAX_EARLY`].

pub mod answer;
pub mod head;
mod local_io;
pub mod socket;

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use driver::Linger;
use net::scratch::poll_read_once;
use serve::logs::Peer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use self::head::{Head, HeadError, HeadParser};
use self::local_io::SocketIo;
use self::socket::{LINGER, Socket};
use super::connection_log::{ConnInfo, ConnectionLog};
use super::{DISCARD_LIMIT, Frontend, Protocol};
use crate::dial::{DialFailure, Dialed, Target};
use crate::metrics::FrontendName;

/// Time limit from the accept of a connection, over TLS from its handshake, to the last byte of its head: Go's. HyperShift's
/// proxies resolve the target, for up to 50 s, on a connection that they have already opened.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit to write an answer. The empty send buffer of a new socket takes it at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes read from a client while its dial is pending. Further bytes wait in the socket.
const MAX_EARLY: usize = 64 * 1024;
/// Interval of the checks whether a half-closed client has gone while its dial is pending.
const GONE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// First buffer of a head, in bytes; kube-apiserver's heads have about 70.
const FIRST_READ: usize = 1024;

/// Why a connection ended before its dial. For the log.
#[derive(Debug, thiserror::Error)]
enum NotServed {
    #[error("the client left before its request was complete")]
    Left,
    #[error("no complete request within {HEAD_TIMEOUT:?}")]
    Slow,
    #[error("the server stops")]
    Stopping,
    #[error("bad request: {0}")]
    Refused(#[from] HeadError),
    #[error("reading the request: {0}")]
    Read(#[from] io::Error),
}

impl Frontend {
    /// Serves one connection until it is attached to its link or closed. `peer` is for the log. A stop ends it only before a
    /// request has arrived.
    pub(crate) async fn serve_socket<S: Socket>(&self, mut socket: S, peer: Arc<str>) {
        let mut buffer = BytesMut::with_capacity(FIRST_READ);
        let head = tokio::select! {
            head = timeout(HEAD_TIMEOUT, read_head(&mut socket, &mut buffer)) => head.unwrap_or(Err(NotServed::Slow)),
            () = self.lifetimes.stop.cancelled() => Err(NotServed::Stopping),
        };
        match head {
            Ok(head) => {
                let _consumed = buffer.split_to(head.len);
                self.connect(socket, peer, head, buffer).await;
            }
            Err(why) => {
                if matches!(why, NotServed::Refused(HeadError::Version)) && buffer.starts_with(b"PRI ") {
                    self.wrong_protocol(
                        &peer,
                        "frontend connection with HTTP/2, and the frontend's --mode is http-connect: was it gRPC?",
                    );
                }
                tracing::debug!(%peer, %why, "HTTP CONNECT connection not served");
                if let NotServed::Refused(error) = why {
                    let _live = self.enter(self.metrics.http_connections.enter());
                    if send_answer(&mut socket, answer::refusal(error, &buffer).as_bytes()).await {
                        linger(&mut socket).await;
                    }
                }
            }
        }
    }

    async fn connect<S: Socket>(&self, mut socket: S, peer: Arc<str>, head: Head, mut early: BytesMut) {
        let live = self.enter(self.metrics.http_connections.enter());
        let lifetime = self.lifetimes.connections.token();
        let target = Target::new("tcp", head.address);
        let (host, user_agent) =
            (Peer(&target.address).to_string(), head.user_agent.as_deref().unwrap_or_default());
        let mut identity = ConnInfo::new(self, Protocol::HttpConnect, peer, target);
        let dial_id = i64::try_from(identity.id).unwrap_or_default();
        identity.target.dial_id = dial_id;
        tracing::info!(
            target: "v2", method = "CONNECT", host, userAgent = user_agent, connection = identity.id,
            frontend = self.name.map(FrontendName::name), peer = %identity.peer,
            "Received request for host"
        );
        // Not biased: if both are ready, either result is correct.
        let outcome = tokio::select! {
            outcome = self.dialer.dial(&identity.target, &mut identity.stages) => outcome,
            () = left(&mut socket, &mut early) => {
                identity.canceled();
                tracing::info!(
                    target: "v2", host, dialID = dial_id, agentID = %identity.agent(),
                    "Frontend connection closed before being established"
                );
                return;
            }
        };
        match outcome {
            Ok(Dialed { connection, place }) => {
                identity.connect_id = connection.id.0;
                // Before the answer, as in Go: a client that has left does not make the dial a failure.
                let mut log = ConnectionLog::open(identity, live, place, lifetime);
                let start = Instant::now();
                let sent = send_head(&mut socket).await;
                self.metrics.frontend_write.observe(start.elapsed());
                if let Err(error) = sent {
                    return log.answer_failed(&error); // dropping the connection closes it
                }
                log.answered();
                let early = if early.is_empty() { Bytes::new() } else { early.freeze() };
                connection.attach(Box::new(SocketIo::new(socket, early, log)));
            }
            Err(failure) => {
                identity.not_established(failure.metric(), &failure);
                // The dialer logs the other failures.
                if let DialFailure::NoAgent = failure {
                    tracing::error!(err = %failure, host, dialID = dial_id, "no tunnels available");
                }
                let start = Instant::now();
                let sent = send_answer(&mut socket, failure.http_response().as_bytes()).await;
                if let DialFailure::Refused(_) = failure {
                    self.metrics.frontend_write.observe(start.elapsed());
                }
                if sent {
                    linger(&mut socket).await;
                }
            }
        }
    }
}

/// Tells the client that it is connected. The 200 is written alone, so that it is a TLS record of its own.
async fn send_head<S: Socket>(socket: &mut S) -> io::Result<()> {
    let sent = timeout(ANSWER_TIMEOUT, async {
        socket.write_all(answer::ESTABLISHED).await?;
        socket.flush().await
    });
    sent.await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Reads the head. The head and the bytes after it stay in `buffer`.
async fn read_head<S: Socket>(socket: &mut S, buffer: &mut BytesMut) -> Result<Head, NotServed> {
    let mut parser = HeadParser::default();
    loop {
        if socket.read_buf(buffer).await? == 0 {
            return Err(NotServed::Left);
        }
        if let Some(head) = parser.advance(buffer)? {
            return Ok(head);
        }
    }
}

/// Resolves when the client no longer waits for the dial: its connection is reset, or ends before a byte of payload and the client
/// seems to have gone. (A client that sends payload and then FIN may want it delivered.) Payload is kept, up to [`MAX_EARLY`].
async fn left<S: Socket>(socket: &mut S, early: &mut BytesMut) {
    while early.len() < MAX_EARLY {
        let room = MAX_EARLY - early.len();
        match socket.read_buf(&mut bytes::BufMut::limit(&mut *early, room)).await {
            Ok(0) if early.is_empty() => {
                // Until then it is half-closed and waits for its answer. (Over TLS clients of Go and OpenSSL half-close by close_notify
                // alone, so a FIN behind it counts as a departure.)
                while !socket.may_be_gone() {
                    sleep(GONE_CHECK_INTERVAL).await;
                }
                return;
            }
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "client lost while dialing");
                return;
            }
        }
    }
    std::future::pending().await
}

/// Writes an answer and the end of file; false if that failed.
async fn send_answer<S: Socket>(socket: &mut S, bytes: &[u8]) -> bool {
    let written = timeout(ANSWER_TIMEOUT, async {
        socket.write_all(bytes).await?;
        socket.shutdown().await
    });
    match written.await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => tracing::debug!(%error, "answer not delivered"),
        Err(_) => tracing::debug!("answer not delivered in time"),
    }
    false
}

/// Lets the client read its answer even if it has sent more bytes than we read.
async fn linger<S: Socket>(socket: &mut S) {
    let (mut linger, mut allowance) = (Linger::new(LINGER), DISCARD_LIMIT);
    poll_fn(|cx| linger.poll(cx, &mut allowance, |cx, max| poll_read_once(socket, cx, max))).await;
}
