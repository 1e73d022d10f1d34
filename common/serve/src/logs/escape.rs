//! Escapes external text, so that a line stays one line and displays in the order in which it was written.

use std::fmt::{self, Write};

use serde::{Serialize, Serializer};
use status::words::is_deceptive;

/// The longest logged string of a peer, in bytes.
const PEER_LIMIT: usize = 256;
/// The longest error that the status and readiness show, in bytes: it may name two certificates.
const ERROR_LIMIT: usize = 512;

/// Displays a peer's string: control characters escaped, cut at 256 bytes.
///
/// `info!(agent = %Peer(&agent_id), ...)`
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a>(pub &'a str);

impl fmt::Display for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() <= PEER_LIMIT && is_printable_ascii(self.0) {
            true => f.write_str(self.0),
            false => f.write_str(&cut_and_escaped(self.0, PEER_LIMIT)),
        }
    }
}

impl Serialize for Peer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An error with a peer's text in it: control characters escaped, cut at 512 bytes.
pub fn shown_error(text: &str) -> String {
    cut_and_escaped(text, ERROR_LIMIT)
}

fn cut_and_escaped(text: &str, limit: usize) -> String {
    let kept = cut(text, limit);
    let mut shown = String::with_capacity(kept.len());
    plain(&mut shown, kept);
    if kept.len() < text.len() {
        // Writing to a String cannot fail.
        let _ = write!(shown, "...({} bytes)", text.len());
    }
    shown
}

/// At most `limit` bytes from the start, at a character boundary.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

/// Appends the text with harmful characters escaped.
pub(super) fn plain(out: &mut String, text: &str) {
    append(out, text, false);
}

/// Appends the text in double quotes, as Go's `strconv.Quote` does.
pub(super) fn quoted(out: &mut String, text: &str) {
    out.push('"');
    append(out, text, true);
    out.push('"');
}

/// Puts what `out` has from `start` on into double quotes.
pub(super) fn quote(out: &mut String, start: usize) {
    if out.get(start..).is_some_and(|text| is_unescaped(text, true)) {
        out.insert(start, '"');
        return out.push('"');
    }
    let text = out.split_off(start);
    quoted(out, &text);
}

fn append(out: &mut String, text: &str, in_quotes: bool) {
    if is_unescaped(text, in_quotes) {
        return out.push_str(text);
    }
    for c in text.chars() {
        match c {
            '"' | '\\' if in_quotes => {
                out.push('\\');
                out.push(c);
            }
            c if is_deceptive(c) => escape(out, c),
            c => out.push(c),
        }
    }
}

/// Whether the text is appended as it is. False for all but printable ASCII.
fn is_unescaped(text: &str, in_quotes: bool) -> bool {
    is_printable_ascii(text) && !(in_quotes && text.contains(['"', '\\']))
}

/// Nearly every text is, and is copied as a whole: to look at each character takes a tenth of a dial's instructions.
fn is_printable_ascii(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// The text as a JSON string.
pub(super) fn json(text: &str) -> String {
    // Strings always serialize.
    serde_json::to_string(text).unwrap_or_default()
}

fn escape(out: &mut String, c: char) {
    let code = u32::from(c);
    // Writing to a String cannot fail.
    let _ = match c {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        _ if code < 0x80 => write!(out, "\\x{code:02x}"),
        _ => write!(out, "\\u{code:04x}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_string_is_one_short_line() {
        assert_eq!(Peer("node-1").to_string(), "node-1");
        assert_eq!(Peer("a\nI1121 forged] \x1b[2J\u{202e}").to_string(), "a\\nI1121 forged] \\x1b[2J\\u202e");
        let long = "\u{e9}".repeat(200);
        let shown = Peer(&long).to_string();
        assert!(shown.starts_with(&"\u{e9}".repeat(128)) && shown.ends_with("...(400 bytes)"), "{shown}");
    }

    #[test]
    fn quoted_as_go_quotes() {
        let mut out = String::new();
        quoted(&mut out, "say \"hi\" \\ \u{e9}\r\n\0");
        assert_eq!(out, r#""say \"hi\" \\ é\r\n\x00""#);
    }
}
