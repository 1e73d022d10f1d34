use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;

async fn pair() -> (ConnContext<Arc<()>>, TcpStream, Arc<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (endpoint, _) = listener.accept().await.unwrap();
    let peer = stream.peer_addr().unwrap();
    let info = ConnInfo {
        server_id: "s".into(),
        dial_id: 1,
        connect_id: 1,
        address: peer.to_string(),
        lookup: None,
        dial: Duration::ZERO,
        trace_id: None,
        records: ConnectionLogWriter::default(),
    };
    let gauge = Arc::new(());
    (ConnContext::new(Endpoint { stream, peer }, info, gauge.clone()), endpoint, gauge)
}

async fn read(local: &mut ConnContext<Arc<()>>, max: usize) -> Read {
    poll_fn(|cx| local.poll_read(cx, max)).await.unwrap()
}

async fn write_all(local: &mut ConnContext<Arc<()>>, data: Bytes) {
    let slices = VecDeque::from([data]);
    let mut chunks = Chunks::new(&slices, slices.iter().map(Bytes::len).sum());
    while !chunks.is_empty() {
        poll_fn(|cx| local.poll_write(cx, &mut chunks)).await.unwrap();
    }
}

/// Ends the connection; returns the unused part of the allowance.
async fn end_within(
    local: &mut ConnContext<Arc<()>>,
    close_reason: CloseReason,
    mut allowance: usize,
) -> usize {
    let ended = poll_fn(|cx| local.poll_end(cx, &close_reason, &mut allowance));
    timeout(Duration::from_secs(5), ended).await.expect("ends in time");
    allowance
}

async fn end(local: &mut ConnContext<Arc<()>>, close_reason: CloseReason) {
    end_within(local, close_reason, usize::MAX).await;
}

#[tokio::test]
async fn bytes_pass_both_ways_and_are_counted() {
    let (mut local, mut endpoint, gauge) = pair().await;
    write_all(&mut local, Bytes::from_static(b"hello")).await;
    let mut got = [0; 5];
    endpoint.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"hello");
    endpoint.write_all(b"worlds").await.unwrap();
    assert_eq!(
        read(&mut local, 4).await,
        Read::Data(Bytes::from_static(b"worl")),
        "never more than asked for"
    );
    assert_eq!(read(&mut local, 4).await, Read::Data(Bytes::from_static(b"ds")));
    assert_eq!((local.received, local.sent), (6, 5));
    assert_eq!(Arc::strong_count(&gauge), 2);
    drop(local);
    assert_eq!(Arc::strong_count(&gauge), 1);
}

/// The endpoint's first bytes and its end wait until the client has sent something.
#[tokio::test(start_paused = true)]
async fn a_first_word_is_held_until_its_time_or_the_clients() {
    let (local, mut endpoint, _gauge) = pair().await;
    let mut local = local.hold_first_byte();
    endpoint.write_all(b"hello").await.unwrap();
    let began = Instant::now();
    assert_eq!(read(&mut local, 16).await, Read::Data(Bytes::from_static(b"hello")));
    assert_eq!(began.elapsed(), Duration::from_millis(250));

    let (local, mut endpoint, _gauge) = pair().await;
    let mut local = local.hold_first_byte();
    endpoint.write_all(b"hello").await.unwrap();
    let began = Instant::now();
    write_all(&mut local, Bytes::from_static(b"client")).await;
    assert_eq!(read(&mut local, 16).await, Read::Data(Bytes::from_static(b"hello")));
    assert!(began.elapsed() < Duration::from_millis(250));

    let (local, endpoint, _gauge) = pair().await;
    let mut local = local.hold_first_byte();
    drop(endpoint);
    let began = Instant::now();
    assert_eq!(read(&mut local, 16).await, Read::Eof);
    assert_eq!(began.elapsed(), Duration::from_millis(250));
}

/// Neither an idle connection nor a few bytes in transit keep a whole buffer allocated.
#[tokio::test]
async fn an_idle_connection_holds_no_buffer() {
    let (mut local, mut endpoint, _gauge) = pair().await;
    endpoint.write_all(b"x").await.unwrap();
    let Read::Data(data) = read(&mut local, 1 << 20).await else { panic!("data") };
    assert!(data.is_unique(), "nobody holds the rest of a buffer");
    let pending = poll_fn(|cx| Poll::Ready(local.poll_read(cx, 1 << 20).is_pending())).await;
    assert!(pending);
    let pending = poll_fn(|cx| Poll::Ready(local.poll_read(cx, 1 << 20).is_pending())).await;
    assert!(pending);
    drop(endpoint);
    assert_eq!(read(&mut local, 1 << 20).await, Read::Eof);
}

