//! What an operator sees of a process: metrics, health and admin ports, logs, profiles; how he stops it, and gives it
//! other certificates.
//!
//! Nothing here carries a proxied byte, and nothing here may delay one: the ports run on a runtime of their
//! own, logs go through a bounded queue, counters are relaxed atomics.

pub mod certificates;
pub mod http;
pub mod logs;
pub mod metrics;
pub mod signals;
