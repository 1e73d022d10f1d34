//! The client against a fake kube-apiserver: every call, every kind of credentials, every fault.

#![allow(clippy::unwrap_used, reason = "what a test sets up is there")]

mod pki;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cluster::config::{Credentials, Pem, Server, TlsFiles};
use cluster::{ApiError, Client, Config, Freshness, Lease, Moment, WatchEvent};
use fake_apiserver::{FakeApi, Fault};
use pki::pki;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LIMIT: Duration = Duration::from_secs(5);

async fn client(api: &FakeApi, folder: &Path, user: &str) -> Client {
    let path = api.kubeconfig(folder, user).unwrap();
    Client::new(Config::load(Some(&path)).unwrap(), "test", 0.0, 0)
}

async fn simple() -> (FakeApi, tempfile::TempDir, Client) {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let client = client(&api, folder.path(), "{token: canary}").await;
    (api, folder, client)
}

fn lease(name: &str, seconds: i64) -> Lease {
    let mut lease = Lease::new("kube-system", name);
    lease.metadata.labels.insert("k8s-app".into(), "konnectivity-server".into());
    lease.spec.lease_duration_seconds = Some(30);
    lease.spec.renew_time = Some(Moment::from_seconds(seconds));
    lease
}

#[tokio::test]
async fn leases_are_created_read_written_and_deleted() {
    let (api, _folder, client) = simple().await;
    let leases = client.leases("kube-system");
    assert!(leases.get("a").await.unwrap_err().is(404));
    let created = leases.create(&lease("a", 1)).await.unwrap();
    assert_eq!(ApiError::outcome(&leases.create(&lease("a", 1)).await), Ok((409, "AlreadyExists")));
    let mut newer = created.clone();
    newer.spec.renew_time = Some(Moment::from_seconds(2));
    let newer = leases.update(&newer).await.unwrap();
    assert_eq!(ApiError::outcome(&leases.update(&created).await), Ok((409, "Conflict")));
    assert_eq!(leases.get("a").await.unwrap(), newer);
    let list = leases.list("k8s-app=konnectivity-server", Freshness::Latest).await.unwrap();
    assert_eq!((list.items, list.metadata.resource_version.as_str()), (vec![newer.clone()], "2"));
    assert!(leases.list("k8s-app=other", Freshness::Any).await.unwrap().items.is_empty());
    assert!(leases.delete("a", Some(&created.metadata.resource_version)).await.unwrap_err().is(409));
    leases.delete("a", Some(&newer.metadata.resource_version)).await.unwrap();
    assert!(leases.delete("a", None).await.unwrap_err().is(404));
    let strange = client.leases("a/b?c");
    assert!(strange.list("x in (y)", Freshness::Any).await.unwrap().items.is_empty());
    assert_eq!(api.count("namespaces/a%2Fb%3Fc/leases?labelSelector=x%20in%20%28y%29&resourceVersion=0"), 1);
}

#[tokio::test]
async fn watch_reports_events_and_the_reason_of_its_end() {
    let (api, _folder, client) = simple().await;
    let leases = client.leases("kube-system");
    let first = leases.create(&lease("a", 1)).await.unwrap();
    let mut watch = leases.watch("", "0", LIMIT).await.unwrap();
    assert_eq!(watch.next().await.unwrap(), Some(WatchEvent::There(Box::new(first))));
    assert_eq!(watch.next().await.unwrap(), Some(WatchEvent::Bookmark("1".into())));
    let second = leases.create(&lease("b", 1)).await.unwrap();
    assert_eq!(watch.next().await.unwrap(), Some(WatchEvent::There(Box::new(second))));
    leases.delete("a", None).await.unwrap();
    assert!(
        matches!(watch.next().await.unwrap(), Some(WatchEvent::Gone(lease)) if lease.metadata.name == "a")
    );
    api.compact();
    assert_eq!(ApiError::outcome(&watch.next().await), Ok((410, "Expired")));
    assert!(leases.watch("", "1", LIMIT).await.err().unwrap().is(410));
    let mut watch = leases.watch("", "99", LIMIT).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Some(WatchEvent::Bookmark(_))));
    api.end_watches();
    assert_eq!(watch.next().await.unwrap(), None);
    let mut watch = leases.watch("", "99", LIMIT).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Some(WatchEvent::Bookmark(_))));
    api.down();
    assert!(matches!(watch.next().await, Err(ApiError::Unanswered { cause: "unreachable", .. })));
}

