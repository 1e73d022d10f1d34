//! Tests against the built programs, one file per theme. `PROXY_SERVER` and `PROXY_AGENT` name the programs, so that the same
//! tests run against other implementations; `docs/compatibility.md` maps behaviors to tests.
//!
//! One test binary on purpose: all tests run in parallel, and are linked once.

mod authority;
mod blackholes;
mod bytes;
mod certificates;
mod clean_ends;
mod closes;
mod commands;
mod compare;
mod connection_log;
mod descriptors;
mod dial_errors;
mod distributions;
mod documents;
mod drain_shutdown;
mod flags;
mod forks;
mod gauges;
mod half_close;
mod half_open;
mod http_endpoints;
mod identity;
mod isolation;
mod lanes;
mod leases;
mod log_lines;
mod losses;
mod memory_limits;
mod metrics;
mod misbehaving_agents;
mod misbehaving_frontends;
mod misbehaving_servers;
mod mistakes;
mod one_connection;
mod outages;
mod panics;
mod replicas;
mod rollouts;
mod scenarios;
mod selection;
mod server_first;
mod several_frontends;
mod signals;
mod soak;
mod startup;
mod statusz;
mod strategies;
mod tokens;
mod traces;
mod transports;
mod unauthenticated_peers;
mod uploads;
mod wan;
