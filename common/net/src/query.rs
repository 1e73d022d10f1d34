//! A URL query, as Go's `url.ParseQuery` reads it.

use percent_encoding::percent_decode_str;

/// Keys and decoded values in order; keys may repeat. Empty pairs are skipped. Invalid UTF-8 becomes replacement characters.
/// The error is Go's: of a semicolon, which older query syntax used between pairs, and of a `%` without two hexadecimal digits.
pub fn pairs(text: &str) -> impl Iterator<Item = Result<(String, String), String>> {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        if pair.contains(';') {
            return Err("invalid semicolon separator in query".to_owned());
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((unescape(key)?, unescape(value)?))
    })
}

/// Decodes `%XX`, and `+` for a space.
fn unescape(text: &str) -> Result<String, String> {
    let is_bad = |bytes: &&[u8]| bytes.len() < 3 || !bytes[1..].iter().all(u8::is_ascii_hexdigit);
    let mut escapes = text.match_indices('%').filter_map(|(at, _)| text.as_bytes()[at..].chunks(3).next());
    match escapes.find(is_bad) {
        // Go names three bytes.
        Some(bytes) => Err(format!("invalid URL escape {:?}", String::from_utf8_lossy(bytes))),
        None => Ok(percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded() {
        let table: [(&str, &[(&str, &str)]); 7] = [
            ("", &[]),
            ("&&", &[]),
            ("a=1&a=2&", &[("a", "1"), ("a", "2")]),
            ("a", &[("a", "")]),
            ("h%6Fst=a%2eb+c=d", &[("host", "a.b c=d")]),
            ("a+b=%2B", &[("a b", "+")]),
            ("a=%ff", &[("a", "\u{fffd}")]),
        ];
        for (text, want) in table {
            let found: Vec<_> = pairs(text).map(Result::unwrap).collect();
            let found: Vec<_> = found.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn errors_name_the_bytes_that_go_names() {
        let semicolon = || "invalid semicolon separator in query".to_owned();
        let escape = |text: &str| format!("invalid URL escape {text:?}");
        for (text, error) in [
            ("a;b=1", semicolon()),
            ("a=b;", semicolon()),
            ("a=%", escape("%")),
            ("a=%4", escape("%4")),
            ("a=%zz1", escape("%zz")),
            ("a%st=1", escape("%st")),
            ("a=a%%41", escape("%%4")),
            ("a=%4%41", escape("%4%")),
            ("a=%41%é", escape("%é")),
            ("a=%€", escape("%\u{fffd}")),
        ] {
            assert_eq!(pairs(text).find_map(Result::err), Some(error), "{text}");
        }
    }
}
