//! Verdicts about authorities: what a certificate of a CA file may issue. The column `go` has the verdict of
//! `crypto/x509` of Go 1.26 for the same certificates.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose as Eku,
    GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints, date_time_ymd,
};
use rustls::{CertificateError, Error};
use rustls_pki_types::UnixTime;

use super::cases::{NAME, Role, World, ca_flag, expired, extension, with};
use super::pki::{Pair, ca, leaf, version_1};
use super::world::World as Ends;
use crate::tls::LegacyPki;

/// A root that is a CA except for `change`.
fn root(change: impl FnOnce(&mut CertificateParams)) -> Pair {
    Pair::self_signed(with(ca("authority"), change))
}

/// An ordinary certificate for both purposes, with another name than its issuer.
fn end(params: &mut CertificateParams) {
    params.distinguished_name.push(DnType::CommonName, "end");
}

fn issued(issuer: &Pair) -> Pair {
    issuer.issue(with(leaf(&[NAME]), end))
}

fn not_yet(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(3000, 1, 1);
    params.not_after = date_time_ymd(3001, 1, 1);
}

fn path_length(most: u8) -> impl FnOnce(&mut CertificateParams) {
    move |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(most))
}

fn usages(usages: &[KeyUsagePurpose]) -> impl FnOnce(&mut CertificateParams) {
    let usages = usages.to_vec();
    move |params| params.key_usages = usages
}

fn purpose(purpose: Eku) -> impl FnOnce(&mut CertificateParams) {
    move |params| params.extended_key_usages = vec![purpose]
}

fn critical(oid: &'static [u64], content: &'static [u8]) -> impl FnOnce(&mut CertificateParams) {
    move |params| params.custom_extensions = vec![extension(oid, content)]
}

impl World {
    /// Adds a case for both roles, with the same verdict as Go.
    fn both(&mut self, name: &'static str, roots: &[&Pair], chain: &[&Pair], go: bool) {
        for role in [Role::Server, Role::Client] {
            self.one(name, role, roots, chain, go);
        }
    }

    fn one(&mut self, name: &'static str, role: Role, roots: &[&Pair], chain: &[&Pair], go: bool) {
        let roots: Vec<_> = roots.iter().map(|root| &root.der).collect();
        self.add_full(name, role, &roots, chain, go, go);
    }
}

fn times(world: &mut World) {
    let key = KeyPair::generate().unwrap().serialize_der();
    let key = || KeyPair::try_from(key.as_slice()).unwrap();
    let old = Pair::self_signed_by(with(ca("authority"), expired), key());
    let renewed = Pair::self_signed_by(ca("authority"), key());
    let below = issued(&old);
    world.both("expired", &[&old], &[&below], false);
    world.both("expired, sent as well", &[&old], &[&below, &old], false);
    world.both("expired, its renewed copy sent", &[&old], &[&below, &renewed], false);
    world.both("expired, then renewed", &[&old, &renewed], &[&below], true);
    world.both("renewed, then expired", &[&renewed, &old], &[&below], true);
    let other = root(|_| ());
    world.both("expired beside one that is not", &[&old, &other], &[&below], false);
    world.both("expired behind one that is not", &[&other, &old], &[&below], false);
    world.both("below the one that is not", &[&old, &other], &[&issued(&other)], true);
    let crossed = other.issue_for(ca("authority"), key());
    world.both("expired, crossed by one that is not", &[&old, &other], &[&below, &crossed], true);
    let early = root(not_yet);
    world.both("not yet valid", &[&early], &[&issued(&early)], false);
    let middle = old.issue(ca("middle"));
    let below = issued(&middle);
    world.both("expired above an intermediate", &[&old], &[&below, &middle], false);
    world.both("intermediate beside expired", &[&old, &middle], &[&below, &middle], true);
    let old_1 = root(expired).altered(None, version_1);
    world.both("expired, version 1", &[&old_1], &[&issued(&old_1)], false);
    let legacy = old.issue(with(leaf(&[NAME]), ca_flag));
    world.both("expired above a CA as leaf", &[&old], &[&legacy], false);
}

