//! Calls to the Kubernetes API: their number by answer, and their duration.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{CountBy, Histogram, registered};

/// The reasons in answers of the API server. Source: `StatusReason` of k8s.io/apimachinery. Others count as `Unknown`,
/// because a peer must not choose label values.
const REASONS: &str = " AlreadyExists BadRequest Conflict Expired Forbidden Gone InternalError Invalid MethodNotAllowed \
    NotAcceptable NotFound RequestEntityTooLarge ServerTimeout ServiceUnavailable StoreReadError Timeout \
    TooManyRequests Unauthorized UnsupportedMediaType";

/// The HTTP status, under the family's label name (which differs between server and agent).
type Status = [(&'static str, u32); 1];

crate::label!(struct Reason in "reason");

crate::label! {
    /// A call of the Kubernetes API.
    pub enum LeaseCall in "call" {
        /// A list of leases.
        List => "list",
        /// A watch, until it has started.
        Watch => "watch",
        /// The deletion of a lease.
        Delete => "delete",
    }
}

/// `lease_calls_unanswered_total` {call, reason} (ours): calls without an HTTP status. Go's families omit such calls,
/// so an unreachable API would not show in them.
#[derive(Debug, Clone)]
pub struct Unanswered(CountBy<(LeaseCall, Reason)>);

impl Unanswered {
    /// Registers the family; it appears with the first such call.
    pub fn register(registry: &mut Registry) -> Self {
        let help = "Calls about leases that the Kubernetes API did not answer, by call and reason";
        Self(CountBy::register(registry, "lease_calls_unanswered_total", help))
    }

    /// Counts one call.
    pub fn count(&self, call: LeaseCall, reason: &'static str) {
        self.0.count((call, Reason(reason)));
    }
}

/// One kind of call: a counter {status, reason} and a histogram {status}, both visible from the first call on.
#[derive(Debug, Clone)]
pub struct ApiCalls {
    label: &'static str,
    calls: CountBy<(Status, Reason)>,
    latencies: Family<Status, Histogram, fn() -> Histogram>,
}

impl ApiCalls {
    /// Registers the counter `calls` and the histogram `latencies` (names with their HELP). `label` is the name of the
    /// label for the HTTP status; `make` builds a histogram with the desired buckets.
    pub fn register(
        registry: &mut Registry,
        label: &'static str,
        calls: (&str, &str),
        latencies: (&str, &str),
        make: fn() -> Histogram,
    ) -> Self {
        let family = Family::new_with_constructor(make);
        let latencies = registered(registry, latencies.0, latencies.1, family);
        Self { label, calls: CountBy::register(registry, calls.0, calls.1), latencies }
    }

    /// Counts one answered call. `reason` is that of the API's Status object, empty for success.
    pub fn count(&self, status: u16, reason: &str) {
        let known = REASONS.split(' ').find(|known| *known == reason);
        self.calls.count((self.status(status), Reason(known.unwrap_or("Unknown"))));
    }

    /// Records the duration of a call.
    pub fn observe(&self, status: u16, elapsed: Duration) {
        self.latencies.get_or_create(&self.status(status)).observe(elapsed);
    }

    fn status(&self, code: u16) -> Status {
        [(self.label, code.into())]
    }
}
