//! Certificate authorities, certificates and files for tests.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose as Eku, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SigningKey,
};
use rustls_pki_types::CertificateDer;
use tempfile::TempDir;

/// A certificate and its key.
pub(super) struct Pair {
    pub(super) der: CertificateDer<'static>,
    pub(super) key: KeyPair,
    params: CertificateParams,
}

/// Parameters of an ordinary certificate for both purposes.
pub(super) fn leaf(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, "leaf");
    params.extended_key_usages = vec![Eku::ServerAuth, Eku::ClientAuth];
    params.use_authority_key_identifier_extension = false;
    params
}

/// Parameters of a CA certificate.
pub(super) fn ca(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

impl Pair {
    pub(super) fn self_signed(params: CertificateParams) -> Self {
        Self::self_signed_by(params, KeyPair::generate().unwrap())
    }

    pub(super) fn self_signed_by(params: CertificateParams, key: KeyPair) -> Self {
        let der = params.self_signed(&key).unwrap().der().clone();
        Self { der, key, params }
    }

    pub(super) fn issue(&self, params: CertificateParams) -> Self {
        self.issue_for(params, KeyPair::generate().unwrap())
    }

    pub(super) fn issue_for(&self, params: CertificateParams, key: KeyPair) -> Self {
        let issuer = Issuer::from_params(&self.params, &self.key);
        let der = params.signed_by(&key, &issuer).unwrap().der().clone();
        Self { der, key, params }
    }

    /// A copy of the certificate, for a chain; the key is a new one.
    pub(super) fn clone_der(&self) -> Self {
        Self { der: self.der.clone(), key: KeyPair::generate().unwrap(), params: self.params.clone() }
    }

    /// The same certificate with another body, signed again by `issuer`.
    pub(super) fn altered(mut self, issuer: Option<&Pair>, alter: fn(Vec<Vec<u8>>) -> Vec<Vec<u8>>) -> Self {
        let outer = elements(&contents(&self.der));
        let body = tlv(0x30, &alter(elements(&contents(&outer[0]))).concat());
        let signature = issuer.map_or(&self.key, |issuer| &issuer.key).sign(&body).unwrap();
        let bits = tlv(0x03, &[&[0], signature.as_slice()].concat());
        self.der = CertificateDer::from(tlv(0x30, &[body, outer[1].clone(), bits].concat()));
        self
    }
}

/// Turns a certificate's body into one of version 1: no version, no extensions.
pub(super) fn version_1(mut body: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    body.retain(|element| element[0] != 0xa0 && element[0] != 0xa3);
    body
}

/// Makes a certificate's serial number negative.
pub(super) fn negative_serial(mut body: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    body[1] = tlv(0x02, &[0x85, 1, 2]);
    body
}

fn tlv(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = u16::try_from(contents.len()).unwrap().to_be_bytes();
    let head: Vec<u8> = match contents.len() {
        short @ 0..128 => vec![tag, short as u8],
        128..256 => vec![tag, 0x81, length[1]],
        _ => vec![tag, 0x82, length[0], length[1]],
    };
    [head.as_slice(), contents].concat()
}

/// Returns where the contents of the first element of `der` begin and end.
fn first(der: &[u8]) -> (usize, usize) {
    match der[1] {
        0x81 => (3, 3 + usize::from(der[2])),
        0x82 => (4, 4 + usize::from(u16::from_be_bytes([der[2], der[3]]))),
        short => (2, 2 + usize::from(short)),
    }
}

fn contents(der: &[u8]) -> Vec<u8> {
    let (start, end) = first(der);
    der[start..end].to_vec()
}

fn elements(mut der: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while !der.is_empty() {
        let (_, end) = first(der);
        found.push(der[..end].to_vec());
        der = &der[end..];
    }
    found
}

/// A directory of PEM files that is deleted at the end of the test.
pub(super) struct Files {
    dir: TempDir,
}

impl Files {
    pub(super) fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub(super) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a bundle of certificates.
    pub(super) fn certs(&self, name: &str, certs: &[&CertificateDer<'_>]) -> PathBuf {
        self.write(name, pem(certs))
    }

    /// Writes a certificate with its key.
    pub(super) fn pair(&self, name: &str, pair: &Pair) -> (PathBuf, PathBuf) {
        let cert = self.certs(&format!("{name}.crt"), &[&pair.der]);
        (cert, self.write(&format!("{name}.key"), pair.key.serialize_pem()))
    }
}

/// PEM, 64 columns wide, as all tools write it.
pub(super) fn pem(certs: &[&CertificateDer<'_>]) -> String {
    certs.iter().map(|der| block("CERTIFICATE", der)).collect()
}

/// One PEM block.
pub(super) fn block(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in der.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit > chunk.len() { '=' } else { char::from(ALPHABET[index]) });
        }
        if text.len() % 65 == 64 {
            text.push('\n');
        }
    }
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", text.trim_end())
}
