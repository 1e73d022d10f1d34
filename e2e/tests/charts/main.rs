//! Tests of the Helm charts: the rendered objects, the refused values, and the rendered command lines with the real programs.
//! They need helm, so they are not part of `cargo test --workspace`: `hack/check charts` runs them.

mod commands;
mod documents;
mod egress;
mod helm;
mod hosted;
#[allow(dead_code, reason = "shared with the tests that have a cluster")]
mod kubelet;
mod lint;
mod monitoring;
mod operators;
mod overrides;
mod pods;
mod references;
mod refusals;
mod release;
mod restricted;
mod rights;
mod rollouts;
mod snapshots;
mod yaml;
