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
        Parser { tokens: tokens(text), at: 0 }.selector()?;
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

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    /// The next token; empty at the end.
    fn ahead(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn take(&mut self) -> &'a str {
        let token = self.ahead();
        self.at += 1;
        token
    }

    fn word(&mut self, due: &'static str) -> Result<&'a str, String> {
        let token = self.take();
        if is_word(token) { Ok(token) } else { Err(found(token, due)) }
    }

    fn selector(&mut self) -> Result<(), String> {
        if self.ahead().is_empty() {
            return Ok(());
        }
        loop {
            self.requirement()?;
            match self.take() {
                "" => return Ok(()),
                "," => {}
                other => return Err(found(other, "',' or the end")),
            }
        }
    }

    fn requirement(&mut self) -> Result<(), String> {
        let absent = self.ahead() == "!";
        if absent {
            self.take();
        }
        let key = self.word("a label key or '!'")?;
        if !is_key(key) {
            let syntax = "[PREFIX/]NAME, the name of 1 to 63 letters, digits, '-', '_' and '.'";
            return Err(format!("{key:?} is no label key ({syntax})"));
        }
        if absent || matches!(self.ahead(), "" | ",") {
            return Ok(());
        }
        match self.take() {
            "=" | "==" | "!=" => self.value().map(drop),
            "in" | "notin" => self.values(),
            ">" | "<" => {
                let text = self.value()?;
                text.parse::<i64>()
                    .map(drop)
                    .map_err(|_| format!("{text:?} is no whole number, which '>' and '<' need"))
            }
            other => Err(found(other, "one of = == != in notin > <")),
        }
    }

    /// One value; empty before a comma or the end.
    fn value(&mut self) -> Result<&'a str, String> {
        if matches!(self.ahead(), "" | ",") {
            return Ok("");
        }
        sound_value(self.word("a label value")?)
    }

    /// Values separated by commas in parentheses; a missing value is the empty value.
    fn values(&mut self) -> Result<(), String> {
        match self.take() {
            "(" => {}
            other => return Err(found(other, "'('")),
        }
        loop {
            if is_word(self.ahead()) {
                sound_value(self.take())?;
            }
            match self.take() {
                "," => {}
                ")" => return Ok(()),
                other => return Err(found(other, "',' or ')'")),
            }
        }
    }
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(SPECIAL)
}

fn found(token: &str, due: &'static str) -> String {
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
