//! Tests against a TLS and HTTP/2 server on loopback.

use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use grpc::live_streams::StreamName;
use grpc::{Code, ServerSettings, serve_connection};
use http::header::{HeaderMap, HeaderValue};
use net::tls::{
    ALPN_H2, CipherSuites, ClientTlsOptions, ServerTls, ServerTlsOptions, TlsVersion, ignore_legacy_pki,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::*;
use crate::endpoint::{LookupCause, LookupError, Network};

const NAME: &str = "server.example";
/// Two addresses.
const SEVERAL: &str = "several.example";

/// Resolves only these two.
struct Names;

impl Resolve for Names {
    async fn lookup(&self, host: &str, _network: Network) -> Result<Vec<IpAddr>, LookupError> {
        match host {
            NAME => Ok(vec!["127.0.0.1".parse().unwrap()]),
            SEVERAL => Ok(["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap()).to_vec()),
            // Two silent name servers, or five questions.
            "slow.example" => {
                tokio::time::sleep(Duration::from_secs(4)).await;
                Ok(["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap()).to_vec())
            }
            "silent.example" => pending().await,
            _ => Err(LookupError { host: host.into(), cause: LookupCause::NoSuchHost(None) }),
        }
    }
}

/// A CA file, and a server certificate for [`NAME`].
struct Pki {
    directory: TempDir,
}

impl Pki {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
        let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        write("ca.pem", authority.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(authority, key);
        let (leaf, key) = (
            CertificateParams::new(vec![NAME.to_owned(), SEVERAL.to_owned()]).unwrap(),
            KeyPair::generate().unwrap(),
        );
        write("cert.pem", leaf.signed_by(&key, &issuer).unwrap().pem());
        write("key.pem", key.serialize_pem());
        Self { directory }
    }

    fn server(&self) -> ServerTls {
        self.server_with(None)
    }

    fn server_for_clients_of(&self, clients: &Pki) -> ServerTls {
        self.server_with(Some(clients.directory.path().join("ca.pem")))
    }

    fn server_with(&self, client_ca: Option<PathBuf>) -> ServerTls {
        let path = |name: &str| self.directory.path().join(name);
        let options = ServerTlsOptions {
            cert: path("cert.pem"),
            key: path("key.pem"),
            client_ca,
            min_version: TlsVersion::Tls12,
            suites: CipherSuites::default(),
        };
        ServerTls::load(options, ignore_legacy_pki()).unwrap()
    }

    fn client(&self, names: &[&str]) -> ClientTls {
        self.client_with(names, None)
    }

    /// A client with the certificate of `identity`.
    fn client_with(&self, names: &[&str], identity: Option<&Pki>) -> ClientTls {
        let of = |pki: &Pki, name: &str| pki.directory.path().join(name);
        let options = ClientTlsOptions {
            ca: Some(self.directory.path().join("ca.pem")),
            identity: identity.map(|pki| (of(pki, "cert.pem"), of(pki, "key.pem"))),
            server_names: names.iter().map(|name| (*name).to_owned()).collect(),
            alpn_extras: Vec::new(),
        };
        ClientTls::load(options, ignore_legacy_pki()).unwrap()
    }
}

/// Serves every connection; answers each stream with `fields`, or refuses it if there are none. The receiver gets the agents'
/// metadata.
async fn serve(
    pki: &Pki,
    fields: &'static [(&'static str, &'static str)],
) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<HeaderMap>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, heard) = tokio::sync::mpsc::unbounded_channel();
    let tls = pki.server();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (tls, seen) = (tls.clone(), seen.clone());
            tokio::spawn(async move {
                let Ok(io) = tls.accept_with(tcp, &[ALPN_H2], || ()).await else { return };
                let on_stream = |request: grpc::Request| {
                    assert_eq!(request.path, PATH);
                    let _ = seen.send(request.metadata.clone());
                    if fields.is_empty() {
                        return request.refuse(Code::Unauthenticated, "who are you");
                    }
                    let mut headers = HeaderMap::new();
                    for (name, value) in fields {
                        headers.append(*name, HeaderValue::from_static(value));
                    }
                    let mut stream = request.accept(headers).unwrap();
                    tokio::spawn(async move {
                        while poll_fn(|cx| stream.poll_packet(cx)).await.is_some() {}
                        stream.finish();
                    });
                };
                let _ = serve_connection(io, &ServerSettings::for_agents(), on_stream, pending()).await;
            });
        }
    });
    (address, heard)
}

fn connector(pki: &Pki, host: &str, port: u16, env: &[(&str, String)]) -> GrpcConnector<Names> {
    let env: HashMap<String, String> =
        env.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
    let token = pki.directory.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    GrpcConnector {
        servers: vec![ServerAddress { host: host.into(), port }],
        dialer: Dialer::to_servers(Arc::new(Names), SERVER_DIAL_TIMEOUT),
        proxy: EnvProxy::for_grpc(|name| env.get(name).cloned()),
        tls: pki.client(&[NAME]),
        agent: AgentMetadata::new("agent-1", "host=a", Some(token), Capabilities::supported(true)),
        keepalive: KeepaliveFlags {
            time: Duration::from_secs(3600),
            half_open_timeout: Duration::from_secs(20),
            unresponsive_timeout: Duration::from_secs(300),
        },
    }
}

