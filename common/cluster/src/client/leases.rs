//! The calls on leases of one namespace.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::watch::Watch;
use super::{ApiError, Call, Client, escaped};
use crate::api::{Lease, LeaseList};

/// How long a call may take; a renewal has 15 s until the next one.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// A list may be long.
const LIST_LIMIT: Duration = Duration::from_secs(30);
/// See [`LeaseList::slow`].
const SLOW: Duration = Duration::from_secs(2);

/// Which state a list must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Whatever the API server has at hand: cheap for it, and perhaps some time old.
    Any,
    /// The latest.
    Latest,
}

/// The leases of a namespace.
#[derive(Debug, Clone)]
pub struct Leases {
    client: Client,
    path: String,
}

impl Leases {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", escaped(namespace));
        Self { client, path }
    }

    /// All that match a label selector; empty matches all.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn list(&self, selector: &str, freshness: Freshness) -> Result<LeaseList, ApiError> {
        let mut query = query(selector);
        if freshness == Freshness::Any {
            query.push_str("&resourceVersion=0");
        }
        let path = format!("{}?{}", self.path, query.trim_start_matches('&'));
        let asked = Instant::now();
        let list: LeaseList = self.call(Method::GET, path, None, LIST_LIMIT).await?;
        Ok(LeaseList { slow: asked.elapsed() >= SLOW, ..list })
    }

    /// One.
    ///
    /// # Errors
    /// See [`ApiError`]; 404 if there is none.
    pub async fn get(&self, name: &str) -> Result<Lease, ApiError> {
        self.call(Method::GET, self.named(name), None, CALL_LIMIT).await
    }

    /// Creates one.
    ///
    /// # Errors
    /// See [`ApiError`]; 409 if there is one.
    pub async fn create(&self, lease: &Lease) -> Result<Lease, ApiError> {
        self.call(Method::POST, self.path.clone(), Some(body(lease)?), CALL_LIMIT).await
    }

    /// Writes one anew, if it is still of the version given.
    ///
    /// # Errors
    /// See [`ApiError`]; 409 if it was written meanwhile, 404 if it is gone.
    pub async fn update(&self, lease: &Lease) -> Result<Lease, ApiError> {
        self.call(Method::PUT, self.named(&lease.metadata.name), Some(body(lease)?), CALL_LIMIT).await
    }

    /// Deletes one; with `version` only if it is still of that version.
    ///
    /// # Errors
    /// See [`ApiError`]; 404 if it is gone, 409 if it was written meanwhile.
    pub async fn delete(&self, name: &str, version: Option<&str>) -> Result<(), ApiError> {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        if let Some(version) = version {
            options["preconditions"] = json!({ "resourceVersion": version });
        }
        let body = Some(Bytes::from(options.to_string()));
        self.call::<Value>(Method::DELETE, self.named(name), body, CALL_LIMIT).await.map(drop)
    }

    /// Tells of changes from `version` on, until the API server ends it after about `lasting`.
    ///
    /// # Errors
    /// See [`ApiError`]; 410 if the version is too old.
    pub async fn watch(&self, selector: &str, version: &str, lasting: Duration) -> Result<Watch, ApiError> {
        let query = query(selector);
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}{query}",
            self.path,
            escaped(version),
            lasting.as_secs(),
        );
        let call = Call { method: Method::GET, path, body: None, secret: None, limit: CALL_LIMIT };
        let (response, pooled) = self.client.open(call).await?;
        Ok(Watch::new(response.into_body(), pooled))
    }

    fn named(&self, name: &str) -> String {
        format!("{}/{}", self.path, escaped(name))
    }

    async fn call<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: Option<Bytes>,
        limit: Duration,
    ) -> Result<T, ApiError> {
        self.client.call(Call { method, path, body, secret: None, limit }).await
    }
}

fn query(selector: &str) -> String {
    if selector.is_empty() { String::new() } else { format!("&labelSelector={}", escaped(selector)) }
}

fn body(lease: &Lease) -> Result<Bytes, ApiError> {
    let text = serde_json::to_vec(lease).map_err(|_| ApiError::Answer("a lease that is no JSON"))?;
    Ok(Bytes::from(text))
}
