//! Flag texts.

use crate::tls::{CipherSuites, TlsFlagError, TlsVersion};

fn suites(names: &[&str]) -> Result<(Vec<String>, bool), TlsFlagError> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let accepted = CipherSuites::parse(&names)?;
    Ok((accepted.warnings, accepted.value.has_tls12()))
}

#[test]
fn versions_have_gos_names() {
    for (name, version, warns) in [
        ("", TlsVersion::Tls12, false),
        ("VersionTLS10", TlsVersion::Tls12, true),
        ("VersionTLS11", TlsVersion::Tls12, true),
        ("VersionTLS12", TlsVersion::Tls12, false),
        ("VersionTLS13", TlsVersion::Tls13, false),
    ] {
        let accepted = TlsVersion::parse(name).unwrap();
        assert_eq!((accepted.value, !accepted.warnings.is_empty()), (version, warns), "{name}");
    }
    for name in ["VersionTLS14", "TLS12", "1.2", "versiontls12", " VersionTLS12"] {
        assert_eq!(TlsVersion::parse(name), Err(TlsFlagError::Version(name.to_owned())));
    }
}

#[test]
fn all_names_of_go_are_known() {
    for cipher in ["AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"] {
        for kind in ["ECDSA", "RSA"] {
            let name = format!("TLS_ECDHE_{kind}_WITH_{cipher}");
            assert_eq!(suites(&[&name]), Ok((vec![], true)), "{name}");
        }
        assert_eq!(suites(&[&format!("TLS_{cipher}")]), Ok((vec![], false)));
    }
    assert_eq!(suites(&[]), Ok((vec![], true)));
}

#[test]
fn cbc_is_warned_of_if_something_is_left() {
    let cbc = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA";
    let (warnings, tls12) = suites(&[cbc, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]).unwrap();
    assert!(tls12 && warnings.len() == 1 && warnings[0].contains(cbc), "{warnings:?}");
    let (warnings, tls12) = suites(&[cbc, "TLS_AES_128_GCM_SHA256"]).unwrap();
    assert!(!tls12 && warnings.len() == 1);
    assert_eq!(suites(&[cbc]), Err(TlsFlagError::NoUsableSuite(cbc.to_owned())));
}

#[test]
fn bad_names_are_named() {
    for name in ["TLS_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_RC4_128_SHA"] {
        assert_eq!(suites(&[name]), Err(TlsFlagError::InsecureSuite(name.to_owned())));
        assert!(suites(&[name]).unwrap_err().to_string().contains(name));
    }
    for name in ["", "ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 "] {
        assert_eq!(suites(&[name]), Err(TlsFlagError::UnknownSuite(name.to_owned())));
    }
}
