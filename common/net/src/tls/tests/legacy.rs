//! Verdicts about unusual certificates. The column `go` has the verdict of `crypto/x509` of Go 1.26 for the same
//! certificates; where ours differs the case gives the reason.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose as Eku, GeneralSubtree, IsCa, KeyPair,
    KeyUsagePurpose, NameConstraints, SanType, SerialNumber,
};

use super::cases::{NAME, Role, World, ca_flag, expired, extension, with};
use super::pki::{Pair, ca, leaf, negative_serial, version_1};

/// One policy, 1.2.3.4.
const POLICIES: &[u8] = &[0x30, 0x07, 0x30, 0x05, 0x06, 0x03, 0x2a, 0x03, 0x04];

fn leaves(world: &mut World) {
    use Role::{Client, Server};
    let plain = world.root.issue(leaf(&[NAME]));
    world.add("plain", Server, &[&plain], true);
    world.add("plain client", Client, &[&plain], true);
    let ca_leaf = world.root.issue(with(leaf(&[NAME]), ca_flag));
    world.add("CA as leaf", Server, &[&ca_leaf], true);
    world.add("CA as leaf, client", Client, &[&ca_leaf], true);
    let old = world.root.issue(with(leaf(&[NAME]), |params| {
        ca_flag(params);
        expired(params);
    }));
    world.add("CA as leaf, expired", Server, &[&old], false);
    let other = world.root.issue(with(leaf(&["other.test"]), ca_flag));
    world.add("CA as leaf, wrong name", Server, &[&other], false);
    let foreign = world.unknown_ca.issue(with(leaf(&[NAME]), ca_flag));
    world.add("CA as leaf, wrong CA", Server, &[&foreign], false);
    world.add("CA as leaf, wrong CA, client", Client, &[&foreign], false);
    let below = world.middle.issue(with(leaf(&[NAME]), ca_flag));
    let middle = world.middle.clone_der();
    world.add("CA as leaf below an intermediate", Server, &[&below, &middle], true);
    let own = Pair::self_signed(with(leaf(&[NAME]), ca_flag));
    world.add_full("self-signed CA is its own leaf", Server, &[&own.der.clone()], &[&own], true, true);
    let own = Pair::self_signed(leaf(&[NAME]));
    world.add_full("self-signed leaf as root", Server, &[&own.der.clone()], &[&own], true, true);
    world.add("self-signed leaf, unknown", Server, &[&own], false);
    let pinned = world.unknown_ca.issue(leaf(&[NAME]));
    world.add_full("pinned leaf", Server, &[&pinned.der.clone()], &[&pinned], true, true);
    world.add_full("pinned leaf, client", Client, &[&pinned.der.clone()], &[&pinned], true, true);
    let negative = world.root.issue(leaf(&[NAME])).altered(Some(&world.root), negative_serial);
    // Go refuses to parse it; no code of ours depends on serial numbers.
    let root = world.root.der.clone();
    world.add_full("negative serial", Server, &[&root], &[&negative], false, true);
    let zero = with(leaf(&[NAME]), |params| params.serial_number = Some(SerialNumber::from_slice(&[0])));
    let zero = world.root.issue(zero);
    world.add("serial zero", Server, &[&zero], true);
    let version_1 = world.root.issue(leaf(&[NAME])).altered(Some(&world.root), version_1);
    world.add("version 1, no names", Server, &[&version_1], false);
    world.add("version 1, client", Client, &[&version_1], true);
    let critical = |oid: &'static [u64], content: &'static [u8]| {
        with(leaf(&[NAME]), |params| params.custom_extensions = vec![extension(oid, content)])
    };
    let policies = world.root.issue(critical(&[2, 5, 29, 32], POLICIES));
    world.add("critical policies", Server, &[&policies], true);
    let unknown = world.root.issue(critical(&[1, 2, 3, 4], &[5, 0]));
    world.add("critical unknown extension", Server, &[&unknown], false);
}

