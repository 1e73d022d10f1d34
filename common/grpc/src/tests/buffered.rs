//! The write adapter over a scripted transport.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::advance;

use super::Wakes;
use crate::buffered::{Buffered, Flusher, buffered};
use crate::turns::READ_FOR;

/// The transport's answer to the next call.
#[derive(Debug, Clone, Copy)]
enum IoStep {
    /// Accepts at most this many bytes.
    Take(usize),
    /// Is blocked, and wakes the task later.
    Block,
}

#[derive(Default)]
struct Script {
    steps: VecDeque<IoStep>,
    written: Vec<u8>,
    writes: usize,
    /// How many bytes were written at the last flush.
    flushed: usize,
    blocked: Option<Waker>,
    shut: bool,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

impl AsyncWrite for Scripted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut script = self.0.lock();
        let limit = match script.steps.pop_front() {
            Some(IoStep::Block) => {
                script.blocked = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Some(IoStep::Take(limit)) => limit,
            None => usize::MAX,
        };
        let all = bufs.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
        let count = all.len().min(limit);
        script.written.extend_from_slice(&all[..count]);
        script.writes += 1;
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut script = self.0.lock();
        if let Some(IoStep::Block) = script.steps.front() {
            script.steps.pop_front();
            script.blocked = Some(cx.waker().clone());
            return Poll::Pending;
        }
        script.flushed = script.written.len();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut script = self.0.lock();
        assert_eq!(script.flushed, script.written.len(), "flushed before the end");
        script.shut = true;
        Poll::Ready(Ok(()))
    }
}

/// The peer always has more bytes.
impl AsyncRead for Scripted {
    fn poll_read(self: Pin<&mut Self>, _cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        buf.put_slice(&[7; 8]);
        Poll::Ready(Ok(()))
    }
}

/// Calls the adapter as h2 does, and ends turns as the driver does.
struct Driver {
    script: Scripted,
    io: Buffered<Scripted>,
    flusher: Flusher<Scripted>,
    wakes: Arc<Wakes>,
}

impl Driver {
    fn new(steps: &[IoStep]) -> Self {
        let script = Scripted::default();
        script.0.lock().steps.extend(steps);
        let (io, flusher) = buffered(script.clone(), crate::buffered::MAX_GATHERED_OVER_TLS, None);
        Driver { script, io, flusher, wakes: Arc::default() }
    }

    /// One write and h2's flush after it.
    fn write(&mut self, slices: &[IoSlice<'_>]) -> Poll<usize> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let cx = &mut Context::from_waker(&waker);
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices).map(Result::unwrap);
        assert!(Pin::new(&mut self.io).poll_flush(cx).is_ready(), "h2 never waits for a flush");
        written
    }

    fn read(&mut self) -> Poll<()> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let mut bytes = [0; 64];
        Pin::new(&mut self.io)
            .poll_read(&mut Context::from_waker(&waker), &mut ReadBuf::new(&mut bytes))
            .map(Result::unwrap)
    }

    fn turn_ends(&mut self) -> Poll<()> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.flusher.poll_flush(&mut Context::from_waker(&waker)).map(Result::unwrap)
    }

    /// The transport accepts bytes again, and wakes the blocked task.
    fn unblock(&self) {
        let blocked = self.script.0.lock().blocked.take().expect("somebody registered a waker");
        let before = self.wakes.0.load(Ordering::Relaxed);
        blocked.wake();
        assert_eq!(self.wakes.0.load(Ordering::Relaxed), before + 1);
    }

    fn written(&self) -> Vec<u8> {
        self.script.0.lock().written.clone()
    }

    /// Asserts that the transport has received and flushed all bytes.
    fn assert_flushed(&self, all: &[u8]) {
        let script = self.script.0.lock();
        assert_eq!(script.written, all);
        assert_eq!(script.flushed, all.len());
    }
}

#[tokio::test(start_paused = true)]
async fn turn_reads_for_a_bounded_time() {
    let mut driver = Driver::new(&[]);
    for _ in 0..3 {
        for _ in 0..2 {
            assert!(driver.read().is_ready());
            advance(READ_FOR / 2).await;
        }
        let wakes = driver.wakes.0.load(Ordering::Relaxed);
        assert!(driver.read().is_pending(), "others have their turn");
        assert_eq!(driver.wakes.0.load(Ordering::Relaxed), wakes + 1, "and then this one again");
        assert!(driver.read().is_pending(), "even if it is asked again in this turn");
        assert!(driver.turn_ends().is_ready());
    }
    for _ in 0..4 {
        assert!(driver.read().is_ready());
        advance(READ_FOR / 2).await;
        assert!(driver.read().is_ready());
        assert!(driver.turn_ends().is_ready(), "each turn has its time");
        advance(READ_FOR / 2).await;
    }
}

#[test]
fn small_writes_of_a_turn_go_out_as_one() {
    let mut driver = Driver::new(&[]);
    for part in [b"one ".as_slice(), b"two ", b"three"] {
        assert_eq!(driver.write(&[IoSlice::new(part)]), Poll::Ready(part.len()));
        assert!(driver.written().is_empty());
    }
    assert_eq!(driver.turn_ends(), Poll::Ready(()));
    driver.assert_flushed(b"one two three");
    assert_eq!(driver.script.0.lock().writes, 1);
    // A turn without h2's writes does not write to the transport.
    assert_eq!(driver.turn_ends(), Poll::Ready(()));
    assert_eq!(driver.script.0.lock().writes, 1);
}

