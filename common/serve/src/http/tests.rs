//! The ports over real sockets.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_lc_rs::kem::{DecapsulationKey, ML_KEM_768};
use flags::{Bind, BindHost};
use parking_lot::Mutex;
use pprof::protos::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

use super::health::Condition;
use super::*;
use crate::logs::{Logs, Options};
use crate::metrics::{CONTENT_TYPE, Exposition, Registry};

fn loopback() -> Bind {
    Bind { host: BindHost::parse("127.0.0.1"), port: 0 }
}

fn start(routes: Routes) -> ServerHandle {
    serve(&Handle::current(), "test", loopback(), routes)
}

fn exposition() -> Exposition {
    Exposition::new(Registry::default())
}

async fn bound(server: &ServerHandle) -> SocketAddr {
    server.address().wait_for(Option::is_some).await.unwrap().unwrap()
}

async fn connect(server: &ServerHandle) -> TcpStream {
    TcpStream::connect(bound(server).await).await.expect("connects")
}

/// Sends these bytes and reads to the end.
async fn exchange(server: &ServerHandle, request: &str) -> String {
    let mut stream = connect(server).await;
    stream.write_all(request.as_bytes()).await.expect("sends");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answers");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The head in lower case, and the body, of a GET with `Connection: close`.
async fn get(server: &ServerHandle, path: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: h.example:8094\r\nConnection: close\r\n\r\n");
    let answer = exchange(server, &request).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("has a head");
    (head.to_lowercase(), body.to_owned())
}

fn switchable() -> (Arc<AtomicBool>, impl Fn() -> bool + Clone) {
    let switch = Arc::new(AtomicBool::new(false));
    let reader = Arc::clone(&switch);
    (switch, move || reader.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_note_is_shown_and_fails_nothing() {
    let readiness = || {
        vec![
            Condition::extra("file", true, "").noting("it is empty".to_owned()),
            Condition::check("backend", true, "none"),
        ]
    };
    let server = start(health::server(readiness, exposition()));
    assert_eq!(get(&server, "/readyz").await.1, "ok");
    let all = "[+]ping ok\n[+]file ok: it is empty\n[+]backend ok\ncheck passed\n";
    assert_eq!(get(&server, "/readyz?verbose").await.1, all);
}

#[tokio::test]
async fn health_of_a_server() {
    let (switch, ready) = switchable();
    let readiness = move || vec![Condition::check("backend", ready(), "no connection to any proxy agent")];
    let server = start(health::server(readiness, exposition()));
    for (path, expected) in [
        ("/readyz", "no connection to any proxy agent"),
        ("/ready", "no connection to any proxy agent"),
        ("/readyz?verbose", "[+]ping ok\n[-]backend failed: no connection to any proxy agent\n"),
    ] {
        let (head, body) = get(&server, path).await;
        assert!(head.starts_with("http/1.1 500 internal server error\r\n"), "{head}");
        assert!(head.contains("content-type: text/plain; charset=utf-8"), "{head}");
        assert_eq!(body, expected);
    }
    switch.store(true, Ordering::Relaxed);
    for path in ["/readyz", "/ready", "/healthz"] {
        let (head, body) = get(&server, path).await;
        assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
        assert_eq!(body, "ok");
    }
    assert_eq!(get(&server, "/readyz?verbose").await.1, "[+]ping ok\n[+]backend ok\ncheck passed\n");
    let (head, body) = get(&server, "/metrics").await;
    assert!(head.contains(&format!("content-type: {CONTENT_TYPE}")), "{head}");
    assert!(body.starts_with("# HELP process_cpu_seconds_total "), "{body}");
    for path in ["/", "/healthz/", "/debug/pprof/"] {
        let (head, body) = get(&server, path).await;
        assert!(head.starts_with("http/1.1 404 not found\r\n"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert_eq!(body, "404 page not found\n");
    }
}

#[tokio::test]
async fn metrics_are_compressed_for_clients_that_accept_gzip() {
    let rows = [("gzip", true), ("deflate, gzip;q=0.5", true), ("identity", false)];
    for server in [start(health::server(Vec::new, exposition())), start(admin::server(exposition(), false))] {
        for (accepted, compressed) in rows {
            let mut stream = connect(&server).await;
            let request = format!(
                "GET /metrics HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {accepted}\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.expect("sends");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.expect("answers");
            let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
            let (head, body) = answer.split_at(end);
            let head = String::from_utf8_lossy(head).to_lowercase();
            assert_eq!(head.contains("content-encoding: gzip"), compressed, "{accepted}: {head}");
            assert!(head.contains(&format!("content-type: {CONTENT_TYPE}")), "{head}");
            let mut text = String::from_utf8_lossy(body).into_owned();
            if compressed {
                text.clear();
                flate2::read::GzDecoder::new(body).read_to_string(&mut text).expect("gzip");
            }
            assert!(text.starts_with("# HELP process_cpu_seconds_total "), "{text}");
        }
    }
}

#[tokio::test]
async fn health_of_an_agent() {
    let (switch, ready) = switchable();
    let readiness = move || {
        let connected = Condition::check("server-connected", ready(), "no servers connected");
        let connected =
            connected.noting(if ready() { String::new() } else { "last error 3 s ago: x".to_owned() });
        vec![connected, Condition::extra("draining", true, "")]
    };
    let server = start(health::agent(readiness, exposition()));
    let (head, body) = get(&server, "/readyz").await;
    assert!(head.starts_with("http/1.1 503 service unavailable\r\n"), "{head}");
    assert_eq!(body, "[+]ping ok\n[-]server-connected failed: no servers connected\n", "as in Go");
    let (_, body) = get(&server, "/readyz?verbose").await;
    assert!(body.ends_with("no servers connected\n   last error 3 s ago: x\n[+]draining ok\n"), "{body}");
    switch.store(true, Ordering::Relaxed);
    assert_eq!(get(&server, "/ready").await.1, "ok");
    for path in ["/readyz?verbose", "/readyz?x&verbose=1"] {
        let all = "[+]ping ok\n[+]server-connected ok\n[+]draining ok\ncheck passed\n";
        assert_eq!(get(&server, path).await.1, all);
    }
}

#[tokio::test]
async fn extra_condition_is_listed_when_it_fails() {
    let readiness = || {
        let connected = Condition::check("server-connected", true, "");
        vec![connected, Condition::extra("draining", false, "it drains")]
    };
    let server = start(health::agent(readiness, exposition()));
    let (head, body) = get(&server, "/readyz").await;
    assert!(head.starts_with("http/1.1 503 "), "{head}");
    assert_eq!(body, "[+]ping ok\n[+]server-connected ok\n[-]draining failed: it drains\n");
}

#[tokio::test]
async fn admin_of_an_agent_points_to_the_health_port() {
    let server = start(admin::agent(8093, true));
    let (head, body) = get(&server, "/metrics?a=1&b").await;
    assert!(head.starts_with("http/1.1 301 moved permanently\r\n"), "{head}");
    assert!(head.contains("\r\nlocation: //h.example:8093/metrics?a=1&b\r\n"), "{head}");
    assert_eq!(body, "Moved Permanently\n");
    for (host, location) in [("[::1]:8094", "//[::1]:8093/metrics"), ("plain", "//plain:8093/metrics")] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = exchange(&server, &request).await.to_lowercase();
        assert!(answer.contains(&format!("\r\nlocation: {location}\r\n")), "{answer}");
    }
}

#[tokio::test]
async fn admin_of_a_server() {
    let server = start(admin::server(exposition(), true));
    assert!(get(&server, "/metrics").await.1.contains("process_start_time_seconds"));
    let (head, _) = get(&server, "/debug/pprof").await;
    assert!(head.starts_with("http/1.1 301 ") && head.contains("\r\nlocation: /debug/pprof/\r\n"), "{head}");
    assert!(get(&server, "/debug/pprof/").await.1.contains("profile?seconds=30"));
    let (head, body) = get(&server, "/debug/pprof/heap").await;
    assert!(head.starts_with("http/1.1 404 ") && body.contains("only /debug/pprof/profile"), "{body}");
    let (head, _) = get(&server, "/debug/pprof/profile?seconds=601").await;
    assert!(head.starts_with("http/1.1 400 "), "{head}");

    let closed = start(admin::server(exposition(), false));
    assert_eq!(get(&closed, "/debug/pprof/").await.1, "404 page not found\n");
}

/// An admin port on `host` whose documents have the query's limit as their id.
fn with_status(host: &str, on_any_address: bool) -> Routes {
    let routes = admin::server(exposition(), false);
    admin::with_status(routes, (&BindHost::parse(host), on_any_address), Vec::new, |query| async move {
        status::Status { id: query.limit.to_string(), ..status::Status::default() }
    })
}

/// The answer to a GET of the status with this `Host`.
async fn get_status(routes: Routes, query: &str, host: &str) -> String {
    let request = format!("GET /statusz{query} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(&start(routes), &request).await
}

#[tokio::test]
async fn status_is_json_for_a_query() {
    let answer = get_status(with_status("127.0.0.1", false), "?limit=7", "127.0.0.1:8095").await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("has a head");
    let head = head.to_lowercase();
    for line in ["http/1.1 200 ok\r\n", "content-type: application/json\r\n", "cache-control: no-store\r\n"] {
        assert!(head.contains(line), "{head}");
    }
    let document: status::Status = serde_json::from_str(body).expect("is a document");
    assert_eq!(document.id, "7");
    let answer = get_status(with_status("127.0.0.1", false), "?limit=x", "localhost").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nlimit=x: use a number from 0 to 1000\n"), "{answer}");
}

#[tokio::test]
async fn status_is_refused_on_an_exposed_address_and_for_a_name_of_a_web_page() {
    let rows = [
        ("127.0.0.1", false, "127.0.0.1", true),
        ("::1", false, "[::1]:8095", true),
        ("localhost", false, "LOCALHOST:8095", true),
        ("127.0.0.1", false, "rebound.example:8095", false),
        ("127.0.0.1", false, "", false),
        ("", false, "10.0.0.1", false),
        ("0.0.0.0", false, "127.0.0.1", false),
        ("10.0.0.1", false, "10.0.0.1", false),
        ("node-1.example", false, "node-1.example", false),
        ("", true, "10.0.0.1:8095", true),
        ("node-1.example", true, "node-1.example:8095", true),
        ("", true, "node-1.example", false),
    ];
    for (bind, on_any_address, host, served) in rows {
        let answer = get_status(with_status(bind, on_any_address), "", host).await;
        let code = if served { "HTTP/1.1 200 " } else { "HTTP/1.1 403 " };
        assert!(answer.starts_with(code), "{bind:?} {on_any_address} {host:?}: {answer}");
    }
}

#[tokio::test]
async fn page_loads_nothing_and_is_only_at_the_root() {
    let get = async |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        exchange(&start(with_status("127.0.0.1", false)), &request).await
    };
    let answer = get("/?limit=7", "127.0.0.1:8095").await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("has a head");
    let head = head.to_lowercase();
    for part in [
        "http/1.1 200 ok\r\n",
        "content-type: text/html; charset=utf-8\r\n",
        "content-security-policy: default-src 'none'; style-src 'sha256-",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(head.contains(part), "{part:?} is not in {head}");
    }
    assert!(body.starts_with("<!DOCTYPE html>") && !body.contains("http://") && !body.contains("https://"));
    assert!(body.contains("<h1> <span>8</span></h1>"), "one entry more than asked for");
    for (path, host, expected) in [
        ("/nothing", "127.0.0.1", "HTTP/1.1 404 "),
        ("/?limit=x", "127.0.0.1", "HTTP/1.1 400 "),
        ("/", "rebound.example:8095", "HTTP/1.1 403 "),
    ] {
        let answer = get(path, host).await;
        assert!(answer.starts_with(expected), "{path} {host}: {answer}");
    }
}

#[tokio::test]
async fn a_profile_decodes() {
    let server = start(admin::server(exposition(), true));
    let mut stream = connect(&server).await;
    let request = b"GET /debug/pprof/profile?seconds=1 HTTP/1.0\r\n\r\n";
    stream.write_all(request).await.expect("sends");
    // CPU work for the profile, for as long as it runs: the key exchange of TLS handshakes. Its assembly keeps other
    // values where an unwinder looks for return addresses.
    let (done, is_done) = switchable();
    let busy = std::thread::spawn(move || {
        let key = DecapsulationKey::generate(&ML_KEM_768).expect("is generated");
        while !is_done() {
            let public = key.encapsulation_key().expect("is derived");
            let (ciphertext, _) = public.encapsulate().expect("encapsulates");
            key.decapsulate(ciphertext).expect("decapsulates");
        }
    });
    // Meanwhile a second profile is refused.
    let (head, body) = loop {
        let (head, body) = get(&server, "/debug/pprof/profile?seconds=1").await;
        if head.starts_with("http/1.1 500 ") {
            break (head, body);
        }
    };
    assert!(body.starts_with("Could not enable CPU profiling: "), "{head} {body}");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answers");
    done.store(true, Ordering::Relaxed);
    busy.join().expect("ends");
    let head_end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("has a head") + 4;
    let head = String::from_utf8_lossy(&answer[..head_end]).to_lowercase();
    assert!(head.starts_with("http/1.0 200 ok\r\n"), "{head}");
    assert!(head.contains("content-disposition: attachment; filename=\"profile\""), "{head}");
    let mut raw = Vec::new();
    flate2::read::GzDecoder::new(&answer[head_end..]).read_to_end(&mut raw).expect("is gzip");
    let profile = pprof::protos::Profile::decode(raw.as_slice()).expect("is a profile");
    let named = profile.mapping.iter().all(|mapping| mapping.has_functions && mapping.has_line_numbers);
    assert!(
        named && profile.mapping.len() == 1,
        "a place without a name would be looked up: {:?}",
        profile.mapping
    );
    assert!(profile.location.iter().all(|location| location.mapping_id == profile.mapping[0].id));
    let kinds: Vec<&str> =
        profile.sample_type.iter().map(|kind| profile.string_table[kind.ty as usize].as_str()).collect();
    assert_eq!(kinds, ["samples", "cpu"]);
    let key_exchange = |name: &String| name.contains("a_profile_decodes") && name.contains("closure");
    assert!(profile.string_table.iter().any(key_exchange), "no stack reaches the thread of the key exchange");
}

#[tokio::test]
async fn heads_methods_and_versions() {
    let server = start(health::server(Vec::new, exposition()));
    let answer = exchange(&server, "HEAD /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
    assert!(
        answer.to_lowercase().contains("content-length: 2\r\n") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    let answer = exchange(&server, "GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    let answer = exchange(&server, "GET /metrics HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n400 Bad Request: missing required Host header"), "{answer}");
    let two =
        "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\nGET /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let answer = exchange(&server, two).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 2, "{answer}");
    let answer = exchange(
        &server,
        "POST /readyz HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    assert!(answer.await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test(start_paused = true)]
async fn slow_heads_and_idle_connections_are_closed() {
    let server = start(health::server(Vec::new, exposition()));
    for bytes in ["", "GET /healthz HTTP/1.1\r\nHo", "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"] {
        let began = Instant::now();
        exchange(&server, bytes).await;
        let took = began.elapsed();
        assert!(
            took >= server::REQUEST_READ_TIMEOUT && took < server::REQUEST_READ_TIMEOUT * 2,
            "{bytes:?}: {took:?}"
        );
    }
}

/// As `nc -N` does; Go's server answers as well.
#[tokio::test]
async fn health_is_told_to_a_client_that_has_closed_its_sending_side() {
    let server = start(health::server(Vec::new, exposition()));
    let mut stream = connect(&server).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    stream.shutdown().await.expect("closes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answers");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
}

/// A CPU profile of minutes must not outlive its reader.
#[tokio::test]
async fn answer_of_the_admin_port_ends_with_its_client() {
    let (running, ended) = oneshot::channel::<()>();
    let (running, begun) = (Mutex::new(Some(running)), Arc::new(Notify::new()));
    let begin = Arc::clone(&begun);
    let routes = admin::server(exposition(), false).at_length("/held", move |_| {
        let running = running.lock().take();
        begin.notify_one();
        async move {
            let _running = running;
            std::future::pending().await
        }
    });
    let server = start(routes);
    let mut stream = connect(&server).await;
    stream.write_all(b"GET /held HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    begun.notified().await;
    drop(stream);
    let ended = tokio::time::timeout(Duration::from_secs(10), ended).await.expect("ends");
    assert!(ended.is_err(), "the answer is dropped");
}

/// Whether the server has closed it. Does not wait.
fn is_closed(stream: &TcpStream) -> bool {
    !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Waits until the server closes the connection, in order or by a reset.
async fn closed(stream: &mut TcpStream) {
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut [0])).await.expect("is closed");
}

/// A probe waits one second.
#[tokio::test]
async fn incomplete_requests_on_all_connections_do_not_delay_a_probe() {
    let server = start(health::server(Vec::new, exposition()));
    let mut clients = Vec::new();
    for _ in 0..server::MAX_CONNECTIONS {
        let mut stream = connect(&server).await;
        stream.write_all(b"G").await.expect("sends");
        clients.push(stream);
    }
    let began = Instant::now();
    assert_eq!(get(&server, "/healthz").await.1, "ok");
    assert!(began.elapsed() < server::REQUEST_READ_TIMEOUT / 2, "nobody's patience was waited for");
    closed(&mut clients[0]).await;
    assert!(clients[1..].iter().all(|other| !is_closed(other)), "one was evicted");
}

/// Adds `/slow`: one `Notify` reports that its answer has begun, the other lets it end.
fn slow_route(routes: Routes) -> (Routes, Arc<Notify>, Arc<Notify>) {
    let (begun, may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let signals = (Arc::clone(&begun), Arc::clone(&may_end));
    let routes = routes.at_length("/slow", move |_| {
        let (begun, may_end) = signals.clone();
        async move {
            begun.notify_one();
            may_end.notified().await;
            routes::text(http::StatusCode::OK, "late")
        }
    });
    (routes, begun, may_end)
}

#[tokio::test]
async fn stop_lets_answers_finish() {
    let (routes, begun, may_end) = slow_route(Routes::default());
    let server = start(routes);
    let address = bound(&server).await;
    let mut slow = connect(&server).await;
    slow.write_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    let mut idle = connect(&server).await;
    idle.write_all(b"GET /none HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sends");
    idle.read_u8().await.expect("answers");
    begun.notified().await;
    let client = async {
        // An idle connection is closed: the server stops, and still waits for the slow answer.
        idle.read_to_end(&mut Vec::new()).await.expect("ends");
        may_end.notify_one();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).await.expect("answers");
        answer
    };
    let ((), answer) = tokio::join!(server.stop(Duration::from_secs(10)), client);
    assert!(answer.ends_with("late"), "{answer}");
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens");
}

#[tokio::test(start_paused = true)]
async fn a_taken_port_is_tried_again() {
    let holder = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let bind = Bind { port: holder.local_addr().expect("is bound").port(), ..loopback() };
    let server = serve(&Handle::current(), "test", bind, health::server(Vec::new, exposition()));
    let waited = tokio::time::timeout(Duration::from_secs(5), bound(&server)).await;
    assert!(waited.is_err(), "is taken");
    drop(holder);
    tokio::time::timeout(Duration::from_secs(60), bound(&server)).await.expect("binds in the end");
}

#[test]
fn the_runtime_ends_with_its_owner() {
    let runtime = OpsRuntime::start().expect("starts");
    let server = serve(runtime.handle(), "test", loopback(), Routes::default());
    let port = runtime.handle().block_on(bound(&server)).port();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    drop(runtime);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

/// As in Go and on the other ports: kubelet probes the pod's address, which may be of either family.
#[tokio::test]
async fn every_spelling_of_all_addresses_means_both_families() {
    let has_ipv6 = TcpListener::bind("[::1]:0").await.is_ok();
    for host in ["", "0.0.0.0", "::", "[::]"] {
        let bind = Bind { host: BindHost::parse(host), port: 0 };
        let server = serve(&Handle::current(), "test", bind, health::server(Vec::new, exposition()));
        let port = bound(&server).await.port();
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_ok(), "{host:?} over IPv4");
        assert!(!has_ipv6 || TcpStream::connect(("::1", port)).await.is_ok(), "{host:?} over IPv6");
    }
}

/// An answer's status line and body.
async fn ask(server: &ServerHandle, line: &str, fields: &str, body: &str) -> (String, String) {
    let length = body.len();
    let request =
        format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}");
    let answer = exchange(server, &request).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("has a head");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

const LOCAL: &str = "Host: localhost:8095\r\n";

#[tokio::test]
async fn verbosity_changes_and_returns() {
    let (_subscriber, logs) = Logs::build(&Options::default()).expect("starts");
    let level = logs.level();
    let server = start(with_verbosity(Routes::default(), level.clone()));
    let put = async |path: &str, body: &str| ask(&server, &format!("PUT {path}"), LOCAL, body).await;
    let changed = put("/debug/flags/v", "2\n").await;
    assert_eq!(changed.1, "successfully set klog.logging.verbosity to 2\n");
    assert_eq!(get(&server, "/debug/flags/v").await.1, "2\n");
    put("/debug/flags/v?for=1h", "9").await;
    let changed = put("/debug/flags/v?for=10ms", "5").await;
    assert_eq!(changed.1, "successfully set klog.logging.verbosity to 5 for 10ms, then 2\n");
    let returned = async {
        while level.get() != 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), returned).await.expect("returns");
    for (path, body) in [
        ("/debug/flags/v", "x"),
        ("/debug/flags/v?for=0s", "1"),
        ("/debug/flags/v?for=1", "1"),
        ("/debug/flags/v", ""),
    ] {
        assert_eq!(put(path, body).await.0, "HTTP/1.1 400 Bad Request", "{path} {body}");
    }
    assert_eq!(put("/debug/flags/v", &"1".repeat(65)).await.0, "HTTP/1.1 400 Bad Request");
    assert_eq!(level.get(), 2);
}

#[tokio::test]
async fn posts_need_a_header_and_are_limited() {
    let (entered, leave) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (entering, leaving) = (Arc::clone(&entered), Arc::clone(&leave));
    let server = Arc::new(start(with_post(Routes::default(), "/probe", move |query| {
        let (entering, leaving) = (Arc::clone(&entering), Arc::clone(&leaving));
        async move {
            entering.add_permits(1);
            leaving.acquire().await.expect("open").forget();
            if query == "target=" { Err("no target".to_owned()) } else { Ok([query]) }
        }
    })));
    let fields = format!("{LOCAL}konnectivity-command: 1\r\n");
    let post = |query: &'static str| {
        let (server, fields) = (Arc::clone(&server), fields.clone());
        tokio::spawn(async move { ask(&server, &format!("POST /probe?{query}"), &fields, "").await })
    };
    assert_eq!(ask(&server, "POST /probe?x", LOCAL, "").await.0, "HTTP/1.1 403 Forbidden");
    assert_eq!(ask(&server, "GET /probe?x", &fields, "").await.0, "HTTP/1.1 405 Method Not Allowed");
    let waiting = ["x", "x", "x", "target="].map(|query| (query, post(query)));
    let _all = entered.acquire_many(4).await.expect("open");
    assert_eq!(post("x").await.expect("ends").0, "HTTP/1.1 429 Too Many Requests");
    leave.add_permits(4);
    for (query, answer) in waiting {
        let (line, body) = answer.await.expect("ends");
        let (code, text) =
            if query == "x" { ("200 OK", "[\"x\"]\n") } else { ("400 Bad Request", "no target\n") };
        assert_eq!((line, body.as_str()), (format!("HTTP/1.1 {code}"), text));
    }
}

#[tokio::test]
async fn changes_are_for_programs_of_this_host() {
    let (_subscriber, logs) = Logs::build(&Options::default()).expect("starts");
    let server = start(with_verbosity(Routes::default(), logs.level()));
    for (method, fields, status) in [
        ("PUT", "Host: konnectivity.example\r\n", "403 Forbidden"),
        ("PUT", "Host: 10.0.0.1:8095\r\n", "403 Forbidden"),
        ("PUT", "Host: localhost\r\nOrigin: http://localhost\r\n", "403 Forbidden"),
        ("POST", LOCAL, "405 Method Not Allowed"),
        ("OPTIONS", LOCAL, "405 Method Not Allowed"),
        ("PUT", "Host: [::1]:8095\r\n", "200 OK"),
        ("PUT", "Host: 127.0.0.1\r\n", "200 OK"),
    ] {
        let (line, _) = ask(&server, &format!("{method} /debug/flags/v"), fields, "3").await;
        assert_eq!(line, format!("HTTP/1.1 {status}"), "{method} {fields}");
    }
}
