//! Calls to the API: one request, one answer, each with limits of time and size.
//!
//! HTTP/1.1: a watch has its own connection, the other calls share a few, and a stalled connection stalls only one
//! call. A request is sent again only if the API has certainly not processed it: the connection had been closed, or the
//! API refused our credentials and there are others. The caller retries everything else.

mod connect;
mod error;
mod leases;
mod limit;
mod pool;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, PROXY_AUTHORIZATION, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::api::TokenReview;
use crate::config::{Config, PresentedCredentials};

pub use error::ApiError;
pub use leases::{Freshness, Leases};
pub use watch::{Watch, WatchEvent};

use limit::RateLimit;
use pool::{Pool, Pooled};

/// The longest answer, in bytes: some ten thousand leases.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// JSON, whatever `--kube-api-content-type` says: all API servers support it.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Characters that need no escape in a path segment or a query value.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A client of one API server. Clones share its connections and its limit.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    config: Config,
    pool: Pool,
    limit: Option<RateLimit>,
    user_agent: String,
}

/// One request.
struct Call {
    method: Method,
    /// Path and query, after the server's own path.
    path: String,
    body: Option<Bytes>,
    /// The part of the body that no text may contain.
    secret: Option<String>,
    /// Waits for its turn behind other calls.
    is_review: bool,
    /// The time-out of the whole call, and its end.
    limit: Duration,
    deadline: Instant,
}

impl Call {
    /// Without a body; its time begins now.
    fn new(method: Method, path: String, limit: Duration) -> Self {
        Self {
            method,
            path,
            body: None,
            secret: None,
            is_review: false,
            limit,
            deadline: Instant::now() + limit,
        }
    }
}

impl Client {
    /// A client for `program`; connects at the first call. Sends at most `qps` requests per second, with bursts of
    /// `burst`; a `qps` of 0 means no limit.
    pub fn new(config: Config, program: &'static str, qps: f32, burst: i64) -> Self {
        let user_agent = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
        let (pool, limit) = (Pool::default(), RateLimit::new(qps, burst));
        Self(Arc::new(Shared { config, pool, limit, user_agent }))
    }

    /// A function that returns when the configuration's certificate expires, in seconds of Unix time. Each call reads
    /// the certificate's file again, if there is one. `None` without such a certificate; a plug-in renews its own.
    pub fn certificate_expiry(&self) -> Option<impl Fn() -> Option<i64> + Clone + Send + Sync + use<>> {
        let shared = Arc::clone(&self.0);
        shared.config.tls.identity.is_some().then_some(move || shared.config.tls.expires())
    }

    /// The leases of a namespace.
    pub fn leases(&self, namespace: &str) -> Leases {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", escaped(namespace));
        Leases { client: self.clone(), path }
    }

    /// Asks the API for the user of a token, and whether the token is for `audience`. (RBAC: create tokenreviews.)
    ///
    /// # Errors
    /// See [`ApiError`]; no text contains the token.
    pub async fn review_token(
        &self,
        token: &str,
        audience: &str,
        limit: Duration,
    ) -> Result<TokenReview, ApiError> {
        #[derive(serde::Deserialize)]
        struct Answer {
            status: Option<TokenReview>,
        }
        let body = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": token, "audiences": [audience] },
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews".to_owned();
        let (body, secret) = (Some(Bytes::from(body.to_string())), Some(token.to_owned()));
        let call = Call { body, secret, is_review: true, ..Call::new(Method::POST, path, limit) };
        let answer: Answer = self.call(call).await?;
        answer.status.ok_or_else(|| ApiError::invalid_answer("a TokenReview without status"))
    }

