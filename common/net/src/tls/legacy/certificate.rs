//! One certificate for the chain check: its parsed fields, and the raw bytes that are signed.

use std::net::IpAddr;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::asn1_rs::Any;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{X509Name, X509Version};

use crate::tls::Validity;
use crate::tls::identity::ip_address;

/// The longest name in an error, in characters.
const MAX_NAME_CHARS: usize = 80;

/// The role in which the holder uses the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Server,
    Client,
}

impl Purpose {
    /// Its name in logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    /// The purpose for webpki.
    pub(super) fn required(self) -> webpki::KeyUsage {
        match self {
            Self::Server => webpki::KeyUsage::server_auth(),
            Self::Client => webpki::KeyUsage::client_auth(),
        }
    }
}

/// A well-formed certificate.
pub(super) struct Certificate<'a> {
    pub(super) der: &'a [u8],
    parsed: X509Certificate<'a>,
    /// Contents of the outer signatureAlgorithm.
    signature_algorithm: &'a [u8],
    /// Contents of the key's algorithm identifier.
    key_algorithm: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// `None` if the certificate, or a part of it that is read here, is malformed.
    pub(super) fn parse(der: &'a CertificateDer<'_>) -> Option<Self> {
        let (rest, parsed) = X509Certificate::from_der(der).ok()?;
        let consistent = parsed.tbs_certificate.signature == parsed.signature_algorithm;
        if !rest.is_empty() || !consistent || parsed.extensions_map().is_err() {
            return None;
        }
        let (_, outer) = Any::from_der(der).ok()?;
        let (after_tbs, _) = Any::from_der(outer.data).ok()?;
        let (_, signature_algorithm) = Any::from_der(after_tbs).ok()?;
        let key_info: &'a [u8] = parsed.tbs_certificate.subject_pki.raw;
        let (_, key) = Any::from_der(key_info).ok()?;
        let (_, key_algorithm) = Any::from_der(key.data).ok()?;
        Some(Self {
            der: der.as_ref(),
            signature_algorithm: signature_algorithm.data,
            key_algorithm: key_algorithm.data,
            parsed,
        })
    }

    /// The key as encoded in the certificate.
    pub(super) fn public_key_info(&self) -> &'a [u8] {
        self.parsed.tbs_certificate.subject_pki.raw
    }

    /// True if this certificate names `issuer` as its issuer.
    pub(super) fn names_issuer(&self, issuer: &Certificate<'_>) -> bool {
        self.parsed.issuer().as_raw() == issuer.raw_subject()
    }

    /// The subject's name as the certificate encodes it.
    pub(super) fn raw_subject(&self) -> &[u8] {
        self.parsed.subject().as_raw()
    }

    /// The issuer's name, for an error.
    pub(super) fn issuer(&self) -> String {
        shown(self.parsed.issuer())
    }

    /// The subject's name, for an error.
    pub(super) fn subject(&self) -> String {
        shown(self.parsed.subject())
    }

    /// True if both are the same entity: same name, same key.
    pub(super) fn same_entity(&self, other: &Certificate<'_>) -> bool {
        self.raw_subject() == other.raw_subject() && self.public_key_info() == other.public_key_info()
    }

    /// True if `issuer`'s key made this certificate's signature.
    pub(super) fn signed_by(&self, issuer: &Certificate<'_>, algorithms: WebPkiSupportedAlgorithms) -> bool {
        let key = &issuer.parsed.public_key().subject_public_key.data;
        algorithms
            .all
            .iter()
            .filter(|candidate| {
                candidate.signature_alg_id().as_ref() == self.signature_algorithm
                    && candidate.public_key_alg_id().as_ref() == issuer.key_algorithm
            })
            .any(|candidate| {
                let signed = self.parsed.tbs_certificate.as_ref();
                candidate.verify_signature(key, signed, &self.parsed.signature_value.data).is_ok()
            })
    }

    pub(super) fn validity(&self) -> Validity {
        Validity::from(self.parsed.validity())
    }

    /// True if the chain check implements every critical extension. Name constraints are not among them: webpki judges
    /// a CA that has any, critical or not.
    pub(super) fn understood(&self) -> bool {
        let names = |extension: &X509Extension<'_>| {
            matches!(extension.parsed_extension(), ParsedExtension::NameConstraints(_))
        };
        self.parsed.extensions().iter().all(|extension| !names(extension) && read(extension))
    }

    /// The same for an authority to which webpki found a path: webpki has applied the name constraints, and neither
    /// webpki nor Go applies an authority's policies to the authority itself.
    pub(super) fn understood_as_authority(&self) -> bool {
        self.parsed.extensions().iter().all(|extension| match extension.parsed_extension() {
            ParsedExtension::NameConstraints(_)
            | ParsedExtension::PolicyMappings(_)
            | ParsedExtension::PolicyConstraints(_)
            | ParsedExtension::InhibitAnyPolicy(_)
            | ParsedExtension::CRLDistributionPoints(_) => true,
            ParsedExtension::ParseError { .. } => !extension.critical && !is_read_by_go(extension),
            _ => read(extension),
        })
    }

    /// True if no extended key usage excludes the purpose.
    pub(super) fn permits(&self, purpose: Purpose) -> bool {
        let Ok(usage) = self.parsed.extended_key_usage() else { return false };
        usage.is_none_or(|usage| match purpose {
            _ if usage.value.any => true,
            Purpose::Server => usage.value.server_auth,
            Purpose::Client => usage.value.client_auth,
        })
    }

    /// True if one of the alternative names is `name`; common names do not count.
    pub(super) fn is_for(&self, name: &ServerName<'_>) -> bool {
        let Ok(Some(names)) = self.parsed.subject_alternative_name() else { return false };
        names.value.general_names.iter().any(|presented| match (presented, name) {
            (GeneralName::DNSName(presented), ServerName::DnsName(wanted)) => {
                same_name(presented, wanted.as_ref())
            }
            (GeneralName::IPAddress(presented), ServerName::IpAddress(wanted)) => {
                ip_address(presented) == Some(IpAddr::from(*wanted))
            }
            _ => false,
        })
    }

    /// The highest number of intermediates below it, if it sets one.
    pub(super) fn path_length(&self) -> Option<usize> {
        let constraints = self.parsed.basic_constraints().ok()??;
        constraints.value.path_len_constraint.map(|most| most as usize)
    }

    /// True if the certificate may sign others; `root` is whether it is in the CA file. A version 1 certificate cannot
    /// state that it is a CA, so it is trusted as a root only. A key usage without any bit counts as absent, as in Go.
    pub(super) fn may_issue(&self, root: bool, intermediates_below: usize) -> bool {
        let (Ok(constraints), Ok(usage)) = (self.parsed.basic_constraints(), self.parsed.key_usage()) else {
            return false;
        };
        let usage = usage.is_none_or(|found| found.value.flags == 0 || found.value.key_cert_sign());
        let ca = match constraints.map(|found| found.value) {
            Some(found) => found.ca && self.path_length().is_none_or(|most| intermediates_below <= most),
            None => root && self.parsed.version() != X509Version::V3,
        };
        ca && usage
    }
}

