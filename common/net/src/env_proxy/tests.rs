//! Tests of the rules against Go's (the tables' verdicts are from `golang.org/x/net/http/httpproxy`), and of tunnels
//! against a scripted proxy.

use std::collections::HashMap;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

fn env(pairs: &[(&str, &str)]) -> EnvProxy {
    let map: HashMap<_, _> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    EnvProxy::for_grpc(|name| map.get(name).cloned())
}

#[test]
fn exemptions() {
    // NO_PROXY, host, port, exempt.
    let table = [
        ("", "example.com", 443, false),
        ("", "localhost", 443, true),
        ("", "LOCALHOST", 443, false),
        ("", "127.0.0.1", 443, true),
        ("", "127.9.9.9", 443, true),
        ("", "::1", 443, true),
        ("", "[::1]", 443, true),
        ("", "::ffff:127.0.0.1", 443, true),
        ("", "10.0.0.1", 443, false),
        ("*", "example.com", 443, true),
        ("a.b,*", "10.0.0.1", 443, true),
        ("*.", "example.com", 443, false),
        ("example.com", "example.com", 443, true),
        ("example.com", "EXAMPLE.com", 443, true),
        ("EXAMPLE.COM", "example.com", 443, true),
        ("example.com", "www.example.com", 443, true),
        ("example.com", "badexample.com", 443, false),
        ("example.com", "example.com.evil", 443, false),
        (".example.com", "www.example.com", 443, true),
        (".example.com", "example.com", 443, false),
        ("*.example.com", "a.b.example.com", 443, true),
        ("*.example.com", "example.com", 443, false),
        ("*example.com", "www.example.com", 443, false),
        (" example.com , other.com ", "other.com", 443, true),
        ("example.com:443", "example.com", 443, true),
        ("example.com:8091", "example.com", 443, false),
        ("example.com:", "example.com", 443, true),
        (":443", "example.com", 443, false),
        (".example.com:443", "www.example.com", 443, true),
        ("10.0.0.1", "10.0.0.1", 443, true),
        ("10.0.0.1:443", "10.0.0.1", 443, true),
        ("10.0.0.1:80", "10.0.0.1", 443, false),
        ("10.0.0.0/8", "10.1.2.3", 443, true),
        ("10.0.0.0/8", "11.1.2.3", 443, false),
        ("10.1.2.3/8", "10.9.9.9", 443, true),
        ("10.0.0.0/8", "ten.example.com", 443, false),
        ("10.0.0.0/33", "10.1.2.3", 443, false),
        ("10.0.0.0/8:443", "10.1.2.3", 443, false),
        ("fd00::/8", "fd00::1", 443, true),
        ("fd00::/8", "[fd00::1]", 443, true),
        ("fd00::1", "fd00::1", 443, true),
        ("[fd00::1]", "fd00::1", 443, false),
        ("[fd00::1]:443", "fd00::1", 443, true),
        ("[fd00::1]:80", "fd00::1", 443, false),
        ("10.0.0.1", "::ffff:10.0.0.1", 443, true),
        ("10.0.0.0/8", "::ffff:10.0.0.1", 443, true),
        ("fe80::/10", "fe80::1%eth0", 443, true),
        ("fe80::1", "[fe80::1%eth0]", 443, true),
        ("", "::1%lo", 443, true),
        ("eth0", "fe80::1%x.eth0", 443, false),
        ("10.0.0", "10.0.0.1", 443, false),
        ("0.0.1", "10.0.0.1", 443, false),
        ("cluster.local,svc", "a.b.svc", 8091, true),
        ("example.com,,", "other.com", 443, false),
    ];
    let mut wrong = Vec::new();
    for (no_proxy, host, port, exempt) in table {
        if NoProxy::parse(no_proxy).exempts(host, port) != exempt {
            wrong.push((no_proxy, host, port, exempt));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn upper_case_comes_first() {
    let found = |pairs: &[(&str, &str)]| {
        let env = env(pairs);
        env.proxy_for("example.com", 443).unwrap().map(Proxy::to_string)
    };
    assert_eq!(found(&[]), None);
    assert_eq!(found(&[("HTTP_PROXY", "http://p:1")]), None);
    assert_eq!(found(&[("ALL_PROXY", "http://p:1")]), None);
    assert_eq!(found(&[("https_proxy", "http://p:1")]).as_deref(), Some("p:1"));
    assert_eq!(
        found(&[("HTTPS_PROXY", "http://q:2"), ("https_proxy", "http://p:1")]).as_deref(),
        Some("q:2")
    );
    assert_eq!(found(&[("HTTPS_PROXY", ""), ("https_proxy", "p:1")]).as_deref(), Some("p:1"));
    assert_eq!(found(&[("HTTPS_PROXY", "p:1"), ("no_proxy", "example.com")]), None);
    assert_eq!(
        found(&[("HTTPS_PROXY", "p:1"), ("NO_PROXY", "x"), ("no_proxy", "*")]).as_deref(),
        Some("p:1")
    );
}

#[test]
fn urls() {
    for (text, shown) in [
        ("http://proxy.local:3128", "proxy.local:3128"),
        ("http://proxy.local:3128/", "proxy.local:3128"),
        ("https://proxy.local:3128", "proxy.local:3128"),
        ("socks5://proxy.local:1080", "proxy.local:1080"),
        ("proxy.local:3128", "proxy.local:3128"),
        ("10.0.0.1:3128", "10.0.0.1:3128"),
        ("http://[fd00::1]:3128", "[fd00::1]:3128"),
        ("[fd00::1]:3128", "[fd00::1]:3128"),
        // As grpc-go, which resolves a proxy like one of its targets.
        ("http://proxy.local", "proxy.local:443"),
        ("proxy.local", "proxy.local:443"),
        ("http://[fd00::1]", "[fd00::1]:443"),
        ("http://user:pass@proxy.local:3128", "proxy.local:3128"),
        ("http://us@er:pa@proxy.local:3128", "proxy.local:3128"),
    ] {
        assert_eq!(
            Proxy::parse("HTTPS_PROXY", text).map(|proxy| proxy.to_string()).as_deref(),
            Ok(shown),
            "{text}"
        );
    }
    for text in [
        "http://",
        "http://:3128",
        "http://proxy:port",
        "http://proxy:0",
        "http://proxy:65536",
        "http://proxy:+80",
        "http://pro xy:80",
        "http://proxy:80\r\nX: y",
        "1http://proxy:80",
        "http://[fd00::1:3128",
        "http://u%zz:p@proxy:80",
        "http://u:p%4@proxy:80",
    ] {
        let error = Proxy::parse("HTTPS_PROXY", text).err().expect(text).to_string();
        assert!(error.contains("HTTPS_PROXY") && !error.contains('\n'), "{error}");
    }
}

/// As net/http (`schemePort` and `dialConn` of its transport), by which Go programs dial the Kubernetes API.
#[test]
fn for_http_the_scheme_counts() {
    for (text, shown, tls) in [
        ("http://proxy.local", "proxy.local:80", false),
        ("https://proxy.local", "proxy.local:443", true),
        ("HTTPS://proxy.local", "proxy.local:443", true),
        ("proxy.local", "proxy.local:80", false),
        ("http://[fd00::1]", "[fd00::1]:80", false),
        ("http://proxy.local:3128", "proxy.local:3128", false),
        ("https://user:pass@proxy.local:3128", "proxy.local:3128", true),
    ] {
        let proxy = Proxy::parse_for_http("HTTPS_PROXY", text).unwrap();
        assert_eq!((proxy.to_string().as_str(), proxy.tls), (shown, tls), "{text}");
        assert!(!Proxy::parse("HTTPS_PROXY", text).unwrap().tls, "grpc-go never speaks TLS to a proxy");
    }
    for text in ["socks5://user:secret@proxy.local", "socks5h://proxy.local:1080", "SOCKS5://proxy.local"] {
        let error = Proxy::parse_for_http("HTTPS_PROXY", text).err().unwrap().to_string();
        assert!(error.contains("SOCKS is not supported") && !error.contains("secret"), "{error}");
    }
    let error = Proxy::parse_for_http("HTTPS_PROXY", "sock5://proxy.local:1080").err().unwrap().to_string();
    assert!(error.contains("neither http nor https"), "{error}");
}

#[test]
fn for_http_each_scheme_has_a_variable() {
    let pairs = [("HTTP_PROXY", "http://p"), ("https_proxy", "https://s"), ("NO_PROXY", "exempt")];
    let found = |https, host| {
        let lookup =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        EnvProxy::for_http(https, lookup).proxy_for(host, 443).unwrap().map(Proxy::to_string)
    };
    assert_eq!(found(false, "example.com").as_deref(), Some("p:80"));
    assert_eq!(found(true, "example.com").as_deref(), Some("s:443"));
    for https in [false, true] {
        assert_eq!(found(https, "exempt"), None);
        assert_eq!(found(https, "127.0.0.1"), None);
    }
    let lookup = |name: &str| (name == "HTTP_PROXY").then(|| "socks5://p".to_owned());
    let error = EnvProxy::for_http(false, lookup).proxy_for("example.com", 80).err().unwrap().to_string();
    assert!(error.contains("HTTP_PROXY") && error.contains("SOCKS"), "{error}");
    assert!(EnvProxy::for_http(true, lookup).proxy_for("example.com", 443).unwrap().is_none());
}

#[test]
fn a_bad_url_fails_dials_that_are_not_exempt() {
    let env = env(&[("HTTPS_PROXY", "http://user:secret@proxy:bad"), ("NO_PROXY", "exempt")]);
    let error = env.proxy_for("example.com", 443).err().unwrap();
    assert!(!format!("{error} {error:?}").contains("secret"));
    assert!(env.proxy_for("exempt", 443).unwrap().is_none());
}

#[test]
fn entries_that_go_cannot_parse_are_skipped() {
    for text in ["http://u%zz:p@proxy:80", "http://u:p%4@proxy:80", "http://proxy:80\r\nX: y"] {
        assert!(env(&[("HTTPS_PROXY", text)]).proxy_for("example.com", 443).unwrap().is_none(), "{text}");
    }
}

#[test]
fn credentials_are_decoded_and_hidden() {
    for (user, value) in [
        ("user:pass", "Basic dXNlcjpwYXNz"),
        ("user", "Basic dXNlcjo="),
        ("us%3Aer:p%40ss%20", "Basic dXM6ZXI6cEBzcyA="),
        (":", "Basic Og=="),
        ("a:b:c", "Basic YTpiOmM="),
        ("u:%C3%A4", "Basic dTrDpA=="),
    ] {
        let proxy = Proxy::parse("HTTPS_PROXY", &format!("http://{user}@proxy:80")).unwrap();
        assert_eq!(proxy.authorization.as_deref(), Some(value), "{user}");
        assert_eq!(proxy.to_string(), "proxy:80");
    }
    assert_eq!(Proxy::parse("HTTPS_PROXY", "proxy:80").unwrap().authorization, None);
}

/// A proxy that answers one request with `chunks`, one by one. Returns the client's result and the request.
async fn through(user: &str, target: &str, chunks: &[&str]) -> (Result<TcpStream, ConnectError>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let proxy = Proxy::parse("HTTPS_PROXY", &format!("http://{user}127.0.0.1:{port}")).unwrap();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => request.push(byte),
                Err(_) => break,
            }
        }
        for chunk in chunks {
            if stream.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        String::from_utf8(request).unwrap()
    };
    let connect = async {
        let stream = TcpStream::connect((proxy.host.as_str(), proxy.port)).await.unwrap();
        tunnel(stream, &proxy, target).await
    };
    tokio::join!(connect, serve)
}

#[tokio::test]
async fn a_tunnel_is_asked_for_and_loses_no_byte() {
    let answers: [&[&str]; 4] = [
        &["HTTP/1.1 200 OK\r\n\r\npayload"],
        &["HTTP/1.0 200 Connection established\r\nVia: x\r\n\r", "\npayload"],
        &["HTTP/1.1 2", "00\r\nA: b\r", "\n", "\r", "\npay", "load"],
        &["HTTP/1.1 200 OK\nA: b\n\npayload"],
    ];
    for answer in answers {
        let (stream, request) = through("user:pass@", "server.test:8091", answer).await;
        let mut rest = String::new();
        stream.unwrap().read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "payload", "{answer:?}");
        let mut lines = request.split("\r\n");
        assert_eq!(lines.next(), Some("CONNECT server.test:8091 HTTP/1.1"));
        assert_eq!(lines.next(), Some("Host: server.test:8091"));
        assert!(request.contains("\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{request}");
    }
    let (stream, request) = through("", "[fd00::1]:8091", &["HTTP/1.1 200 OK\r\n\r\n"]).await;
    assert!(stream.is_ok() && !request.contains("Authorization"), "{request}");
}

#[tokio::test]
async fn refusals_do_not_show_secrets() {
    for (answer, words) in [
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407 Proxy Authentication Required"),
        ("HTTP/1.1 503 \u{1b}[31m\r\n\r\n", "\\u{1b}"),
        ("SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        ("HTTP/1.1 2000 OK\r\n\r\n", "does not speak HTTP"),
        ("HTTP/2 200 OK\r\n\r\n", "does not speak HTTP"),
        ("", "unexpected end of file"),
        ("HTTP/1.1 200 OK\r\n", "unexpected end of file"),
    ] {
        let (stream, _) = through("user:secret@", "server.test:8091", &[answer]).await;
        let error = stream.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words) && !text.contains('\n'), "{text}");
        assert!(!format!("{text}{error:?}").contains("c2VjcmV0"), "{text}");
    }
}

#[tokio::test]
async fn heads_and_targets_are_bounded() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    let (stream, _) = through("", "server.test:8091", &[&long]).await;
    assert!(stream.unwrap_err().to_string().contains("does not speak HTTP"));
    for target in ["", "a b:1", "a:1\r\nX: y"] {
        let (stream, request) = through("", target, &[]).await;
        assert_eq!(stream.unwrap_err().to_string(), format!("{target:?} is not host:port"));
        assert_eq!(request, "");
    }
}
