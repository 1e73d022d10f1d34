//! The peer's identity by its certificate, for logs and for binding names to identities.

use std::fmt;
use std::net::IpAddr;

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The longest text of a peer in a log line, in bytes.
const MAX_IDENTITY_BYTES: usize = 256;

/// The names in a peer's verified certificate. Only the chain was verified: the names are those that the CA signed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The first common name of the subject.
    pub common_name: Option<String>,
    /// DNS names of the subject alternative names.
    pub dns: Vec<String>,
    /// IP addresses of the subject alternative names.
    pub ips: Vec<IpAddr>,
    /// URIs of the subject alternative names (for example SPIFFE ids).
    pub uris: Vec<String>,
}

impl PeerIdentity {
    /// Reads the names of a certificate; `None` if it does not parse.
    pub fn from_der(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, cert) = X509Certificate::from_der(der).ok()?;
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().ok().map(str::to_owned)
        };
        let mut found =
            Self { common_name: cert.subject().iter_common_name().find_map(text), ..Self::default() };
        if let Ok(Some(names)) = cert.subject_alternative_name() {
            for name in &names.value.general_names {
                match name {
                    GeneralName::DNSName(dns) => found.dns.push((*dns).to_owned()),
                    GeneralName::URI(uri) => found.uris.push((*uri).to_owned()),
                    GeneralName::IPAddress(bytes) => found.ips.extend(ip_address(bytes)),
                    _ => {}
                }
            }
        }
        Some(found)
    }

    /// The identity of the first certificate that a peer presented, if any.
    pub fn of(chain: Option<&[CertificateDer<'_>]>) -> Option<Self> {
        chain.and_then(<[_]>::first).and_then(Self::from_der)
    }
}

/// The subject of a certificate, in the form of RFC 4514; `None` if it does not parse.
pub fn subject(der: &CertificateDer<'_>) -> Option<String> {
    Some(X509Certificate::from_der(der).ok()?.1.subject().to_string())
}

pub(super) fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

impl fmt::Display for PeerIdentity {
    /// One short line for a log: the common name, otherwise the first alternative name. Control characters are escaped
    /// and long names truncated, because a peer may have chosen them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = self.ips.first().map(IpAddr::to_string);
        let name = self.common_name.as_ref().filter(|name| !name.is_empty());
        let name = name.or(self.dns.first()).or(self.uris.first()).or(ip.as_ref());
        let escaped: String =
            name.map_or("(no name)", |name| name).chars().flat_map(char::escape_debug).collect();
        let end = escaped.floor_char_boundary(MAX_IDENTITY_BYTES);
        f.write_str(&escaped[..end])
    }
}
