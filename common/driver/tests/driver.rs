//! The driver over streams and sockets in memory.

#![allow(clippy::unwrap_used, reason = "a test's helper panics like the test")]

mod pair;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use driver::{Bounds, CloseReason, LinkEnd, MemoryLimiter, Traffic};
use grpc::Code;
use mux::{Cause, ConnectId, DialError, Limits, Negotiated, Packet, Windows};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use pair::{ByHand, Pair, ToServer};

const WINDOW: usize = 64 << 10;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n * 31 % 251).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn bytes_arrive_both_ways_in_order() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4_096);
    let (frontend, endpoint) = pair.connect(4_096).await;
    let sent = pattern(1 << 20);
    let (mut from_frontend, mut to_frontend) = tokio::io::split(frontend.io);
    let (mut from_endpoint, mut to_endpoint) = tokio::io::split(endpoint.io);
    let mut up = vec![0; sent.len()];
    let mut down = vec![0; sent.len()];
    let (a, b, c, d) = tokio::join!(
        to_frontend.write_all(&sent),
        to_endpoint.write_all(&sent),
        from_endpoint.read_exact(&mut up),
        from_frontend.read_exact(&mut down),
    );
    a.unwrap();
    b.unwrap();
    c.unwrap();
    d.unwrap();
    assert_eq!(up, sent);
    assert_eq!(down, sent);
}

/// The stream has room for reads that are longer than a packet.
#[tokio::test(start_paused = true)]
async fn long_reads_arrive_whole() {
    let mut pair = Pair::start(Limits::default(), 1 << 20, 1 << 20);
    let (mut frontend, mut endpoint) = pair.connect(1 << 20).await;
    let sent = pattern(1 << 20);
    frontend.io.write_all(&sent).await.unwrap();
    let mut received = vec![0; sent.len()];
    tokio::time::timeout(Duration::from_secs(1), endpoint.io.read_exact(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(received, sent);
}

#[tokio::test(start_paused = true)]
async fn an_upload_closed_right_after_sending_arrives_whole_at_a_slow_endpoint() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 1_000);
    let (mut frontend, mut endpoint) = pair.connect(1 << 20).await;
    let sent = pattern(300_000);
    frontend.io.write_all(&sent).await.unwrap();
    frontend.io.shutdown().await.unwrap();
    let mut received = Vec::new();
    let mut piece = [0; 777];
    while received.len() < sent.len() {
        let n = endpoint.io.read(&mut piece).await.unwrap();
        assert_ne!(n, 0, "cut off after {} bytes", received.len());
        received.extend_from_slice(&piece[..n]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(received, sent);
    assert_eq!(endpoint.ended.await.unwrap(), CloseReason::Flushed);
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Flushed);
}

/// The driver discards the endpoint's bytes, because the endpoint might otherwise never read its last ones, but at a
/// limited rate.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_sends_without_end_into_a_closed_connection_has_no_processor_to_itself() {
    const POURED: usize = 32 << 20;
    let mut pair = Pair::start(Limits::default(), WINDOW, 64 << 10);
    let (mut frontend, endpoint) = pair.connect(1 << 20).await;
    let sent = pattern(500_000);
    frontend.io.write_all(&sent).await.unwrap();
    frontend.io.shutdown().await.unwrap();
    let (mut read, mut write) = tokio::io::split(endpoint.io);
    let mut first = [0; 1];
    read.read_exact(&mut first).await.unwrap();
    let began = Instant::now();
    let pour = async {
        let piece = vec![7; 64 << 10];
        for _ in 0..POURED / piece.len() {
            write.write_all(&piece).await.unwrap();
        }
    };
    // Other connections that open and close all the time delay none.
    let come_and_go = async {
        loop {
            let (mut frontend, _endpoint) = pair.connect(1_000).await;
            frontend.io.shutdown().await.unwrap();
            frontend.ended.await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = pour => {}
        () = come_and_go => {}
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300), "a MiB in 10 ms: {took:?}");
    assert!(took < Duration::from_secs(2), "it does go on: {took:?}");
    let mut rest = vec![0; sent.len() - 1];
    read.read_exact(&mut rest).await.unwrap();
    assert_eq!(rest, sent[1..]);
    assert_eq!(endpoint.ended.await.unwrap(), CloseReason::Flushed);
}

