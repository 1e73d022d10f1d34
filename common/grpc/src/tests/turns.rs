//! The turns of connections that have more to read than a turn does.

use std::future::{Future, poll_fn};
use std::io::{self, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use net::tls::ReadAhead;
use tokio::io::{AsyncRead, ReadBuf, join, sink};
use tokio::net::UnixStream;
use tokio::runtime::Builder;
use tokio::task::{JoinSet, yield_now};
use tokio::time::advance;

use super::floods::{REQUEST, with};
use super::{Wakes, serve};
use crate::ServerSettings;
use crate::buffered::MAX_FIRST_READ;
use crate::raw::{DATA, END_HEADERS, HEADERS, frame};
use crate::turns::{BusyTurns, READ_FOR, Turn};

/// A connection that always has more to read.
struct Busy {
    turn: Turn,
    wakes: Arc<Wakes>,
}

impl Busy {
    fn new(turns: &BusyTurns) -> Self {
        Busy { turn: Turn::new(Some(turns)), wakes: Arc::default() }
    }

    fn read(&mut self) -> Poll<()> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.turn.poll_read(&mut Context::from_waker(&waker))
    }

    fn end(&mut self) {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.turn.end(&mut Context::from_waker(&waker));
    }

    async fn uses_its_turn(&mut self) {
        for _ in 0..2 {
            assert!(self.read().is_ready());
            advance(READ_FOR / 2).await;
        }
        assert!(self.read().is_pending(), "others have their turn");
        assert!(self.read().is_pending(), "even if it is asked again in this turn");
        self.end();
    }

    fn woken(&self) -> usize {
        self.wakes.0.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn busy_connections_have_one_turn_at_a_time() {
    let turns = BusyTurns::default();
    let [mut first, mut second, mut small] = [(); 3].map(|()| Busy::new(&turns));
    first.uses_its_turn().await;
    second.uses_its_turn().await;
    for _ in 0..3 {
        let waits = second.woken();
        assert!(second.read().is_pending());
        assert!(small.read().is_ready(), "a connection that has not used its turn does not wait");
        small.end();
        first.uses_its_turn().await;
        yield_now().await;
        assert_eq!(second.woken(), waits + 1, "the next one is woken");
        assert!(second.read().is_pending(), "after the others");
        second.end();
        yield_now().await;
        std::mem::swap(&mut first, &mut second);
    }
    drop(first);
    assert!(second.read().is_pending());
    second.end();
    yield_now().await;
    assert!(second.read().is_ready(), "a connection that ends passes its turn on");
}

#[tokio::test(start_paused = true)]
async fn busy_connection_alone_has_one_turn_after_the_other() {
    let mut busy = Busy::new(&BusyTurns::default());
    for turn in 1..4 {
        busy.uses_its_turn().await;
        yield_now().await;
        assert_eq!(busy.woken(), turn);
    }
}

#[tokio::test(start_paused = true)]
async fn busy_connection_that_is_woken_early_reads_only_after_the_sockets_are_polled() {
    let mut busy = Busy::new(&BusyTurns::default());
    busy.uses_its_turn().await;
    for _ in 0..3 {
        assert!(busy.read().is_pending());
        busy.end();
    }
    yield_now().await;
    assert!(busy.read().is_ready());
}

#[tokio::test(start_paused = true)]
async fn busy_connection_that_cannot_read_passes_its_turn_on() {
    let turns = BusyTurns::default();
    let mut waiting = [(); 3].map(|()| Busy::new(&turns));
    for conn in &mut waiting {
        conn.uses_its_turn().await;
    }
    let [first, second, third] = &mut waiting;
    // h2 does not read in these turns.
    first.end();
    second.end();
    yield_now().await;
    second.end();
    assert!(third.read().is_pending());
    third.end();
    yield_now().await;
    assert!(third.read().is_ready());
}

/// One of many busy connections sends a byte to another task in its turn `sent`. Returns how many turns they have before that task
/// runs.
async fn turns_before_a_read(connections: usize, sent: usize) -> usize {
    let (here, there) = StdStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    let there = UnixStream::from_std(there).unwrap();
    let (here, turn, turns) = (Arc::new(here), Arc::new(AtomicUsize::new(0)), BusyTurns::default());
    let mut busy = JoinSet::new();
    for _ in 0..connections {
        let mut conn = Turn::new(Some(&turns));
        let (here, turn) = (Arc::clone(&here), Arc::clone(&turn));
        busy.spawn(poll_fn(move |cx| {
            if conn.poll_read(cx).is_ready() {
                while conn.poll_read(cx).is_ready() {}
                if turn.fetch_add(1, Ordering::Relaxed) + 1 == sent {
                    (&*here).write_all(&[1]).unwrap();
                }
            }
            conn.end(cx);
            Poll::<()>::Pending
        }));
    }
    there.readable().await.unwrap();
    turn.load(Ordering::Relaxed) - sent
}

#[test]
fn small_sender_waits_until_the_sockets_are_polled() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for sent in (40..100).step_by(7) {
        let turns = runtime.block_on(turns_before_a_read(20, sent));
        assert!(turns <= 2, "{turns} turns");
    }
}

/// A transport on which a client floods with small frames. Each read takes half a turn of paused time.
struct Flood {
    rest: Vec<u8>,
    reads: Arc<AtomicUsize>,
}

impl AsyncRead for Flood {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            return Poll::Pending;
        }
        // The time passes in the first poll.
        let _yields = pin!(advance(READ_FOR / 2)).poll(&mut Context::from_waker(Waker::noop()));
        self.reads.fetch_add(1, Ordering::Relaxed);
        let count = self.rest.len().min(READ).min(buf.remaining());
        buf.put_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Poll::Ready(Ok(()))
    }
}

