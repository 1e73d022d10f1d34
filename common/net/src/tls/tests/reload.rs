//! Files that change while listeners run.

use std::path::{Path, PathBuf};

use super::pki::{Pair, ca, leaf};
use super::world::{NAME, World, shake};
use crate::tls::{Options, PeerIdentity, Tls, TlsError, ignore_legacy_pki};

fn copy(pair: &(PathBuf, PathBuf), cert: &Path, key: &Path) {
    std::fs::copy(&pair.0, cert).unwrap();
    std::fs::copy(&pair.1, key).unwrap();
}

fn reload<O: Options>(tls: &Tls<O>) -> Result<(), TlsError> {
    tls.take(&tls.read()?)
}

#[tokio::test]
async fn a_reload_serves_new_handshakes_and_a_bad_pair_keeps_the_old() {
    let world = World::new();
    let (server, client) = (world.server(), world.client());
    shake(&server, &client).await.both();

    let fresh = world.files.pair("fresh", &world.root.issue(leaf(&[NAME, "fresh.test"])));
    copy(&fresh, &world.server.cert, &world.server.key);
    reload(&server).unwrap();
    let (_, stream) = shake(&server, &client).await.both();
    let peer = PeerIdentity::of(stream.get_ref().1.peer_certificates()).unwrap();
    assert_eq!(peer.dns, [NAME, "fresh.test"]);

    std::fs::write(&world.server.key, "half").unwrap();
    assert!(reload(&server).is_err());
    shake(&server, &client).await.both();
}

#[tokio::test]
async fn a_removed_client_authority_shuts_its_clients_out() {
    let world = World::new();
    let (server, client) = (world.server(), world.client());
    shake(&server, &client).await.both();
    let other = Pair::self_signed(ca("other"));
    world.files.certs("root.crt", &[&other.der]);
    assert_eq!(world.server.client_ca.as_ref(), Some(&world.ca));
    reload(&server).unwrap();
    shake(&server, &client).await.refused_by_server();
}

#[tokio::test]
async fn a_removed_server_authority_is_believed_no_more() {
    let world = World::new();
    let (server, client) = (world.server(), world.client());
    shake(&server, &client).await.both();
    world.files.certs("root.crt", &[&Pair::self_signed(ca("other")).der]);
    reload(&client).unwrap();
    shake(&server, &client).await.refused_by_client();
}

#[tokio::test]
async fn a_pair_that_does_not_match_keeps_the_old() {
    let world = World::new();
    let (server, client) = (world.server(), world.client());
    let fresh = world.files.pair("fresh", &world.root.issue(leaf(&[NAME])));
    std::fs::copy(&fresh.1, &world.server.key).unwrap();
    let error = reload(&server).unwrap_err().to_string();
    assert!(error.contains("does not match"), "{error}");
    shake(&server, &client).await.both();
}

/// At the start there is no better certificate; at a reload there is.
#[tokio::test]
async fn a_certificate_out_of_its_time_is_taken_at_the_start_only() {
    let world = World::new();
    let (server, client) = (world.server(), world.client());
    for (name, from, to, why) in
        [("old", 2000, 2001, "expired"), ("new", 2900, 2901, "not valid before"), ("good", 2000, 2900, "")]
    {
        let mut params = leaf(&[NAME, "client.test"]);
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let pair = world.files.pair(name, &world.root.issue(params));
        copy(&pair, &world.server.cert, &world.server.key);
        let own = world.client.identity.clone().unwrap();
        copy(&pair, &own.0, &own.1);
        for (reloaded, loaded) in [
            (
                reload(&server),
                crate::tls::ServerTls::load(world.server.clone(), ignore_legacy_pki()).map(drop),
            ),
            (
                reload(&client),
                crate::tls::ClientTls::load(world.client.clone(), ignore_legacy_pki()).map(drop),
            ),
        ] {
            loaded.unwrap();
            match why {
                "" => reloaded.unwrap(),
                why => {
                    let error = reloaded.unwrap_err().to_string();
                    assert!(error.contains(why) && error.contains("certificate number 1"), "{error}");
                }
            }
        }
        shake(&server, &client).await.both();
    }
}

#[test]
fn changed_files_and_their_expiry_are_reported() {
    let world = World::new();
    let server = world.server();
    assert!(server.uses(&server.read().unwrap()));
    let authority = server.validities().authorities.unwrap();
    let mut soon = ca("soon");
    soon.not_after = rcgen::date_time_ymd(2030, 1, 1);
    let soon = Pair::self_signed(soon);
    world.files.certs("root.crt", &[&world.root.der, &soon.der]);
    let material = server.read().unwrap();
    assert!(!server.uses(&material));
    server.take(&material).unwrap();
    assert!(server.uses(&material));
    let now = server.validities().authorities.unwrap();
    assert_eq!(now.not_after, 1_893_456_000, "the earliest end of the bundle");
    assert!(now.not_after < authority.not_after);
}

#[test]
fn new_authorities_are_taken_beside_an_expired_pair_that_did_not_change() {
    let world = World::new();
    let mut expired = leaf(&["client.test"]);
    (expired.not_before, expired.not_after) =
        (rcgen::date_time_ymd(2000, 1, 1), rcgen::date_time_ymd(2001, 1, 1));
    world.files.pair("client", &world.root.issue(expired));
    let client = world.client();
    world.files.certs("root.crt", &[&Pair::self_signed(ca("other")).der]);
    reload(&client).unwrap();
    assert!(client.uses(&client.read().unwrap()));
}