/// A certificate in the CA file is trusted for itself; that does not make it a CA.
fn pinned(world: &mut World) {
    let pinned = root(|_| ()).issue(leaf(&[NAME]));
    world.both("pinned", &[&pinned], &[&pinned], true);
    world.both("minted by a pinned leaf", &[&pinned], &[&issued(&pinned)], false);
    world.both("minted by a pinned leaf, which is sent", &[&pinned], &[&issued(&pinned), &pinned], false);
    let minted_ca = pinned.issue(ca("minted"));
    world.both("below a CA minted by a pinned leaf", &[&pinned], &[&issued(&minted_ca), &minted_ca], false);
    let legacy = pinned.issue(with(leaf(&[NAME]), ca_flag));
    world.both("CA as leaf, minted by a pinned leaf", &[&pinned], &[&legacy], false);
    let good = world.root.clone_der();
    world.both("pinned beside a CA", &[&pinned, &good], &[&pinned], true);
    world.both("minted by a pinned leaf beside a CA", &[&pinned, &good], &[&issued(&pinned)], false);
    world.both("below the CA beside it", &[&pinned, &good], &[&issued(&world.root)], true);
    let own = Pair::self_signed(leaf(&[NAME]));
    world.both("pinned, self-signed", &[&own], &[&own], true);
    world.both("minted by a self-signed leaf", &[&own], &[&issued(&own)], false);
    let told = Pair::self_signed(with(leaf(&[NAME]), |params| params.is_ca = IsCa::ExplicitNoCa));
    world.both("minted by what says that it is no CA", &[&told], &[&issued(&told)], false);
    let old = root(expired);
    let below = issued(&old);
    world.both("pinned below an expired CA", &[&old, &below], &[&below], true);
}

fn rights(world: &mut World) {
    let crl_only = root(usages(&[KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature]));
    world.both("may not sign", &[&crl_only], &[&issued(&crl_only)], false);
    let silent = root(usages(&[]));
    world.both("no key usage", &[&silent], &[&issued(&silent)], true);
    let empty = root(|params| {
        params.key_usages = vec![];
        params.custom_extensions = vec![extension(&[2, 5, 29, 15], &[3, 1, 0])];
    });
    world.both("empty key usage", &[&empty], &[&issued(&empty)], true);
    let old = root(|_| ()).altered(None, version_1);
    world.both("version 1", &[&old], &[&issued(&old)], true);
    let for_clients = root(purpose(Eku::ClientAuth));
    let below = issued(&for_clients);
    world.one("for clients", Role::Server, &[&for_clients], &[&below], false);
    world.one("for clients", Role::Client, &[&for_clients], &[&below], true);
    let for_servers = root(purpose(Eku::ServerAuth));
    let below = issued(&for_servers);
    world.one("for servers", Role::Server, &[&for_servers], &[&below], true);
    world.one("for servers", Role::Client, &[&for_servers], &[&below], false);
    let for_any = root(purpose(Eku::Any));
    world.both("for any purpose", &[&for_any], &[&issued(&for_any)], true);
    let for_code = root(purpose(Eku::CodeSigning));
    world.both("for code", &[&for_code], &[&issued(&for_code)], false);
}

/// Extensions that Go does not read, with invalid contents.
fn unread(world: &mut World) {
    for (name, oid, go) in [
        ("Netscape's comment, not in its alphabet", [2, 16, 840, 1, 113_730, 1, 13].as_slice(), true),
        ("the issuer's other names, cut off", &[2, 5, 29, 18], true),
        ("key usage, cut off", &[2, 5, 29, 15], false),
    ] {
        let legacy = root(|params| {
            params.key_usages = vec![];
            params.custom_extensions = vec![CustomExtension::from_oid_content(oid, vec![0x16, 2, 0xfc])];
        });
        world.both(name, &[&legacy], &[&issued(&legacy)], go);
    }
}

