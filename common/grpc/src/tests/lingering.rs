//! The frames that a finished server's stream still has to send to a client that does not read.

use std::time::Duration;

use mux::Packet;
use tokio::time::sleep;

use super::{Pair, Served, data, next, pair, soon};
use crate::lingering::LINGER_TIMEOUT;
use crate::{Code, Connected, Incoming, Wire, WireError};

/// The bytes that a server sends: more than its client's window.
const SENT: usize = 20 * (64 << 10);

/// A client that has not read the bytes that its server sent before it finished and dropped the stream.
async fn unread() -> (Connected, Served) {
    let Pair { client, mut server, served, .. } = pair().await;
    for _ in 0..20 {
        server.send(data(vec![1; 64 << 10])).unwrap();
    }
    server.finish();
    drop(server);
    sleep(Duration::from_secs(1)).await;
    (client, served)
}

/// The bytes of payload that a client reads, and how they ended.
async fn read(client: &mut Connected) -> (usize, Result<(), WireError>) {
    let mut read = 0;
    loop {
        match next(&mut client.stream).await {
            Some(Ok(Incoming::Packet(Packet::Data { payload, .. }))) => read += payload.len(),
            Some(Ok(other)) => panic!("DATA was expected: {other:?}"),
            Some(Err(error)) => return (read, Err(error)),
            None => return (read, Ok(())),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn data_before_the_end_arrives_if_read_in_time() {
    let (mut client, _served) = unread().await;
    sleep(LINGER_TIMEOUT - Duration::from_secs(5)).await;
    assert_eq!(read(&mut client).await, (SENT, Ok(())));
}

/// On a shared connection such a stream would otherwise never end.
#[tokio::test(start_paused = true)]
async fn data_that_is_not_read_in_time_is_given_up() {
    let (mut client, _served) = unread().await;
    sleep(LINGER_TIMEOUT).await;
    let (bytes, end) = read(&mut client).await;
    assert!(bytes < SENT, "{bytes}");
    assert_eq!(end.unwrap_err().code, Code::Canceled);
}

/// A build of h2 with assertions checks that each stream was released.
#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_before_its_streams_bytes_have_gone_ends_in_order() {
    let (client, served) = unread().await;
    drop(client);
    // The task has not panicked.
    let _end = soon(served.serving).await.unwrap();
}
