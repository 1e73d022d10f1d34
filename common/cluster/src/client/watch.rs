//! A watch: a stream of changes, one JSON object per line.

use std::io;

use bytes::Bytes;
use http_body_util::combinators::MapErr;
use http_body_util::{BodyDataStream, BodyExt};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt};
use tokio_util::io::StreamReader;

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

type Body = MapErr<Incoming, fn(hyper::Error) -> io::Error>;

/// The changes from some version on.
pub struct Watch {
    body: StreamReader<BodyDataStream<Body>, Bytes>,
    /// The begin of a line.
    line: Vec<u8>,
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
    pub(super) fn new(body: Incoming, connection: Pooled) -> Self {
        let body = body.map_err(io::Error::other as fn(_) -> _).into_data_stream();
        Self { body: StreamReader::new(body), line: Vec::new(), _connection: connection }
    }

    /// The next event; `None` when the API server has ended the watch in order. Has no time-out. Cancel safe.
    ///
    /// # Errors
    /// If the connection is lost or the data is invalid, or the API reports an error: 410 for a version that is too
    /// old.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, ApiError> {
        loop {
            // `line` keeps the bytes that a canceled call has read.
            let room = LINE_LIMIT.saturating_sub(self.line.len()) as u64;
            (&mut self.body).take(room).read_until(b'\n', &mut self.line).await.map_err(|error| {
                let text = format!("the Kubernetes API's watch: {error}");
                ApiError::Unanswered { cause: "unreachable", text }
            })?;
            if self.line.last() != Some(&b'\n') {
                let is_end = self.line.len() < LINE_LIMIT;
                return if is_end {
                    Ok(None)
                } else {
                    Err(ApiError::nonsense("a watch's event is too long"))
                };
            }
            let event = event(&self.line);
            self.line.clear();
            if let Some(event) = event? {
                return Ok(Some(event));
            }
        }
    }
}

/// Parses a line; `None` for unknown kinds.
fn event(line: &[u8]) -> Result<Option<WatchEvent>, ApiError> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let nonsense = |_| ApiError::nonsense("a watch's event is no such JSON");
    let Line { kind, mut object } = serde_json::from_slice(line).map_err(nonsense)?;
    Ok(match kind.as_str() {
        "ADDED" | "MODIFIED" => {
            Some(WatchEvent::There(Box::new(serde_json::from_value(object).map_err(nonsense)?)))
        }
        "DELETED" => Some(WatchEvent::Gone(Box::new(serde_json::from_value(object).map_err(nonsense)?))),
        "BOOKMARK" => {
            let metadata: Metadata = serde_json::from_value(object["metadata"].take()).map_err(nonsense)?;
            Some(WatchEvent::Bookmark(metadata.resource_version))
        }
        "ERROR" => {
            let status: Status = serde_json::from_value(object).map_err(nonsense)?;
            return Err(ApiError::event(&status));
        }
        _ => None,
    })
}
