//! Errors of files that cannot be used, and the files that can.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::pki::{Files, Pair, block, ca, leaf, pem};
use crate::tls::{
    CipherSuites, ClientTls, ClientTlsOptions, ServerTls, ServerTlsOptions, TlsVersion, ignore_legacy_pki,
};

fn load(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> Result<ServerTls, String> {
    let options = ServerTlsOptions {
        cert,
        key,
        client_ca,
        min_version: TlsVersion::default(),
        suites: CipherSuites::default(),
    };
    ServerTls::load(options, ignore_legacy_pki()).map_err(|error| error.to_string())
}

/// Loads, and checks that the refusal is one line with all of `words`.
#[track_caller]
fn refused(loaded: Result<ServerTls, String>, words: &[&str]) {
    let Err(text) = loaded else { panic!("must be refused") };
    assert!(!text.contains('\n'), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn bad_files_are_named() {
    let files = Files::new();
    let root = Pair::self_signed(ca("root"));
    let server = root.issue(leaf(&["server.test"]));
    let (cert, key) = files.pair("server", &server);
    let other_key = files.write("other.key", root.key.serialize_pem());
    let empty = files.write("empty", "");
    let missing = cert.with_file_name("missing");
    let directory = cert.parent().unwrap().to_owned();

    refused(load(missing.clone(), key.clone(), None), &["missing", "no such file"]);
    refused(load(cert.clone(), missing, None), &["missing", "no such file"]);
    refused(load(directory, key.clone(), None), &["directory"]);
    refused(load(cert.clone(), other_key, None), &["other.key", "server.crt", "does not match"]);
    refused(load(empty.clone(), key.clone(), None), &["empty", "no certificate"]);
    refused(load(cert.clone(), empty.clone(), None), &["empty", "no private key"]);
    refused(load(cert.clone(), cert.clone(), None), &["server.crt", "no private key"]);
    refused(load(cert.clone(), key.clone(), Some(empty)), &["empty", "no certificate"]);

    let cut = files.write("cut", &pem(&[&server.der])[..200]);
    refused(load(cut, key.clone(), None), &["cut", "block number 1 ", "no END line"]);
    let not_base64 = files.write("chars", "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n");
    refused(load(not_base64.clone(), key.clone(), None), &["chars", "block number 1 ", "base64"]);
    // Go's v0.36 accepts the good blocks; newer versions refuse the file.
    let bundle = pem(&[&server.der]) + &std::fs::read_to_string(not_base64).unwrap() + &pem(&[&server.der]);
    let bundle = files.write("bundle", bundle);
    refused(load(cert.clone(), key.clone(), Some(bundle)), &["bundle", "block number 2 ", "base64"]);
    let nonsense = files.write("nonsense", pem(&[&server.der]) + &block("CERTIFICATE", b"nonsense!"));
    refused(load(nonsense, key.clone(), None), &["nonsense", "number 2", "not an X.509"]);
    let longer = files.write("longer", block("CERTIFICATE", &[server.der.as_ref(), &[0, 0]].concat()));
    refused(load(longer, key, None), &["longer", "bytes follow"]);
    let bad_key = files.write("bad.key", block("PRIVATE KEY", b"nonsense!"));
    refused(load(cert, bad_key, None), &["bad.key", "not usable"]);
}

#[test]
fn encrypted_keys_are_recognized() {
    let files = Files::new();
    let (cert, _) = files.pair("server", &Pair::self_signed(leaf(&["server.test"])));
    let new = files.write("new.key", block("ENCRYPTED PRIVATE KEY", b"secret"));
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    let old = files.write("old.key", old);
    for key in [new, old] {
        refused(load(cert.clone(), key, None), &[".key", "encrypted", "without a password"]);
    }
}

#[test]
fn key_formats_and_mixed_files_are_read() {
    let files = Files::new();
    let server = Pair::self_signed(leaf(&["server.test"]));
    let (cert, key) = files.pair("server", &server);
    // A PKCS#8 key of P-256 contains its SEC1 form, after the head and the algorithm.
    let pkcs8 = server.key.serialized_der();
    let start = pkcs8.windows(5).position(|five| five[0] == 0x30 && five[2..] == [2, 1, 1]).unwrap();
    let end = start + 2 + usize::from(pkcs8[start + 1]);
    let parameters = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    // SEC1 alone does not name the curve unless it has the parameters.
    let mut sec1 = pkcs8[start..end].to_vec();
    if !sec1.windows(parameters.len()).any(|part| part == parameters) {
        let at = 2 + 3 + 2 + 32;
        sec1.splice(at..at, [&[0xa0, parameters.len() as u8][..], &parameters].concat());
        sec1[1] += parameters.len() as u8 + 2;
    }
    let sec1 = block("EC PARAMETERS", &parameters) + &block("EC PRIVATE KEY", &sec1);
    assert!(load(cert, files.write("sec1.key", sec1), None).is_ok());

    let text =
        "Certificate:\r\n    Data: of openssl\r\n".to_owned() + &pem(&[&server.der]).replace('\n', "\r\n");
    assert!(load(files.write("text.crt", text), key, None).is_ok());
    let both = server.key.serialize_pem() + &pem(&[&server.der]);
    let both = files.write("both.pem", both);
    assert!(load(both.clone(), both.clone(), Some(both)).is_ok());
}

#[test]
fn rsa_keys_of_either_form_are_read() {
    let files = Files::new();
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let pair = Pair::self_signed_by(leaf(&["server.test"]), key);
    let (cert, pkcs8_file) = files.pair("server", &pair);
    assert!(load(cert.clone(), pkcs8_file, None).is_ok());
    // The PKCS#1 key is the contents of the octet string after version and algorithm.
    let pkcs8 = pair.key.serialized_der();
    let start =
        pkcs8.windows(8).position(|part| part[0] == 0x30 && part[1] == 0x82 && part[4..7] == [2, 1, 0]);
    let start = pkcs8[4..]
        .windows(8)
        .position(|part| part[0] == 0x30 && part[1] == 0x82 && part[4..7] == [2, 1, 0])
        .map(|at| at + 4)
        .or(start);
    let pkcs1 = block("RSA PRIVATE KEY", &pkcs8[start.unwrap()..]);
    assert!(load(cert, files.write("pkcs1.key", pkcs1), None).is_ok());
}

/// An RSA key of 1024 bits in PKCS#8, which no tool here can generate. It was never in use.
const SHORT: &str = "\
    MIICdgIBADANBgkqhkiG9w0BAQEFAASCAmAwggJcAgEAAoGBANu7lL/2jmxO0ITdPB7ui+wAM6Xo9tP+MLhgyx8PD+M9hmbd\
    iFHJdgKJJyhi6pP2bKaEBPOOOtP/zVAs8wUf7RfXoXWvT0K3dnAFtvFOsrNUHQCtKi133zXPvm1/ltNfWocR2RcyzLGNykA3\
    CUzufKE9IArKpsfRigrx4Xriwu6LAgMBAAECgYEAvHRVT46W+C1giZN1TNIrD23c3h7AE3GfN4NMsoaoiazq6K53jC3NGL+o\
    5epwZhajeO0hkgIaUljCLlFe3LZVENYD5+llP7Zl06p2wNjVphBfzo4Om8aRevjnqoHJ6z9cFQ1iqZHHTdQzDoYn1yk9kD3m\
    qDzDzHCXDndpvoX28wECQQD+EMjMQc/VDboBnIT5OymYzwe+3LlIkQuw0XPkGN38sEzkxFr6cZBR5yg58l9NzkdmdxGNAr/Z\
    MzCCMIrrt3+DAkEA3WfgWNOxSGelG709spFpo/VwA4VyoYIwMdxFkez01UJv6aObHa5HXddr9+L7ipRK2PXmD0/lC1fODhPx\
    kczeWQJAAU10uhdcSWtYmMmEpQJ4pB/rmj7ndEfKF437WiAGg1UkD8gx7zbF1qWovyNO+cck9pGFtYNeGG76wLAfBjZaoQJA\
    XlKysST+keoV3QtyDXEFoGQfpGBlxYjBH3zH5rMcWv5CzzZ0DuEAZmowBRseLpueh2+64ysWWQ6/KiA0+fhdgQJAOM93kHKE\
    ArExpzCqB9fEjm4+lGXOn/1VPOsNuJu359+CIT4dDzoK8RtJcn7pADFeR0lpbeHHj/xlOJa8mq4/2w==";

#[test]
fn short_rsa_keys_are_recognized() {
    let files = Files::new();
    let (cert, _) = files.pair("server", &Pair::self_signed(leaf(&["server.test"])));
    let pkcs8 = STANDARD.decode(SHORT).unwrap();
    // After its head, version, algorithm and the head of the octet string.
    let pkcs1 = &pkcs8[26..];
    for (name, label, der) in [("a.key", "PRIVATE KEY", &*pkcs8), ("b.key", "RSA PRIVATE KEY", pkcs1)] {
        let key = files.write(name, block(label, der));
        let words = [name, "RSA keys below 2048 bits are not supported", "issue a new one"];
        refused(load(cert.clone(), key, None), &words);
    }
}

#[test]
fn server_names_are_checked() {
    let files = Files::new();
    let root = files.certs("root", &[&Pair::self_signed(ca("root")).der]);
    let load = |name: &str| {
        let options = ClientTlsOptions {
            ca: Some(root.clone()),
            identity: None,
            server_names: vec![name.to_owned()],
            alpn_extras: vec![],
        };
        ClientTls::load(options, ignore_legacy_pki()).map_err(|error| error.to_string())
    };
    for name in
        ["server.test", "127.0.0.1", "::1", "[::1]", "under_score", "konnectivity-server.kube-system.svc."]
    {
        assert!(load(name).is_ok(), "{name}");
    }
    for name in ["", "a b", "server.test:8091", "[server]"] {
        let why = "is not a server name: a DNS name or an IP address is expected";
        assert_eq!(load(name).err().unwrap(), format!("{name:?} {why}"));
    }
}