fn intermediates(world: &mut World) {
    let top = root(|_| ());
    let crl_only = top.issue(with(ca("middle"), usages(&[KeyUsagePurpose::CrlSign])));
    let silent = top.issue(with(ca("middle"), usages(&[])));
    world.both("intermediate that may not sign", &[&top], &[&issued(&crl_only), &crl_only], false);
    world.both("intermediate without key usage", &[&top], &[&issued(&silent), &silent], true);
    let plain = top.issue(ca("plain"));
    world.both("one that may not sign is sent beside", &[&top], &[&issued(&plain), &plain, &crl_only], true);
    world.both("something else is sent beside", &[&top], &[&issued(&top), &issued(&top)], true);
}

fn path_lengths(world: &mut World) {
    let short = root(path_length(0));
    let direct = issued(&short);
    world.both("path length 0", &[&short], &[&direct], true);
    world.both(
        "path length 0, more sent than needed",
        &[&short],
        &[&direct, &short, &world.middle.clone_der()],
        true,
    );
    let middle = short.issue(ca("middle"));
    let below = issued(&middle);
    world.both("path length 0 above an intermediate", &[&short], &[&below, &middle], false);
    let long = Pair::self_signed(ca("long"));
    world.both("path length 0 before an unlimited one", &[&short, &long], &[&below, &middle], false);
    world.both("path length 0 behind an unlimited one", &[&long, &short], &[&below, &middle], false);
    world.both("path length 0, intermediate trusted", &[&short, &middle], &[&below, &middle], true);
    let one = root(path_length(1));
    let middle = one.issue(ca("middle"));
    let below = issued(&middle);
    world.both("path length 1 above an intermediate", &[&one], &[&below, &middle], true);
    let deep = middle.issue(ca("deep"));
    let below = issued(&deep);
    world.both("path length 1 above two", &[&one], &[&below, &deep, &middle], false);
}

fn extensions(world: &mut World) {
    let unknown = root(critical(&[1, 2, 3, 4], &[5, 0]));
    world.both("critical unknown extension", &[&unknown], &[&issued(&unknown)], false);
    let marked = root(critical(&[2, 5, 29, 35], &[0x30, 0]));
    world.both("critical key identifier", &[&marked], &[&issued(&marked)], false);
    let noted = root(|params| {
        let mut note = extension(&[1, 2, 3, 4], &[5, 0]);
        note.set_criticality(false);
        params.custom_extensions = vec![note];
    });
    world.both("unknown extension", &[&noted], &[&issued(&noted)], true);
    // Extensions that Go reads, without effect on an authority.
    for (name, oid, content) in [
        ("critical policies", &[2, 5, 29, 32], &[0x30, 7, 0x30, 5, 6, 3, 0x2a, 3, 4][..]),
        ("critical policy constraints", &[2, 5, 29, 36], &[0x30, 3, 0x80, 1, 0]),
        ("critical inhibited policy", &[2, 5, 29, 54], &[2, 1, 0]),
        (
            "critical policy mappings",
            &[2, 5, 29, 33],
            &[0x30, 12, 0x30, 10, 6, 3, 0x2a, 3, 4, 6, 3, 0x2a, 3, 5],
        ),
        ("critical revocation lists", &[2, 5, 29, 31], &[0x30, 8, 0x30, 6, 0xa0, 4, 0xa0, 2, 0x86, 0]),
    ] {
        let read = root(critical(oid, content));
        world.both(name, &[&read], &[&issued(&read)], true);
    }
    for (name, within, go) in
        [("name constraints hold", "test", true), ("name constraints do not", "other", false)]
    {
        let narrow = root(|params| {
            params.name_constraints = Some(NameConstraints {
                permitted_subtrees: vec![GeneralSubtree::DnsName(within.to_owned())],
                excluded_subtrees: vec![],
            });
        });
        world.both(name, &[&narrow], &[&issued(&narrow)], go);
    }
}