#[tokio::test]
async fn watch_that_stays_silent_ends_with_an_error() {
    let (api, _folder, client) = simple().await;
    let mut watch = client.leases("kube-system").watch("", "0", LIMIT).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Some(WatchEvent::Bookmark(_))));
    api.silence_watches();
    tokio::time::pause();
    let ended = tokio::time::timeout(LIMIT + Duration::from_secs(31), watch.next()).await;
    assert!(matches!(ended.expect("ends"), Err(ApiError::Unanswered { cause: "timeout", .. })));
}

#[tokio::test]
async fn a_token_is_reviewed() {
    let (api, _folder, client) = simple().await;
    let user = json!({"username": "system:serviceaccount:n:a", "extra": {"k": ["v"]}});
    api.set_review("t", json!({"authenticated": true, "user": user, "audiences": ["x"]}));
    let review = client.review_token("t", "x", LIMIT).await.unwrap();
    assert!(review.authenticated && review.audiences == ["x"] && review.user.extra("k") == Some("v"));
    assert!(!client.review_token("other", "x", LIMIT).await.unwrap().authenticated);
}

#[tokio::test]
async fn errors_are_distinct_and_do_not_show_the_token() {
    let (api, _folder, client) = simple().await;
    let ask = || client.review_token("reviewed-canary", "x", Duration::from_millis(300));
    let long = format!("{}reviewed-canary", "x".repeat(290));
    let rows = [
        (Fault::Hang, "did not answer within 300ms"),
        (Fault::Slow(Duration::from_secs(5)), "did not answer within"),
        (Fault::Close, "cannot reach the Kubernetes API"),
        (Fault::Status(500, "InternalError"), "answered 500 InternalError: a fault on purpose"),
        (Fault::Status(429, "TooManyRequests"), "429"),
        (Fault::Nonsense, "nonsense"),
        // Quoted across the position where a long text is cut.
        (Fault::Status(500, long.leak()), "answered 500 x"),
    ];
    for (fault, text) in rows {
        api.set_fault("tokenreviews", fault);
        let error = ask().await.unwrap_err().to_string();
        assert!(error.contains(text) && !error.contains("canary"), "{error}");
        assert!(!error.contains("reviewed"), "{error}");
    }
    api.heal();
    assert!(ask().await.is_ok());
    api.down();
    assert!(matches!(ask().await, Err(ApiError::Unanswered { cause: "unreachable", .. })));
    api.up();
    assert!(api.wait(|api| std::net::TcpStream::connect(api.address()).is_ok()).await);
    assert!(ask().await.is_ok());
}

#[tokio::test]
async fn a_list_of_an_api_that_stood_still_says_so() {
    let (api, _folder, client) = simple().await;
    let leases = client.leases("n");
    assert!(!leases.list("", Freshness::Any).await.unwrap().slow);
    api.set_fault("leases", Fault::Slow(Duration::from_secs(2)));
    assert!(leases.list("", Freshness::Any).await.unwrap().slow);
    api.heal();
    assert!(!leases.list("", Freshness::Any).await.unwrap().slow);
}

#[tokio::test]
async fn connections_are_reused_and_a_closed_one_costs_no_failure() {
    let (api, _folder, client) = simple().await;
    for _ in 0..3 {
        client.review_token("t", "x", LIMIT).await.unwrap();
        api.restart().await;
    }
    let calls = (0..20).map(|_| client.leases("n"));
    for leases in calls {
        leases.list("", Freshness::Any).await.unwrap();
    }
    assert_eq!(api.count("GET"), 20);
}

/// A way to the API; each message breaks the connections that are open on it: they stay open and carry nothing.
async fn breakable(to: SocketAddr) -> (SocketAddr, watch::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, (breaker, broken)) = (listener.local_addr().unwrap(), watch::channel(()));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut broken = broken.clone();
            broken.mark_unchanged();
            tokio::spawn(async move {
                let mut api = TcpStream::connect(to).await.unwrap();
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut api) => {}
                    Ok(()) = broken.changed() => std::future::pending().await,
                }
            });
        }
    });
    (address, breaker)
}

