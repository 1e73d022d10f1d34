//! The end of a client's socket with misbehaving clients, poll by poll.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use driver::{CloseReason, LocalIo};
use mux::Cause;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;

use super::*;
use crate::frontend::testing::connection_log;

/// The calls on a client's socket.
#[derive(Debug, Default)]
struct Seen {
    reads: AtomicUsize,
    shut_down: AtomicBool,
    cut: AtomicBool,
    aborted: AtomicBool,
}

/// Endings after which the client must still get the written bytes.
fn delivering() -> [CloseReason; 4] {
    let broken = [Cause::LinkLost, Cause::Peer("reset".into()), Cause::Local("reset".into())];
    let [lost, peer, local] = broken.map(CloseReason::Broken);
    [CloseReason::Flushed, lost, peer, local]
}

/// A client that sends endlessly, and whose window may stay closed.
#[derive(Debug, Default)]
struct Hostile {
    seen: Arc<Seen>,
    takes_nothing: bool,
}

impl AsyncRead for Hostile {
    fn poll_read(self: Pin<&mut Self>, _cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let reads = self.seen.reads.fetch_add(1, Ordering::Relaxed);
        assert!(reads < 1000, "read without end in one turn");
        buf.put_slice(b"more");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Hostile {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.takes_nothing { Poll::Pending } else { Poll::Ready(Ok(buf.len())) }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.takes_nothing { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.seen.shut_down.store(true, Ordering::Relaxed);
        self.poll_flush(cx)
    }
}

impl Socket for Hostile {
    fn poll_cut(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.seen.cut.store(true, Ordering::Relaxed);
        self.poll_flush(cx)
    }

    fn abort(&self) {
        self.seen.aborted.store(true, Ordering::Relaxed);
    }
}

fn local(takes_nothing: bool) -> (SocketIo<Hostile>, Arc<Seen>, Readings) {
    let (seen, readings) = (Arc::<Seen>::default(), Readings::new());
    let socket = Hostile { seen: Arc::clone(&seen), takes_nothing };
    (SocketIo::new(socket, Bytes::new(), connection_log(&readings)), seen, readings)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_without_end_does_not_hold_the_links_task() {
    for close_reason in delivering() {
        let (mut local, seen, readings) = local(false);
        let mut cx = Context::from_waker(Waker::noop());
        let mut allowance = 2_000;
        while allowance > 0 {
            let (before, reads) = (allowance, seen.reads.load(Ordering::Relaxed));
            assert!(local.poll_end(&mut cx, &close_reason, &mut allowance).is_pending(), "lingers");
            assert!(allowance < before, "reads on");
            assert!(seen.reads.load(Ordering::Relaxed) <= reads + 16, "not all in one turn");
        }
        let thrown_away = seen.reads.load(Ordering::Relaxed);
        assert_eq!(thrown_away * 4, 2_000, "no more than it may");
        assert!(local.poll_end(&mut cx, &close_reason, &mut allowance).is_pending(), "lingers");
        assert_eq!(seen.reads.load(Ordering::Relaxed), thrown_away, "nothing is read without an allowance");
        tokio::time::advance(LINGER).await;
        assert!(local.poll_end(&mut cx, &close_reason, &mut allowance).is_ready(), "no longer than that");
        assert!(!seen.aborted.load(Ordering::Relaxed), "{close_reason:?}: what was written is delivered");
        let orderly = close_reason == CloseReason::Flushed;
        assert_eq!(seen.shut_down.load(Ordering::Relaxed), orderly, "{close_reason:?}");
        assert_eq!(seen.cut.load(Ordering::Relaxed), !orderly, "{close_reason:?}");
        assert_eq!(readings.metrics.frontend_write.count(), 1, "told once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_is_cut_off() {
    for close_reason in delivering() {
        let (mut local, seen, readings) = local(true);
        let began = Instant::now();
        let mut allowance = 2_000;
        let end = poll_fn(|cx| local.poll_end(cx, &close_reason, &mut allowance));
        timeout(Duration::from_secs(3_600), end).await.expect("an end");
        let seconds = if close_reason == CloseReason::Flushed { 600 } else { 10 };
        assert_eq!(began.elapsed(), Duration::from_secs(seconds), "{close_reason:?}");
        assert!(seen.aborted.load(Ordering::Relaxed), "reset");
        assert_eq!(
            readings.samples("frontend_write_duration_seconds_sum"),
            [format!("frontend_write_duration_seconds_sum {seconds}")]
        );
        assert_eq!(readings.metrics.frontend_write.count(), 1, "told once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_did_not_read_is_reset_at_once() {
    for cause in [Cause::Stalled, Cause::FlushTimeout, Cause::Overrun] {
        let (mut local, seen, readings) = local(true);
        let mut cx = Context::from_waker(Waker::noop());
        let ended = local.poll_end(&mut cx, &CloseReason::Broken(cause), &mut 2_000);
        assert!(ended.is_ready() && seen.aborted.load(Ordering::Relaxed), "reset");
        assert_eq!(readings.metrics.frontend_write.count(), 1, "told once");
    }
}

/// The driver drops its local ends without an end if it panics.
#[tokio::test(start_paused = true)]
async fn a_client_whose_end_was_not_told_is_reset() {
    for (polls, lingers, reset) in [(0, false, true), (1, false, true), (1, true, false)] {
        let (mut local, seen, _readings) = local(!lingers);
        for _ in 0..polls {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(local.poll_end(&mut cx, &CloseReason::Flushed, &mut 2_000).is_pending());
        }
        drop(local);
        assert_eq!(seen.aborted.load(Ordering::Relaxed), reset, "{polls} polls, lingers: {lingers}");
    }
}

#[tokio::test]
async fn unix_client_whose_upload_is_cut_off_reads_pending_data_and_then_an_error() {
    for upload in [&b"unread"[..], b""] {
        let (mut near, mut client) = UnixStream::pair().unwrap();
        near.write_all(b"answer").await.unwrap();
        client.write_all(upload).await.unwrap();
        let mut local = SocketIo::new(near, Bytes::new(), connection_log(&Readings::new()));
        let lost = CloseReason::Broken(Cause::LinkLost);
        assert!(local.poll_end(&mut Context::from_waker(Waker::noop()), &lost, &mut 2_000).is_ready());
        drop(local);
        let mut answer = [0; 6];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
        let end = client.read(&mut answer).await.map_err(|error| error.kind());
        let expected = if upload.is_empty() { Ok(0) } else { Err(io::ErrorKind::ConnectionReset) };
        assert_eq!(end, expected);
    }
}
