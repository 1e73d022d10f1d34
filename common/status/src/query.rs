//! Which part of the lists a reader wants.

use crate::{Agent, Connection, Row, Server};

/// The query of `GET /statusz`: `list=agents|connections`, `offset`, `limit`, `sort=FIELD` or `sort=-FIELD`, `filter=TEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The only list that is wanted; none for the first page of each.
    pub list: Option<List>,
    /// Entries that are skipped, in the order of `sort`.
    pub offset: usize,
    /// Entries at most.
    pub limit: usize,
    /// The name of a field of the list's entries; empty for the order of ids.
    pub sort: String,
    /// The largest first.
    pub descending: bool,
    /// Only entries with this text in an id, address, identity or target; empty for all.
    pub filter: String,
}

/// A list that may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// [`crate::Status::agents`], or [`crate::Status::servers`].
    Peers,
    /// [`crate::Status::connections`].
    Connections,
}

impl List {
    /// Its name in queries of an agent or a server. Both programs accept all names.
    pub fn name(self, is_agent: bool) -> &'static str {
        match (self, is_agent) {
            (List::Peers, true) => "servers",
            (List::Peers, false) => "agents",
            (List::Connections, _) => "connections",
        }
    }
}

/// Entries in an answer whose query names no limit.
pub const LIMIT: usize = 100;
/// Entries in an answer at most.
pub const MAX_LIMIT: usize = 1_000;

impl Default for Query {
    fn default() -> Self {
        Query {
            list: None,
            offset: 0,
            limit: LIMIT,
            sort: String::new(),
            descending: false,
            filter: String::new(),
        }
    }
}

impl Query {
    /// Parses the query of a URI. Unknown names are ignored.
    ///
    /// # Errors
    /// One line that names the bad value and what is accepted.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut parsed = Query::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value);
            match name {
                "list" => parsed.list = Some(list(&value)?),
                "offset" => parsed.offset = number(name, &value, usize::MAX)?,
                "limit" => parsed.limit = number(name, &value, MAX_LIMIT)?,
                "sort" => {
                    let field = value.strip_prefix('-');
                    (parsed.descending, parsed.sort) = (field.is_some(), field.unwrap_or(&value).to_owned());
                    check_field(&parsed.sort)?;
                }
                "filter" => parsed.filter = value,
                _ => {}
            }
        }
        Ok(parsed)
    }
}

fn list(value: &str) -> Result<List, String> {
    match value {
        "agents" | "servers" => Ok(List::Peers),
        "connections" => Ok(List::Connections),
        _ => Err(format!("list={value}: use agents, servers or connections")),
    }
}

fn number(name: &str, value: &str, most: usize) -> Result<usize, String> {
    match value.parse() {
        Ok(number) if number <= most => Ok(number),
        _ => Err(format!("{name}={value}: use a number from 0 to {most}")),
    }
}

fn check_field(name: &str) -> Result<(), String> {
    let known = Agent::sorted_by(name).is_some()
        || Server::sorted_by(name).is_some()
        || Connection::sorted_by(name).is_some();
    if name.is_empty() || known {
        return Ok(());
    }
    Err(format!("sort={name}: use a field of the list's entries that is a text or a number"))
}

/// Undoes percent-encoding, and `+` for a space, as forms send it.
fn decoded(value: &str) -> String {
    let spaced = value.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_names_a_page_of_a_list() {
        let query = Query::parse("list=agents&offset=200&limit=100&sort=-connections&filter=node%201&x=y");
        let expected = Query {
            list: Some(List::Peers),
            offset: 200,
            limit: 100,
            sort: "connections".into(),
            descending: true,
            filter: "node 1".into(),
        };
        assert_eq!(query, Ok(expected));
        assert_eq!(Query::parse(""), Ok(Query::default()));
    }

    #[test]
    fn bad_values_are_named() {
        assert_eq!(Query::parse("limit=9999"), Err("limit=9999: use a number from 0 to 1000".into()));
        let sort = "sort=x: use a field of the list's entries that is a text or a number";
        assert_eq!(Query::parse("sort=-x"), Err(sort.into()));
        assert_eq!(Query::parse("list=x"), Err("list=x: use agents, servers or connections".into()));
    }
}
