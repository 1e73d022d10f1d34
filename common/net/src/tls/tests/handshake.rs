//! Which peers a handshake accepts.

use rcgen::{SanType, date_time_ymd};
use rustls::client::ResolvesClientCert;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ProtocolVersion, SupportedProtocolVersion};
use tokio::io::{AsyncWriteExt, duplex};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::pki::{Pair, ca, leaf};
use super::world::{NAME, World};
use crate::tls::client::ByIssuer;
use crate::tls::{ALPN_H2, HandshakeError, PeerIdentity, any_server, key_pair, provider};

#[tokio::test]
async fn mutual_authentication_and_identity() {
    let (server, client) = World::new().shake().await.both();
    let (_, connection) = server.get_ref();
    assert_eq!(connection.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(connection.alpn_protocol(), Some(ALPN_H2));
    let peer = PeerIdentity::of(connection.peer_certificates()).unwrap();
    assert_eq!(peer.dns, ["client.test"]);
    assert_eq!(peer.to_string(), "leaf");
    let (_, connection) = client.get_ref();
    assert_eq!(PeerIdentity::of(connection.peer_certificates()).unwrap().dns, [NAME]);
}

/// `insecure-skip-tls-verify` of a kubeconfig: neither the authority nor the name nor the time counts.
#[tokio::test]
async fn any_server_is_accepted_on_request() {
    for version in [&TLS12, &TLS13] as [&'static SupportedProtocolVersion; 2] {
        let mut params = leaf(&["another.test"]);
        params.not_after = date_time_ymd(2001, 1, 1);
        let mut world = World::with_server(params);
        world.server.client_ca = None;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(any_server())
            .with_no_client_auth();
        world.handshake_with(config).await.both();
    }
}

#[tokio::test]
async fn a_client_certificate_is_required_with_a_ca_only() {
    let mut world = World::new();
    world.client.identity = None;
    let text = world.shake().await.refused_by_server();
    assert!(text.contains("no certificates"), "{text}");
    world.server.client_ca = None;
    let (server, _) = world.shake().await.both();
    assert!(PeerIdentity::of(server.get_ref().1.peer_certificates()).is_none());
}

#[tokio::test]
async fn unknown_certificates_are_refused() {
    let mut world = World::new();
    let unknown_ca = Pair::self_signed(ca("root"));
    world.client.identity = Some(world.files.pair("foreign", &unknown_ca.issue(leaf(&["client.test"]))));
    // A root of the same name: only the signature differs.
    let text = world.shake().await.refused_by_server();
    assert!(text.contains("invalid peer certificate"), "{text}");
    let mut world = World::new();
    world.client.ca = Some(world.files.certs("other", &[&Pair::self_signed(ca("other")).der]));
    let text = world.shake().await.refused_by_client();
    assert!(text.contains("UnknownIssuer"), "{text}");
}

/// Source: `SupportsCertificate` of crypto/tls.
#[tokio::test]
async fn a_certificate_of_other_authorities_than_the_server_names_is_not_sent() {
    let mut world = World::new();
    let (middle, other) = (world.root.issue(ca("middle")), Pair::self_signed(ca("other")));
    world.client.identity = Some(world.files.pair("of-other", &other.issue(leaf(&["client.test"]))));
    let text = world.shake().await.refused_by_server();
    assert!(text.contains("no certificates"), "{text}");
    let below = middle.issue(leaf(&["client.test"]));
    for (chain, named, sent) in [
        (&[&below, &middle][..], &[][..], true),
        (&[&below, &middle], &[&other], false),
        (&[&below, &middle], &[&other, &middle], true),
        (&[&below, &middle], &[&other, &world.root], true),
        (&[&below], &[&world.root], false),
    ] {
        let chain: Vec<_> = chain.iter().map(|pair| pair.der.clone()).collect();
        let key = below.key.serialize_der().try_into().unwrap();
        let pair = key_pair(chain, key, &provider()).unwrap().unwrap();
        let named: Vec<_> =
            named.iter().map(|pair| X509Certificate::from_der(&pair.der).unwrap().1).collect();
        let subjects: Vec<&[u8]> = named.iter().map(|cert| cert.subject().as_raw()).collect();
        assert_eq!(ByIssuer(pair).resolve(&subjects, &[]).is_some(), sent, "{named:?}");
    }
}

#[tokio::test]
async fn an_unknown_issuer_is_named_with_the_file_and_the_trusted_authorities() {
    let mut world = World::new();
    let others: Vec<Pair> = ["a", "b", "c", "d", "e"].map(|name| Pair::self_signed(ca(name))).into();
    let bundles = [
        (&others[..2], "the certificate was issued by CN=root; trusted: CN=a, CN=b"),
        (&others[..], "the certificate was issued by CN=root; trusted: CN=a, CN=b, CN=c, 2 more"),
        (
            &[Pair::self_signed(ca("root"))],
            "the certificate was issued by CN=root; trusted: CN=root (an authority of that name with another key, or without the right to issue)",
        ),
    ];
    for (number, (bundle, expected)) in bundles.into_iter().enumerate() {
        let certs: Vec<_> = bundle.iter().map(|pair| &pair.der).collect();
        let file = world.files.certs(&format!("bundle-{number}"), &certs);
        world.client.ca = Some(file.clone());
        let Err(HandshakeError::UnknownIssuer { error, authorities }) = world.shake().await.client else {
            panic!("an unknown issuer");
        };
        assert!(error.to_string().starts_with("invalid peer certificate"), "{error}");
        assert_eq!(authorities, format!("{}: {expected}", file.display()));
    }
}

#[tokio::test]
async fn expired_and_misnamed_servers_are_refused() {
    let mut old = leaf(&[NAME]);
    old.not_before = date_time_ymd(2000, 1, 1);
    old.not_after = date_time_ymd(2001, 1, 1);
    let text = World::with_server(old).shake().await.refused_by_client();
    assert!(
        text.contains("expired: it was valid until 2001-01-01T00:00:00Z, and this clock is at 2"),
        "{text}"
    );
    let text = World::with_server(leaf(&["other.test"])).shake().await.refused_by_client();
    assert!(text.ends_with(&format!("not valid for name {NAME}, only for other.test")), "{text}");
}

#[tokio::test]
async fn an_address_that_is_written_as_a_dns_name_is_named_as_the_fault() {
    let mut params = leaf(&["other.test"]);
    params.subject_alt_names.push(SanType::DnsName("10.0.0.1".try_into().unwrap()));
    let mut world = World::with_server(params);
    world.client.server_names = vec!["10.0.0.1".to_owned()];
    let text = world.shake().await.refused_by_client();
    let names = "other.test, 10.0.0.1 (a DNS SAN: issue it as an IP SAN)";
    assert!(text.ends_with(&format!("not valid for name 10.0.0.1, only for {names}")), "{text}");
}

/// ECDSA with SHA-224 stands for SHA-1, whose identifier has another length. Both occurrences of the identifier change.
#[tokio::test]
async fn a_signature_algorithm_that_is_not_accepted_is_reported_in_plain_words() {
    let mut world = World::new();
    let server = world.root.issue(leaf(&[NAME]));
    let mut der = server.der.to_vec();
    let sha_256 = [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    while let Some(at) = der.windows(8).position(|bytes| bytes == sha_256) {
        der[at + 7] = 1;
    }
    world.server.cert = world.files.certs("old", &[&der.into()]);
    world.server.key = world.files.write("old.key", server.key.serialize_pem());
    let text = world.shake().await.refused_by_client();
    let why = "a certificate of its chain is signed with an algorithm that is not accepted, such as SHA-1: issue that one with SHA-256";
    assert!(text.ends_with(&format!("invalid peer certificate: {why}")), "{text}");
}

#[tokio::test]
async fn addresses_are_verified_as_addresses() {
    let mut params = leaf(&[]);
    params.subject_alt_names =
        ["10.0.0.1", "fd00::1"].map(|ip| SanType::IpAddress(ip.parse().unwrap())).to_vec();
    let mut world = World::with_server(params);
    let rows = [
        ("10.0.0.1", true),
        ("::ffff:10.0.0.1", true),
        ("[::ffff:10.0.0.1]", true),
        ("fd00::1", true),
        ("[fd00::1]", true),
        ("10.0.0.2", false),
        ("::ffff:10.0.0.2", false),
    ];
    for (name, good) in rows {
        world.client.server_names = vec![name.to_owned()];
        let ends = world.shake().await;
        assert_eq!(ends.client.is_ok(), good, "{name}");
        assert_eq!(ends.server.is_ok(), good, "{name}");
    }
}

#[tokio::test]
async fn bundles_of_several_authorities() {
    let mut world = World::new();
    let other = Pair::self_signed(ca("other"));
    let bundle = world.files.certs("bundle", &[&other.der, &world.root.der]);
    world.server.client_ca = Some(bundle.clone());
    world.client.ca = Some(bundle);
    world.shake().await.both();
    world.client.identity = Some(world.files.pair("of-other", &other.issue(leaf(&["client.test"]))));
    world.shake().await.both();
}

#[tokio::test]
async fn intermediates_are_sent() {
    let mut world = World::new();
    let middle = world.root.issue(ca("middle"));
    let server = middle.issue(leaf(&[NAME]));
    world.files.pair("below", &server);
    world.server.cert = world.files.certs("chain", &[&server.der, &middle.der]);
    world.server.key = world.files.write("chain.key", server.key.serialize_pem());
    world.shake().await.both();
    world.server.cert = world.files.certs("chain", &[&server.der]);
    let text = world.shake().await.refused_by_client();
    assert!(text.contains("UnknownIssuer"), "{text}");
}

#[tokio::test]
async fn bytes_that_are_not_tls_are_refused() {
    let server = World::new().server();
    let (mut client_io, server_io) = duplex(1024);
    client_io.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(server.accept_with(server_io, &[ALPN_H2], || ()).await, Err(HandshakeError::Tls(_))));
    let (client_io, server_io) = duplex(1024);
    drop(client_io);
    assert!(matches!(server.accept_with(server_io, &[ALPN_H2], || ()).await, Err(HandshakeError::Closed)));
}

/// A record announces a ClientHello of 60,000 bytes, and more records follow.
#[tokio::test]
async fn a_client_hello_is_one_record_at_most() {
    let server = World::new().server();
    let (mut client_io, server_io) = duplex(64 << 10);
    let mut record = vec![0x16, 3, 1, 0x3f, 0xff, 1, 0, 0xea, 0x60];
    record.resize(5 + 0x3fff, 0);
    client_io.write_all(&record).await.unwrap();
    client_io.write_all(&[&[0x16, 3, 1, 0x3f, 0xff], &record[5..]].concat()).await.unwrap();
    let mut told = false;
    let end = server.accept_with(server_io, &[ALPN_H2], || told = true).await;
    assert!(matches!(end, Err(HandshakeError::TooLarge)), "{:?}", end.err());
    assert!(!told, "the hello is not whole");
}
