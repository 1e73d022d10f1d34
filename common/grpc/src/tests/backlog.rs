//! The bytes that wait between a stream and a slow transport.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::HeaderMap;
use mux::Packet;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

use super::stream::fill;
use super::{dial, packet, serve};
use crate::ServerSettings;

/// A transport that accepts a few KiB at once, and whose reader can be stopped.
struct Narrow {
    io: DuplexStream,
    /// Whether it is stopped, and the waker for the end of that.
    stop: Arc<Mutex<(bool, Option<Waker>)>>,
}

impl AsyncRead for Narrow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let mut stop = self.stop.lock();
        if stop.0 {
            stop.1 = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(stop);
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Narrow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// The bytes that wait above the transport are sent before a ping.
#[tokio::test(start_paused = true)]
async fn little_waits_above_a_transport_that_takes_little() {
    let (client_io, server_io) = duplex(8 << 10);
    let stop = Arc::new(Mutex::new((false, None::<Waker>)));
    let mut served = serve(Narrow { io: server_io, stop: Arc::clone(&stop) }, ServerSettings::for_agents());
    let (client, server) = tokio::join!(dial(client_io, HeaderMap::new()), served.accept());
    let (mut client, mut server) = (client.unwrap(), server);
    for _ in 0..6 {
        stop.lock().0 = true;
        let mut left = fill(&mut client.stream).await;
        let (stopped, waker) = std::mem::take(&mut *stop.lock());
        assert!(stopped);
        waker.into_iter().for_each(Waker::wake);
        while left > 0 {
            let Packet::Data { payload, .. } = packet(&mut server).await else { panic!("DATA") };
            left -= payload.len();
        }
    }
    stop.lock().0 = true;
    let sent = fill(&mut client.stream).await;
    assert!(sent <= 32 << 10, "{sent} bytes");
}