fn first_stream() -> LiveStreams {
    LiveStreams { name: StreamName { process: 7, number: 1 }, others: Vec::new() }
}

/// Connects to the first address.
async fn connect(connector: &GrpcConnector<Names>) -> Result<ConnectedStream<GrpcStream>, ConnectError> {
    let entries = connector.resolve().await;
    connector.connect(&entries[0].addresses[0], first_stream()).await
}

#[tokio::test]
async fn a_stream_opens_and_closes_in_order() {
    let pki = Pki::new();
    let (address, mut heard) = serve(&pki, &[("serverid", "s1"), ("servercount", "2")]).await;
    let connector = connector(&pki, NAME, address.port(), &[]);
    let connected = connect(&connector).await.unwrap();
    assert_eq!((&*connected.server_id, connected.info), ("s1", ServerInfo { servers: 2, lanes: 1 }));
    let said = heard.recv().await.unwrap();
    assert_eq!(said["agentid"], "agent-1");
    assert_eq!(said["agentidentifiers"], "host=a");
    assert_eq!(said["authorization"], "Bearer secret");
    assert_eq!(said["konnectivity-streams"], "7 1");
    let began = Instant::now();
    connector.close(connected.stream).await;
    assert!(began.elapsed() < CLOSE_TIMEOUT, "the server's end is seen, not waited out");
}

#[tokio::test(start_paused = true)]
async fn a_name_with_several_addresses_gives_each_of_them() {
    let entry = |host: &str, port| ServerAddress { host: host.into(), port };
    let mut connector = connector(&Pki::new(), NAME, 1, &[]);
    let hosts = [NAME, SEVERAL, "10.0.0.1", "::1", "none.example", "silent.example", "slow.example"];
    connector.servers = hosts.iter().zip(1..).map(|(host, port)| entry(host, port)).collect();
    let found = connector.resolve().await;
    let texts: Vec<Vec<String>> = found
        .iter()
        .map(|resolved| resolved.addresses.iter().map(|address| address.dial.to_string()).collect())
        .collect();
    let mut several = texts[1].clone();
    several.sort_unstable();
    assert_eq!(several, ["127.0.0.1:2", "127.0.0.2:2"]);
    assert_eq!([&texts[0][..], &texts[2], &texts[3]], [["server.example:1"], ["10.0.0.1:3"], ["[::1]:4"]]);
    assert_eq!([&texts[4][..], &texts[5]], [["none.example:5"], ["silent.example:6"]], "dialed by name");
    assert_eq!(texts[6].len(), 2, "a slow lookup is used");
    let failed: Vec<bool> = found.iter().map(|resolved| resolved.error.is_some()).collect();
    assert_eq!(failed, [false, false, false, false, true, true, false]);
    let behind = [("HTTPS_PROXY", "http://10.0.0.9:3128".to_owned())];
    connector.proxy = EnvProxy::for_grpc(|name| (name == behind[0].0).then(|| behind[0].1.clone()));
    let found = connector.resolve().await;
    assert_eq!(found[1].addresses[0].dial.to_string(), "several.example:2", "the proxy looks up names");
}

#[tokio::test]
async fn an_address_of_a_name_is_verified_by_the_name_of_its_entry() {
    let pki = Pki::new();
    let (server, _heard) = serve(&pki, &[("serverid", "s1"), ("servercount", "1")]).await;
    let mut connector = connector(&pki, "unused", server.port(), &[]);
    let dial = ServerAddress { host: "127.0.0.1".into(), port: server.port() };
    connector.servers =
        ["elsewhere.example", SEVERAL].map(|host| ServerAddress { host: host.into(), port: 1 }).to_vec();
    connector.tls = pki.client(&["elsewhere.example", SEVERAL]);
    let connected =
        connector.connect(&Address { dial: dial.clone(), entry: 1 }, first_stream()).await.unwrap();
    assert_eq!(&*connected.server_id, "s1");
    let error = connector.connect(&Address { dial, entry: 0 }, first_stream()).await.unwrap_err();
    assert_eq!(error.stage, ConnectStage::Tls, "{error}");
}

