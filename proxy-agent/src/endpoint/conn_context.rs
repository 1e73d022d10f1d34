//! The socket of one endpoint, as the local end of a connection.
//!
//! The link's task owns and polls it: it has no task, no channel and, while nothing is readable, no buffer of its own. It
//! counts bytes, holds the guard of the gauge of open connections, and writes the two log lines of a connection. It does not
//! know packets or credits: the caller decides how much to read.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use driver::{Chunks, CloseReason, Linger, LocalIo, Read};
use mux::Cause;
use net::scratch::poll_read_once;
use serde::Serialize;
use serve::logs::{ConnectionLogWriter, Peer, milliseconds};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use super::dial::Endpoint;

/// The smallest and the usual largest read, in bytes. Only callers that ask for more get a larger read.
const MIN_READ: usize = 16 * 1024;
const USUAL_READ: usize = 64 * 1024;

/// The largest read in bytes, whatever the caller asks for.
const MAX_READ: usize = 128 * 1024;

/// How long an orderly end waits for the endpoint's own end of file.
const LINGER: Duration = Duration::from_secs(1);

/// How long the agent holds back an endpoint's first bytes if the server does not do so itself. A Go server forwards them to a
/// client that has not registered its connection yet, and the client loses them; or it writes them before or together with the
/// head of its answer to CONNECT, and kube-apiserver fails.
pub const FIRST_BYTE_HOLD: Duration = Duration::from_millis(250);

/// The names of a connection in the log.
#[derive(Debug, Clone)]
pub struct ConnInfo {
    /// The server whose stream carries it.
    pub server_id: Arc<str>,
    /// The server's dial id.
    pub dial_id: i64,
    /// The connect id on that stream.
    pub connect_id: i64,
    /// The requested address, as the peer sent it.
    pub address: String,
    /// How long the lookup of the endpoint's name took; `None` for an address.
    pub lookup: Option<Duration>,
    /// How long the whole dial took.
    pub dial: Duration,
    /// Set if the trace of the dial is recorded.
    pub trace_id: Option<String>,
    /// The connection log.
    pub records: ConnectionLogWriter,
}

/// A line of the connection log. Its fields are documented in docs/connection-log.md.
#[derive(Serialize)]
struct Record<'a> {
    server: Peer<'a>,
    dial_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_id: Option<i64>,
    target: Peer<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<SocketAddr>,
    bytes_to_endpoint: u64,
    bytes_from_endpoint: u64,
    lookup_ms: Option<f64>,
    connect_ms: Option<f64>,
    total_ms: Option<f64>,
    end: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Peer<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
}

impl ConnInfo {
    /// Records a connection at its end, or a failed dial. `open`: the endpoint's address, and how long the connection was open.
    pub(crate) fn record(
        &self,
        open: Option<(SocketAddr, Duration)>,
        bytes: (u64, u64),
        end: &str,
        error: &str,
    ) {
        if !self.records.is_on() {
            return;
        }
        let connect = self.dial.saturating_sub(self.lookup.unwrap_or_default());
        self.records.write(&Record {
            server: Peer(&self.server_id),
            dial_id: self.dial_id,
            connect_id: open.map(|_| self.connect_id),
            target: Peer(&self.address),
            resolved: open.map(|(peer, _)| peer),
            bytes_to_endpoint: bytes.0,
            bytes_from_endpoint: bytes.1,
            lookup_ms: milliseconds(self.lookup),
            connect_ms: milliseconds(Some(connect)),
            total_ms: milliseconds(Some(self.dial + open.map_or(Duration::ZERO, |(_, time)| time))),
            end,
            error: (!error.is_empty()).then_some(Peer(error)),
            trace_id: self.trace_id.as_deref(),
        });
    }

    /// Logs that the endpoint's socket failed. A close or reset by the endpoint is not logged as an error.
    fn log_failure(&self, error: &io::Error, message: &'static str) {
        if !Cause::Local(error.to_string()).is_abort() {
            tracing::error!(
                err = %error, connectionID = self.connect_id, dialID = self.dial_id,
                dialAddress = %Peer(&self.address), "{message}"
            );
        }
    }
}

/// An endpoint's socket, polled by the link's task. `G` is the guard of the gauge of open connections.
#[derive(Debug)]
pub struct ConnContext<G> {
    stream: TcpStream,
    info: ConnInfo,
    peer: SocketAddr,
    began: Instant,
    /// Bytes received from the endpoint, and sent to it.
    received: u64,
    sent: u64,
    chunk: Chunk,
    /// While set, the endpoint's first bytes are held back; the client's first byte clears it.
    hold: Option<Pin<Box<Sleep>>>,
    /// The endpoint's end of file was read.
    eof: bool,
    lingering: Option<Linger>,
    /// How it ended, once that is known; logged on drop.
    close_reason: Option<CloseReason>,
    _open: G,
}

impl<G> ConnContext<G> {
    /// Takes a dialed endpoint and logs the connection; `open` is held as long as the connection.
    pub fn new(endpoint: Endpoint, info: ConnInfo, open: G) -> Self {
        let Endpoint { stream, peer } = endpoint;
        tracing::debug!(
            dialID = info.dial_id,
            connectionID = info.connect_id,
            dialAddress = %Peer(&info.address),
            serverID = %Peer(&info.server_id),
            %peer,
            "Endpoint connection established"
        );
        Self {
            stream,
            info,
            peer,
            began: Instant::now(),
            received: 0,
            sent: 0,
            chunk: Chunk::FIRST,
            hold: None,
            eof: false,
            lingering: None,
            close_reason: None,
            _open: open,
        }
    }

