//! Kubernetes label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.
//!
//! A recursive descent parser over a list of tokens. Grammar and limits are those of `labels.Parse` in k8s.io/apimachinery
//! 0.36, including its special cases: `in` and `notin` may be keys and values, an empty value may be omitted (`a=`, `a in
//! (b,,c)`), and the empty selector matches everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Requirements that a set of labels must all meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSelector {
    text: String,
    requirements: Vec<(String, Test)>,
}

/// The requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    OneOf(BTreeSet<String>),
    /// A missing label meets it, too.
    NoneOf(BTreeSet<String>),
    Present,
    Absent,
    Above(i64),
    Below(i64),
}

/// Why a text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// An unexpected token.
    #[error("found {found:?} where {due} was due")]
    Found {
        /// The token; empty at the end of the text.
        found: String,
        /// The expected token.
        due: &'static str,
    },
    /// A key that violates the syntax of label keys.
    #[error("{0:?} is no label key ([PREFIX/]NAME, the name of 1 to 63 letters, digits, '-', '_' and '.')")]
    Key(String),
    /// A value that violates the syntax of label values.
    #[error("{0:?} is no label value (at most 63 letters, digits, '-', '_' and '.')")]
    LabelValue(String),
    /// `>` and `<` need numbers.
    #[error("{0:?} is no whole number, which '>' and '<' need")]
    Number(String),
}

impl LabelSelector {
    /// The default labels of the proxy-servers' leases.
    pub fn konnectivity_server() -> Self {
        let test = Test::OneOf(BTreeSet::from(["konnectivity-server".to_owned()]));
        Self {
            text: "k8s-app=konnectivity-server".to_owned(),
            requirements: vec![("k8s-app".to_owned(), test)],
        }
    }

    /// Parses a selector.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        Ok(Self { text: text.to_owned(), requirements: parser.selector()? })
    }

    /// Whether the labels meet every requirement.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|(key, test)| test.is_met_by(labels.get(key).map(String::as_str)))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Test {
    fn is_met_by(&self, label: Option<&str>) -> bool {
        let number = || label.and_then(|text| text.parse::<i64>().ok());
        match self {
            Self::OneOf(values) => label.is_some_and(|label| values.contains(label)),
            Self::NoneOf(values) => label.is_none_or(|label| !values.contains(label)),
            Self::Present => label.is_some(),
            Self::Absent => label.is_none(),
            Self::Above(limit) => number().is_some_and(|number| number > *limit),
            Self::Below(limit) => number().is_some_and(|number| number < *limit),
        }
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

    fn word(&mut self, due: &'static str) -> Result<&'a str, SelectorError> {
        let token = self.take();
        if is_word(token) { Ok(token) } else { Err(found(token, due)) }
    }

    fn selector(&mut self) -> Result<Vec<(String, Test)>, SelectorError> {
        let mut requirements = Vec::new();
        if self.ahead().is_empty() {
            return Ok(requirements);
        }
        loop {
            requirements.push(self.requirement()?);
            match self.take() {
                "" => return Ok(requirements),
                "," => {}
                other => return Err(found(other, "',' or the end")),
            }
        }
    }

    fn requirement(&mut self) -> Result<(String, Test), SelectorError> {
        let absent = self.ahead() == "!";
        if absent {
            self.take();
        }
        let key = self.word("a label key or '!'")?;
        if !is_key(key) {
            return Err(SelectorError::Key(key.to_owned()));
        }
        let test = match self.ahead() {
            _ if absent => Test::Absent,
            "" | "," => Test::Present,
            _ => self.test()?,
        };
        Ok((key.to_owned(), test))
    }

    fn test(&mut self) -> Result<Test, SelectorError> {
        match self.take() {
            "=" | "==" => Ok(Test::OneOf(BTreeSet::from([self.value()?]))),
            "!=" => Ok(Test::NoneOf(BTreeSet::from([self.value()?]))),
            "in" => Ok(Test::OneOf(self.values()?)),
            "notin" => Ok(Test::NoneOf(self.values()?)),
            ">" => Ok(Test::Above(self.number()?)),
            "<" => Ok(Test::Below(self.number()?)),
            other => Err(found(other, "one of = == != in notin > <")),
        }
    }

    /// One value; empty before a comma or the end.
    fn value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.ahead(), "" | ",") {
            return Ok(String::new());
        }
        sound_value(self.word("a label value")?)
    }

    fn number(&mut self) -> Result<i64, SelectorError> {
        let text = self.value()?;
        text.parse().map_err(|_| SelectorError::Number(text))
    }

    /// Values separated by commas in parentheses; a missing value is the empty value.
    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        match self.take() {
            "(" => {}
            other => return Err(found(other, "'('")),
        }
        let mut values = BTreeSet::new();
        loop {
            let value = if is_word(self.ahead()) { self.take() } else { "" };
            values.insert(sound_value(value)?);
            match self.take() {
                "," => {}
                ")" => return Ok(values),
                other => return Err(found(other, "',' or ')'")),
            }
        }
    }
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(SPECIAL)
}

fn found(token: &str, due: &'static str) -> SelectorError {
    SelectorError::Found { found: token.to_owned(), due }
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

fn sound_value(text: &str) -> Result<String, SelectorError> {
    if text.is_empty() || is_name(text) {
        return Ok(text.to_owned());
    }
    Err(SelectorError::LabelValue(text.to_owned()))
}

#[cfg(test)]
mod tests;