/// The bytes of one read of a [`Flood`].
const READ: usize = 2 << 10;

/// A field of 46 bytes in HPACK's static table.
const ACCEPT_CHARSET: u8 = 0x80 | 15;

/// A transport whose bytes take a whole turn to decode, however few are read.
struct Dense {
    rest: Bytes,
    left: Arc<AtomicUsize>,
}

impl AsyncRead for Dense {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let _yields = pin!(advance(READ_FOR)).poll(&mut Context::from_waker(Waker::noop()));
        let count = self.rest.len().min(buf.remaining());
        buf.put_slice(&self.rest.split_to(count));
        self.left.store(self.rest.len(), Ordering::Relaxed);
        if count == 0 { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

/// The first frame widens h2's buffer. The header lists are larger than the limit, but not so large that h2 ends the connection.
#[tokio::test(start_paused = true)]
async fn dense_headers_delay_a_ready_task_by_one_bounded_read() {
    let large = frame(0xee, 0, 0, &[0; 120 << 10]);
    let block = [REQUEST, &[ACCEPT_CHARSET; 5_500]].concat();
    let dense = (0..18).map(|number| frame(HEADERS, END_HEADERS, 2 * number + 1, &block));
    let bytes = Bytes::from(with(&[], std::iter::once(large).chain(dense)));
    let left = Arc::new(AtomicUsize::new(bytes.len()));
    let transport = Dense { rest: bytes, left: Arc::clone(&left) };
    let served = serve(join(transport, sink()), ServerSettings::for_agents());
    let mut before = left.load(Ordering::Relaxed);
    while before > 0 {
        yield_now().await;
        assert!(!served.serving.is_finished(), "it is read to its end");
        let now = left.load(Ordering::Relaxed);
        assert!(before - now <= MAX_FIRST_READ as usize, "{} bytes in one turn", before - now);
        before = now;
    }
}

#[test]
fn floods_of_small_frames_delay_a_ready_task_by_one_turn() {
    let runtime =
        Builder::new_current_thread().enable_all().event_interval(8).start_paused(true).build().unwrap();
    runtime.block_on(floods_beside_a_ready_task());
}

async fn floods_beside_a_ready_task() {
    let (settings, reads) = (ServerSettings::for_frontends(), Arc::<AtomicUsize>::default());
    let request = frame(HEADERS, END_HEADERS, 1, REQUEST);
    let bytes = with(&[], [request, frame(DATA, 0, 1, b"x").repeat(10_000)]);
    let all = 3 * bytes.len().div_ceil(READ);
    let _served = [(); 3].map(|()| {
        let mut flood = ReadAhead::new(Flood { rest: bytes.clone(), reads: Arc::clone(&reads) });
        flood.begin(64 << 10);
        serve(join(flood, sink()), settings.clone())
    });
    // The reads before each poll of a task that is always ready.
    let ready = async move {
        let (mut rounds, mut sum) = (Vec::new(), 0);
        poll_fn(|cx| {
            let read = reads.swap(0, Ordering::Relaxed);
            sum += read;
            rounds.push(read);
            assert!(rounds.len() < 10 * all, "{sum} of {all} reads");
            if sum == all {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        rounds
    };
    let rounds = tokio::spawn(ready).await.unwrap();
    // The first turn of each connection shows that it floods.
    let (first, later) = rounds.split_first().unwrap();
    assert!(*first <= 3 * 2 && later.iter().all(|read| *read <= 2), "{rounds:?}");
}
