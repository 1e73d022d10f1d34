//! A watch: a stream of changes, one JSON object per line.

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::ApiError;
use super::pool::Pooled;
use crate::api::{Lease, Metadata, Status};

/// The longest line, in bytes: etcd holds objects of 1.5 MB.
const LINE_LIMIT: usize = 4 << 20;

/// An event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    /// A lease was added or changed.
    There(Box<Lease>),
    /// A lease was deleted, or no longer matches.
    Gone(Box<Lease>),
    /// Nothing changed up to this version.
    Bookmark(String),
}

/// The changes from some version on.
pub struct Watch {
    body: Incoming,
    /// What was read after the last event.
    unread: BytesMut,
    /// How many of these bytes contain no end of a line.
    searched: usize,
    /// When a watch that the API server has not ended is lost.
    deadline: Instant,
    /// Keeps the connection open.
    _connection: Pooled,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl Watch {
    pub(super) fn new(body: Incoming, connection: Pooled, deadline: Instant) -> Self {
        Self { body, unread: BytesMut::new(), searched: 0, deadline, _connection: connection }
    }

    /// The next event; `None` when the API server has ended the watch in order. Cancel safe.
    ///
    /// # Errors
    /// If the connection is lost or the data is invalid, if the API server has not ended the watch 30 s after it should
    /// have, or if the API reports an error: 410 for a version that is too old.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, ApiError> {
        loop {
            let new = self.unread.get(self.searched..).unwrap_or_default();
            if let Some(end) = new.iter().position(|byte| *byte == b'\n') {
                let line = self.unread.split_to(self.searched + end + 1);
                self.searched = 0;
                match event(&line)? {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            self.searched = self.unread.len();
            if self.searched >= LINE_LIMIT {
                return Err(ApiError::invalid_answer("a watch's event is too long"));
            }
            let frame = timeout_at(self.deadline, self.body.frame()).await.map_err(|_| {
                let text = "the Kubernetes API did not end a watch in time".to_owned();
                ApiError::Unanswered { cause: "timeout", text }
            })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| {
                let text = format!("the Kubernetes API's watch: {error}");
                ApiError::Unanswered { cause: "unreachable", text }
            })?;
            self.unread.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }
}

/// Parses a line; `None` for unknown kinds.
fn event(line: &[u8]) -> Result<Option<WatchEvent>, ApiError> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let invalid_answer = |_| ApiError::invalid_answer("a watch's event is no such JSON");
    let Line { kind, mut object } = serde_json::from_slice(line).map_err(invalid_answer)?;
    Ok(match kind.as_str() {
        "ADDED" | "MODIFIED" => {
            Some(WatchEvent::There(Box::new(serde_json::from_value(object).map_err(invalid_answer)?)))
        }
        "DELETED" => {
            Some(WatchEvent::Gone(Box::new(serde_json::from_value(object).map_err(invalid_answer)?)))
        }
        "BOOKMARK" => {
            let metadata = object.get_mut("metadata").map(Value::take).unwrap_or_default();
            let metadata: Metadata = serde_json::from_value(metadata).map_err(invalid_answer)?;
            Some(WatchEvent::Bookmark(metadata.resource_version))
        }
        "ERROR" => {
            let status: Status = serde_json::from_value(object).map_err(invalid_answer)?;
            return Err(ApiError::event(&status));
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::event;

    #[test]
    fn a_bookmark_that_is_no_object_is_an_error() {
        for object in ["[1]", "1", "\"text\"", "null", "{}"] {
            let line = format!("{{\"type\": \"BOOKMARK\", \"object\": {object}}}");
            assert!(event(line.as_bytes()).is_err(), "{object}");
        }
    }
}
