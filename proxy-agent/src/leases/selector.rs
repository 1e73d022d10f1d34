//! Kubernetes label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`. The API applies them; the agent only checks the flag.
//!
//! A recursive descent parser over a list of tokens. Grammar and limits are those of `labels.Parse` in k8s.io/apimachinery
//! 0.36, including its special cases: `in` and `notin` may be keys and values, an empty value may be omitted (`a=`, `a in
//! (b,,c)`), and the empty selector matches everything.

use std::fmt;

/// The text of a valid selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSelector(String);

impl LabelSelector {
    /// Checks a selector.
    pub fn parse(text: &str) -> Result<Self, String> {
        selector(&tokens(text))?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const SPECIAL: [char; 7] = ['=', '!', '(', ')', ',', '>', '<'];

/// Splits a text into tokens: operators of one or two characters, and words.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t', '\r', '\n']);
    while !rest.is_empty() {
        let length = if rest.starts_with("==") || rest.starts_with("!=") {
            2
        } else if rest.starts_with(SPECIAL) {
            1
        } else {
            rest.find(|c| SPECIAL.contains(&c) || [' ', '\t', '\r', '\n'].contains(&c)).unwrap_or(rest.len())
        };
        let (token, behind) = rest.split_at(length);
        tokens.push(token);
        rest = behind.trim_start_matches([' ', '\t', '\r', '\n']);
    }
    tokens
}

/// What is left after a requirement, or after a part of one.
type Rest<'a> = Result<&'a [&'a str], String>;

fn selector<'a>(mut tokens: &'a [&'a str]) -> Result<(), String> {
    if tokens.is_empty() {
        return Ok(());
    }
    loop {
        tokens = match requirement(tokens)? {
            [] => return Ok(()),
            [",", rest @ ..] => rest,
            rest => return Err(found(rest, "',' or the end")),
        };
    }
}

fn requirement<'a>(tokens: &'a [&'a str]) -> Rest<'a> {
    let (absent, tokens) = match tokens {
        ["!", rest @ ..] => (true, rest),
        _ => (false, tokens),
    };
    let (key, rest) = word(tokens, "a label key or '!'")?;
    if !is_key(key) {
        let syntax = "[PREFIX/]NAME, the name of 1 to 63 letters, digits, '-', '_' and '.'";
        return Err(format!("{key:?} is no label key ({syntax})"));
    }
    match rest {
        _ if absent || matches!(rest, [] | [",", ..]) => Ok(rest),
        ["=" | "==" | "!=", rest @ ..] => value(rest).map(|(_, rest)| rest),
        ["in" | "notin", rest @ ..] => values(rest),
        [">" | "<", rest @ ..] => {
            let (text, rest) = value(rest)?;
            let number = text.parse::<i64>();
            number.map(|_| rest).map_err(|_| format!("{text:?} is no whole number, which '>' and '<' need"))
        }
        _ => Err(found(rest, "one of = == != in notin > <")),
    }
}

/// One value; empty before a comma or the end.
fn value<'a>(tokens: &'a [&'a str]) -> Result<(&'a str, &'a [&'a str]), String> {
    if matches!(tokens, [] | [",", ..]) {
        return Ok(("", tokens));
    }
    let (value, rest) = word(tokens, "a label value")?;
    Ok((sound_value(value)?, rest))
}

/// Values separated by commas in parentheses; a missing value is the empty value.
fn values<'a>(tokens: &'a [&'a str]) -> Rest<'a> {
    let ["(", rest @ ..] = tokens else { return Err(found(tokens, "'('")) };
    let mut tokens = rest;
    loop {
        if let [value, rest @ ..] = tokens
            && is_word(value)
        {
            sound_value(value)?;
            tokens = rest;
        }
        match tokens {
            [",", rest @ ..] => tokens = rest,
            [")", rest @ ..] => return Ok(rest),
            _ => return Err(found(tokens, "',' or ')'")),
        }
    }
}

fn word<'a>(tokens: &'a [&'a str], due: &'static str) -> Result<(&'a str, &'a [&'a str]), String> {
    match tokens {
        [token, rest @ ..] if is_word(token) => Ok((token, rest)),
        _ => Err(found(tokens, due)),
    }
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(SPECIAL)
}

fn found(tokens: &[&str], due: &'static str) -> String {
    let token = tokens.first().copied().unwrap_or_default();
    format!("found {token:?} where {due} was due")
}

/// An optional prefix (a DNS name of at most 253 characters) with a slash, and a name.
fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_name(text),
        Some((prefix, name)) => is_name(name) && prefix.len() <= 253 && prefix.split('.').all(is_dns_label),
    }
}

fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

/// 1 to 63 characters that begin and end with a letter or digit.
fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn sound_value(text: &str) -> Result<&str, String> {
    let syntax = "at most 63 letters, digits, '-', '_' and '.'";
    if is_name(text) { Ok(text) } else { Err(format!("{text:?} is no label value ({syntax})")) }
}

#[cfg(test)]
mod tests;