#[tokio::test]
async fn a_time_out_or_a_401_ends_the_idle_connections() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let path = api.kubeconfig(folder.path(), "{token: canary}").unwrap();
    let (address, breaker) = breakable(api.address()).await;
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace(&api.address().to_string(), &address.to_string())).unwrap();
    let client = Client::new(Config::load(Some(&path)).unwrap(), "test", 0.0, 0);
    let ask = |limit| client.review_token("t", "x", limit);
    let two_idle = async || {
        let (one, other) = tokio::join!(ask(LIMIT), ask(LIMIT));
        one.and(other).unwrap();
    };
    two_idle().await;
    breaker.send(()).unwrap();
    let error = ask(Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, ApiError::Unanswered { cause: "timeout", .. }), "{error}");
    two_idle().await;
    api.require_token("other");
    assert!(ask(LIMIT).await.unwrap_err().is(401));
    breaker.send(()).unwrap();
    assert!(ask(LIMIT).await.unwrap_err().is(401));
}

#[tokio::test]
async fn a_token_file_is_read_for_each_request() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("t");
    std::fs::write(&file, "none").unwrap();
    let client = client(&api, folder.path(), "{tokenFile: t}").await;
    std::fs::remove_file(&file).unwrap();
    let error = client.review_token("t", "x", LIMIT).await.unwrap_err().to_string();
    assert!(error.contains("token file"), "{error}");
    for token in ["one", "two"] {
        std::fs::write(&file, format!("{token}\n")).unwrap();
        api.require_token(token);
        client.review_token("t", "x", LIMIT).await.unwrap();
    }
}

#[cfg(unix)]
fn script(folder: &Path, body: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("plugin");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

const EXEC: &str = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [tok], \
                    env: [{name: SUFFIX, value: en}], installHint: get it, provideClusterInfo: true}}";

#[tokio::test]
async fn a_plug_in_is_run_when_needed_and_once() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let client = client(&api, folder.path(), EXEC).await;
    let error = client.review_token("t", "x", LIMIT).await.unwrap_err().to_string();
    assert!(error.contains("cannot be started") && error.contains("; get it"), "{error}");
    let count = folder.path().join("count");
    script(
        folder.path(),
        &format!(
            "echo x >> {}; case \"$KUBERNETES_EXEC_INFO\" in *server*interactive*|*interactive*) ;; *) exit 3;; esac\n\
             echo '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{{\
             \"expirationTimestamp\":\"2020-01-01T00:00:00Z\",\"token\":\"'$1$SUFFIX'\"}}}}'",
            count.display()
        ),
    );
    api.require_token("token");
    // Calls that wait for the run take its result, although it has expired.
    let all: Vec<_> = (0..5)
        .map(|_| client.clone())
        .map(|c| tokio::spawn(async move { c.review_token("t", "x", LIMIT).await }))
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    assert_eq!(std::fs::read_to_string(count).unwrap().lines().count(), 1);
}

/// A call's time-out may be shorter than a plug-in's run: the run continues, and is not started again.
#[tokio::test]
async fn a_plug_in_that_takes_longer_than_a_call_serves_a_later_one() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let client = client(&api, folder.path(), EXEC).await;
    let (count, ready) = (folder.path().join("count"), folder.path().join("ready"));
    script(
        folder.path(),
        &format!(
            "echo x >> {}; while ! [ -e {} ]; do sleep 0.02; done\n\
             echo '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{{\"token\":\"late\"}}}}'",
            count.display(),
            ready.display(),
        ),
    );
    api.require_token("late");
    let runs = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
    let impatient = || client.review_token("t", "x", Duration::from_millis(100));
    while runs() == 0 {
        assert!(matches!(impatient().await, Err(ApiError::Unanswered { cause: "timeout", .. })));
    }
    for _ in 0..3 {
        assert!(matches!(impatient().await, Err(ApiError::Unanswered { cause: "timeout", .. })));
    }
    std::fs::write(ready, "").unwrap();
    client.review_token("t", "x", LIMIT).await.unwrap();
    assert_eq!(runs(), 1);
}

#[tokio::test]
async fn plugin_failures_do_not_show_its_output() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let rows = [
        ("echo canary; echo login first >&2; exit 7", "login first"),
        ("echo '{\"token\": \"canary\"'", "no such JSON"),
        ("echo '{\"apiVersion\":\"v1\"}'", "apiVersion"),
        ("echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{}}'", "neither a token"),
        (
            "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{\"clientCertificateData\":\"\",\"clientKeyData\":\"\"}}'",
            "neither a token",
        ),
        (
            "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{\"token\":\"a\",\"expirationTimestamp\":\"soon\"}}'",
            "expirationTimestamp",
        ),
    ];
    for (body, text) in rows {
        script(folder.path(), body);
        let client = client(&api, folder.path(), EXEC).await;
        let error = client.review_token("t", "x", LIMIT).await.unwrap_err().to_string();
        assert!(error.contains(text) && !error.contains("canary") && error.lines().count() == 1, "{error}");
    }
}

