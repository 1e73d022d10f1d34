//! Flags of which endpoints servers may reach.

use flags::FlagSet;

/// The flags as they are written.
#[derive(Debug, Default)]
pub(super) struct Lines {
    allow_cloud_metadata: bool,
}

impl Lines {
    pub(super) fn lend<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Endpoints");
        set.add(
            "allow-cloud-metadata",
            &mut self.allow_cloud_metadata,
            "Let servers reach the metadata services of clouds (169.254.169.254 and the like), which hand out this \
             host's credentials. (Not a flag of the Go proxy-agent, which always does.)",
        );
    }

    /// Whether metadata services may be reached.
    pub(super) fn check(self, notices: &mut Vec<String>) -> bool {
        if self.allow_cloud_metadata {
            notices
                .push("--allow-cloud-metadata: servers can get at this host's cloud credentials".to_owned());
        }
        self.allow_cloud_metadata
    }
}
