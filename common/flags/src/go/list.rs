//! Lists of strings: one CSV record, as in pflag's StringSlice, or (an extension) Go's printed form.

const QUOTE: &str = "a quotation mark is out of place (an element is either quoted as a whole, or has none)";
const NOTHING: &str = "it has only line breaks";

/// Elements separated by commas; an element may be quoted as in CSV. The empty text and `[]` are the empty list;
/// `[a,b]` is `a,b`.
pub fn parse(text: &str) -> Result<Vec<String>, &'static str> {
    let text = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    // Line ends become line feeds, leading blank lines are skipped, and one line is read.
    let text = text.strip_suffix('\r').unwrap_or(text).replace("\r\n", "\n");
    let mut rest = text.trim_start_matches('\n');
    if rest.is_empty() {
        return Err(NOTHING);
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

/// One element and, if a comma follows it, the text after the comma.
type Item<'a> = (String, Option<&'a str>);

fn plain_item(text: &str) -> Result<Item<'_>, &'static str> {
    let line = text.find('\n').map_or(text, |end| &text[..end]);
    let (item, more) = match line.find(',') {
        Some(comma) => (&line[..comma], Some(&text[comma + 1..])),
        None => (line, None),
    };
    if item.contains('"') { Err(QUOTE) } else { Ok((item.to_owned(), more)) }
}

/// `text` starts after the opening quotation mark.
fn quoted_item(text: &str) -> Result<Item<'_>, &'static str> {
    let mut item = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"').ok_or(QUOTE)?;
        item.push_str(before);
        match after.as_bytes() {
            [b'"', ..] => {
                item.push('"');
                rest = &after[1..];
            }
            [b',', ..] => return Ok((item, Some(&after[1..]))),
            [] | [b'\n', ..] => return Ok((item, None)),
            _ => return Err(QUOTE),
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
            assert_eq!(parse(text), Err(QUOTE), "{text}");
        }
        assert_eq!(parse("\n"), Err(NOTHING));
    }
}