#[tokio::test]
async fn expired_credentials_of_a_plug_in_are_renewed() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let client = client(&api, folder.path(), EXEC).await;
    for (token, expires) in [("old", "2001-01-01T00:00:00Z"), ("new", "2999-01-01T00:00:00Z")] {
        let status = format!("{{\"token\":\"{token}\",\"expirationTimestamp\":\"{expires}\"}}");
        script(
            folder.path(),
            &format!("echo '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{status}}}'"),
        );
        api.require_token(token);
        client.review_token("t", "x", LIMIT).await.unwrap();
    }
    script(folder.path(), "exit 1");
    client.review_token("t", "x", LIMIT).await.unwrap();
}

/// A self-signed certificate that expires at the end of that year, and its key.
fn lasting_until(year: i32) -> (String, String) {
    let mut params = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 12, 31);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[tokio::test]
async fn a_refused_certificate_of_the_api_is_explained() {
    let (pki, other, folder) = (pki(), pki(), tempfile::tempdir().unwrap());
    let api = FakeApi::start_tls(Arc::clone(&pki.server)).await.unwrap();
    let path = api.kubeconfig(folder.path(), "{}").unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let why = "the certificate was issued by CN=rcgen self signed cert; trusted: CN=rcgen self signed cert (";
    for (ca, name, expected) in [
        (&pki.ca, "cp", "not valid for name cp, only for 127.0.0.1"),
        (&other.ca, "127.0.0.1", &format!("BadSignature (certificate-authority-data: {why}")),
    ] {
        let cluster = format!("certificate-authority-data: {}, tls-server-name: {name}", STANDARD.encode(ca));
        std::fs::write(&path, text.replace("server:", &format!("{cluster}, server:"))).unwrap();
        let client = Client::new(Config::load(Some(&path)).unwrap(), "test", 0.0, 0);
        let error = client.review_token("t", "x", LIMIT).await.unwrap_err().to_string();
        assert!(error.contains(&format!("TLS handshake: invalid peer certificate: {expected}")), "{error}");
    }
}

#[tokio::test]
async fn client_certificates_authenticate_and_are_read_again() {
    let (pki, other, folder) = (pki(), pki(), tempfile::tempdir().unwrap());
    let api = FakeApi::start_tls(Arc::clone(&pki.server)).await.unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("ca", &other.ca);
    write("crt", &pki.client.0);
    write("key", &pki.client.1);
    let path = api.kubeconfig(folder.path(), "{client-certificate: crt, client-key: key}").unwrap();
    let text =
        std::fs::read_to_string(&path).unwrap().replace("server:", "certificate-authority: ca, server:");
    std::fs::write(&path, text).unwrap();
    let client = Client::new(Config::load(Some(&path)).unwrap(), "test", 0.0, 0);
    let ask = || client.review_token("t", "x", LIMIT);
    std::fs::remove_file(folder.path().join("crt")).unwrap();
    assert!(ask().await.unwrap_err().to_string().contains("client-certificate"), "no file any more");
    write("crt", &pki.client.0);
    assert!(ask().await.unwrap_err().to_string().contains("TLS"), "an unknown authority");
    write("ca", &pki.ca);
    ask().await.unwrap();
    api.restart().await;
    write("crt", &other.client.0);
    write("key", &other.client.1);
    assert!(ask().await.is_err(), "an unknown certificate");
}

#[tokio::test]
async fn the_rate_of_requests_is_kept() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let path = api.kubeconfig(folder.path(), "{token: canary}").unwrap();
    let client = Client::new(Config::load(Some(&path)).unwrap(), "test", 20.0, 3);
    let began = tokio::time::Instant::now();
    let all: Vec<_> = (0..9)
        .map(|_| client.clone())
        .map(|client| tokio::spawn(async move { client.review_token("t", "x", LIMIT).await.map(drop) }))
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    assert!(began.elapsed() >= Duration::from_millis(290), "{:?} for six beyond the burst", began.elapsed());
}