#[tokio::test]
async fn refusals_and_senseless_answers_are_errors() {
    let pki = Pki::new();
    for (fields, text) in [
        (&[][..], "Unauthenticated: who are you"),
        (&[("servercount", "1")], "expected one server ID"),
        (&[("serverid", "a"), ("serverid", "b"), ("servercount", "1")], "expected one server ID, got 2"),
    ] {
        let (address, _heard) = serve(&pki, fields).await;
        let error = connect(&connector(&pki, NAME, address.port(), &[])).await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[tokio::test]
async fn unknown_server_certificate_is_refused() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (address, _heard) = serve(&other, &[("serverid", "s1"), ("servercount", "1")]).await;
    let error = connect(&connector(&pki, NAME, address.port(), &[])).await.unwrap_err();
    assert_eq!(error.stage, ConnectStage::Tls, "{error}");
    let (hint, file) = (error.hint.unwrap(), pki.directory.path().join("ca.pem"));
    let start = format!("--ca-cert {}: the certificate was issued by ", file.display());
    assert!(hint.starts_with(&start), "{hint}");
}

#[tokio::test]
async fn a_port_that_is_not_the_agent_port_is_explained() {
    let pki = Pki::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.unwrap();
        peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = peer.read_to_end(&mut Vec::new()).await;
    });
    let error = connect(&connector(&pki, NAME, address.port(), &[])).await.unwrap_err();
    let expected = format!("the answer is not TLS; is {NAME}:{} the agent port?", address.port());
    assert!(error.hint.as_ref().is_some_and(|hint| hint.starts_with(&expected)), "{error}");
    let unknown = WireError::new(Code::Unimplemented, "unknown service or method");
    let refused = ConnectError::stream(&unknown, &pki.client(&[NAME]));
    assert!(refused.hint.is_some_and(|hint| hint.contains("agent port")));
}

#[tokio::test]
async fn a_refused_client_certificate_is_explained() {
    let (pki, other) = (Pki::new(), Pki::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = pki.server_for_clients_of(&pki);
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let refused = tls.accept_with(tcp, &[ALPN_H2], || ()).await;
            assert!(refused.is_err());
        }
    });
    let mut connector = connector(&pki, NAME, address.port(), &[]);
    let hint = connect(&connector).await.unwrap_err().hint.unwrap();
    assert!(hint.contains("set --agent-cert"), "{hint}");
    connector.tls = pki.client_with(&[NAME], Some(&other));
    let error = connect(&connector).await.unwrap_err();
    assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("does not accept --agent-cert")), "{error}");
}

#[tokio::test]
async fn refused_connection_reads_as_in_go() {
    let pki = Pki::new();
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = connect(&connector(&pki, NAME, port, &[])).await.unwrap_err();
    assert_eq!(error.to_string(), format!("dial tcp 127.0.0.1:{port}: connect: connection refused"));
    let hint = error.hint.unwrap();
    assert!(hint.contains("--proxy-server-host and --proxy-server-port lead to its --agent-port"), "{hint}");
    let proxy = format!("http://127.0.0.1:{port}");
    let error = connect(&connector(&pki, NAME, port, &[("HTTPS_PROXY", proxy)])).await.unwrap_err();
    assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("check HTTPS_PROXY")), "{error}");
    let error = connect(&connector(&pki, "elsewhere", port, &[])).await.unwrap_err();
    assert_eq!(error.to_string(), "dial tcp: lookup elsewhere: no such host");
}

#[tokio::test]
async fn a_proxy_of_the_environment_is_used() {
    let pki = Pki::new();
    let (server, _heard) = serve(&pki, &[("serverid", "s1"), ("servercount", "1")]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let seen = tokio::spawn(async move {
        let (mut agent, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(agent.read_u8().await.unwrap());
        }
        agent.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let mut upstream = TcpStream::connect(server).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut agent, &mut upstream).await });
        String::from_utf8(head).unwrap()
    });
    let env = [("HTTPS_PROXY", format!("http://{proxy}"))];
    let connector = connector(&pki, "behind.example", server.port(), &env);
    let connected = connect(&connector).await.unwrap();
    assert_eq!(&*connected.server_id, "s1");
    let head = seen.await.unwrap();
    assert!(head.starts_with(&format!("CONNECT behind.example:{} HTTP/1.1\r\n", server.port())), "{head}");
}

#[test]
fn a_name_in_no_proxy_exempts_its_addresses() {
    let variables = HashMap::from([("HTTPS_PROXY", "http://10.0.0.9:3128"), ("NO_PROXY", SEVERAL)]);
    let mut connector = connector(&Pki::new(), SEVERAL, 1, &[]);
    connector.proxy = EnvProxy::for_grpc(|name| variables.get(name).map(|value| (*value).into()));
    connector.servers.push(ServerAddress { host: "behind.example".into(), port: 1 });
    let dial = ServerAddress { host: "10.0.0.1".into(), port: 1 };
    let proxied = [0, 1].map(|entry| {
        let to = Address { dial: dial.clone(), entry };
        connector.proxy_for(&to, &connector.servers[entry]).unwrap().is_some()
    });
    assert_eq!(proxied, [false, true]);
}

#[test]
fn addresses_are_written_with_brackets_where_needed() {
    for (host, bare) in [("a.b", "a.b"), ("10.0.0.1", "10.0.0.1"), ("::1", "[::1]"), ("[::1]", "[::1]")] {
        let address = ServerAddress { host: host.into(), port: 1 };
        assert_eq!((address.to_string(), address.bare_host()), (format!("{bare}:1"), bare.to_owned()));
    }
}
