//! The health and the admin port: small HTTP/1.1 servers on a runtime of their own.
//!
//! They answer what the Go peers answer, byte for byte where a probe or a scraper could tell. A failed bind is
//! loud and retried, never fatal: with host networking two generations of a pod overlap.

pub mod admin;
pub mod health;
mod profile;
mod routes;
mod runtime;
mod seats;
mod server;
#[cfg(test)]
mod tests;

pub use routes::{Response, Routes};
pub use runtime::OpsRuntime;
pub use server::{ServerHandle, serve};
