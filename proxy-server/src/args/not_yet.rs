//! What the Go proxy-server can do and this version cannot: flags that are read, checked and kept in the
//! [`Config`], and then refused, because running without what they ask for would be worse than not running.
//!
//! To add the machinery is to delete the row here.

use flags::Refusal;

use super::Config;

/// Why the flags of the Kubernetes client do nothing.
pub(super) const NO_CLIENT: &str = "this version does not talk to the Kubernetes API";

pub(super) fn refuse(config: &Config) -> Result<(), Refusal> {
    let table = [
        (
            config.token_auth.is_some(),
            "agent-namespace",
            "authentication of agents by token is",
            "authenticate agents by certificate with --cluster-ca-cert",
        ),
        (
            config.leases.enabled,
            "enable-lease-controller",
            "leases are",
            "drop the flag and tell agents the number of replicas with --server-count",
        ),
    ];
    match table.into_iter().find(|(asked_for, ..)| *asked_for) {
        Some((_, flag, what, fix)) => Err(Refusal::NotYet { flag, what, fix }),
        None => Ok(()),
    }
}
