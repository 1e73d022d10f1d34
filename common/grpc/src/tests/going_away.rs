//! GOAWAY from a server, or from a proxy before it, while the stream is open.

use std::time::Duration;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Response};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{data, dial, next, soon};
use crate::Wire;

/// Both directions of the server's one stream.
type Directions = (RecvStream, SendStream<Bytes>);

/// Serves one stream; sends GOAWAY once it is told to, and goes on.
async fn serve(
    io: DuplexStream,
    directions: oneshot::Sender<Directions>,
    mut go_away: oneshot::Receiver<()>,
) {
    let mut connection = h2::server::handshake(io).await.unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let send = respond.send_response(head, false).unwrap();
    directions.send((request.into_body(), send)).unwrap();
    let mut told = false;
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                assert!(accepted.is_none(), "{accepted:?}");
                return;
            }
            order = &mut go_away, if !told => {
                told = true;
                if order.is_ok() {
                    connection.graceful_shutdown();
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_after_goaway_which_is_reported() {
    let (client_io, server_io) = duplex(1 << 20);
    let (order, go_away) = oneshot::channel();
    let (sender, directions) = oneshot::channel();
    tokio::spawn(serve(server_io, sender, go_away));
    let mut client = dial(client_io, HeaderMap::new()).await.unwrap();
    let (mut received, mut send) = directions.await.unwrap();
    let going_away = client.connection.going_away.clone();
    assert!(timeout(Duration::from_secs(60), going_away.cancelled()).await.is_err(), "not yet");
    order.send(()).unwrap();
    soon(going_away.cancelled()).await;
    client.stream.send(data("still here")).unwrap();
    soon(received.data()).await.unwrap().unwrap();
    assert!(
        timeout(Duration::from_secs(60), client.connection.closed()).await.is_err(),
        "the stream is open"
    );
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    send.send_trailers(trailers).unwrap();
    assert!(next(&mut client.stream).await.is_none());
    client.stream.finish();
    drop(client.stream);
    let _ended = soon(client.connection.closed()).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_goaway_ends_with_its_stream() {
    let (client_io, server_io) = duplex(1 << 20);
    let (order, go_away) = oneshot::channel();
    let (sender, directions) = oneshot::channel();
    tokio::spawn(serve(server_io, sender, go_away));
    let mut client = dial(client_io, HeaderMap::new()).await.unwrap();
    let directions = directions.await.unwrap();
    drop((order, client.stream));
    soon(client.connection.closed()).await.unwrap();
    assert!(!client.connection.going_away.is_cancelled(), "its own end is none");
    drop(directions);
}
