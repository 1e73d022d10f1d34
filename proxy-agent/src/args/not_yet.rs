//! What the Go proxy-agent can do and this version cannot: flags that are read, checked and kept in the
//! [`Config`], and then refused, because running without what they ask for would be worse than not running.
//!
//! To add the machinery is to delete the row here.

use flags::Refusal;

use super::Config;

/// Why the flags of the Kubernetes client do nothing.
pub(super) const NO_CLIENT: &str = "this version does not talk to the Kubernetes API";

pub(super) fn refuse(config: &Config) -> Result<(), Refusal> {
    if config.leases.counted {
        return Err(Refusal::NotYet {
            flag: "count-server-leases",
            what: "leases are",
            fix: "drop the flag and give servers the number of replicas with their --server-count",
        });
    }
    Ok(())
}