    /// Holds the endpoint's bytes back for [`FIRST_BYTE_HOLD`], or until the first byte for the endpoint arrives.
    pub fn hold_first_byte(mut self) -> Self {
        self.hold = Some(Box::pin(sleep(FIRST_BYTE_HOLD)));
        self
    }
}

/// Reads from the socket; empty at end of file.
fn poll_socket(stream: &mut TcpStream, cx: &mut Context<'_>, want: usize) -> Poll<io::Result<Bytes>> {
    // A buffer is allocated only when the socket is readable.
    ready!(stream.poll_read_ready(cx))?;
    poll_read_once(stream, cx, want)
}

impl<G: Send + Unpin> LocalIo for ConnContext<G> {
    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>> {
        if self.eof {
            return Poll::Ready(Ok(Read::Eof));
        }
        if let Some(hold) = &mut self.hold {
            ready!(hold.as_mut().poll(cx));
            self.hold = None;
        }
        let want = self.chunk.next(max);
        let data = ready!(poll_socket(&mut self.stream, cx, want))
            .inspect_err(|error| self.info.log_failure(error, "connection read failure"))?;
        if data.is_empty() {
            self.eof = true;
            return Poll::Ready(Ok(Read::Eof));
        }
        self.chunk.learn(data.len());
        self.received += data.len() as u64;
        Poll::Ready(Ok(Read::Data(data)))
    }

    /// A gone endpoint leaves its bytes in the socket; if it goes without reading, the next write fails.
    fn poll_closed(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, chunks: &mut Chunks<'_>) -> Poll<io::Result<()>> {
        if self.hold.take().is_some() {
            cx.waker().wake_by_ref();
        }
        let written = ready!(chunks.poll_write_to(Pin::new(&mut self.stream), cx))
            .inspect_err(|error| self.info.log_failure(error, "conn write failure"))?;
        self.sent += written as u64;
        Poll::Ready(Ok(()))
    }

    fn poll_shut_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        close_reason: &CloseReason,
        allowance: &mut usize,
    ) -> Poll<()> {
        match close_reason {
            CloseReason::Broken(_) => {
                self.close_reason.get_or_insert_with(|| close_reason.clone());
                // An error means that there is no connection left to reset.
                self.stream.set_zero_linger().ok();
                Poll::Ready(())
            }
            CloseReason::Flushed => {
                if self.close_reason.is_none() {
                    self.close_reason = Some(close_reason.clone());
                    // An error means that there is no connection left to shut down.
                    let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
                }
                if self.eof {
                    return Poll::Ready(());
                }
                let lingering = self.lingering.get_or_insert_with(|| Linger::new(LINGER));
                lingering.poll(cx, allowance, |cx, max| poll_socket(&mut self.stream, cx, max))
            }
        }
    }
}

impl<G> Drop for ConnContext<G> {
    fn drop(&mut self) {
        let reason = self.close_reason.take().unwrap_or(CloseReason::Broken(Cause::LinkLost));
        let text = reason.to_string();
        tracing::debug!(
            target: "v4",
            dialID = self.info.dial_id,
            connectionID = self.info.connect_id,
            dialAddress = %Peer(&self.info.address),
            serverID = %Peer(&self.info.server_id),
            peer = %self.peer,
            seconds = self.began.elapsed().as_secs_f64(),
            received = self.received,
            sent = self.sent,
            reason = %Peer(&text),
            "close connection"
        );
        let (end, error) = match &reason {
            CloseReason::Flushed => ("closed", ""),
            CloseReason::Broken(Cause::LinkLost) => ("stream_lost", ""),
            CloseReason::Broken(_) => ("error", text.as_str()),
        };
        let open = Some((self.peer, self.began.elapsed()));
        self.info.record(open, (self.sent, self.received), end, error);
    }
}

/// The size of the next read: doubles after a full read, and is divided by two after two reads that would have fit into half.
#[derive(Debug)]
struct Chunk {
    size: usize,
    asked: usize,
    small: u8,
}

impl Chunk {
    const FIRST: Self = Self { size: MIN_READ, asked: 0, small: 0 };

    /// The next read's size, at most `max`, at least 1 byte.
    fn next(&mut self, max: usize) -> usize {
        let largest = if max > USUAL_READ { MAX_READ } else { USUAL_READ };
        self.size = self.size.min(largest);
        self.asked = self.size.min(max).max(1);
        self.asked
    }

    fn learn(&mut self, count: usize) {
        if count >= self.asked && self.asked == self.size {
            self.size = (self.size * 2).min(MAX_READ);
            self.small = 0;
        } else if count < self.size / 2 {
            self.small += 1;
            if self.small >= 2 {
                self.size = (self.size / 2).max(MIN_READ);
                self.small = 0;
            }
        } else {
            self.small = 0;
        }
    }
}

#[cfg(test)]
#[path = "conn_context_tests.rs"]
mod tests;
