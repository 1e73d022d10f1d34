use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use grpc::Incoming;
use mux::DialId;
use tokio::time::timeout;

use super::*;
use crate::frontend::testing::{Readings, connection_log};

/// A wire with these received packets. `held` counts the payload that was read while the window is held back.
struct Arrived {
    packets: VecDeque<Packet<Bytes>>,
    held: Option<usize>,
    /// No packet arrives while that many bytes are held back.
    window: usize,
}

impl Wire for Arrived {
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<usize, WireError>> {
        Poll::Ready(Ok(usize::MAX))
    }

    fn send(&mut self, _packet: Packet<Bytes>) -> Result<(), WireError> {
        Ok(())
    }

    fn poll_packet(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Incoming, WireError>>> {
        let full = self.held.is_some_and(|held| held >= self.window);
        let Some(packet) = self.packets.pop_front_if(|_| !full) else { return Poll::Pending };
        if let (Some(held), Packet::Data { payload, .. }) = (&mut self.held, &packet) {
            *held += payload.len();
        }
        Poll::Ready(Some(Ok(Incoming::Packet(packet))))
    }

    fn hold_back(&mut self, on: bool) {
        self.held = on.then(|| self.held.unwrap_or_default());
    }

    fn held(&self) -> usize {
        self.held.unwrap_or_default()
    }

    fn finish(&mut self) {}
}

/// The local end of a client whose dial has succeeded and that has then sent these packets.
fn open(sent: impl IntoIterator<Item = Packet<Bytes>>) -> GrpcIo<Arrived> {
    let dial =
        Packet::DialReq { random: DialId(1), protocol: "tcp".into(), address: "a:1".into(), trace: None };
    let packets = std::iter::once(dial).chain(sent).collect();
    let readings = Readings::new();
    let mut stream =
        Stream::new(Arrived { packets, held: None, window: usize::MAX }, readings.metrics.clone());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(stream.poll_order(&mut cx), Poll::Ready(Order::Dial { .. })));
    assert!(stream.machine.handle_dialed().is_some());
    GrpcIo::new(stream, connection_log(&readings))
}

fn data(length: usize) -> Packet<Bytes> {
    Packet::Data { id: CONNECTION, payload: vec![7; length].into() }
}

#[tokio::test]
async fn small_messages_go_on_as_one() {
    let sent =
        [vec![data(100); 300], vec![data(8_000), data(10), Packet::CloseReq { id: CONNECTION }]].concat();
    let mut local = open(sent);
    let mut cx = Context::from_waker(Waker::noop());
    let mut read = Vec::new();
    while let Poll::Ready(Ok(Read::Data(bytes))) = local.poll_read(&mut cx, 1 << 20) {
        read.push(bytes.len());
    }
    assert_eq!(read.iter().sum::<usize>(), 38_010);
    assert!(read.len() <= 7, "{read:?}");
    assert!(matches!(local.poll_read(&mut cx, 1), Poll::Ready(Ok(Read::Closed))));
}

/// Each message waits for 63 useless packets, or for none.
#[tokio::test]
async fn packets_are_limited_per_call() {
    for useless in [0, 63] {
        let message = || std::iter::repeat_n(Packet::Drain, useless).chain([data(1)]);
        let most_of = |call: &mut dyn FnMut(&mut GrpcIo<Arrived>) -> bool| {
            let mut local = open((0..1_000).flat_map(|_| message()));
            let mut most = 0;
            let mut before = local.stream.wire.packets.len();
            while before > 0 {
                assert!(call(&mut local));
                let left = local.stream.wire.packets.len();
                most = most.max(before - left);
                before = left;
            }
            most
        };
        let mut cx = Context::from_waker(Waker::noop());
        let reads = most_of(&mut |local| local.poll_read(&mut cx, 1 << 20).is_ready());
        let mut cx = Context::from_waker(Waker::noop());
        let reads_ahead = most_of(&mut |local| local.poll_closed(&mut cx).is_pending());
        assert!(
            reads <= 3 * PACKETS_PER_TURN && reads_ahead <= 2 * PACKETS_PER_TURN,
            "{reads}, {reads_ahead}"
        );
    }
}

/// Counts its wake-ups.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn packets_that_arrived_are_read_ahead_without_another_arrival() {
    let mut local = open(vec![data(1); 1_000]);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut calls = 0;
    while wakes.0.load(Ordering::Relaxed) == calls {
        assert!(local.poll_closed(&mut Context::from_waker(&waker)).is_pending());
        calls += 1;
    }
    assert_eq!(local.held(), 1_000);
}

#[tokio::test]
async fn read_ahead_bytes_are_held_until_they_are_sent() {
    let mut local = open(vec![data(1_000); 4]);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(local.poll_closed(&mut cx).is_pending(), "the client stays");
    let mut seen = vec![local.held()];
    for _ in 0..4 {
        let Poll::Ready(Ok(Read::Data(bytes))) = local.poll_read(&mut cx, 1_000) else { panic!("bytes") };
        assert_eq!(bytes.len(), 1_000);
        seen.push(local.held());
    }
    assert_eq!(seen, [4_000, 3_000, 2_000, 1_000, 0], "each piece that goes on shows");
    assert!(local.poll_read(&mut cx, 1_000).is_pending());
    assert_eq!(local.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn data_before_a_close_rsp_goes_on() {
    for close in [Some(Packet::CloseReq { id: CONNECTION }), None] {
        let stays = close.is_none();
        let mut local = open([data(8_000), data(10)].into_iter().chain(close));
        poll_fn(|cx| local.poll_shut_down(cx)).await.unwrap();
        let (mut read, began) = (0, Instant::now());
        while let Read::Data(bytes) = poll_fn(|cx| local.poll_read(cx, 5_000)).await.unwrap() {
            read += bytes.len();
        }
        assert_eq!(read, 8_010);
        assert_eq!(began.elapsed() >= LINGER, stays, "a client that stays is read for the time of a linger");
    }
}

/// A client with a used window cannot close, and an endpoint may stand still for hours.
#[tokio::test(start_paused = true)]
async fn a_client_whose_bytes_wait_gets_window_for_its_close() {
    let close = [Packet::CloseReq { id: CONNECTION }];
    let mut local = open(vec![data(100_000); 7].into_iter().chain(close));
    local.stream.wire.window = 400_000;
    let began = Instant::now();
    poll_fn(|cx| local.poll_closed(cx)).await;
    assert_eq!((began.elapsed(), local.held()), (WINDOW_RETURN_INTERVAL, 700_000));

    let mut local = open(vec![data(100_000); 30]);
    local.stream.wire.window = 400_000;
    let gone = timeout(Duration::from_secs(3600), poll_fn(|cx| local.poll_closed(cx))).await;
    assert!(gone.is_err() && local.held() == 800_000, "{}", local.held());
}

/// A slice would pin the whole buffer that it arrived in.
#[tokio::test]
async fn small_messages_that_wait_are_copied() {
    let buffer = Bytes::from(vec![7; 16 << 10]);
    let mut local =
        open((0..4).map(|at| Packet::Data { id: CONNECTION, payload: buffer.slice(at..at + 16) }));
    assert!(local.poll_closed(&mut Context::from_waker(Waker::noop())).is_pending(), "the client stays");
    assert_eq!(local.held(), 64);
    assert!(buffer.is_unique());
}
