//! Files that change while listeners run.

use std::path::{Path, PathBuf};

use super::pki::{Pair, ca, leaf};
use super::world::{NAME, World, shake};
use crate::tls::PeerIdentity;

fn copy(pair: &(PathBuf, PathBuf), cert: &Path, key: &Path) {
    std::fs::copy(&pair.0, cert).unwrap();
    std::fs::copy(&pair.1, key).unwrap();
}

#[tokio::test]
async fn a_reload_serves_new_handshakes_and_a_bad_pair_keeps_the_old() {
    let world = World::new();
    let (server, client) = (world.server(), world.client());
    shake(&server, &client).await.both();

    let fresh = world.files.pair("fresh", &world.root.issue(leaf(&[NAME, "fresh.test"])));
    copy(&fresh, &world.server.cert, &world.server.key);
    server.reload().unwrap();
    let (_, stream) = shake(&server, &client).await.both();
    let peer = PeerIdentity::of(stream.get_ref().1.peer_certificates()).unwrap();
    assert_eq!(peer.dns, [NAME, "fresh.test"]);

    std::fs::write(&world.server.key, "half").unwrap();
    assert!(server.reload().is_err());
    shake(&server, &client).await.both();
}

#[tokio::test]
async fn a_removed_client_authority_ends_resumption() {
    let world = World::new();
    let (server, client) = (world.server(), world.client());
    shake(&server, &client).await.both();
    let (resumed, _) = shake(&server, &client).await.both();
    assert_eq!(resumed.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    let other = Pair::self_signed(ca("other"));
    world.files.certs("root.crt", &[&other.der]);
    assert_eq!(world.server.client_ca.as_ref(), Some(&world.ca));
    server.reload().unwrap();
    shake(&server, &client).await.refused_by_server();
}