/// A connection that has used up its share is called again; all reach their end.
#[tokio::test(start_paused = true)]
async fn local_ends_share_the_discard_budget_of_their_link() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 1_000);
    let (mut alone, _endpoint) = pair.connect_wasting(1_000, 1 << 20).await;
    let began = Instant::now();
    alone.io.shutdown().await.unwrap();
    assert_eq!(alone.ended.await.unwrap(), CloseReason::Flushed);
    assert!(began.elapsed() < Duration::from_millis(10), "one alone has all of it");
    let mut frontends = Vec::new();
    for _ in 0..20 {
        frontends.push(pair.connect_wasting(1_000, 1 << 20).await);
    }
    let began = Instant::now();
    for (frontend, _) in &mut frontends {
        frontend.io.shutdown().await.unwrap();
    }
    for (frontend, _endpoint) in frontends {
        assert_eq!(frontend.ended.await.unwrap(), CloseReason::Flushed);
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(180), "20 MiB, one in 10 ms: {took:?}");
    assert!(took < Duration::from_millis(500), "nobody is forgotten: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_echoes_into_a_closed_connection_still_takes_everything() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 1_000);
    let (mut frontend, endpoint) = pair.connect(1 << 20).await;
    let sent = pattern(200_000);
    let echo = tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(endpoint.io);
        let (mut taken, mut piece) = (0, [0; 900]);
        while let Ok(len @ 1..) = read.read(&mut piece).await {
            taken += len;
            // The write fails once the connection is over; the test reads on.
            let _ = write.write_all(&piece[..len]).await;
        }
        taken
    });
    frontend.io.write_all(&sent).await.unwrap();
    frontend.io.shutdown().await.unwrap();
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Flushed);
    assert_eq!(echo.await.unwrap(), 200_000);
}

#[tokio::test(start_paused = true)]
async fn data_before_attach_waits_for_the_local_end() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4_096);
    let key = pair.dial().await;
    let mut endpoint = pair.endpoints.recv().await.unwrap();
    endpoint.io.write_all(b"first words").await.unwrap();
    endpoint.io.shutdown().await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let (local, mut frontend) = pair::pipe(4_096);
    assert!(pair.server.send(ToServer::Attach(key, local)).is_ok());
    let mut words = String::new();
    frontend.io.read_to_string(&mut words).await.unwrap();
    assert_eq!(words, "first words");
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Flushed);
}

#[tokio::test(start_paused = true)]
async fn connection_that_ended_before_attach_is_closed_at_attach() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4_096);
    let key = pair.dial().await;
    drop(pair.endpoints.recv().await.unwrap());
    tokio::time::sleep(Duration::from_millis(5)).await;
    let (local, frontend) = pair::pipe(4_096);
    assert!(pair.server.send(ToServer::Attach(key, local)).is_ok());
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Flushed);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_connection_ends_at_the_endpoint() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4_096);
    let key = pair.dial().await;
    let endpoint = pair.endpoints.recv().await.unwrap();
    assert!(pair.server.send(ToServer::Abandon(key)).is_ok());
    assert_eq!(endpoint.ended.await.unwrap(), CloseReason::Flushed);
}

