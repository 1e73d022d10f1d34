//! Adversarial peers that split their data into DATA frames of a few bytes, and then stall.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use h2::client::{Connection, ResponseFuture};
use h2::{RecvStream, SendStream, client};
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::io::{AsyncRead, ReadBuf, join};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::timeout;

use crate::frontend::Io;
use crate::wait::within;

/// A peer that gets no window for this time has exhausted its window.
const NO_WINDOW: Duration = Duration::from_millis(500);

/// What became of the bytes for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All are sent.
    All,
    /// The window is exhausted.
    NoWindow,
    /// The server has ended the stream.
    Ended,
}

/// An HTTP/2 client with streams whose frames have any length. It reads nothing of its own accord.
pub struct SmallFrames {
    streams: Vec<SendStream<Bytes>>,
    responses: Vec<ResponseFuture>,
    bodies: Vec<RecvStream>,
    no_window: Duration,
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl SmallFrames {
    /// Opens streams with this path and these headers, and does not wait for the responses.
    /// `window`: the receive window of each stream, in bytes.
    pub async fn open(
        socket: Box<dyn Io>,
        path: &str,
        headers: &HeaderMap,
        streams: usize,
        window: u32,
    ) -> Result<Self> {
        let mut builder = client::Builder::new();
        builder.initial_window_size(window);
        let (mut requests, connection): (_, Connection<_, Bytes>) =
            within("the HTTP/2 preface", builder.handshake(socket)).await??;
        let driver = tokio::spawn(connection);
        let (mut opened, mut responses) = (Vec::new(), Vec::new());
        for _ in 0..streams {
            let mut request = Request::new(());
            *request.method_mut() = Method::POST;
            *request.uri_mut() = format!("http://localhost{path}").parse()?;
            *request.headers_mut() = headers.clone();
            request.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
            requests = within("room for a stream", requests.ready()).await??;
            let (response, stream) = requests.send_request(request, false)?;
            opened.push(stream);
            responses.push(response);
        }
        Ok(Self { streams: opened, responses, bodies: Vec::new(), no_window: NO_WINDOW, driver })
    }

    /// Waits until the server has accepted each stream.
    ///
    /// # Errors
    /// It has not.
    pub async fn admitted(mut self) -> Result<Self> {
        for response in self.responses.drain(..) {
            let response = within("the response's headers", response).await??;
            ensure!(response.status() == StatusCode::OK, "refused: {response:?}");
            self.bodies.push(response.into_body());
        }
        Ok(self)
    }

    /// Waits ten times as long for a window: a server that many such peers flood renews it late.
    pub fn patient(mut self) -> Self {
        self.no_window = 10 * NO_WINDOW;
        self
    }

    /// Waits until the server has sent data on each admitted stream.
    ///
    /// # Errors
    /// It has ended one.
    pub async fn answered(&mut self) -> Result<()> {
        for body in &mut self.bodies {
            within("an answer", body.data()).await?.context("a stream that goes on")??;
        }
        Ok(())
    }

    /// Like [`SmallFrames::open`] with one stream. The client reads nothing, so it never knows the server's settings, and sends as
    /// much as HTTP/2's first windows permit.
    pub async fn open_unread(socket: Box<dyn Io>, path: &str, headers: &HeaderMap) -> Result<Self> {
        Self::open(Box::new(join(NothingArrives, socket)), path, headers, 1, 0).await
    }

    /// Sends `bytes` on each stream, as [`SmallFrames::send_on`] does. Returns the number of streams that the server has ended.
    pub async fn send(&mut self, bytes: &Bytes, frame: usize) -> usize {
        let mut ended = 0;
        for stream in 0..self.streams.len() {
            ended += usize::from(self.send_on(stream, bytes, frame).await == Sent::Ended);
        }
        ended
    }

    /// Sends `bytes` in frames of `frame` bytes, until all are sent, the window is exhausted or the server has ended the stream.
    /// Only the last frame may be shorter. `stream`: its number in the order of opening.
    pub async fn send_on(&mut self, stream: usize, bytes: &Bytes, frame: usize) -> Sent {
        let stream = &mut self.streams[stream];
        let (mut sent, mut rest) = (0, bytes.clone());
        while !rest.is_empty() {
            let room = timeout(self.no_window, room(stream, frame.min(rest.len()), rest.len())).await;
            let Ok(room) = room else {
                let _ = stream.send_data(rest.split_to(stream.capacity()), false);
                return Sent::NoWindow;
            };
            let room = room.map(|room| rest.split_to(room.min(frame).min(rest.len())));
            if room.is_none_or(|part| stream.send_data(part, false).is_err()) {
                return Sent::Ended;
            }
            sent += 1;
            if sent % 256 == 0 {
                yield_now().await;
            }
        }
        Sent::All
    }
}

/// The window of a stream, once it is at least `least` bytes; `None` if the stream has ended.
async fn room(stream: &mut SendStream<Bytes>, least: usize, wanted: usize) -> Option<usize> {
    while stream.capacity() < least {
        stream.reserve_capacity(wanted.min(1 << 20));
        poll_fn(|cx| stream.poll_capacity(cx)).await?.ok()?;
    }
    Some(stream.capacity())
}

struct NothingArrives;

impl AsyncRead for NothingArrives {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl Drop for SmallFrames {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The prefix of a message of 4 MiB and its first `length` bytes: the message stays incomplete.
pub fn endless(length: usize) -> Bytes {
    let mut all = vec![0; 5 + length];
    all[1..5].copy_from_slice(&(4_u32 << 20).to_be_bytes());
    all.into()
}
