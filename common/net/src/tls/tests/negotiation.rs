//! Protocols, versions and suites.

use std::sync::Arc;

use rustls::server::Acceptor;
use rustls::{ClientConfig, ProtocolVersion, RootCertStore};
use tokio::io::duplex;
use tokio_rustls::LazyConfigAcceptor;

use super::world::{Ends, World};
use crate::tls::{ALPN_H2, ALPN_HTTP1, CipherSuites, TlsVersion};

/// A client with settings that [`ClientTls`] does not have.
async fn foreign_client(
    world: &World,
    alpn: &[&[u8]],
    only: Option<&'static rustls::SupportedProtocolVersion>,
) -> Ends {
    let mut roots = RootCertStore::empty();
    roots.add(world.root.der.clone()).unwrap();
    let versions: Vec<_> = only.map_or(rustls::ALL_VERSIONS.to_vec(), |version| vec![version]);
    let mut config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(&versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    world.handshake_with(config).await
}

/// Set by the build's feature only.
#[test]
fn a_build_for_fips_uses_nothing_else() {
    let all = crate::tls::provider().cipher_suites.clone();
    let chacha = all.iter().filter(|suite| format!("{:?}", suite.suite()).contains("CHACHA20")).count();
    assert_eq!(chacha == 0, crate::tls::FIPS);
    assert_eq!(crate::tls::provider().fips(), crate::tls::FIPS);
    assert_eq!(crate::tls::verified_fips().unwrap(), crate::tls::FIPS);
    World::new().server();
    World::new().client();
}

#[test]
fn only_a_build_for_fips_insists_on_approved_cryptography() {
    for (wanted, approved, good) in
        [(true, true, true), (true, false, false), (false, true, true), (false, false, true)]
    {
        assert_eq!(crate::tls::judged(wanted, approved, "it").is_ok(), good, "{wanted} {approved}");
    }
    let refusal = crate::tls::judged(true, false, "the cryptography").unwrap_err().to_string();
    assert!(refusal.starts_with("the cryptography: not approved by FIPS 140-3"), "{refusal}");
}

/// The listener's protocol, the client's, the selected one, and whether the handshake succeeds.
type Negotiation = (&'static [u8], &'static [&'static [u8]], Option<&'static [u8]>, bool);

/// The table has the results of `crypto/tls` of Go 1.26, except that it accepts a client of `http/1.1` without a matching
/// protocol; grpc-go then closes the connection.
#[tokio::test]
async fn alpn_as_gos_server() {
    let mut world = World::new();
    world.server.client_ca = None;
    let cases: [Negotiation; 8] = [
        (ALPN_H2, &[ALPN_H2], Some(ALPN_H2), true),
        (ALPN_H2, &[b"extra", ALPN_H2], Some(ALPN_H2), true),
        (ALPN_H2, &[], None, true),
        (ALPN_H2, &[b"extra"], None, false),
        (ALPN_H2, &[b"extra", ALPN_HTTP1], None, false),
        (ALPN_H2, &[ALPN_HTTP1, ALPN_H2], Some(ALPN_H2), true),
        (ALPN_HTTP1, &[ALPN_H2], None, false),
        (ALPN_HTTP1, &[ALPN_H2, ALPN_HTTP1], Some(ALPN_HTTP1), true),
    ];
    for (ours, theirs, selected, good) in cases {
        world.alpn = vec![ours];
        let ends = foreign_client(&world, theirs, None).await;
        if good {
            assert_eq!(ends.both().0.get_ref().1.alpn_protocol(), selected, "{theirs:?}");
        } else {
            let text = ends.refused_by_client();
            assert!(text.contains("NoApplicationProtocol"), "{text}");
        }
    }
}

#[tokio::test]
async fn the_agent_takes_any_selection() {
    let mut world = World::new();
    world.client.alpn_extras = vec![b"extra".to_vec()];
    for (server, selected) in
        [(vec![ALPN_H2], Some(ALPN_H2)), (vec![b"extra", ALPN_H2], Some(&b"extra"[..])), (vec![], None)]
    {
        world.alpn = server;
        assert_eq!(world.shake().await.both().1.get_ref().1.alpn_protocol(), selected);
    }
    let (client_io, server_io) = duplex(64 * 1024);
    let (client, accepting) = (world.client(), LazyConfigAcceptor::new(Acceptor::default(), server_io));
    let hello = tokio::select! {
        hello = accepting => hello.unwrap(),
        _ = client.connect(0, client_io) => panic!("the client ended"),
    };
    assert!(hello.client_hello().alpn().unwrap().eq([b"extra", ALPN_H2]), "offered, in order of preference");
}

#[tokio::test]
async fn minimum_version_and_suites() {
    let mut world = World::new();
    world.server.client_ca = None;
    let old = Some(&rustls::version::TLS12);
    let (server, _) = foreign_client(&world, &[], old).await.both();
    assert_eq!(server.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_2));

    let name = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
    world.server.suites = CipherSuites::parse(&[name.to_owned()]).unwrap().value;
    let (server, _) = foreign_client(&world, &[], old).await.both();
    let suite = server.get_ref().1.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384);

    // The certificate's key is not RSA.
    let name = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
    world.server.suites = CipherSuites::parse(&[name.to_owned()]).unwrap().value;
    foreign_client(&world, &[], old).await.refused_by_client();
    foreign_client(&world, &[], None).await.both();

    world.server.suites = CipherSuites::parse(&["TLS_AES_128_GCM_SHA256".to_owned()]).unwrap().value;
    foreign_client(&world, &[], old).await.refused_by_client();
    world.server.suites = CipherSuites::default();
    world.server.min_version = TlsVersion::Tls13;
    let text = foreign_client(&world, &[], old).await.refused_by_client();
    assert!(text.contains("ProtocolVersion"), "{text}");

    // Lists without a TLS 1.2 suite leave TLS 1.3, whatever the lowest version is.
    let cbc = CipherSuites::parse(&["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA".to_owned()]).unwrap().value;
    world.server.suites = cbc;
    for version in [TlsVersion::Tls13, TlsVersion::Tls12] {
        world.server.min_version = version;
        foreign_client(&world, &[], None).await.both();
        foreign_client(&world, &[], old).await.refused_by_client();
    }
}
