//! Lists of certificate names that are admitted.

use std::sync::Arc;

use net::tls::PeerIdentity;

/// A list of names. The empty list admits every verified certificate. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedNames(Arc<[String]>);

impl AllowedNames {
    /// Names as in certificates: common names, DNS names, URIs, addresses. They are compared byte by byte; a wildcard is
    /// compared like any other name.
    pub fn new(names: Vec<String>) -> Self {
        Self(names.into())
    }

    /// Whether the certificate has one of these names.
    pub fn allow(&self, certificate: &PeerIdentity) -> bool {
        let texts = certificate.common_name.iter().chain(&certificate.dns).chain(&certificate.uris);
        self.0.is_empty()
            || texts.into_iter().any(|name| self.0.contains(name))
            || certificate.ips.iter().any(|ip| self.0.contains(&ip.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_of_the_certificate_counts() {
        let certificate = PeerIdentity {
            common_name: Some("front".into()),
            dns: vec!["a.example".into()],
            uris: vec!["spiffe://x/y".into()],
            ips: vec!["10.0.0.1".parse().unwrap()],
        };
        let allows = |names: &[&str]| {
            AllowedNames::new(names.iter().map(|n| (*n).to_owned()).collect()).allow(&certificate)
        };
        assert!(allows(&[]) && AllowedNames::default().allow(&PeerIdentity::default()));
        for name in ["front", "a.example", "spiffe://x/y", "10.0.0.1"] {
            assert!(allows(&["x", name]), "{name}");
        }
        for name in ["Front", "*.example", "", "ront"] {
            assert!(!allows(&[name]), "{name}");
        }
        assert!(!AllowedNames::new(vec![String::new()]).allow(&PeerIdentity::default()));
    }
}
