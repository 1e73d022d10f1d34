//! The calls on leases of one namespace.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::watch::Watch;
use super::{ApiError, Call, Client, escaped};
use crate::api::{Lease, LeaseList};

/// The time-out of a call. The next renewal follows after 15 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The time-out of a list, which may be long.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a watch is awaited after the time at which the API server should have ended it.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// See [`LeaseList::slow`].
const SLOW: Duration = Duration::from_secs(2);

/// How fresh a list must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Any state that the API server has cached: cheap for it, but possibly old.
    Any,
    /// The latest state.
    Latest,
}

/// The leases of a namespace.
#[derive(Clone)]
pub struct Leases {
    pub(super) client: Client,
    pub(super) path: String,
}

impl Leases {
    /// All leases that match a label selector; an empty one matches all.
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
        let list: LeaseList = self.client.call(Call::new(Method::GET, path, LIST_TIMEOUT)).await?;
        Ok(LeaseList { slow: asked.elapsed() >= SLOW, ..list })
    }

    /// Reads one lease.
    ///
    /// # Errors
    /// See [`ApiError`]; 404 if there is none.
    pub async fn get(&self, name: &str) -> Result<Lease, ApiError> {
        self.client.call(Call::new(Method::GET, self.named(name), CALL_TIMEOUT)).await
    }

    /// Creates a lease.
    ///
    /// # Errors
    /// See [`ApiError`]; 409 if it exists.
    pub async fn create(&self, lease: &Lease) -> Result<Lease, ApiError> {
        self.write(Method::POST, self.path.clone(), lease).await
    }

    /// Replaces a lease, if its version is unchanged.
    ///
    /// # Errors
    /// See [`ApiError`]; 409 if it was written in the meantime, 404 if it is gone.
    pub async fn update(&self, lease: &Lease) -> Result<Lease, ApiError> {
        self.write(Method::PUT, self.named(&lease.metadata.name), lease).await
    }

    /// Deletes a lease; with `version` only if its version is unchanged.
    ///
    /// # Errors
    /// See [`ApiError`]; 404 if it is gone, 409 if it was written in the meantime.
    pub async fn delete(&self, name: &str, version: Option<&str>) -> Result<(), ApiError> {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        if let Some(version) = version {
            options["preconditions"] = json!({ "resourceVersion": version });
        }
        self.write::<Value>(Method::DELETE, self.named(name), &options).await.map(drop)
    }

    /// Watches changes from `version` on, until the API server ends the watch after about `lasting`.
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
        let (response, pooled) = self.client.open(Call::new(Method::GET, path, CALL_TIMEOUT)).await?;
        Ok(Watch::new(response.into_body(), pooled, Instant::now() + lasting + WATCH_GRACE))
    }

    fn named(&self, name: &str) -> String {
        format!("{}/{}", self.path, escaped(name))
    }

    async fn write<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: &impl Serialize,
    ) -> Result<T, ApiError> {
        let body =
            serde_json::to_vec(body).map_err(|_| ApiError::invalid_answer("a lease that is not JSON"))?;
        let body = Some(Bytes::from(body));
        self.client.call(Call { body, ..Call::new(method, path, CALL_TIMEOUT) }).await
    }
}

fn query(selector: &str) -> String {
    if selector.is_empty() { String::new() } else { format!("&labelSelector={}", escaped(selector)) }
}