    /// Reads any object at `path`, which includes the query; [`escaped`] escapes its parts.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn get(&self, path: &str, limit: Duration) -> Result<Bytes, ApiError> {
        self.body(Call::new(Method::GET, path.to_owned(), limit)).await
    }

    /// Sends a call and parses its answer.
    async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body(call).await?).map_err(|_| ApiError::invalid_answer("no such JSON"))
    }

    async fn body(&self, call: Call) -> Result<Bytes, ApiError> {
        self.within(&call, async {
            let (response, pooled) = self.send(&call).await?;
            let body = self.read(response).await?;
            self.0.pool.put(pooled);
            Ok(body)
        })
        .await
    }

    /// Sends a call whose answer is streamed. The time-out applies to the answer's head.
    async fn open(&self, call: Call) -> Result<(Response<Incoming>, Pooled), ApiError> {
        self.within(&call, self.send(&call)).await
    }

    async fn within<T>(
        &self,
        call: &Call,
        doing: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        timeout_at(call.deadline, doing).await.unwrap_or_else(|_| {
            // The idle connections are probably dead as well, and each would take a time-out of its own.
            self.0.pool.clear();
            let at = self.0.config.server.authority();
            let text = format!("the Kubernetes API at {at} did not answer within {:?}", call.limit);
            Err(ApiError::Unanswered { cause: "timeout", text })
        })
    }

    /// Sends the call, and again with other credentials if the API refused the first.
    async fn send(&self, call: &Call) -> Result<(Response<Incoming>, Pooled), ApiError> {
        if let Some(limit) = &self.0.limit {
            timeout_at(call.deadline, limit.turn(call.is_review)).await.map_err(|_| {
                let fix = "raise --kubeconfig-qps and --kubeconfig-burst";
                let late = format!("the turn of this one did not come within {:?}", call.limit);
                let text = format!("too many requests of our own: {late}; {fix}");
                ApiError::Unanswered { cause: "throttled", text }
            })?;
        }
        match self.send_as(call).await {
            Err(error) if error.is(401) && self.0.config.credentials.refused() => self.send_as(call).await,
            sent => sent,
        }
    }

    async fn send_as(&self, call: &Call) -> Result<(Response<Incoming>, Pooled), ApiError> {
        let presented = self.0.config.credentials.present().await.map_err(ApiError::credentials)?;
        loop {
            let mut pooled = match self.0.pool.take() {
                Some(pooled) => pooled,
                None => {
                    let sender = connect::connect(&self.0.config, &presented).await?;
                    Pooled { sender, born: Instant::now(), used: false }
                }
            };
            match pooled.sender.try_send_request(self.request(call, &presented)?).await {
                Ok(response) => return self.judge(call, response, pooled).await,
                // The API server had closed the idle connection: it has not processed the request.
                Err(error) if pooled.used && error.message().is_some() => {}
                Err(error) => return Err(ApiError::unreachable(&self.0.config.server, &error.into_error())),
            }
        }
    }

    async fn judge(
        &self,
        call: &Call,
        response: Response<Incoming>,
        pooled: Pooled,
    ) -> Result<(Response<Incoming>, Pooled), ApiError> {
        let status = response.status();
        if status.is_success() {
            return Ok((response, pooled));
        }
        let retry_after = retry_after(response.headers());
        let body = self.read(response).await?;
        if status == StatusCode::UNAUTHORIZED {
            // A connection keeps its client certificate; a new one has the current certificate.
            self.0.pool.clear();
        } else {
            self.0.pool.put(pooled);
        }
        Err(ApiError::status(status.as_u16(), &body, retry_after, call.secret.as_deref()))
    }

    async fn read(&self, response: Response<Incoming>) -> Result<Bytes, ApiError> {
        match Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(ApiError::invalid_answer("too much"))
            }
            Err(error) => Err(ApiError::unreachable(&self.0.config.server, &error)),
        }
    }

    fn request(
        &self,
        call: &Call,
        presented: &PresentedCredentials,
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        let Config { server, proxy, .. } = &self.0.config;
        // A proxy for plain HTTP gets absolute-form requests, with its credentials.
        let forwarder = proxy.as_ref().filter(|_| !server.https);
        let uri = match forwarder {
            Some(_) => format!("{server}{}", call.path),
            None => format!("{}{}", server.path, call.path),
        };
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(uri)
            .header(HOST, server.authority())
            .header(USER_AGENT, &self.0.user_agent)
            .header(ACCEPT, JSON);
        if let Some(header) = &presented.header {
            request = request.header(AUTHORIZATION, header);
        }
        if let Some(authorization) = forwarder.and_then(|proxy| proxy.authorization.as_deref()) {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, JSON);
        }
        let body = Full::new(call.body.clone().unwrap_or_default());
        request.body(body).map_err(|_| ApiError::invalid_answer("a path or host that no request can have"))
    }
}

/// In seconds; API servers do not use dates.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// Escapes a path segment or a query value.
pub fn escaped(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, PLAIN)
}
