//! Valid and invalid heads, whole and in pieces.

use proptest::prelude::*;

use super::*;

fn parse(bytes: &[u8]) -> Result<Option<Head>, HeadError> {
    HeadParser::default().advance(bytes)
}

fn address(target: &str) -> Result<String, HeadError> {
    let head = parse(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes())?;
    Ok(head.expect("complete").address)
}

#[test]
fn accepts_requests_of_kube_apiserver() {
    let bytes = b"CONNECT 10.0.0.7:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n\x16\x03\x01";
    let head = parse(bytes).unwrap().unwrap();
    assert_eq!(head.address, "10.0.0.7:10250");
    assert_eq!(&bytes[head.len..], b"\x16\x03\x01");
}

#[test]
fn accepts_unusual_but_harmless_heads() {
    for head in [
        "CONNECT a:1 HTTP/1.0\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost:\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: [fe80::1%25eth0]:443\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nX:\tvalue\twith tabs\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nX: \u{e9}\r\n\r\n",
    ] {
        assert_eq!(parse(head.as_bytes()).unwrap().unwrap().address, "a:1", "{head:?}");
    }
}

#[test]
fn targets_have_a_longest() {
    let longest = format!("{}:1", "a".repeat(1022));
    assert_eq!(address(&longest), Ok(longest));
    let longer = address(&format!("{}:1", "a".repeat(1023))).unwrap_err().to_string();
    assert_eq!(longer, format!("CONNECT target of more than {MAX_ADDRESS_BYTES} bytes"));
}

#[test]
fn targets() {
    let good = [
        ("kubernetes.default.svc:443", "kubernetes.default.svc:443"),
        ("my_host:0080", "my_host:0080"),
        ("host:80/", "host:80"),
        ("host:80/path?query", "host:80"),
        ("host:80?query", "host:80"),
        ("http://host:80", "http:"),
        ("host", "host"),
        ("host:", "host:"),
        ("host:0", "host:0"),
        ("host:65536", "host:65536"),
        ("*", "*"),
        ("[::1]", "[::1]"),
        ("[::1]:65535", "[::1]:65535"),
        ("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.1]:1"),
        ("[fe80::1%25eth0]:443", "[fe80::1%eth0]:443"),
    ];
    for (target, expected) in good {
        assert_eq!(address(target).as_deref(), Ok(expected));
    }
    let bad = [
        ("[::1]443", "CONNECT target must be host:port"),
        ("host:+80", "CONNECT target must be host:port"),
        ("/", "CONNECT target must be host:port"),
        ("::1:443", "CONNECT target must be host:port"),
        (":443", "CONNECT target must be host:port"),
        ("[::1:443", "CONNECT target must be host:port"),
        ("[10.0.0.1]:443", "CONNECT target must be host:port"),
        ("[fe80::1%25]:443", "CONNECT target must be host:port"),
        ("[fe80::1%eth0]:443", "CONNECT target must be host:port"),
        ("ho%73t:80", "CONNECT target must be host:port"),
        ("h\u{f6}st:80", "CONNECT target must be host:port"),
        ("user@host:80", "CONNECT target must not carry user information"),
        ("user:pw@host:80", "CONNECT target must not carry user information"),
    ];
    for (target, expected) in bad {
        assert_eq!(address(target).unwrap_err().to_string(), expected, "{target}");
    }
}

