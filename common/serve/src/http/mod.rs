//! The health and admin ports: small HTTP/1.1 servers on their own runtime.
//!
//! They answer like the Go programs, byte for byte where a probe or scraper could see a difference. A failed bind is
//! logged and retried, never fatal: with host networking two generations of a pod overlap.

pub mod admin;
pub mod health;
mod local;
mod page;
mod profile;
mod routes;
mod runtime;
mod server;
#[cfg(test)]
mod tests;
mod verbosity;

pub use local::with_post;
pub use routes::{Response, Routes};
pub use runtime::OpsRuntime;
pub use server::{ServerHandle, serve};
pub use verbosity::with_verbosity;