#[tokio::test]
async fn reads_of_all_sizes_return_the_sent_bytes() {
    let (mut local, mut endpoint, _gauge) = pair().await;
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let payload = sent.clone();
    let writer = tokio::spawn(async move {
        let mut rest = payload.as_slice();
        for size in [1, 4095, 4096, 5000, 16_384, 70_000, 300_000].into_iter().cycle() {
            let (piece, tail) = rest.split_at(size.min(rest.len()));
            endpoint.write_all(piece).await.unwrap();
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        endpoint
    });
    let mut received = Vec::new();
    for max in [1 << 20, 100, 4096, 64 * 1024].into_iter().cycle() {
        let Read::Data(data) = read(&mut local, max).await else { break };
        assert!(data.len() <= max);
        received.extend_from_slice(&data);
        if received.len() == sent.len() {
            break;
        }
    }
    assert!(received == sent);
    writer.await.unwrap();
}

#[tokio::test]
async fn an_endpoint_that_sends_no_more_still_listens() {
    let (mut local, mut endpoint, _gauge) = pair().await;
    endpoint.write_all(b"last").await.unwrap();
    endpoint.shutdown().await.unwrap();
    assert_eq!(read(&mut local, 64).await, Read::Data(Bytes::from_static(b"last")));
    assert_eq!(read(&mut local, 64).await, Read::Eof);
    assert_eq!(read(&mut local, 64).await, Read::Eof, "again, if asked again");
    write_all(&mut local, Bytes::from_static(b"more")).await;
    end(&mut local, CloseReason::Flushed).await;
    drop(local);
    let mut all = Vec::new();
    endpoint.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"more");
}

#[tokio::test]
async fn an_orderly_end_delivers_everything_although_the_endpoint_still_sends() {
    let (mut local, mut endpoint, _gauge) = pair().await;
    SockRef::from(&local.stream).set_send_buffer_size(1 << 20).unwrap();
    let payload = Bytes::from(vec![5; 300_000]);
    let reader = tokio::spawn(timeout(Duration::from_secs(20), async move {
        // Until then the endpoint reads nothing.
        endpoint.write_all(&vec![7; 4 << 20]).await.unwrap();
        let mut all = Vec::new();
        endpoint.read_to_end(&mut all).await.map(|_| all)
    }));
    timeout(Duration::from_secs(20), write_all(&mut local, payload.clone())).await.expect("room");
    end(&mut local, CloseReason::Flushed).await;
    drop(local);
    assert_eq!(reader.await.unwrap().expect("an end").expect("no reset"), payload);
}

#[tokio::test(start_paused = true)]
async fn orderly_end_has_a_time_limit() {
    let (mut local, _endpoint, _gauge) = pair().await;
    let began = Instant::now();
    end(&mut local, CloseReason::Flushed).await;
    assert!(began.elapsed() >= LINGER && began.elapsed() < LINGER * 2);
}

/// The endpoint gets time to read the bytes sent to it, and then a reset; bytes that it sends meanwhile are read up to the
/// allowance only.
#[tokio::test]
async fn an_endpoint_that_sends_without_end_is_left_waiting() {
    const ALLOWANCE: usize = 1 << 20;
    let (mut local, endpoint, _gauge) = pair().await;
    SockRef::from(&local.stream).set_recv_buffer_size(256 << 10).unwrap();
    SockRef::from(&endpoint).set_send_buffer_size(256 << 10).unwrap();
    let (mut from, mut to) = endpoint.into_split();
    let pouring = tokio::spawn(async move {
        let mut poured = 0;
        while let Ok(count) = to.write(&[7; 64 << 10]).await {
            poured += count;
        }
        poured
    });
    write_all(&mut local, Bytes::from_static(b"last")).await;
    let began = Instant::now();
    let end = tokio::spawn(async move { end_within(&mut local, CloseReason::Flushed, ALLOWANCE).await });
    let mut last = [0; 4];
    from.read_exact(&mut last).await.unwrap();
    assert_eq!(&last, b"last");
    assert_eq!(end.await.unwrap(), 0, "the allowance is used");
    assert!(began.elapsed() >= LINGER, "it has its time");
    // In addition to the bytes read, both sockets' buffers hold up to twice the configured size.
    let poured = pouring.await.unwrap();
    assert!((ALLOWANCE..3 * ALLOWANCE).contains(&poured), "{poured} bytes were taken");
}

#[tokio::test]
async fn a_broken_connection_is_reset() {
    let (mut local, mut endpoint, _gauge) = pair().await;
    end(&mut local, CloseReason::Broken(Cause::LinkLost)).await;
    drop(local);
    let error = endpoint.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn an_endpoints_reset_is_an_error() {
    let (mut local, endpoint, _gauge) = pair().await;
    endpoint.set_zero_linger().unwrap();
    drop(endpoint);
    let error = poll_fn(|cx| local.poll_read(cx, 64)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn reads_grow_with_full_reads_and_shrink_again() {
    let mut chunk = Chunk::FIRST;
    for expected in [16, 32, 64, 64] {
        let size = chunk.next(USUAL_READ);
        assert_eq!(size, expected * 1024);
        chunk.learn(size);
    }
    for expected in [128, 128] {
        let size = chunk.next(usize::MAX);
        assert_eq!(size, expected * 1024);
        chunk.learn(size);
    }
    assert_eq!(chunk.next(1000), 1000);
    for _ in 0..20 {
        chunk.next(usize::MAX);
        chunk.learn(10);
    }
    assert_eq!(chunk.next(usize::MAX), MIN_READ);
    assert_eq!(chunk.next(0), 1);
}