fn purposes(world: &mut World) {
    use Role::{Client, Server};
    let usage = |usages: Vec<Eku>| with(leaf(&[NAME]), |params| params.extended_key_usages = usages);
    let none = world.root.issue(usage(vec![]));
    world.add("no purpose", Server, &[&none], true);
    world.add("no purpose, client", Client, &[&none], true);
    let any = world.root.issue(usage(vec![Eku::Any]));
    world.add("any purpose", Server, &[&any], true);
    world.add("any purpose, client", Client, &[&any], true);
    let client = world.root.issue(usage(vec![Eku::ClientAuth]));
    world.add("client purpose as server", Server, &[&client], false);
    let server = world.root.issue(usage(vec![Eku::ServerAuth]));
    world.add("server purpose as client", Client, &[&server], false);
    let signing = world.root.issue(usage(vec![Eku::CodeSigning]));
    world.add("code signing", Server, &[&signing], false);
    let limited =
        world.root.issue(with(ca("limited"), |params| params.extended_key_usages = vec![Eku::ClientAuth]));
    let below = limited.issue(usage(vec![Eku::Any]));
    world.add("any purpose below a client CA", Server, &[&below, &limited], false);
    world.add("any purpose below a client CA, client", Client, &[&below, &limited], true);
    let broad = world.root.issue(with(ca("broad"), |params| params.extended_key_usages = vec![Eku::Any]));
    let below = broad.issue(leaf(&[NAME]));
    world.add("intermediate with any purpose", Server, &[&below, &broad], true);
}

fn chains(world: &mut World) {
    use Role::Server;
    let (root, middle) = (world.root.der.clone(), world.middle.clone_der());
    let below = world.middle.issue(leaf(&[NAME]));
    world.add("intermediate", Server, &[&below, &middle], true);
    world.add("intermediate missing", Server, &[&below], false);
    world.add_full("intermediate as root", Server, &[&middle.der.clone()], &[&below], true, true);
    let top = world.root.clone_der();
    world.add("root sent, wrong order", Server, &[&below, &top, &middle], true);
    let no_ca = world.root.issue(leaf(&["no-ca.test"]));
    let below_no_ca = no_ca.issue(leaf(&[NAME]));
    world.add("issued by a leaf", Server, &[&below_no_ca, &no_ca], false);
    let below_no_ca = no_ca.issue(with(leaf(&[NAME]), ca_flag));
    world.add("CA as leaf, issued by a leaf", Server, &[&below_no_ca, &no_ca], false);
    let short = world
        .root
        .issue(with(ca("short"), |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0))));
    let deep = short.issue(ca("deep"));
    let below_deep = deep.issue(with(leaf(&[NAME]), ca_flag));
    world.add("CA as leaf, path too long", Server, &[&below_deep, &deep, &short], false);
    let below_short = short.issue(with(leaf(&[NAME]), ca_flag));
    world.add("CA as leaf below path length 0", Server, &[&below_short, &short], true);
    let old = world.root.issue(with(ca("old"), expired));
    let below_old = old.issue(with(leaf(&[NAME]), ca_flag));
    world.add("CA as leaf, expired intermediate", Server, &[&below_old, &old], false);
    let no_sign = |params: &mut CertificateParams| params.key_usages = vec![KeyUsagePurpose::CrlSign];
    let weak = world.root.issue(with(ca("weak"), no_sign));
    let below_weak = weak.issue(with(leaf(&[NAME]), ca_flag));
    world.add("CA as leaf, issuer may not sign", Server, &[&below_weak, &weak], false);
    let old_root = Pair::self_signed(ca("v1")).altered(None, version_1);
    let below_v1 = old_root.issue(leaf(&[NAME]));
    world.add_full("root of version 1", Server, &[&old_root.der], &[&below_v1], true, true);
    let below_v1 = old_root.issue(with(leaf(&[NAME]), ca_flag));
    world.add_full(
        "CA as leaf below a root of version 1",
        Server,
        &[&old_root.der],
        &[&below_v1],
        true,
        true,
    );
    let unknown_ca = world.unknown_ca.der.clone();
    let plain = world.root.issue(with(leaf(&[NAME]), ca_flag));
    world.add_full("CA as leaf, two roots of one name", Server, &[&unknown_ca, &root], &[&plain], true, true);
    let narrow = with(ca("narrow"), |params| {
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("test".to_owned())],
            excluded_subtrees: vec![],
        });
    });
    let narrow = world.root.issue(narrow);
    let below = narrow.issue(leaf(&[NAME]));
    world.add("name constraints hold", Server, &[&below, &narrow], true);
    let below = narrow.issue(with(leaf(&[NAME]), ca_flag));
    // Left to webpki deliberately: a combination of two faults is not worth a second implementation.
    world.add_full("CA as leaf under name constraints", Server, &[&root], &[&below, &narrow], true, false);
}