#[test]
fn large_write_follows_gathered_bytes_at_once() {
    let mut driver = Driver::new(&[]);
    let large = vec![7; 65_536];
    assert_eq!(driver.write(&[IoSlice::new(b"head")]), Poll::Ready(4));
    assert_eq!(driver.write(&[IoSlice::new(b"more"), IoSlice::new(&large)]), Poll::Ready(4 + 65_536));
    assert_eq!(driver.written(), [b"headmore".as_slice(), &large].concat());
    assert_eq!(driver.script.0.lock().writes, 1);
    assert_eq!(driver.turn_ends(), Poll::Ready(()));
    driver.assert_flushed(&[b"headmore".as_slice(), &large].concat());
}

#[test]
fn a_blocked_flush_is_finished_by_a_later_turn_without_new_writes() {
    for steps in [
        vec![IoStep::Block],
        vec![IoStep::Take(2), IoStep::Block],
        vec![IoStep::Take(2), IoStep::Block, IoStep::Take(1), IoStep::Block],
        vec![IoStep::Take(usize::MAX), IoStep::Block],
    ] {
        let mut driver = Driver::new(&steps);
        assert_eq!(driver.write(&[IoSlice::new(b"hello")]), Poll::Ready(5));
        while driver.turn_ends().is_pending() {
            driver.unblock();
        }
        driver.assert_flushed(b"hello");
    }
}

#[test]
fn a_transport_that_blocks_blocks_h2_within_the_buffer() {
    let mut driver = Driver::new(&[IoStep::Block; 200]);
    let mut taken = 0;
    while driver.write(&[IoSlice::new(&[1; 1000])]).is_ready() {
        taken += 1000;
        assert!(taken <= 16 << 10, "nothing piles up");
    }
    driver.unblock();
    driver.script.0.lock().steps.clear();
    assert_eq!(driver.write(&[IoSlice::new(&[1; 1000])]), Poll::Ready(1000));
    assert_eq!(driver.turn_ends(), Poll::Ready(()));
    driver.assert_flushed(&vec![1; taken + 1000]);
}

#[test]
fn memory_is_kept_from_one_busy_turn_to_the_next_and_by_no_idle_connection() {
    let mut driver = Driver::new(&[]);
    let mut turn = |size: usize| {
        assert_eq!(driver.write(&[IoSlice::new(&vec![1; size])]), Poll::Ready(size));
        assert_eq!(driver.turn_ends(), Poll::Ready(()));
        driver.flusher.kept()
    };
    assert_eq!(turn(100), 0);
    assert!(turn(10_000) >= 10_000, "who sent much is likely to go on");
    assert_eq!(turn(100), 0);
}

#[test]
fn shutdown_flushes_first() {
    let mut driver = Driver::new(&[IoStep::Take(3), IoStep::Block]);
    assert_eq!(driver.write(&[IoSlice::new(b"goodbye")]), Poll::Ready(7));
    let waker = Waker::from(Arc::clone(&driver.wakes));
    let cx = &mut Context::from_waker(&waker);
    assert!(Pin::new(&mut driver.io).poll_shutdown(cx).is_pending());
    driver.unblock();
    assert!(Pin::new(&mut driver.io).poll_shutdown(cx).is_ready());
    driver.assert_flushed(b"goodbye");
    assert!(driver.script.0.lock().shut);
}

fn steps() -> impl Strategy<Value = IoStep> {
    prop_oneof![
        Just(IoStep::Block),
        (1_usize..20).prop_map(IoStep::Take),
        (1_usize..40_000).prop_map(IoStep::Take),
    ]
}

proptest! {
    #[test]
    fn every_byte_once_and_in_order(
        turns in vec(vec(vec(prop_oneof![0_usize..60, 0_usize..30_000], 1..4), 0..6), 1..6),
        steps in vec(steps(), 0..60),
    ) {
        let mut driver = Driver::new(&steps);
        let (mut sent, mut stamp) = (Vec::new(), 0_u8);
        for write in turns.into_iter().flatten().map(Some).chain([None]) {
            let parts = write.into_iter().flatten().map(|length| {
                stamp = stamp.wrapping_add(1);
                vec![stamp; length]
            }).collect::<Vec<_>>();
            let mut slices = parts.iter().map(|part| IoSlice::new(part)).collect::<Vec<_>>();
            let mut slices = slices.as_mut_slice();
            sent.extend(parts.concat());
            while slices.iter().any(|slice| !slice.is_empty()) {
                match driver.write(slices) {
                    Poll::Ready(count) => {
                        prop_assert!(count > 0);
                        IoSlice::advance_slices(&mut slices, count);
                    }
                    Poll::Pending => {
                        // The turn ends here; the next begins when the transport wakes the driver.
                        let _blocked = driver.turn_ends();
                        driver.unblock();
                    }
                }
            }
        }
        while driver.turn_ends().is_pending() {
            driver.unblock();
        }
        driver.assert_flushed(&sent);
    }
}
