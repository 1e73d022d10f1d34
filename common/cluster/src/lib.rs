//! The Kubernetes API for both programs: its address, our credentials, and the few calls.
//!
//! [`config`] reads a kubeconfig or the pod's own mounts, [`client`] sends one call at a time over HTTP/1.1 and TLS,
//! [`api`] has the types of leases and token reviews, [`lease`] defines when a lease is valid.
//!
//! This crate makes no decisions: the two programs decide which agents are admitted, which leases are deleted and how
//! many servers there are. It keeps no cache of answers, and retries only requests that were certainly not sent.
//!
//! It uses no client library, because the two programs need seven calls on two kinds of objects: ARCHITECTURE.md has
//! the measurement.

pub mod api;
pub mod client;
pub mod config;
pub mod lease;
pub mod time;

pub use api::{Lease, LeaseList, Status, TokenReview};
pub use client::{ApiError, Client, Freshness, Leases, Watch, WatchEvent};
pub use config::Config;
pub use time::{Clock, Moment};
