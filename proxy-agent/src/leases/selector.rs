//! Kubernetes label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`. The API applies them; the agent only checks the flag.
//!
//! Syntax and limits are those of `labels.Parse` in k8s.io/apimachinery 0.36, including its special cases: `in` and `notin` may be
//! keys and values, an empty value may be omitted (`a=`, `a in (b,,c)`), and the empty selector matches everything.

use std::fmt;

/// The text of a valid selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSelector(String);

impl LabelSelector {
    /// Checks a selector.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut depth = 0;
        // Commas in parentheses separate values.
        let separates = |c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ',' && depth == 0
        };
        let selector = Self(text.to_owned());
        if !selector.is_empty() {
            text.split(separates).try_for_each(|text| requirement(text.trim_matches(BLANKS)))?;
        }
        Ok(selector)
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.trim_matches(BLANKS).is_empty()
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What Kubernetes skips between the parts.
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

fn requirement(text: &str) -> Result<(), String> {
    let is_part = |c: char| BLANKS.contains(&c) || "=!<>()".contains(c);
    let (key, rest) = match text.strip_prefix('!') {
        Some(key) => (key.trim_start_matches(BLANKS), ""),
        None => text.split_at(text.find(is_part).unwrap_or(text.len())),
    };
    if !is_key(key) {
        let syntax = "[PREFIX/]NAME, the name of 1 to 63 letters, digits, '-', '_' and '.'";
        return Err(format!("{key:?} is no label key ({syntax})"));
    }
    let rest = rest.trim_matches(BLANKS);
    if rest.is_empty() {
        return Ok(());
    }
    if let Some(value) = ["==", "=", "!="].iter().find_map(|operator| rest.strip_prefix(operator)) {
        return check_value(value);
    }
    if let Some(number) = rest.strip_prefix(['>', '<']).map(|number| number.trim_matches(BLANKS)) {
        check_value(number)?;
        let parsed = number.parse::<i64>();
        return parsed
            .map(drop)
            .map_err(|_| format!("{number:?} is no whole number, which '>' and '<' need"));
    }
    let values = ["in", "notin"].iter().find_map(|operator| rest.strip_prefix(operator));
    let values = values.ok_or_else(|| format!("found {rest:?} where one of = == != in notin > < was due"))?;
    let inner = values.trim_start_matches(BLANKS).strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let inner = inner.ok_or_else(|| format!("found {values:?} where values in parentheses were due"))?;
    inner.split(',').try_for_each(check_value)
}

/// An optional prefix (a DNS name of at most 253 characters) with a slash, and a name.
fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_name(text),
        Some((prefix, name)) => is_name(name) && prefix.len() <= 253 && prefix.split('.').all(is_dns_label),
    }
}

fn is_dns_label(text: &str) -> bool {
    is_name(text) && !text.contains(|c: char| c.is_ascii_uppercase() || c == '_')
}

/// 1 to 63 characters that begin and end with a letter or digit.
fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// A name, or nothing.
fn check_value(text: &str) -> Result<(), String> {
    let text = text.trim_matches(BLANKS);
    let syntax = "at most 63 letters, digits, '-', '_' and '.'";
    let is_sound = text.is_empty() || is_name(text);
    if is_sound { Ok(()) } else { Err(format!("{text:?} is no label value ({syntax})")) }
}

#[cfg(test)]
mod tests;