/// The callers' time-outs are far below the wait for a turn: the queue does not grow.
#[tokio::test]
async fn a_small_rate_never_locks_up() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let path = api.kubeconfig(folder.path(), "{token: canary}").unwrap();
    let client = Client::new(Config::load(Some(&path)).unwrap(), "test", 2.0, 1);
    client.review_token("t", "x", LIMIT).await.unwrap();
    for _ in 0..50 {
        let error = client.review_token("t", "x", Duration::from_millis(1)).await.unwrap_err();
        assert!(error.to_string().contains("--kubeconfig-qps"), "{error}");
    }
    // Fifty turns would take 25 s.
    client.review_token("t", "x", LIMIT).await.unwrap();
    assert_eq!(api.count("tokenreviews"), 2);
}

#[tokio::test]
async fn expiry_of_the_presented_certificate_is_known() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let end_of = |year| rcgen::date_time_ymd(year, 12, 31).unix_timestamp();
    let (cert, key) = lasting_until(2031);
    let coded = |pem: &str| STANDARD.encode(pem);
    let user = format!("{{client-certificate-data: {}, client-key-data: {}}}", coded(&cert), coded(&key));
    let embedded = client(&api, folder.path(), &user).await;
    let embedded = embedded.certificate_expiry().expect("a certificate to show");
    assert_eq!(embedded(), Some(end_of(2031)));

    std::fs::write(folder.path().join("c.crt"), &cert).unwrap();
    std::fs::write(folder.path().join("c.key"), &key).unwrap();
    let named = client(&api, folder.path(), "{client-certificate: c.crt, client-key: c.key}").await;
    let named = named.certificate_expiry().expect("a certificate to show");
    std::fs::remove_file(folder.path().join("c.crt")).unwrap();
    assert_eq!(named(), None, "there is no such file any more");
    std::fs::write(folder.path().join("c.crt"), cert).unwrap();
    assert_eq!(named(), Some(end_of(2031)));
    std::fs::write(folder.path().join("c.crt"), lasting_until(2032).0).unwrap();
    assert_eq!(named(), Some(end_of(2032)), "it was renewed");

    let token = client(&api, folder.path(), "{token: canary}").await;
    assert!(token.certificate_expiry().is_none());
}

/// An authority that serves with its own certificate: Go accepts it, webpki does not.
#[tokio::test]
async fn any_path_is_read_and_certificates_are_judged_by_gos_rules() {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![authority.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let (api, folder) = (FakeApi::start_tls(Arc::new(config)).await.unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("ca"), authority.pem()).unwrap();
    let path = api.kubeconfig(folder.path(), "{token: canary}").unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("server:", "certificate-authority: ca, server:")).unwrap();
    let client = Client::new(Config::load(Some(&path)).unwrap(), "test", 0.0, 0);
    api.put_lease("n", "a", json!({}), json!({}));
    let body = client.get("/apis/coordination.k8s.io/v1/namespaces/n/leases/a", LIMIT).await.unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), api.lease("n", "a").unwrap());
    assert!(client.get("/nothing", LIMIT).await.unwrap_err().is(404));
    assert_eq!(api.seen()[0].authorization, "Bearer canary");
}

/// A pipe without a writer is like a file of a network file system that hangs.
#[tokio::test]
async fn a_file_that_hangs_delays_only_the_call() {
    let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    let by_token = (Credentials::TokenFile(pipe.clone()), TlsFiles::default());
    let by_authority =
        (Credentials::None, TlsFiles { ca: Some(Pem::File(pipe.clone())), ..TlsFiles::default() });
    for (credentials, tls) in [by_token, by_authority] {
        let server = Server::parse(&api.address().to_string(), "https").unwrap();
        let client = Client::new(Config { server, tls, credentials, proxy: None }, "test", 0.0, 0);
        // Ends the read after the call, and in any case.
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let (pipe, late) = (pipe.clone(), Duration::from_secs(20));
        let writer = std::thread::spawn(move || {
            let in_time = end.recv_timeout(late) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected);
            std::fs::File::options().write(true).open(pipe).unwrap();
            in_time
        });
        let error = client.get("/", Duration::from_millis(300)).await.unwrap_err();
        drop(ended);
        assert!(writer.join().unwrap(), "the thread waited: {error}");
        assert!(error.to_string().contains("did not answer within 300ms"), "{error}");
    }
}
