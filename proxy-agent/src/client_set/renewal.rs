//! When a stream is replaced because its client certificate is about to expire.
//!
//! A stream can outlive its certificate, because certificates are checked only in the handshake. But servers and proxies may
//! end such a stream. So the agent presents its newer certificate in time, on a second stream, before it ends the first one.

use net::tls::Validity;

/// A stream is replaced between the last fifth and the last tenth of its certificate's life: early enough for many attempts,
/// and not at the same time as all other agents.
const MAX_REMAINING_SHARE: f64 = 0.2;
const MIN_REMAINING_SHARE: f64 = 0.1;

/// The client certificate of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresentedCert {
    validity: Validity,
    /// Unix time in seconds.
    renew_at: i64,
}

impl PresentedCert {
    /// `chance` is a random number from 0 up to, and not including, 1.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "seconds of a certificate's life"
    )]
    pub fn new(validity: Validity, chance: f64) -> Self {
        let lifetime = (validity.not_after - validity.not_before).max(0) as f64;
        let before_the_end =
            lifetime * (MAX_REMAINING_SHARE - (MAX_REMAINING_SHARE - MIN_REMAINING_SHARE) * chance);
        Self { validity, renew_at: validity.not_after - before_the_end as i64 }
    }

    /// Whether the time has come, and a certificate exists that expires later.
    pub fn is_due(self, now: i64, newest: Option<Validity>) -> bool {
        now >= self.renew_at && newest.is_some_and(|newest| newest.not_after > self.validity.not_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_is_due_in_time_and_only_for_a_longer_certificate() {
        let old = Validity { not_before: 1_000, not_after: 2_000 };
        let newer = Validity { not_before: 1_700, not_after: 2_700 };
        for (chance, due) in [(0.0, 1_800), (0.5, 1_850), (0.999_999, 1_900)] {
            let presented = PresentedCert::new(old, chance);
            assert!(!presented.is_due(due - 1, Some(newer)), "{chance}");
            assert!(presented.is_due(due + 1, Some(newer)), "{chance}");
            assert!(presented.is_due(5_000, Some(newer)), "late is better than never");
            assert!(!presented.is_due(due + 1, Some(old)) && !presented.is_due(due + 1, None));
        }
    }
}
