//! Peer names in logs.

use rcgen::{DnType, SanType};

use super::pki::{Pair, leaf};
use crate::tls::PeerIdentity;

#[test]
fn names_are_read_and_shown_safely() {
    let mut params = leaf(&["a.test", "10.0.0.1"]);
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("x\ny{}", "z".repeat(1000)));
    params.subject_alt_names.push(SanType::URI("spiffe://test/agent".try_into().unwrap()));
    let peer = PeerIdentity::from_der(&Pair::self_signed(params).der).unwrap();
    assert_eq!((peer.dns.len(), peer.ips.len(), peer.uris.len()), (1, 1, 1));
    let shown = peer.to_string();
    assert!(shown.starts_with("x\\ny") && shown.len() == 256, "{shown}");
    assert_eq!(PeerIdentity::default().to_string(), "(no name)");
    assert_eq!(PeerIdentity::from_der(&b"nonsense".to_vec().into()), None);
}
