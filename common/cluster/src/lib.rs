//! The Kubernetes API as both halves need it: where it is, who we are to it, and the handful of calls.
//!
//! [`config`] reads a kubeconfig or the pod's own mounts, [`client`] carries one call at a time over HTTP/1.1 and
//! TLS, [`api`] has the shapes of leases and token reviews, [`lease`] says when a lease is valid.
//!
//! What it never does: decide. Who is let in, which lease is deleted and how many servers there are is told by the
//! two programs. It keeps no cache of answers and retries nothing but what was certainly not sent.
//!
//! Why no client library: the two programs need seven calls on two kinds of objects. The usual one brings 72 crates
//! (against seven here) and a second way to do TLS; see ARCHITECTURE.md.

pub mod api;
pub mod client;
pub mod config;
pub mod lease;
pub mod time;

pub use api::{Lease, LeaseList, Status, TokenReview};
pub use client::{ApiError, Client, Freshness, Leases, Watch, WatchEvent};
pub use config::{Config, ConfigError};
pub use time::{Clock, Moment};
