//! The client behind proxies, which it uses as Go's net/http does.

#![allow(clippy::unwrap_used, reason = "what a test sets up is there")]

mod pki;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Client, Config};
use fake_apiserver::FakeApi;
use pki::{Pki, pki};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;

const LIMIT: Duration = Duration::from_secs(5);

/// A proxy to one fixed address, with or without TLS. Reports the head of each connection's first request.
async fn proxy(to: SocketAddr, tls: Option<Arc<ServerConfig>>) -> (SocketAddr, UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, (tell, told)) = (listener.local_addr().unwrap(), unbounded_channel());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (tls, tell) = (tls.clone(), tell.clone());
            tokio::spawn(async move {
                match tls.map(TlsAcceptor::from) {
                    None => relay(client, to, &tell).await,
                    Some(tls) => match tls.accept(client).await {
                        Ok(client) => relay(client, to, &tell).await,
                        Err(_) => drop(tell.send("no TLS".into())),
                    },
                }
            });
        }
    });
    (address, told)
}

async fn relay<IO: AsyncRead + AsyncWrite + Unpin>(
    mut client: IO,
    to: SocketAddr,
    tell: &UnboundedSender<String>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let mut api = TcpStream::connect(to).await.unwrap();
    if head.starts_with(b"CONNECT ") {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        client.flush().await.unwrap();
    } else {
        api.write_all(&head).await.unwrap();
    }
    tell.send(String::from_utf8(head).unwrap()).unwrap();
    let _ = copy_bidirectional(&mut client, &mut api).await;
}

/// A client of `http(s)://api.test:6443/base`, which only a proxy can resolve.
fn client(
    folder: &Path,
    api: &FakeApi,
    cluster: &str,
    environment: &[(&str, String)],
) -> Result<Client, String> {
    let path = api.kubeconfig(folder, "{client-certificate: crt, client-key: key}").unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace(&api.address().to_string(), "api.test:6443");
    std::fs::write(&path, text.replace("{server:", &format!("{{{cluster}server:"))).unwrap();
    let lookup =
        |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
    let config = Config::load_in(Some(&path), lookup).map_err(|error| error.to_string())?;
    Ok(Client::new(config, "test", 0.0, 0))
}

fn files(pki: &Pki) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("ca", &pki.ca), ("crt", &pki.client.0), ("key", &pki.client.1)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

const IN_TLS: &str = "certificate-authority: ca, tls-server-name: 127.0.0.1, ";

#[tokio::test]
async fn https_api_is_reached_by_connect_through_any_proxy() {
    let pki = pki();
    let (folder, api) = (files(&pki), FakeApi::start_tls(Arc::clone(&pki.server)).await.unwrap());
    for scheme in ["http", "https"] {
        let tls = (scheme == "https").then(|| Arc::clone(&pki.server));
        let (at, mut told) = proxy(api.address(), tls).await;
        let url = format!("{scheme}://user:pass@{at}");
        let named = client(folder.path(), &api, &format!("{IN_TLS}proxy-url: \"{url}\", "), &[]).unwrap();
        let found = client(folder.path(), &api, IN_TLS, &[("HTTPS_PROXY", url)]).unwrap();
        for client in [named, found] {
            client.review_token("t", "x", LIMIT).await.unwrap();
            let head = told.recv().await.unwrap();
            assert!(head.starts_with("CONNECT api.test:6443 HTTP/1.1\r\nHost: api.test:6443\r\n"), "{head}");
            assert!(head.contains("\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{head}");
        }
    }
    let kept =
        |seen: &fake_apiserver::Seen| !seen.headers.iter().any(|(name, _)| name == "proxy-authorization");
    assert!(api.seen().iter().all(kept), "the proxy's password is the proxy's");
}

#[tokio::test]
async fn an_api_in_plain_http_is_asked_through_the_proxy() {
    let pki = pki();
    let (folder, api) = (files(&pki), FakeApi::start().await.unwrap());
    for scheme in ["http", "https"] {
        let tls = (scheme == "https").then(|| Arc::clone(&pki.server));
        let (at, mut told) = proxy(api.address(), tls).await;
        let url = format!("{scheme}://user:pass@{at}");
        let cluster = "certificate-authority: ca, ";
        let named = client(folder.path(), &api, &format!("{cluster}proxy-url: \"{url}\", "), &[]).unwrap();
        let environment = [("HTTP_PROXY", url), ("HTTPS_PROXY", "http://127.0.0.1:1".into())];
        let found = client(folder.path(), &api, cluster, &environment).unwrap();
        for client in [named, found] {
            for _ in 0..2 {
                client.review_token("t", "x", LIMIT).await.unwrap();
            }
            let head = told.recv().await.unwrap().to_lowercase();
            let first = "post http://api.test:6443/apis/authentication.k8s.io/v1/tokenreviews http/1.1\r\n";
            assert!(head.starts_with(first) && head.contains("\r\nhost: api.test:6443\r\n"), "{head}");
            assert!(head.contains("\r\nproxy-authorization: basic dxnlcjpwyxnz\r\n"), "{head}");
        }
        assert!(told.try_recv().is_err(), "the second request is on the connection of the first");
    }
}

#[tokio::test]
async fn proxy_with_unknown_certificate_is_refused() {
    let (ours, other) = (pki(), pki());
    let (folder, api) = (files(&ours), FakeApi::start_tls(Arc::clone(&ours.server)).await.unwrap());
    let (at, mut told) = proxy(api.address(), Some(Arc::clone(&other.server))).await;
    let client = client(folder.path(), &api, &format!("{IN_TLS}proxy-url: \"https://{at}\", "), &[]).unwrap();
    let error = client.review_token("t", "x", LIMIT).await.unwrap_err().to_string();
    let (ca, named) = (folder.path().join("ca"), "CN=rcgen self signed cert");
    let what = "TLS handshake: invalid peer certificate: BadSignature";
    let why =
        format!("certificate-authority {ca:?}: the certificate was issued by {named}; trusted: {named} (");
    assert!(error.contains(&format!("api.test:6443: proxy {at}: {what} ({why}")), "{error}");
    assert_eq!(told.recv().await.unwrap(), "no TLS");
}

#[tokio::test]
async fn a_socks_proxy_before_the_api_is_refused_at_the_start() {
    let pki = pki();
    let (folder, api) = (files(&pki), FakeApi::start_tls(Arc::clone(&pki.server)).await.unwrap());
    let start = |environment: &[(&str, &str)]| {
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        client(folder.path(), &api, IN_TLS, &environment).map(drop)
    };
    let socks = ("HTTPS_PROXY", "socks5://user:secret@proxy.test:1080");
    assert_eq!(
        start(&[socks]).unwrap_err(),
        "the way to the Kubernetes API at api.test:6443: the proxy URL in HTTPS_PROXY is not usable: SOCKS is not \
         supported (expected http://[user:password@]host:port); or name api.test in NO_PROXY"
    );
    assert_eq!(start(&[socks, ("NO_PROXY", "api.test")]), Ok(()));
    assert_eq!(start(&[("HTTP_PROXY", socks.1)]), Ok(()), "it is for http:// alone");
}
