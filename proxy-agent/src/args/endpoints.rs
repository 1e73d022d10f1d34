//! Flags that limit the endpoints that servers may reach.

use flags::{FlagError, FlagSet, List};

use crate::endpoint::DestinationRule;

/// The flags as written on the command line.
#[derive(Debug, Default)]
pub(super) struct RawFlags {
    allow_cloud_metadata: bool,
    deny_destinations: List,
    allow_destinations: List,
}

/// The checked values.
pub(super) struct Endpoints {
    pub(super) allow_cloud_metadata: bool,
    pub(super) deny: Vec<DestinationRule>,
    pub(super) allow: Vec<DestinationRule>,
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Endpoints");
        set.add(
            "allow-cloud-metadata",
            &mut self.allow_cloud_metadata,
            "Let servers reach link-local addresses (169.254.0.0/16, fe80::/10) and the metadata services of clouds \
             (such as 169.254.169.254), which provide this host's credentials. To allow only one of them, such as \
             node-local DNS, use --allow-destinations. (Not a flag of the Go proxy-agent, which always allows them.)",
        );
        set.add(
            "deny-destinations",
            &mut self.deny_destinations,
            "Destinations that servers must not reach: HOST[:PORTS], comma-separated. HOST is an address, a network \
             (10.0.0.0/8, [fd00::/8]), a requested name, *.NAME or *; PORTS is one port or FROM-TO. (Not a flag of \
             the Go proxy-agent.)",
        );
        set.add(
            "allow-destinations",
            &mut self.allow_destinations,
            "Destinations that servers may reach, in the format of --deny-destinations, which takes precedence. Empty: \
             everything except link-local addresses and metadata services. Only a rule with their own network or \
             address allows these: *,169.254.20.10:53 allows everything else and node-local DNS. (Not a flag of the \
             Go proxy-agent.)",
        );
    }

    /// Parses the rules, and warns if metadata services may be reached.
    pub(super) fn check(self, warnings: &mut Vec<String>) -> Result<Endpoints, FlagError> {
        if self.allow_cloud_metadata {
            warnings
                .push("--allow-cloud-metadata: servers can get at this host's cloud credentials and link-local services".to_owned());
        }
        Ok(Endpoints {
            allow_cloud_metadata: self.allow_cloud_metadata,
            deny: rules("deny-destinations", &self.deny_destinations)?,
            allow: rules("allow-destinations", &self.allow_destinations)?,
        })
    }
}

fn rules(flag: &'static str, list: &List) -> Result<Vec<DestinationRule>, FlagError> {
    let rule = |text: &String| {
        DestinationRule::parse(text)
            .map_err(|why| FlagError::value(flag, format_args!("{text:?}"), why.to_string()))
    };
    list.items.iter().map(rule).collect()
}
