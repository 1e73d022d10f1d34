//! Tests of the Helm charts: what helm renders, what it refuses, and what the rendered command lines do in the real
//! programs. Needs helm, so it is no part of `cargo test --workspace`: `hack/check charts` runs it.

mod commands;
mod documents;
mod egress;
mod helm;
mod hosted;
#[allow(dead_code, reason = "shared with the tests that have a cluster")]
mod kubelet;
mod lint;
mod monitoring;
mod overrides;
mod pods;
mod references;
mod refusals;
mod restricted;
mod rights;
mod rollouts;
mod snapshots;
mod yaml;
