//! When a lease is valid by its own times. The caller decides whether to trust them.

use std::time::Duration;

use crate::api::Lease;
use crate::time::Moment;

/// The annotation of a lease with the address where agents reach its server directly: `HOST:PORT`. (Go programs neither write nor
/// read it.)
pub const AGENT_ADDRESS: &str = "konnectivity-server/agent-address";

/// The longest duration of a renewal that is accepted. The API accepts up to 68 years, for which a server that has gone
/// would be counted. All releases, Go's and ours, write 30 s. An hour is 120 times that, so that no fork's longer lease
/// is cut, and an absurd one expires within hours.
pub const MAX_LEASE_DURATION: Duration = Duration::from_secs(3_600);

/// The end of a lease by its own times: the renewal (otherwise the acquisition) plus the duration. `None` is a lease
/// without either time, which counts as expired. (As Go's util.IsLeaseValid; for a lease without a duration, which
/// crashes Go, the duration is zero.)
pub fn end(lease: &Lease) -> Option<Moment> {
    let began = lease.spec.renew_time.or(lease.spec.acquire_time)?;
    Some(began.plus(duration(lease)))
}

/// How long a renewal lasts, at most [`MAX_LEASE_DURATION`].
pub fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.lease_duration_seconds.unwrap_or(0);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(MAX_LEASE_DURATION)
}

/// Whether a lease is valid at `now`: its end is in the future.
pub fn is_valid(lease: &Lease, now: Moment) -> bool {
    end(lease).is_some_and(|end| end > now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(renewed: Option<i64>, acquired: Option<i64>, seconds: Option<i64>) -> Lease {
        let mut lease = Lease::new("n", "a");
        lease.spec.renew_time = renewed.map(Moment::from_seconds);
        lease.spec.acquire_time = acquired.map(Moment::from_seconds);
        lease.spec.lease_duration_seconds = seconds;
        lease
    }

    #[test]
    fn validity_is_gos() {
        let now = Moment::from_seconds(1_000);
        let rows = [
            (Some(971), None, Some(30), true),
            (Some(970), None, Some(30), false),
            (Some(2_000), None, Some(30), true),
            (None, Some(971), Some(30), true),
            (Some(1), Some(999), Some(30), false),
            (None, None, Some(30), false),
            (Some(1_000), None, Some(0), false),
            (Some(1_000), None, None, false),
            (Some(1_000), None, Some(-5), false),
            (Some(-2_599), None, Some(i64::MAX), true),
            (Some(-2_600), None, Some(i64::MAX), false),
            (Some(-2_600), None, Some(i64::from(i32::MAX)), false),
        ];
        for (renewed, acquired, seconds, valid) in rows {
            let lease = lease(renewed, acquired, seconds);
            assert_eq!(is_valid(&lease, now), valid, "{renewed:?} {acquired:?} {seconds:?}");
        }
    }
}
