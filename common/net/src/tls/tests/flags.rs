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
        let error = TlsVersion::parse(name).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{name:?}: it must be VersionTLS10, ")), "{error}");
    }
}

#[test]
fn all_names_of_go_are_known() {
    for cipher in ["AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"] {
        for kind in ["ECDSA", "RSA"] {
            let name = format!("TLS_ECDHE_{kind}_WITH_{cipher}");
            assert_eq!(suites(&[&name]), Ok((vec![], true)), "{name}");
            let suites = CipherSuites::parse(std::slice::from_ref(&name)).unwrap().value;
            assert_eq!(format!("{suites:?}"), format!("CipherSuites {{ tls12: Some([{name}]) }}"));
        }
        let (warnings, tls12) = suites(&[&format!("TLS_{cipher}")]).unwrap();
        assert!(!tls12 && warnings[0].contains("has no effect"), "{warnings:?}");
    }
    assert_eq!(suites(&[]), Ok((vec![], true)));
}

/// As in Go a list restricts only TLS 1.2; TLS 1.3 always remains.
#[test]
fn cbc_is_warned_of_and_leaves_tls_1_3() {
    let cbc = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA";
    let (warnings, tls12) = suites(&[cbc, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]).unwrap();
    assert!(tls12 && warnings.len() == 1 && warnings[0].contains(cbc), "{warnings:?}");
    for names in [&[cbc, "TLS_AES_128_GCM_SHA256"][..], &[cbc]] {
        let (warnings, tls12) = suites(names).unwrap();
        assert!(!tls12 && warnings.last().unwrap().contains("only TLS 1.3"), "{warnings:?}");
    }
}

#[test]
fn bad_names_are_named() {
    for name in [
        "TLS_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
        "",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 ",
    ] {
        let error = suites(&[name]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name:?}: it is unknown or insecure")), "{error}");
    }
}
