//! The head of a CONNECT request: the result does not depend on how the bytes are split or on bytes after the head, and
//! accepted values are safe on the wire and in a log.

use proxy_server::frontend::connect::head::{Head, HeadError, HeadParser, MAX_HEAD};

/// The first byte is the size of the pieces.
pub fn connect(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    let whole = HeadParser::default().advance(bytes);
    assert_eq!(by_pieces(bytes, usize::from(*step) + 1), whole, "by pieces");
    match whole {
        Ok(Some(head)) => acceptable(bytes, &head),
        Ok(None) => assert!(bytes.len() <= MAX_HEAD, "asks for more than it would take"),
        Err(_) => {}
    }
}

fn by_pieces(bytes: &[u8], step: usize) -> Result<Option<Head>, HeadError> {
    let mut parser = HeadParser::default();
    let mut have = 0;
    while have < bytes.len() {
        have = bytes.len().min(have + step);
        match parser.advance(&bytes[..have])? {
            Some(head) => return Ok(Some(head)),
            None => continue,
        }
    }
    Ok(None)
}

fn acceptable(bytes: &[u8], head: &Head) {
    let used = &bytes[..head.len];
    assert!(head.len <= MAX_HEAD && used.ends_with(b"\r\n\r\n"), "{head:?}");
    assert!(used.starts_with(b"CONNECT "), "{head:?}");
    assert_eq!(HeadParser::default().advance(used), Ok(Some(head.clone())), "what follows took part");
    let port = head.address.rsplit_once(':').filter(|_| !head.address.ends_with(']'));
    let (host, port) = port.unwrap_or((&head.address, ""));
    assert!(!host.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()), "{head:?}");
    assert!(!head.address.contains(|c: char| c.is_control() || c == '@' || c == ' '), "{head:?}");
    let agent = head.user_agent.as_deref().unwrap_or_default();
    assert!(agent.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{head:?}");
}
