//! Lists of strings: one record of CSV, as pflag's StringSlice reads it; and, beyond pflag, as Go prints them.

/// Why a text is no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// A quotation mark where none may stand, or one that is never closed.
    #[error("a quotation mark is out of place (an element is either quoted as a whole, or has none)")]
    Quote,
    /// Nothing but line breaks.
    #[error("it holds nothing but line breaks")]
    Nothing,
}

/// Elements by commas; an element may be quoted as in CSV. The empty text is the empty list, and so is `[]`;
/// `[a,b]` is `a,b`.
pub fn parse(text: &str) -> Result<Vec<String>, ListError> {
    let text = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    // Line ends become bare line feeds, blank lines ahead are skipped, and one line is read.
    let text = text.strip_suffix('\r').unwrap_or(text).replace("\r\n", "\n");
    let mut rest = text.trim_start_matches('\n');
    if rest.is_empty() {
        return Err(ListError::Nothing);
    }
    let mut items = Vec::new();
    loop {
        let (item, more) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_item(quoted)?,
            None => plain_item(rest)?,
        };
        items.push(item);
        match more {
            Some(more) => rest = more,
            None => return Ok(items),
        }
    }
}

/// One element and, if a comma followed it, what stands behind that.
type Item<'a> = (String, Option<&'a str>);

fn plain_item(text: &str) -> Result<Item<'_>, ListError> {
    let line = text.find('\n').map_or(text, |end| &text[..end]);
    let (item, more) = match line.find(',') {
        Some(comma) => (&line[..comma], Some(&text[comma + 1..])),
        None => (line, None),
    };
    if item.contains('"') { Err(ListError::Quote) } else { Ok((item.to_owned(), more)) }
}

/// `text` starts behind the opening quotation mark.
fn quoted_item(text: &str) -> Result<Item<'_>, ListError> {
    let mut item = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"').ok_or(ListError::Quote)?;
        item.push_str(before);
        match after.as_bytes() {
            [b'"', ..] => {
                item.push('"');
                rest = &after[1..];
            }
            [b',', ..] => return Ok((item, Some(&after[1..]))),
            [] | [b'\n', ..] => return Ok((item, None)),
            _ => return Err(ListError::Quote),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        let good: [(&str, &[&str]); 12] = [
            ("", &[]),
            ("[]", &[]),
            ("a", &["a"]),
            ("a,b", &["a", "b"]),
            ("[a,b]", &["a", "b"]),
            ("a,", &["a", ""]),
            (",", &["", ""]),
            (" a, b", &[" a", " b"]),
            ("\"a,b\",c", &["a,b", "c"]),
            ("\"a\"\"b\"", &["a\"b"]),
            ("a\nb", &["a"]),
            ("\"\"", &[""]),
        ];
        for (text, items) in good {
            assert_eq!(parse(text).unwrap(), items, "{text}");
        }
        for text in ["a\"b", "\"a", "\"a\"b", "x,\""] {
            assert_eq!(parse(text), Err(ListError::Quote), "{text}");
        }
        assert_eq!(parse("\n"), Err(ListError::Nothing));
    }
}
