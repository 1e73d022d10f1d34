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
}

/// One kind of call: a counter {status, reason} and a histogram {status}, both visible from the first call on.
#[derive(Debug, Clone)]
pub struct ApiCalls {
    label: &'static str,
    calls: CountBy<(Status, Reason)>,
    latencies: Family<Status, Histogram, fn() -> Histogram>,
    unanswered: Unanswered,
}

impl ApiCalls {
    /// Registers the counter `calls` and the histogram `latencies` (names with their HELP). `unanswered` counts the calls that
    /// have no status. `label` is the name of the label for the HTTP status; `make` builds a histogram with the desired
    /// buckets.
    pub fn register(
        registry: &mut Registry,
        unanswered: &Unanswered,
        label: &'static str,
        calls: (&str, &str),
        latencies: (&str, &str),
        make: fn() -> Histogram,
    ) -> Self {
        let family = Family::new_with_constructor(make);
        let latencies = registered(registry, latencies.0, latencies.1, family);
        let calls = CountBy::register(registry, calls.0, calls.1);
        Self { label, calls, latencies, unanswered: unanswered.clone() }
    }

    /// Counts a call, and records its duration if it has a status. `outcome`: the HTTP status and the reason of the API's
    /// Status object (empty for success), or why there was no answer. `took` is `None` for a call without a histogram.
    pub fn record(
        &self,
        call: LeaseCall,
        outcome: Result<(u16, &str), &'static str>,
        took: Option<Duration>,
    ) {
        let (status, reason) = match outcome {
            Ok(answer) => answer,
            Err(why) => return self.unanswered.0.count((call, Reason(why))),
        };
        let status = [(self.label, status.into())];
        let known = REASONS.split(' ').find(|known| *known == reason);
        self.calls.count((status, Reason(known.unwrap_or("Unknown"))));
        if let Some(took) = took {
            self.latencies.get_or_create(&status).observe(took);
        }
    }
}