#[tokio::test(start_paused = true)]
async fn losing_the_stream_ends_everything_and_both_tasks() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4_096);
    let mut connections = Vec::new();
    for _ in 0..50 {
        connections.push(pair.connect(4_096).await);
    }
    pair.agent_task.abort();
    for (frontend, _) in connections {
        assert_eq!(frontend.ended.await.unwrap(), CloseReason::Broken(Cause::LinkLost));
    }
    assert_eq!(pair.server_task.await.unwrap(), LinkEnd::Finished);
    assert_eq!(pair.server_counts.lock()["queued"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_ends_the_stream_in_order() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4_096);
    let (frontend, endpoint) = pair.connect(4_096).await;
    assert!(pair.server.send(ToServer::Stop).is_ok());
    assert_eq!(pair.server_task.await.unwrap(), LinkEnd::Stopped);
    assert_eq!(pair.agent_task.await.unwrap(), LinkEnd::Finished);
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Broken(Cause::LinkLost));
    assert_eq!(endpoint.ended.await.unwrap(), CloseReason::Broken(Cause::LinkLost));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_stream_does_not_wait_for_a_slow_reader() {
    let limits = Limits { soft_cap: 20_000, hard_cap: 100_000, ..Limits::default() };
    let mut pair = Pair::start(limits, WINDOW, 4_096);
    let (mut slow, mut source) = pair.connect(1_000).await;
    let (other, _endpoint) = pair.connect(1_000).await;
    tokio::spawn(async move {
        let block = pattern(10_000);
        while source.io.write_all(&block).await.is_ok() {}
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pair.server_counts.lock()["paused"], 1, "one reader holds up the link");
    pair.agent_task.abort();
    let told = tokio::time::timeout(Duration::from_secs(1), other.ended).await;
    assert_eq!(told.expect("at once").unwrap(), CloseReason::Broken(Cause::LinkLost));
    let mut received = Vec::new();
    slow.io.read_to_end(&mut received).await.unwrap();
    assert!(received.len() > 100_000, "{} bytes: all that had arrived", received.len());
    assert_eq!(slow.ended.await.unwrap(), CloseReason::Broken(Cause::LinkLost));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_is_reset_and_the_others_go_on() {
    let limits = Limits { soft_cap: 20_000, hard_cap: 100_000, ..Limits::default() };
    let mut pair = Pair::start(limits, WINDOW, 4_096);
    let (stalled, mut source) = pair.connect(1_000).await;
    let (mut frontend, mut endpoint) = pair.connect(4_096).await;
    let flood = tokio::spawn(async move {
        let block = pattern(10_000);
        while source.io.write_all(&block).await.is_ok() {}
    });
    let echo = tokio::spawn(async move {
        let mut byte = [0; 1];
        while endpoint.io.read_exact(&mut byte).await.is_ok() {
            endpoint.io.write_all(&byte).await.unwrap();
        }
    });
    let mut answer = [0; 1];
    for n in 0..200 {
        frontend.io.write_all(&[n]).await.unwrap();
        let exchange = frontend.io.read_exact(&mut answer);
        tokio::time::timeout(Duration::from_secs(10), exchange).await.expect("others are served").unwrap();
        assert_eq!(answer, [n]);
    }
    assert_eq!(stalled.ended.await.unwrap(), CloseReason::Broken(Cause::Stalled));
    flood.await.unwrap();
    assert_eq!(pair.server_counts.lock()["broken stalled"], 1);
    {
        let counts = pair.server_counts.lock();
        assert_eq!(counts["paused"], counts["resumed"]);
    }
    drop(frontend);
    echo.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn live_connections_tell_their_bytes_and_stalls() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4_096);
    let (mut frontend, mut endpoint) = pair.connect(1_000).await;
    let _idle = pair.connect(1_000).await;
    frontend.io.write_all(b"abc").await.unwrap();
    endpoint.io.read_exact(&mut [0; 3]).await.unwrap();
    endpoint.io.write_all(&pattern(4_000)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (traffic, live) = pair.live().await;
    let Traffic { connections, small, bulk, sent, received } = traffic;
    assert_eq!((connections, small, bulk, sent, received), (2, 1, 0, 3, 4_000));
    assert_eq!((live.len(), &*live[0].target, live[0].id), (2, "endpoint:1", ConnectId(1)));
    assert_eq!((live[0].sent, live[0].received, live[0].queued), (3, 4_000, 3_000));
    assert!(live[0].stalled >= Some(Duration::from_secs(1)), "{live:?}");
    assert_eq!((live[1].received, live[1].stalled), (0, None));
    frontend.io.read_exact(&mut [0; 4_000]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (_, live) = pair.live().await;
    assert_eq!((live[0].queued, live[0].stalled), (0, None));
    let (mut bulk, download) = (pattern(mux::BULK_BYTES as usize), pattern(mux::BULK_BYTES as usize));
    let (sent, read) = tokio::join!(endpoint.io.write_all(&download), frontend.io.read_exact(&mut bulk));
    sent.and(read.map(drop)).unwrap();
    let (Traffic { connections, small, bulk, .. }, _) = pair.live().await;
    assert_eq!((connections, small, bulk), (2, 0, 1));
    drop(frontend);
    endpoint.ended.await.unwrap();
    let (Traffic { connections, small, bulk, .. }, _) = pair.live().await;
    assert_eq!((connections, small, bulk), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_connections_lose_no_byte_and_leave_nothing() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 512);
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..1_000_usize {
        let (mut frontend, endpoint) = pair.connect(512).await;
        clients.spawn(async move {
            let (mut read, mut write) = tokio::io::split(endpoint.io);
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        clients.spawn(async move {
            let sent = pattern(100 + n * 7);
            let mut received = vec![0; sent.len()];
            let (mut read, mut write) = tokio::io::split(&mut frontend.io);
            let (a, b) = tokio::join!(write.write_all(&sent), read.read_exact(&mut received));
            a.unwrap();
            b.unwrap();
            assert_eq!(received, sent);
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    assert!(pair.server.send(ToServer::Stop).is_ok());
    assert_eq!(pair.server_task.await.unwrap(), LinkEnd::Stopped);
    assert_eq!(pair.agent_task.await.unwrap(), LinkEnd::Finished);
    assert_eq!(pair.agent_counts.lock()["queued"], 0);
}

/// Native peers.
fn native() -> Negotiated {
    Negotiated { credits: Some(Windows { receive: 20_000, send: 20_000 }), half_close: true }
}

#[tokio::test(start_paused = true)]
async fn thousand_stalled_readers_do_not_delay_others_and_cost_only_their_windows() {
    let mut pair = Pair::with_negotiated(Limits::default(), native(), WINDOW, 4_096);
    let mut stalled = Vec::new();
    for _ in 0..1_000 {
        let (frontend, mut source) = pair.connect(1_000).await;
        stalled.push(frontend);
        tokio::spawn(async move {
            let block = pattern(10_000);
            while source.io.write_all(&block).await.is_ok() {}
        });
    }
    let (mut frontend, endpoint) = pair.connect(4_096).await;
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(endpoint.io);
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
    let began = Instant::now();
    let mut answer = [0; 1];
    for n in 0..200 {
        frontend.io.write_all(&[n]).await.unwrap();
        frontend.io.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [n]);
    }
    assert!(began.elapsed() < Duration::from_millis(10), "nobody waits for a timer: {:?}", began.elapsed());
    let counts = pair.server_counts.lock();
    assert!(!counts.contains_key("paused") && !counts.contains_key("broken stalled"), "{counts:?}");
    assert!((15_000_000..25_000_000).contains(&counts["queued"]), "{} bytes wait", counts["queued"]);
}

#[tokio::test(start_paused = true)]
async fn readers_that_begin_to_read_at_once_are_served_in_several_turns() {
    const SENT: usize = 1 << 20;
    const PIPE: usize = 512 << 10;
    const READERS: usize = 12;
    let mut pair = Pair::start(Limits::default(), WINDOW, SENT);
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let (frontend, mut endpoint) = pair.connect(PIPE).await;
        endpoint.io.write_all(&pattern(SENT)).await.unwrap();
        readers.push((frontend, endpoint));
    }
    while pair.server_counts.lock().get("queued").is_none_or(|queued| *queued < READERS * (SENT - PIPE)) {
        tokio::task::yield_now().await;
    }
    // All of them have room before the server's task runs again.
    let mut half = vec![0; PIPE];
    for (frontend, _) in &mut readers {
        frontend.io.read_exact(&mut half).await.unwrap();
    }
    let mut rest = vec![0; SENT - PIPE];
    for (frontend, _) in &mut readers {
        frontend.io.read_exact(&mut rest).await.unwrap();
        assert_eq!(rest, pattern(SENT)[PIPE..]);
    }
    let most = pair.server_counts.lock()["most taken in a turn"];
    assert!((1 << 20..2 << 20).contains(&most), "{most} bytes were taken in one turn");
}

/// Each read costs as much as one of 4 KiB.
#[tokio::test(start_paused = true)]
async fn short_reads_are_limited_per_turn() {
    const SENT: usize = 10_000;
    let mut pair = Pair::start(Limits::default(), 1 << 20, SENT);
    let key = pair.dial().await;
    let (local, mut frontend) = pair::pipe(SENT);
    assert!(pair.server.send(ToServer::Attach(key, local.with_reads_of(1))).is_ok());
    frontend.io.write_all(&pattern(SENT)).await.unwrap();
    let counts = Arc::clone(&pair.server_counts);
    // Between two polls of this task, which is always ready, the server's task has one turn.
    let (mut before, mut turns) = (0, Vec::new());
    let turns = tokio::spawn(poll_fn(move |cx| {
        let sent = counts.lock().get("bytes sent").copied().unwrap_or_default();
        turns.push(sent - std::mem::replace(&mut before, sent));
        if sent == SENT {
            return Poll::Ready(std::mem::take(&mut turns));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }));
    let turns = turns.await.unwrap();
    assert!(turns.iter().all(|reads| *reads <= (512 << 10) / (4 << 10)), "{turns:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stalled_reader_gets_everything_once_it_reads_again() {
    let mut pair = Pair::with_negotiated(Limits::default(), native(), WINDOW, 4_096);
    let (mut frontend, mut endpoint) = pair.connect(1_000).await;
    let sent = pattern(1 << 20);
    let copy = sent.clone();
    tokio::spawn(async move {
        endpoint.io.write_all(&copy).await.unwrap();
        endpoint.io.shutdown().await.unwrap();
    });
    tokio::time::sleep(Duration::from_secs(300)).await;
    let mut received = Vec::new();
    frontend.io.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, sent);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_more_still_gets_the_answer() {
    let mut pair = Pair::with_negotiated(Limits::default(), native(), WINDOW, 4_096);
    let (mut frontend, mut endpoint) = pair.connect(1_000).await;
    let question = pattern(100_000);
    let sends = frontend.io.write_all(&question);
    let asked = async {
        let mut asked = vec![0; 100_000];
        endpoint.io.read_exact(&mut asked).await.unwrap();
        asked
    };
    let (sent, asked) = tokio::join!(sends, asked);
    sent.unwrap();
    assert_eq!(asked, question);
    frontend.io.shutdown().await.unwrap();
    assert_eq!(endpoint.io.read(&mut [0; 1]).await.unwrap(), 0, "the end of the question");
    let answer = pattern(500_000);
    let copy = answer.clone();
    let answers = tokio::spawn(async move {
        for piece in copy.chunks(20_000) {
            tokio::time::sleep(Duration::from_secs(3)).await;
            endpoint.io.write_all(piece).await.unwrap();
        }
        drop(endpoint.io);
        endpoint.ended.await.unwrap()
    });
    let mut received = Vec::new();
    frontend.io.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, answer);
    assert_eq!(answers.await.unwrap(), CloseReason::Flushed);
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Flushed);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_sends_no_more_still_listens_and_one_that_says_nothing_is_given_up() {
    let mut pair = Pair::with_negotiated(Limits::default(), native(), WINDOW, 4_096);
    let (mut frontend, mut endpoint) = pair.connect(4_096).await;
    endpoint.io.shutdown().await.unwrap();
    assert_eq!(frontend.io.read(&mut [0; 1]).await.unwrap(), 0);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        frontend.io.write_all(b"more").await.unwrap();
        endpoint.io.read_exact(&mut [0; 4]).await.unwrap();
    }
    let began = Instant::now();
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Flushed);
    assert_eq!(endpoint.ended.await.unwrap(), CloseReason::Flushed);
    assert_eq!(began.elapsed().as_secs(), 600);

    let (mut frontend, mut endpoint) = pair.connect(4_096).await;
    frontend.io.shutdown().await.unwrap();
    assert_eq!(endpoint.io.read(&mut [0; 1]).await.unwrap(), 0);
    let began = Instant::now();
    assert_eq!(endpoint.ended.await.unwrap(), CloseReason::Flushed);
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Flushed);
    assert_eq!(began.elapsed().as_millis(), 12_500, "ten seconds, and the time of a probe");
}

/// Opens this many connections with full sources and stalled readers; each keeps nearly its window queued.
async fn stalled(pair: &mut Pair, count: usize) -> Vec<pair::Peer> {
    let (mut frontends, mut sources) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (frontend, source) = pair.connect(1_000).await;
        frontends.push(frontend);
        sources.push(source);
    }
    for mut source in sources {
        tokio::spawn(async move {
            let block = pattern(10_000);
            while source.io.write_all(&block).await.is_ok() {}
        });
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    frontends
}

#[tokio::test(start_paused = true)]
async fn near_the_memory_limit_a_dial_is_refused_and_memory_is_freed() {
    let bounds = Bounds { limits: Limits::default(), memory: MemoryLimiter::new(200_000) };
    let mut pair = Pair::within(&bounds, native(), WINDOW, 4_096);
    let mut frontends = stalled(&mut pair, 10).await;
    assert!(frontends.iter_mut().all(|peer| peer.ended.try_recv().is_err()));
    assert!(bounds.memory.should_reject());
    pair.connect(1_000).await;
    let reset = frontends.iter_mut().filter_map(|peer| peer.ended.try_recv().ok()).collect::<Vec<_>>();
    assert!((1..=3).contains(&reset.len()), "{} of 10 are reset", reset.len());
    assert!(reset.iter().all(|close_reason| *close_reason == CloseReason::Broken(Cause::Stalled)));
}

#[tokio::test(start_paused = true)]
async fn above_the_memory_limit_the_largest_stalled_connections_are_reset() {
    let bounds = Bounds { limits: Limits::default(), memory: MemoryLimiter::new(200_000) };
    let mut pair = Pair::within(&bounds, native(), WINDOW, 4_096);
    let mut frontends = stalled(&mut pair, 13).await;
    let ended = frontends.iter_mut().filter_map(|peer| peer.ended.try_recv().ok()).collect::<Vec<_>>();
    assert!((3..=5).contains(&ended.len()), "{} of 13 are reset", ended.len());
    assert!(ended.iter().all(|close_reason| *close_reason == CloseReason::Broken(Cause::Stalled)));
    assert_eq!(pair.server_counts.lock()["broken stalled"], ended.len());
    assert!(pair.server_counts.lock()["queued"] <= 200_000);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_while_answers_wait_ends() {
    let (agent, task, counts) = ByHand::start(Limits { outbox: 3, ..Limits::default() });
    for n in 1..=5 {
        agent.send(Packet::Data { id: ConnectId(n), payload: Bytes::from_static(b"nobody's") });
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(counts.lock()["paused"], 1, "the agent fetches no answer");
    agent.break_off();
    let end = tokio::time::timeout(Duration::from_secs(60), task).await.expect("an end").unwrap();
    assert_eq!(end, LinkEnd::Finished);
    assert_eq!(counts.lock()["send error"], 1);
}

#[tokio::test(start_paused = true)]
async fn stream_whose_answers_are_not_read_ends_when_memory_is_short() {
    let data = |n, length| Packet::Data { id: ConnectId(n), payload: vec![7; length].into() };
    let (agent, mut task, counts) = ByHand::within(Limits { outbox: 3, ..Limits::default() }, 10_000);
    let (reply, answer) = tokio::sync::oneshot::channel();
    assert!(agent.server.send(ToServer::Dial(reply)).is_ok());
    for n in 1..=5 {
        agent.send(data(n, 1));
    }
    agent.send(data(6, 9_000));
    let ended = tokio::time::timeout(Duration::from_secs(60), &mut task).await;
    assert!(ended.is_err(), "the process has memory");
    assert_eq!(counts.lock()["paused"], 1);
    agent.send(data(7, 9_000));
    let end = tokio::time::timeout(Duration::from_secs(60), task).await.expect("an end").unwrap();
    assert_eq!(answer.await.unwrap(), Err(DialError::LinkLost), "its dials end with it");
    assert!(matches!(end, LinkEnd::Failed(error) if error.code == Code::ResourceExhausted));
}

#[tokio::test(start_paused = true)]
async fn stream_with_an_unfinished_message_ends_when_memory_is_short() {
    let (agent, mut task, counts) = ByHand::within(Limits::default(), 1 << 20);
    agent.begin_message(5 << 18);
    let ended = tokio::time::timeout(Duration::from_secs(60), &mut task).await;
    assert!(ended.is_err(), "a quarter above the limit: honest messages may end soon");
    agent.begin_message(64);
    let end = tokio::time::timeout(Duration::from_secs(60), task).await.expect("an end").unwrap();
    assert!(matches!(end, LinkEnd::Failed(error) if error.code == Code::ResourceExhausted));
    assert!(!counts.lock().contains_key("paused"));
}

#[tokio::test(start_paused = true)]
async fn unfinished_message_of_a_client_counts_and_is_reset_when_memory_is_short() {
    const LIMIT: usize = 1 << 20;
    let bounds = Bounds { limits: Limits::default(), memory: MemoryLimiter::new(LIMIT) };
    let mut pair = Pair::within(&bounds, native(), WINDOW, 1_000);
    let mut clients = Vec::new();
    for count in 1..=5 {
        let key = pair.dial().await;
        let (mut local, client) = pair::pipe(1_000);
        local.unfinished = LIMIT / 4;
        assert!(pair.server.send(ToServer::Attach(key, local)).is_ok());
        clients.push(client);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let counted = pair.server_counts.lock()["queued"];
        assert_eq!(counted, if count < 5 { count * LIMIT / 4 } else { LIMIT / 4 * 3 });
    }
    let reset = clients.iter_mut().filter_map(|client| client.ended.try_recv().ok()).collect::<Vec<_>>();
    assert_eq!(reset, [CloseReason::Broken(Cause::Stalled), CloseReason::Broken(Cause::Stalled)]);
}

/// Another link's bytes are the cause: nothing but the request wakes this link.
#[tokio::test(start_paused = true)]
async fn close_of_a_shed_connection_is_sent_at_once() {
    let bounds = Bounds { limits: Limits::default(), memory: MemoryLimiter::new(200_000) };
    let windows = |bytes| Windows { receive: bytes, send: bytes };
    let within = |bytes| Negotiated { credits: Some(windows(bytes)), half_close: true };
    let mut pairs = [150_000, 100_000].map(|bytes| Pair::within(&bounds, within(bytes), WINDOW, 4_096));
    let mut ends = Vec::new();
    for pair in &mut pairs {
        let (frontend, pair::Peer { mut io, ended }) = pair.connect(1_000).await;
        tokio::spawn(async move { while io.write_all(&pattern(10_000)).await.is_ok() {} });
        ends.push((frontend, ended));
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let (frontend, endpoint) = ends.remove(0);
    assert_eq!(frontend.ended.await.unwrap(), CloseReason::Broken(Cause::Stalled), "the larger one");
    tokio::time::timeout(Duration::from_secs(1), endpoint).await.expect("CLOSE_REQ").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_small_limit_for_each_connection_does_not_hold_up_the_link() {
    let bounds = Bounds::new(128 << 10, Some(1 << 30));
    let windows = Windows { receive: 128 << 10, send: 128 << 10 };
    let mut pair =
        Pair::within(&bounds, Negotiated { credits: Some(windows), half_close: true }, WINDOW, 4_096);
    let mut frontends = stalled(&mut pair, 3).await;
    assert!(frontends.iter_mut().all(|peer| peer.ended.try_recv().is_err()), "they keep to their credit");
    let counts = pair.server_counts.lock();
    assert!(!counts.contains_key("paused"), "{counts:?}");
    assert!(counts["queued"] > 3 * 100_000, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn frontend_that_cannot_be_written_to_is_still_read() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4_096);
    let key = pair.dial().await;
    let (local, mut frontend) = pair::pipe(4_096);
    assert!(pair.server.send(ToServer::Attach(key, local.broken())).is_ok());
    let mut endpoint = pair.endpoints.recv().await.unwrap();
    endpoint.io.write_all(b"lost").await.unwrap();
    let sent = pattern(100_000);
    let mut received = vec![0; sent.len()];
    let (written, read) = tokio::join!(frontend.io.write_all(&sent), endpoint.io.read_exact(&mut received));
    written.unwrap();
    read.unwrap();
    assert_eq!(received, sent);
    frontend.io.shutdown().await.unwrap();
    let broken = CloseReason::Broken(Cause::Local("broken pipe".into()));
    assert_eq!(frontend.ended.await.unwrap(), broken);
    assert_eq!(pair.server_counts.lock().get("broken local"), None, "the application aborted it");
}

/// The end comes after the turn's reads; nothing else wakes the task.
#[tokio::test(start_paused = true)]
async fn endpoint_that_ends_by_itself_discards_without_another_wake_up() {
    let mut pair = Pair::with_discarding_endpoints(1 << 20);
    let (frontend, mut endpoint) = pair.connect(1_000).await;
    endpoint.io.shutdown().await.unwrap();
    let ended = tokio::time::timeout(Duration::from_millis(100), endpoint.ended).await.unwrap();
    assert_eq!(ended.unwrap(), CloseReason::Flushed);
    drop(frontend);
}

/// More bytes wait than one write passes on: the rest follows without another wake-up of the socket.
#[tokio::test(start_paused = true)]
async fn bytes_that_wait_for_a_late_local_end_are_all_written() {
    let mut pair = Pair::start(Limits::default(), WINDOW, 4 << 20);
    let key = pair.dial().await;
    let mut endpoint = pair.endpoints.recv().await.unwrap();
    let sent = pattern(2_500_000);
    endpoint.io.write_all(&sent).await.unwrap();
    while pair.server_counts.lock().get("queued").is_none_or(|queued| *queued < sent.len()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (local, mut frontend) = pair::pipe(4 << 20);
    assert!(pair.server.send(ToServer::Attach(key, local)).is_ok());
    let mut received = vec![0; sent.len()];
    tokio::time::timeout(Duration::from_secs(1), frontend.io.read_exact(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(received, sent);
}
