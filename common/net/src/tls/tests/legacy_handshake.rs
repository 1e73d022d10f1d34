//! Whole handshakes with unusual certificates.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CustomExtension, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore};

use super::pki::{Pair, leaf, version_1};
use super::world::{Ends, NAME, World, shake};
use crate::tls::{ClientTls, LegacyPki, LegacyPkiObserver, ServerTls};

#[tokio::test]
async fn legacy_certificates_complete_handshakes_and_are_counted() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let observer: LegacyPkiObserver = Arc::new(move |why: LegacyPki| {
        assert!(matches!(why, LegacyPki::CaAsLeaf | LegacyPki::OldVersion));
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let mut params = leaf(&[NAME]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut world = World::with_server(params);
    let old = world.root.issue(leaf(&[])).altered(Some(&world.root), version_1);
    world.client.identity = Some(world.files.pair("old", &old));
    let server = ServerTls::load(world.server.clone(), Arc::clone(&observer)).unwrap();
    let client = ClientTls::load(world.client.clone(), observer).unwrap();
    shake(&server, &client).await.both();
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_version_1_client_needs_its_key_in_tls_1_2_and_1_3() {
    for version in rustls::ALL_VERSIONS {
        let world = World::new();
        let good = world.root.issue(leaf(&[])).altered(Some(&world.root), version_1);
        for theft in [false, true] {
            let key =
                if theft { KeyPair::generate().unwrap().serialize_der() } else { good.key.serialize_der() };
            let ends = version_1_client(&world, &good, key, version).await;
            assert_eq!(ends.server.is_ok(), !theft, "{:?}, theft {theft}", version.version);
        }
    }
}

#[tokio::test]
async fn a_server_with_a_critical_policy_is_accepted() {
    let mut params = leaf(&[NAME]);
    let mut policies = CustomExtension::from_oid_content(&[2, 5, 29, 32], vec![48, 7, 48, 5, 6, 3, 42, 3, 4]);
    policies.set_criticality(true);
    params.custom_extensions = vec![policies];
    let world = World::with_server(params);
    world.shake().await.both();
}

/// Presents a certificate with any key, unlike a client that checks its files.
async fn version_1_client(
    world: &World,
    pair: &Pair,
    key: Vec<u8>,
    version: &'static rustls::SupportedProtocolVersion,
) -> Ends {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = provider.key_provider.load_private_key(key.try_into().unwrap()).unwrap();
    let certified = Arc::new(rustls::sign::CertifiedKey::new(vec![pair.der.clone()], key));
    let mut roots = RootCertStore::empty();
    roots.add(world.root.der.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
    world.handshake_with(config).await
}
