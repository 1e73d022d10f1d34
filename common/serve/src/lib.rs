//! A process's interface to its operator: metrics, health and admin ports, status, logs, profiles, signals,
//! certificate reloads.
//!
//! Nothing here carries or delays a proxied byte: the ports run on their own runtime, logs go through a bounded queue,
//! counters are relaxed atomics.

pub mod certificates;
pub mod http;
pub mod logs;
pub mod metrics;
pub mod process;
pub mod signals;
pub mod statusz;
pub mod traces;
