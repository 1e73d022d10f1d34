//! Certificates of peers before authentication: no bytes make the verification or the reading of names panic, and no certificate
//! is accepted but those that the authority of the seeds signed, bit for bit.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use net::tls::{PeerIdentity, ignore_legacy_pki, server_verifier};
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::input::Input;

/// The seeds that the authority signed, itself or by an intermediate.
const SIGNED: [&[u8]; 4] = [
    include_bytes!("../corpus/certificate/leaf"),
    include_bytes!("../corpus/certificate/leaf-without-constraints"),
    include_bytes!("../corpus/certificate/common-name-only"),
    include_bytes!("../corpus/certificate/chain"),
];

/// Trusts the authority of the seeds, and accepts legacy certificates.
static VERIFIER: LazyLock<Arc<dyn ServerCertVerifier>> = LazyLock::new(|| {
    let root = chain(include_bytes!("../corpus/certificate/authority")).remove(0).into_owned();
    server_verifier(vec![root], ignore_legacy_pki()).expect("a usable authority")
});

/// Each certificate has its length in two bytes before it; the first one is the peer's.
pub fn certificate(data: &[u8]) {
    let chain = chain(data);
    let Some((leaf, presented)) = chain.split_first() else { return };
    if is_accepted(leaf, presented) {
        let known = SIGNED.iter().any(|seed| self::chain(seed).first() == Some(leaf));
        assert!(known, "accepted {leaf:?}");
    }
    for der in &chain {
        if let Some(identity) = PeerIdentity::from_der(der) {
            assert!(!identity.to_string().contains('\n'), "{identity}");
        }
    }
}

fn is_accepted(leaf: &CertificateDer<'_>, presented: &[CertificateDer<'_>]) -> bool {
    // 2033: all seeds are valid.
    let now = UnixTime::since_unix_epoch(Duration::from_secs(2_000_000_000));
    let name = ServerName::try_from("server.example").expect("a name");
    VERIFIER.verify_server_cert(leaf, presented, &name, &[], now).is_ok()
}

fn chain(data: &[u8]) -> Vec<CertificateDer<'_>> {
    let mut input = Input::new(data);
    let mut chain = Vec::new();
    while !input.is_empty() {
        let length = usize::from(input.short());
        chain.push(CertificateDer::from(input.take(length)));
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::{SIGNED, chain, is_accepted};

    /// Otherwise the target would show nothing about acceptance.
    #[test]
    fn a_seed_is_accepted_by_the_strict_and_by_the_legacy_rules() {
        let accepted = SIGNED.map(|seed| {
            let chain = chain(seed);
            is_accepted(&chain[0], &chain[1..])
        });
        assert_eq!(accepted, [true, true, false, true], "a name only in the subject is never accepted");
    }
}