/// True if the extension was read, or does not have to be.
fn read(extension: &X509Extension<'_>) -> bool {
    match extension.parsed_extension() {
        ParsedExtension::ParseError { .. } => false,
        ParsedExtension::BasicConstraints(_)
        | ParsedExtension::KeyUsage(_)
        | ParsedExtension::ExtendedKeyUsage(_)
        | ParsedExtension::SubjectAlternativeName(_)
        | ParsedExtension::CertificatePolicies(_) => true,
        _ => !extension.critical,
    }
}

/// True if Go refuses a certificate in which it cannot read this extension: most of X.509's own (2.5.29, except the
/// issuer's alternative names), and authority information access. Source: `processExtensions` of crypto/x509.
fn is_read_by_go(extension: &X509Extension<'_>) -> bool {
    let oid = extension.oid.to_id_string();
    (oid.starts_with("2.5.29.") && oid != "2.5.29.18") || oid == "1.3.6.1.5.5.7.1.1"
}

/// At most [`MAX_NAME_CHARS`] characters of a name, without control characters.
fn shown(name: &X509Name<'_>) -> String {
    let text: String = name.to_string().chars().filter(|c| !c.is_control()).take(MAX_NAME_CHARS).collect();
    if text.is_empty() { "an authority without a name".to_owned() } else { text }
}

pub(super) fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Compares as Go does: ignores case; `*` matches exactly the first label.
fn same_name(presented: &str, wanted: &str) -> bool {
    let wanted = wanted.strip_suffix('.').unwrap_or(wanted);
    if !presented.contains('*') {
        return !presented.is_empty() && presented.eq_ignore_ascii_case(wanted);
    }
    let (Some(presented), Some((first, rest))) = (presented.strip_prefix("*."), wanted.split_once('.'))
    else {
        return false;
    };
    !first.is_empty() && !rest.is_empty() && presented.eq_ignore_ascii_case(rest)
}