/// All cases.
fn table() -> World {
    let mut world = World::new();
    times(&mut world);
    pinned(&mut world);
    rights(&mut world);
    unread(&mut world);
    intermediates(&mut world);
    path_lengths(&mut world);
    extensions(&mut world);
    world
}

#[test]
fn authorities_are_judged_as_by_go() {
    let world = table();
    assert_eq!(world.wrong(), Vec::<String>::new());
    for case in &world.cases {
        let legacy = case.name.starts_with("pinned").then_some(LegacyPki::PinnedLeaf);
        assert_eq!(case.verdict().unwrap_or(legacy), legacy, "{}", case.name);
    }
}

#[test]
fn refusals_name_the_reason() {
    for case in table().cases.iter().filter(|case| !case.ours) {
        let Err(Error::InvalidCertificate(why)) = case.verdict() else {
            panic!("{}: accepted", case.name);
        };
        let expected = match case.name {
            "not yet valid" => matches!(why, CertificateError::NotValidYetContext { .. }),
            "name constraints do not" => matches!(why, CertificateError::Other(_)),
            name if name.starts_with("expired") && !name.ends_with("CA as leaf") => {
                matches!(why, CertificateError::ExpiredContext { .. })
            }
            _ => why == CertificateError::UnknownIssuer,
        };
        assert!(expected, "{}: {why:?}", case.name);
    }
}

/// Anybody may send them. Eight forged ones of one name took webpki 230,000 parsed certificates.
#[test]
fn intermediates_of_a_peer_are_limited() {
    let top = root(|_| ());
    let own = issued(&top);
    let forged = |names: &[&str]| names.iter().map(|name| Pair::self_signed(ca(name))).collect::<Vec<_>>();
    for (names, refused) in [
        (&["a", "b", "c", "d", "e", "f", "g", "h"][..], None),
        (&["a", "b", "c", "d", "e", "f", "g", "h", "i"], Some("more than 8 intermediate certificates")),
        (&["a", "a", "a", "b", "b", "b"], None),
        (&["a", "b", "a", "a", "a"], Some("more than 3 intermediate certificates with one subject")),
    ] {
        let others = forged(names);
        let chain: Vec<_> = std::iter::once(&own).chain(&others).collect();
        let mut world = World::new();
        world.both("with others", &[&top], &chain, true);
        for case in &world.cases {
            match (case.verdict(), refused) {
                (Ok(_), None) => {}
                (Err(Error::General(told)), Some(text)) => assert!(told.contains(text), "{told}"),
                (verdict, _) => panic!("{names:?}: {verdict:?}"),
            }
        }
    }
}

#[test]
fn the_first_and_the_last_second_are_within() {
    let (first, last) = (946_684_800, 978_307_200);
    let mut world = World::new();
    let year = root(expired);
    world.both("of one year", &[&year], &[&issued(&year)], false);
    for case in &world.cases {
        for (now, good) in [(first - 1, false), (first, true), (last, true), (last + 1, false)] {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
            assert_eq!(case.verdict_at(now).is_ok(), good, "{now:?}");
        }
    }
}

#[tokio::test]
async fn handshakes_end_with_the_authority() {
    let (old, pinned) = (root(expired), Pair::self_signed(leaf(&[NAME])));
    for (ca, text) in [(&old, "certificate expired"), (&pinned, "UnknownIssuer")] {
        let mut world = Ends::new();
        let file = world.files.certs("authority", &[&ca.der]);
        world.client.identity = Some(world.files.pair("minted", &issued(ca)));
        world.server.client_ca = Some(file.clone());
        let told = world.shake().await.refused_by_server();
        assert!(told.contains(text), "{told}");
        (world.server.cert, world.server.key) = world.files.pair("minted", &issued(ca));
        world.client.ca = Some(file);
        let told = world.shake().await.refused_by_client();
        assert!(told.contains(text), "{told}");
    }
}
