//! Requests that are refused, limits, and the ends of connections.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use mux::Packet;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{Served, data, dial, next, packet, serve, soon};
use crate::raw::{END_HEADERS, HEADERS, frame, hello};
use crate::{Code, ConnectionError, Keepalive, ServerSettings, Wire, WireError, connect, serve_connection};

pub(super) fn request(method: Method, content_type: &'static str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = "http://server/AgentService/Connect".parse().unwrap();
    request.headers_mut().insert("content-type", HeaderValue::from_static(content_type));
    request
}

async fn answer(requests: &SendRequest<Bytes>, request: Request<()>) -> Response<h2::RecvStream> {
    let mut requests = requests.clone().ready().await.unwrap();
    let (response, _send) = requests.send_request(request, true).unwrap();
    soon(response).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_not_grpc_are_refused_before_the_caller() {
    let (client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_frontends());
    let (requests, connection) = h2::client::handshake(client_io).await.unwrap();
    tokio::spawn(connection);
    for (method, content_type, status) in [
        (Method::GET, "application/grpc", StatusCode::METHOD_NOT_ALLOWED),
        (Method::POST, "application/json", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (Method::POST, "application/grpc-web", StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        assert_eq!(answer(&requests, request(method, content_type)).await.status(), status);
    }
    assert!(served.requests.try_recv().is_err());
    for content_type in ["application/grpc", "application/grpc+proto", "Application/gRPC; charset=utf-8"] {
        let (answer, ()) = tokio::join!(answer(&requests, request(Method::POST, content_type)), async {
            let request = soon(served.requests.recv()).await.unwrap();
            assert_eq!(request.path, "/AgentService/Connect");
            request.refuse(Code::Unimplemented, "no such method");
        });
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["grpc-status"], "12");
        assert_eq!(answer.headers()["grpc-message"], "no such method");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_the_clients_error() {
    let (client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_agents());
    let (client, ()) = tokio::join!(dial(client_io, HeaderMap::new()), async {
        soon(served.requests.recv()).await.unwrap().refuse(Code::Unknown, "token: größer als erlaubt");
    });
    assert_eq!(client.unwrap_err(), WireError::new(Code::Unknown, "token: größer als erlaubt"));
    // The client's connection ended with its stream.
    soon(served.serving).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn metadata_goes_both_ways() {
    let (client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_agents());
    let mut metadata = HeaderMap::new();
    metadata.insert("agentid", HeaderValue::from_static("a1"));
    let (client, server) = tokio::join!(dial(client_io, metadata), async {
        let request = soon(served.requests.recv()).await.unwrap();
        assert_eq!(request.metadata["agentid"], "a1");
        assert_eq!(request.metadata["te"], "trailers");
        let mut answer = HeaderMap::new();
        answer.insert("serverid", HeaderValue::from_static("s1"));
        request.accept(answer).unwrap()
    });
    assert_eq!(client.unwrap().metadata["serverid"], "s1");
    drop(server);
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_no_grpc() {
    for (status, content_type, code) in [
        (502, "text/html", Code::Unavailable),
        (404, "text/html", Code::Unimplemented),
        (403, "application/grpc", Code::PermissionDenied),
        (200, "text/html", Code::Unknown),
    ] {
        let (client_io, server_io) = duplex(1 << 20);
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(server_io).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let response = Response::builder().status(status).header("content-type", content_type);
                let _sent: h2::SendStream<Bytes> =
                    respond.send_response(response.body(()).unwrap(), true).unwrap();
            }
        });
        assert_eq!(
            dial(client_io, HeaderMap::new()).await.unwrap_err().code,
            code,
            "{status} {content_type}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_may_be_over_with_its_headers() {
    let (client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_agents());
    let (client, ()) = tokio::join!(dial(client_io, HeaderMap::new()), async {
        soon(served.requests.recv()).await.unwrap().refuse(Code::OK, "");
    });
    let mut client = client.unwrap();
    assert_eq!(next(&mut client.stream).await, None);
    assert!(client.stream.send(Packet::Drain).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_a_deadline() {
    let (client_io, _server_io) = duplex(1 << 20);
    let deadline = Instant::now() + Duration::from_secs(30);
    let error = connect(
        client_io,
        Keepalive::DEFAULT,
        ("server", "/AgentService/Connect"),
        HeaderMap::new(),
        None,
        deadline,
    )
    .await;
    assert_eq!(error.unwrap_err().code, Code::DeadlineExceeded);
    assert_eq!(Instant::now(), deadline);
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_is_none_is_named() {
    let (client_io, _server_io) = duplex(1 << 20);
    let error = connect(
        client_io,
        Keepalive::DEFAULT,
        ("a b", "/AgentService/Connect"),
        HeaderMap::new(),
        None,
        Instant::now(),
    )
    .await;
    assert!(error.unwrap_err().message.contains("\"a b\""));
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_stream_ends() {
    for hello in [false, true] {
        let (client_io, server_io) = duplex(1 << 20);
        let served = serve(server_io, ServerSettings::for_agents());
        let before = Instant::now();
        let mut silent = Some(client_io);
        let mut kept = None;
        if hello {
            let (requests, connection) = h2::client::handshake::<_>(silent.take().unwrap()).await.unwrap();
            tokio::spawn(connection);
            kept = Some(requests);
        }
        let end = soon(served.serving).await.unwrap();
        assert!(matches!(end, Err(ConnectionError::NotAdmitted)), "{end:?}");
        assert_eq!(before.elapsed().as_secs(), 15);
        drop((silent, kept));
    }
}

/// Any client can open streams that are refused, and leave others unanswered.
#[tokio::test(start_paused = true)]
async fn refused_and_waiting_streams_do_not_keep_a_connection() {
    for waiting in [false, true] {
        let (client_io, server_io) = duplex(1 << 20);
        let mut served = serve(server_io, ServerSettings::for_agents());
        let (requests, connection) = h2::client::handshake(client_io).await.unwrap();
        tokio::spawn(connection);
        let before = Instant::now();
        let mut held = Vec::new();
        for _ in 0..7 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(!served.serving.is_finished());
            answer(&requests, request(Method::GET, "")).await;
            let mut requests = requests.clone().ready().await.unwrap();
            let sent = requests.send_request(request(Method::POST, "application/grpc"), false).unwrap();
            let request = soon(served.requests.recv()).await.unwrap();
            if waiting {
                held.push((Some(request), sent));
            } else {
                request.refuse(Code::Unauthenticated, "who are you?");
                held.push((None, sent));
            }
        }
        let end = soon(served.serving).await.unwrap();
        assert!(matches!(end, Err(ConnectionError::NotAdmitted)), "{end:?}");
        assert_eq!(before.elapsed().as_secs(), 15, "waiting: {waiting}");
        drop((requests, held));
    }
}

/// An agent's stream ends; the agent reconnects on a new connection.
#[tokio::test(start_paused = true)]
async fn an_agents_connection_ends_behind_its_last_stream() {
    for open_for in [0, 3600] {
        let (client_io, server_io) = duplex(1 << 20);
        let mut served = serve(server_io, ServerSettings::for_agents());
        let (requests, connection) = h2::client::handshake::<_>(client_io).await.unwrap();
        tokio::spawn(connection);
        tokio::time::sleep(Duration::from_secs(14)).await;
        let mut kept = requests.ready().await.unwrap();
        // The agent does not end its side: the server must.
        let sent = kept.send_request(request(Method::POST, "application/grpc"), false).unwrap();
        let request = soon(served.requests.recv()).await.unwrap();
        let mut stream = request.accept(HeaderMap::new()).unwrap();
        tokio::time::sleep(Duration::from_secs(open_for)).await;
        stream.finish();
        drop(stream);
        let before = Instant::now();
        let end = soon(served.serving).await.unwrap();
        assert!(matches!(end, Err(ConnectionError::NoStream)), "{end:?}");
        assert_eq!(before.elapsed().as_secs(), 10, "open for {open_for} s");
        drop((kept, sent));
    }
}

/// Each stream restarts the time-out.
#[tokio::test(start_paused = true)]
async fn a_stream_in_time_keeps_an_agents_connection() {
    let (client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_agents());
    let (requests, connection) = h2::client::handshake::<_>(client_io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..5 {
        accept_one(&requests, &mut served).await;
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!served.serving.is_finished());
    }
}

/// Opens a stream that is accepted, and ended by both sides.
async fn accept_one(requests: &SendRequest<Bytes>, served: &mut Served) {
    let mut requests = requests.clone().ready().await.unwrap();
    let (response, _send) = requests.send_request(request(Method::POST, "application/grpc"), true).unwrap();
    let mut stream = soon(served.requests.recv()).await.unwrap().accept(HeaderMap::new()).unwrap();
    stream.finish();
    soon(response).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_frontends_connection_stays_for_the_next_stream() {
    let (client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_frontends());
    let (requests, connection) = h2::client::handshake::<_>(client_io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!served.serving.is_finished());
        accept_one(&requests, &mut served).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_frontends_connection_without_a_preface_ends() {
    let (client_io, server_io) = duplex(1 << 20);
    let served = serve(server_io, ServerSettings::for_frontends());
    let before = Instant::now();
    let end = soon(served.serving).await.unwrap();
    assert!(matches!(end, Err(ConnectionError::NotAdmitted)), "{end:?}");
    assert_eq!(before.elapsed().as_secs(), 15);
    drop(client_io);
}

#[tokio::test(start_paused = true)]
async fn garbage_instead_of_http2_is_an_error() {
    let (mut client_io, server_io) = duplex(1 << 20);
    let served = serve(server_io, ServerSettings::for_frontends());
    client_io.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let end = soon(served.serving).await.unwrap();
    assert!(matches!(end, Err(ConnectionError::NotHttp2)), "{end:?}");
    let mut rest = Vec::new();
    client_io.read_to_end(&mut rest).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_continues_after_goaway_and_a_later_one_is_refused() {
    let (client_io, server_io) = duplex(1 << 20);
    let (requests, mut arrivals) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let on_stream = |request| drop(requests.send(request));
        let settings = ServerSettings::for_frontends();
        serve_connection(server_io, &settings, on_stream, async { drop(stopped.await) }).await
    });
    let (requests, connection) = h2::client::handshake::<_>(client_io).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut requests = requests.ready().await.unwrap();
    let (first, mut send) = requests.send_request(request(Method::POST, "application/grpc"), false).unwrap();
    let mut stream = soon(arrivals.recv()).await.unwrap().accept(HeaderMap::new()).unwrap();
    let mut body = soon(first).await.unwrap().into_body();
    stop.send(()).unwrap();
    // After the server's turn, a new stream is too late.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(requests.ready().await.unwrap_err().is_go_away());
    // The established stream continues.
    send.send_data(Bytes::from_static(&[0, 0, 0, 0, 4, 8, 6, 0x42, 0]), false).unwrap();
    assert_eq!(packet(&mut stream).await, Packet::Drain);
    stream.send(data("alive")).unwrap();
    assert!(soon(body.data()).await.unwrap().unwrap().ends_with(b"alive"));
    assert!(!serving.is_finished());
    stream.finish();
    drop(stream);
    assert_eq!(soon(body.trailers()).await.unwrap().unwrap()["grpc-status"], "0");
    drop((send, body));
    soon(serving).await.unwrap().unwrap();
    drop(connection);
}

/// The client's second stream was under way when the server sent GOAWAY: HTTP/2 permits that until the client has answered the
/// ping behind it.
#[tokio::test(start_paused = true)]
async fn stream_that_crosses_goaway_is_served() {
    let (mut client_io, server_io) = duplex(1 << 20);
    let (requests, mut arrivals) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let on_stream = |request| drop(requests.send(request));
        let settings = ServerSettings::for_frontends();
        serve_connection(server_io, &settings, on_stream, async { drop(stopped.await) }).await
    });
    let open =
        |stream| frame(HEADERS, END_HEADERS, stream, b"\x83\x86\x84\x41\x01a\x0f\x10\x10application/grpc");
    client_io.write_all(&[hello(&[]), open(1)].concat()).await.unwrap();
    let first = soon(arrivals.recv()).await.unwrap().accept(HeaderMap::new()).unwrap();
    stop.send(()).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    client_io.write_all(&open(3)).await.unwrap();
    let second = soon(arrivals.recv()).await.unwrap().accept(HeaderMap::new()).unwrap();
    for mut stream in [first, second] {
        stream.send(data("alive")).unwrap();
        stream.finish();
    }
    drop(client_io);
    soon(serving).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_at_shutdown() {
    for settings in [ServerSettings::for_agents(), ServerSettings::for_frontends()] {
        let (client_io, server_io) = duplex(1 << 20);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            serve_connection(server_io, &settings, drop, async { drop(stopped.await) }).await
        });
        let (requests, connection) = h2::client::handshake::<_>(client_io).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(
            answer(&requests, request(Method::GET, "")).await.status(),
            StatusCode::METHOD_NOT_ALLOWED
        );
        stop.send(()).unwrap();
        soon(serving).await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_before_the_preface_ends_at_once() {
    let (_client_io, server_io) = duplex(1 << 20);
    let settings = ServerSettings::for_agents();
    soon(serve_connection(server_io, &settings, drop, async {})).await.unwrap();
    let (client_io, server_io) = duplex(1 << 20);
    drop(client_io);
    soon(serve_connection(server_io, &settings, drop, pending())).await.unwrap_err();
}

/// Frontends have a connection for each tunnel, so the handshake's state must not be kept.
#[tokio::test]
async fn a_connection_does_not_keep_the_memory_of_its_handshake() {
    let (client_io, _server_io) = duplex(1 << 10);
    let size = size_of_val(&serve_connection(client_io, &ServerSettings::for_frontends(), drop, pending()));
    assert!(size <= 2 << 10, "{size} bytes");
}

#[tokio::test(start_paused = true)]
async fn another_protocol_is_told_from_broken_http2_and_from_an_early_end() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let ends = [
        (b"CONNECT node:10250 HTTP/1.1\r\nHost: node\r\n\r\n".to_vec(), true),
        ([preface, b"no frame of HTTP/2 at all"].concat(), false),
        (preface[..9].to_vec(), false),
    ];
    for (bytes, other) in ends {
        let (mut client_io, server_io) = duplex(1 << 10);
        client_io.write_all(&bytes).await.unwrap();
        client_io.shutdown().await.unwrap();
        let end = soon(serve_connection(server_io, &ServerSettings::for_frontends(), drop, pending())).await;
        assert_eq!(matches!(end, Err(ConnectionError::NotHttp2)), other, "{end:?}");
    }
}
