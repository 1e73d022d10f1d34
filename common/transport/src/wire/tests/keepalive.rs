//! Dead peers, in paused time.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, sleep, timeout};

use super::{data, dial, failure, packet, pair, pair_with, serve, soon};
use crate::raw::hello;
use crate::wire::{Code, ConnectionError, Keepalive, ServerSettings, Wire};

const TEN_AND_FIVE: Keepalive =
    Keepalive { interval: Duration::from_secs(10), timeout: Duration::from_secs(5), while_idle: true };

fn settings(keepalive: Keepalive) -> ServerSettings {
    ServerSettings {
        keepalive,
        first_stream_timeout: None,
        next_stream_timeout: None,
        ..ServerSettings::for_agents()
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_finds_a_dead_client() {
    let mut pair = pair_with(settings(TEN_AND_FIVE)).await;
    let before = Instant::now();
    pair.frozen.store(true, Ordering::Relaxed);
    let end = soon(pair.served.serving).await.unwrap();
    assert!(matches!(end, Err(ConnectionError::KeepaliveTimeout)), "{end:?}");
    assert_eq!(before.elapsed().as_secs(), 15);
    assert_eq!(failure(&mut pair.server).await.code, Code::Canceled);
}

#[tokio::test(start_paused = true)]
async fn the_client_finds_a_dead_server_by_the_period_of_the_day() {
    let mut pair = pair().await;
    sleep(Duration::from_secs(100)).await;
    pair.client.connection.set_keepalive(TEN_AND_FIVE);
    // The silence so far counts: a ping goes out at once.
    pair.frozen.store(true, Ordering::Relaxed);
    let before = Instant::now();
    let end = soon(pair.client.connection.closed()).await;
    assert!(matches!(end, Err(ConnectionError::KeepaliveTimeout)), "{end:?}");
    assert_eq!(before.elapsed().as_secs(), 5);
    assert_eq!(failure(&mut pair.client.stream).await.code, Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn living_peers_are_left_alone() {
    let mut pair = pair_with(settings(TEN_AND_FIVE)).await;
    pair.client.connection.set_keepalive(TEN_AND_FIVE);
    sleep(Duration::from_secs(3600)).await;
    pair.client.stream.send(data("here")).unwrap();
    assert_eq!(packet(&mut pair.server).await, data("here"));
}

#[tokio::test(start_paused = true)]
async fn unread_data_does_not_delay_pings() {
    let mut pair = pair_with(settings(TEN_AND_FIVE)).await;
    pair.client.connection.set_keepalive(TEN_AND_FIVE);
    for _ in 0..100 {
        pair.client.stream.send(data(vec![1; 60_000])).unwrap();
        pair.server.send(data(vec![1; 60_000])).unwrap();
    }
    sleep(Duration::from_secs(3600)).await;
    for _ in 0..100 {
        assert_eq!(packet(&mut pair.server).await, data(vec![1; 60_000]));
        assert_eq!(packet(&mut pair.client.stream).await, data(vec![1; 60_000]));
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_pinged_only_if_wanted() {
    for while_idle in [false, true] {
        let (mut near, far) = duplex(1 << 20);
        let served = serve(far, settings(Keepalive { while_idle, ..TEN_AND_FIVE }));
        // A preface and SETTINGS, and nothing more.
        near.write_all(&hello(&[])).await.unwrap();
        let end = timeout(Duration::from_secs(3000), served.serving).await;
        assert_eq!(end.is_ok(), while_idle);
        drop(near);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_shows_how_long_a_peer_is_silent() {
    let pair = pair().await;
    let pulse = &pair.client.connection.pulse;
    assert_eq!(pulse.unanswered_for(), None);
    pulse.probe();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(pulse.unanswered_for(), None, "answered");
    pair.frozen.store(true, Ordering::Relaxed);
    pulse.probe();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(pulse.unanswered_for().map(|silent| silent.as_secs()), Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_period_of_nothing_does_not_spin() {
    let pair = pair().await;
    pair.client.connection.set_keepalive(Keepalive {
        interval: Duration::ZERO,
        timeout: Duration::MAX,
        while_idle: false,
    });
    sleep(Duration::from_millis(200)).await;
    pair.client.connection.set_keepalive(Keepalive { interval: Duration::MAX, ..TEN_AND_FIVE });
    sleep(Duration::from_secs(3600)).await;
    assert!(!pair.served.serving.is_finished());
}

/// A transport on which everything is under way for so long.
fn far(delay: Duration) -> (DuplexStream, DuplexStream) {
    let ((near, a), (b, far)) = (duplex(64 << 20), duplex(64 << 20));
    let ((mut a_in, mut a_out), (mut b_in, mut b_out)) = (tokio::io::split(a), tokio::io::split(b));
    tokio::spawn(async move {
        tokio::join!(late(&mut a_in, &mut b_out, delay), late(&mut b_in, &mut a_out, delay))
    });
    (near, far)
}

async fn late(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin), delay: Duration) {
    let mut piece = vec![0; 16 << 20];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        sleep(delay).await;
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}

/// What the client may send while the server reads nothing, in bytes, and what the server knows of the way, which it has
/// measured if it was `asked` to, and pings in any case.
async fn sent_unread(delay: Duration, asked: bool) -> (usize, Option<Duration>) {
    let (near, far) = far(delay);
    let mut served = serve(far, settings(TEN_AND_FIVE));
    let accept = async {
        let request = served.requests.recv().await.unwrap();
        if asked {
            request.pulse.measure(4);
        }
        (Arc::clone(&request.pulse), request.accept(HeaderMap::new()).unwrap())
    };
    let (client, (pulse, _server)) = tokio::join!(dial(near, HeaderMap::new()), accept);
    let mut client = client.unwrap();
    sleep(Duration::from_secs(30)).await;
    let mut sent = 0;
    // The last piece waits in part: no more than HTTP/2 holds for a stream.
    while let Ok(Ok(room)) =
        timeout(Duration::from_secs(10), poll_fn(|cx| client.stream.poll_ready(cx))).await
    {
        client.stream.send(data(vec![1; room.min(60_000)])).unwrap();
        sent += room.min(60_000);
    }
    (sent, pulse.round_trip())
}

#[tokio::test(start_paused = true)]
async fn a_long_way_gets_a_wide_window_and_a_short_one_does_not() {
    const MIB: usize = 1 << 20;
    for (delay, window) in [(0, 1), (1, 4), (25, 16)] {
        let (sent, way) = sent_unread(Duration::from_millis(delay), true).await;
        assert_eq!(way.map(|way| way.as_millis()), Some(2 * u128::from(delay)));
        // Heads take their part of it.
        assert!((window * MIB - MIB / 16..(window + 1) * MIB).contains(&sent), "{delay} ms: {sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_that_nobody_asked_to_fit_stays() {
    let (sent, way) = sent_unread(Duration::from_millis(25), false).await;
    assert_eq!(way, None, "pings of the keepalive say nothing");
    assert!(sent < 2 << 20, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_client_measures_the_round_trip_when_it_is_asked_to() {
    let (near, far) = far(Duration::from_millis(25));
    let mut served = serve(far, settings(TEN_AND_FIVE));
    let accept = async { served.requests.recv().await.unwrap().accept(HeaderMap::new()).unwrap() };
    let (client, _server) = tokio::join!(dial(near, HeaderMap::new()), accept);
    let client = client.unwrap();
    let pulse = &client.connection.pulse;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(pulse.round_trip(), None, "its keepalive says nothing");
    pulse.measure(1);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(pulse.round_trip(), Some(Duration::from_millis(50)));
}
