//! Hand-built requests to h2's own server.

use std::time::Duration;

use bytes::Bytes;
use httlib_hpack::Encoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

use super::super::AuthorityPatch;
use super::{KINDS, SOCKET, request};
use crate::raw::{self, HEADERS, RST_STREAM, frame};

const END: u8 = 0x1 | 0x4;

/// Answers every request with 200 and its authority's length.
async fn serve(io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    let mut connection = h2::server::Builder::new().handshake::<_, Bytes>(io).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().path(), "/ProxyService/Proxy");
        respond.send_response(http::Response::new(()), true).unwrap();
    }
}

/// The type and stream of the next frame about a stream.
async fn answer(io: &mut DuplexStream) -> (u8, u32) {
    loop {
        let head = io.read_u64().await.unwrap().to_be_bytes();
        let last = io.read_u8().await.unwrap();
        let [a, b, c, kind, _, d, e, f] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        io.read_exact(&mut payload).await.unwrap();
        if matches!(kind, HEADERS | RST_STREAM) {
            return (kind, u32::from_be_bytes([d, e, f, last]));
        }
    }
}

async fn hello() -> (DuplexStream, DuplexStream) {
    let (mut client, server) = duplex(1 << 20);
    client.write_all(&raw::hello(&[])).await.unwrap();
    (client, server)
}

#[tokio::test]
async fn without_the_patch_h2_refuses() {
    let (mut client, server) = hello().await;
    let block = request(&mut Encoder::with_dynamic_size(4096), SOCKET, 0, false);
    client.write_all(&frame(HEADERS, END, 1, &block)).await.unwrap();
    let serving = tokio::spawn(serve(server));
    assert_eq!(timeout(Duration::from_secs(5), answer(&mut client)).await.unwrap(), (RST_STREAM, 1));
    serving.abort();
}

#[tokio::test]
async fn with_the_patch_thousands_of_requests_are_served() {
    let (mut client, server) = hello().await;
    let serving = tokio::spawn(serve(AuthorityPatch::new(server, 16_384)));
    let mut encoder = Encoder::with_dynamic_size(4096);
    for number in 0..3_000_u32 {
        let kind = KINDS[number as usize % KINDS.len()];
        let named = number % 2 == 0;
        let block = request(&mut encoder, SOCKET, kind, named);
        let stream = 2 * number + 1;
        client.write_all(&frame(HEADERS, END, stream, &block)).await.unwrap();
        let answer = timeout(Duration::from_secs(5), answer(&mut client)).await.unwrap();
        assert_eq!(answer, (HEADERS, stream), "request {number}");
    }
    serving.abort();
}

#[tokio::test]
async fn an_empty_authority_is_served() {
    let (mut client, server) = hello().await;
    let serving = tokio::spawn(serve(AuthorityPatch::new(server, 16_384)));
    // grpc-go's order: `:method: POST`, `:scheme: http`, `:path`, an empty `:authority`, `content-type`.
    let (mut encoder, mut block) = (Encoder::with_dynamic_size(4096), vec![0x83, 0x86]);
    encoder.encode_indexed_name(4, b"/ProxyService/Proxy".to_vec(), 0, &mut block).unwrap();
    block.push(0x81);
    encoder.encode_indexed_name(31, b"application/grpc".to_vec(), 0, &mut block).unwrap();
    client.write_all(&frame(HEADERS, END, 1, &block)).await.unwrap();
    assert_eq!(timeout(Duration::from_secs(5), answer(&mut client)).await.unwrap(), (HEADERS, 1));
    serving.abort();
}