fn names(world: &mut World) {
    use Role::Server;
    let none = world.root.issue(with(leaf(&[]), |params| {
        params.distinguished_name.push(rcgen::DnType::CommonName, NAME);
    }));
    world.add("common name only", Server, &[&none], false);
    let wildcard = world.root.issue(leaf(&["*.test"]));
    world.add("wildcard in front of one label", Server, &[&wildcard], true);
    let wildcard = world.root.issue(with(leaf(&["*.test"]), ca_flag));
    world.add("CA as leaf, wildcard in front of one label", Server, &[&wildcard], true);
    let wildcard = world.root.issue(with(leaf(&["*.test"]), |params| {
        params.custom_extensions = vec![extension(&[2, 5, 29, 32], POLICIES)];
    }));
    world.add("critical policies, wildcard in front of one label", Server, &[&wildcard], true);
    let misnamed = world.root.issue(with(leaf(&["other.test"]), |params| {
        params.custom_extensions = vec![extension(&[2, 5, 29, 32], POLICIES)];
    }));
    world.add("critical policies, wrong name", Server, &[&misnamed], false);
    let wildcard = world.unknown_ca.issue(leaf(&["*.test"]));
    world.add("wildcard in front of one label, wrong CA", Server, &[&wildcard], false);
    for (name, of) in
        [("wildcard of another label", "*.other"), ("bare wildcard", "*"), ("wildcard inside", "s*.test")]
    {
        let wildcard = world.root.issue(leaf(&[of]));
        world.add(name, Server, &[&wildcard], false);
    }
    let mut malformed = leaf(&[]);
    malformed.subject_alt_names = ["server.test:8080", "*.*.x", "a b", NAME]
        .map(|name| SanType::DnsName(name.try_into().unwrap()))
        .to_vec();
    let malformed = world.root.issue(malformed);
    world.add("malformed names beside the right one", Server, &[&malformed], true);
    let mut ip = leaf(&[]);
    ip.subject_alt_names = vec![SanType::IpAddress(IpAddr::from([10, 0, 0, 1]))];
    let ip = world.root.issue(ip);
    world.add("address only, name wanted", Server, &[&ip], false);
}

fn keys(world: &mut World) {
    let algorithms: [(&'static str, &'static rcgen::SignatureAlgorithm); 4] = [
        ("P-384", &rcgen::PKCS_ECDSA_P384_SHA384),
        ("P-521", &rcgen::PKCS_ECDSA_P521_SHA512),
        ("Ed25519", &rcgen::PKCS_ED25519),
        ("RSA", &rcgen::PKCS_RSA_SHA256),
    ];
    for (name, algorithm) in algorithms {
        let root = Pair::self_signed_by(ca(name), KeyPair::generate_for(algorithm).unwrap());
        let key = KeyPair::generate_for(algorithm).unwrap();
        let legacy = root.issue_for(with(leaf(&[NAME]), ca_flag), key);
        world.add_full(name, Role::Server, &[&root.der], &[&legacy], true, true);
    }
}

#[test]
fn verdicts_are_those_of_go() {
    let mut world = World::new();
    leaves(&mut world);
    purposes(&mut world);
    chains(&mut world);
    names(&mut world);
    keys(&mut world);
    assert_eq!(world.wrong(), Vec::<String>::new());
    let legacy = world.cases.iter().filter(|case| matches!(case.verdict(), Ok(Some(_)))).count();
    assert!(legacy > 10, "the observer was not called");
}