#[test]
fn refusals() {
    let cases: &[(&[u8], &str)] = &[
        (b"CONNECT a:1 HTTP/1.1\n", "line without CR before LF"),
        (b"CONNECT a:1 HTTP/1.1\r\nX: y\n", "line without CR before LF"),
        (b"CONNECT a:1 HTTP/1.1\r\n\n", "line without CR before LF"),
        (b"CONNECT a:1 HTTP/1.1\rX", "control character in the head"),
        (b"CONNECT a:1 HTTP/1.1\r\n\rX", "control character in the head"),
        (b"CONNECT a:1 HTTP/1.1\r\nX: \0", "control character in the head"),
        (b"CONNECT\ta:1 HTTP/1.1\r\n", "control character in the head"),
        (b"\x16\x03\x01", "control character in the head"),
        (b"\r\n", "malformed request line"),
        (b"CONNECT  a:1 HTTP/1.1\r\n", "malformed request line"),
        (b"CONNECT a:1 HTTP/1.1 \r\n", "malformed request line"),
        (b"CONNECT a:1\r\n", "malformed request line"),
        (b"CONNECT a:1 http/1.1\r\n", "malformed request line"),
        (b"C@NNECT a:1 HTTP/1.1\r\n", "malformed request line"),
        (b"CONNECT a:1 HTTP/2.0\r\n", "unsupported protocol version"),
        (b"CONNECT a:1 HTTP/1.2\r\n", "unsupported protocol version"),
        (b"PRI * HTTP/2.0\r\n", "unsupported protocol version"),
        (b"CONNECT a:1 HTTP/1.1\r\n X: y\r\n", "malformed header field"),
        (b"CONNECT a:1 HTTP/1.1\r\nX: y\r\n\tz\r\n", "malformed header field"),
        (b"CONNECT a:1 HTTP/1.1\r\nX : y\r\n", "malformed header field"),
        (b"CONNECT a:1 HTTP/1.1\r\n: y\r\n", "malformed header field"),
        (b"CONNECT a:1 HTTP/1.1\r\nnonsense\r\n", "malformed header field"),
        (
            b"CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "Transfer-Encoding is not allowed with CONNECT",
        ),
        (
            b"CONNECT a:1 HTTP/1.1\r\ncontent-length: 1\r\n\r\n",
            "Content-Length other than 0 is not allowed with CONNECT",
        ),
        (
            b"CONNECT a:1 HTTP/1.1\r\nContent-Length: 0, 0\r\n\r\n",
            "Content-Length other than 0 is not allowed with CONNECT",
        ),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "this proxy only supports CONNECT passthrough"),
        (b"connect 10.0.0.1:1 HTTP/1.1\r\n\r\n", "malformed request line"),
        (b"GET a HTTP/1.1\r\n\r\n", "malformed request line"),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "this proxy only supports CONNECT passthrough"),
        (b"connect a:1 HTTP/1.1\r\n\r\n", "this proxy only supports CONNECT passthrough"),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "this proxy only supports CONNECT passthrough",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(parse(bytes).unwrap_err().to_string(), *expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn several_or_invalid_host_fields_are_refused() {
    for fields in
        ["Host: a\r\nHost: a", "host:\r\nHOST: a", "Host: a b", "Host: a/b", "Host: a@b", "Host: \u{e9}"]
    {
        let head = format!("CONNECT a:1 HTTP/1.1\r\n{fields}\r\n\r\n");
        let error = parse(head.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "more than one Host field, or an invalid one", "{fields}");
    }
}

#[test]
fn limits_are_exact() {
    let fields = |n: usize| format!("CONNECT a:1 HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(n));
    assert!(parse(fields(MAX_FIELDS).as_bytes()).unwrap().is_some());
    assert_eq!(parse(fields(MAX_FIELDS + 1).as_bytes()), Err(HeadError::TooLarge));

    let padded = |len: usize| {
        let frame = "CONNECT a:1 HTTP/1.1\r\nX: \r\n\r\n".len();
        format!("CONNECT a:1 HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(len - frame))
    };
    assert_eq!(parse(padded(MAX_HEAD).as_bytes()).unwrap().unwrap().len, MAX_HEAD);
    assert_eq!(parse(padded(MAX_HEAD + 1).as_bytes()), Err(HeadError::TooLarge));
}

#[test]
fn user_agent_is_cut_and_escaped() {
    let long = "a".repeat(300);
    let head = format!("CONNECT a:1 HTTP/1.1\r\nUser-Agent: {long}\r\n\r\n");
    assert_eq!(parse(head.as_bytes()).unwrap().unwrap().user_agent.unwrap().len(), MAX_USER_AGENT);
    let head = parse(b"CONNECT a:1 HTTP/1.1\r\nuser-agent:  \xff/1\t2 \r\n\r\n").unwrap().unwrap();
    assert_eq!(head.user_agent.as_deref(), Some(r"\xff/1\t2"));
}

/// Pieces of valid and invalid heads, so that random sequences often get past the request line.
fn chunks() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"CONNECT a:1 HTTP/1.1\r\n".to_vec()),
        Just(b"CONNECT [::1]:443 HTTP/1.1\r\n".to_vec()),
        Just(b"GET / HTTP/1.1\r\n".to_vec()),
        Just(b"Host: 127.0.0.1\r\n".to_vec()),
        Just(b"Content-Length: 0\r\n".to_vec()),
        Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        Just(b" folded\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..8),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|p| p.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_split_gives_the_same_verdict(
        bytes in chunks(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let whole = parse(&bytes);
        let mut ends: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(bytes.len());
        let mut parser = HeadParser::default();
        let mut verdict = Ok(None);
        for end in ends {
            verdict = parser.advance(&bytes[..end]);
            if !matches!(verdict, Ok(None)) {
                break;
            }
        }
        prop_assert_eq!(verdict, whole);
    }

    #[test]
    fn never_panics_and_payload_changes_nothing(
        bytes in chunks(),
        payload in proptest::collection::vec(any::<u8>(), 0..32),
    ) {
        if let Ok(Some(head)) = parse(&bytes) {
            let mut glued = bytes[..head.len].to_vec();
            glued.extend_from_slice(&payload);
            prop_assert!(head.len <= bytes.len() && bytes[..head.len].ends_with(b"\r\n\r\n"));
            prop_assert_eq!(parse(&glued), Ok(Some(head)));
        }
    }
}
