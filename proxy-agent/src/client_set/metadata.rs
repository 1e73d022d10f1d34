//! The request headers of a Connect, and the server's response headers.

use std::path::PathBuf;
use std::sync::Arc;

use cluster::config::read_token;
use grpc::capabilities::{CAPABILITIES, Capabilities};
use grpc::live_streams::{LiveStreams, STREAMS};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use super::connect::{ConnectError, ConnectStage};

/// Request: the agent's id.
const AGENT_ID: HeaderName = HeaderName::from_static("agentid");
/// Request: the agent's identifiers, as a URL query.
const AGENT_IDENTIFIERS: HeaderName = HeaderName::from_static("agentidentifiers");
/// Response: the server's id.
const SERVER_ID: HeaderName = HeaderName::from_static("serverid");
/// Response: the number of servers.
const SERVER_COUNT: HeaderName = HeaderName::from_static("servercount");

/// The longest accepted token in bytes (the server's limit).
const TOKEN_LIMIT: usize = 16 * 1024;

/// The agent's metadata for servers. The token file is read for each connect, because kubelet rotates it.
#[derive(Debug, Clone)]
pub struct AgentMetadata {
    id: HeaderValue,
    identifiers: HeaderValue,
    token: Option<PathBuf>,
    pub(super) offer: Capabilities,
}

impl AgentMetadata {
    /// `id` and `identifiers` are the flags' texts, `token` the path of a service account token, `offer` what servers may use.
    pub fn new(id: &str, identifiers: &str, token: Option<PathBuf>, offer: Capabilities) -> Self {
        let value = |text| HeaderValue::from_str(text).expect("the flags accept printable ASCII only");
        Self { id: value(id), identifiers: value(identifiers), token, offer }
    }

    /// The headers of one Connect.
    pub(super) fn headers(&self, streams: &LiveStreams) -> Result<HeaderMap, ConnectError> {
        let mut headers = HeaderMap::new();
        headers.insert(AGENT_ID, self.id.clone());
        headers.insert(AGENT_IDENTIFIERS, self.identifiers.clone());
        if let Some(path) = &self.token {
            let token = read_token(path, TOKEN_LIMIT).map_err(|error| {
                let (path, why) = (path.display(), net::tls::read_failure(&error));
                ConnectError::at(
                    ConnectStage::Prepare,
                    format_args!("--service-account-token-path {path}: {why}"),
                )
            })?;
            headers.insert(AUTHORIZATION, token);
        }
        headers.extend(self.offer.header().map(|value| (CAPABILITIES, value)));
        headers.extend(streams.header().map(|value| (STREAMS, value)));
        Ok(headers)
    }
}

/// Reads the server's id and its count of servers: exactly one value each.
///
/// # Errors
/// Why the answer is invalid.
pub(super) fn server(headers: &HeaderMap) -> Result<(Arc<str>, usize), String> {
    let id = only(headers, &SERVER_ID, "server ID")?;
    let count = only(headers, &SERVER_COUNT, "server count")?;
    match count.parse::<i64>() {
        // Go accepts any number; a number below 1 counts as 1.
        Ok(count) => Ok((id.into(), usize::try_from(count).unwrap_or(0))),
        Err(_) => Err(format!("server count {:?} is no number", shown(count))),
    }
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName, what: &str) -> Result<&'a str, String> {
    match grpc::single(headers, name) {
        Ok(Some(value)) => value.to_str().map_err(|_| format!("{what} is not ASCII text")),
        Ok(None) => Err(format!("expected one {what}, got none")),
        Err(count) => Err(format!("expected one {what}, got {count}")),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use grpc::live_streams::StreamName;

    use super::*;

    fn answer(fields: &[(&'static str, &'static str)]) -> Result<(Arc<str>, usize), String> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        server(&headers)
    }

    #[test]
    fn a_server_says_its_name_and_count_once_each() {
        assert_eq!(answer(&[("serverid", "a"), ("servercount", "3")]), Ok(("a".into(), 3)));
        assert_eq!(answer(&[("serverid", "a"), ("servercount", "-1")]), Ok(("a".into(), 0)));
        // A Go server with `--server-id=` sends an empty one.
        assert_eq!(answer(&[("serverid", ""), ("servercount", "1")]), Ok(("".into(), 1)));
        for (fields, text) in [
            (&[("servercount", "3")][..], "expected one server ID, got none"),
            (&[("serverid", "a"), ("serverid", "b"), ("servercount", "3")], "expected one server ID, got 2"),
            (&[("serverid", "a")], "expected one server count, got none"),
            (&[("serverid", "a"), ("servercount", "x")], "server count \"x\" is no number"),
        ] {
            let error = answer(fields).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn the_token_is_read_anew_trimmed_and_kept_secret() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let agent = AgentMetadata::new(
            "agent-1",
            "ipv4=10.0.0.1&host=a",
            Some(path.clone()),
            Capabilities::supported(true),
        );
        let streams = LiveStreams { name: StreamName { process: 7, number: 3 }, others: vec![1, 2] };
        assert!(agent.headers(&streams).unwrap_err().to_string().contains("token"), "names the file");
        for token in ["one", "two"] {
            std::fs::write(&path, format!("  {token}\n")).unwrap();
            let headers = agent.headers(&streams).unwrap();
            assert_eq!(headers[AUTHORIZATION], format!("Bearer {token}"));
            assert!(!format!("{headers:?}").contains(token));
            assert_eq!(headers["agentid"], "agent-1");
            assert_eq!(headers["agentidentifiers"], "ipv4=10.0.0.1&host=a");
            assert_eq!(headers[STREAMS], "7 3 1 2");
        }
        for bad in ["", "  \n", "a\nb"] {
            std::fs::write(&path, bad).unwrap();
            assert!(agent.headers(&streams).is_err(), "{bad:?}");
        }
    }
}
