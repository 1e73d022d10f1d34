//! When a stream is opened anew because the certificate that was shown for it comes to its end.
//!
//! A stream outlives its certificate: nobody looks at it after the handshake. But servers may, and what stands before
//! them; so the agent shows its newer certificate in good time, on a second stream, before it lets the first one go.

use transport::tls::Validity;

/// A stream is renewed between the last fifth and the last tenth of its certificate's life: early enough for many
/// tries, and not with all other agents at once.
const EARLIEST: f64 = 0.2;
const LATEST: f64 = 0.1;

/// The certificate that was shown for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    validity: Validity,
    /// Seconds of Unix time.
    renew_at: i64,
}

impl Shown {
    /// `chance` is from 0 up to, and not including, 1.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "seconds of a certificate's life"
    )]
    pub fn new(validity: Validity, chance: f64) -> Self {
        let life = (validity.not_after - validity.not_before).max(0) as f64;
        let before_the_end = life * (EARLIEST - (EARLIEST - LATEST) * chance);
        Self { validity, renew_at: validity.not_after - before_the_end as i64 }
    }

    /// Whether it is time, and a certificate at hand that lasts longer: without one nothing would be gained.
    pub fn is_due(self, now: i64, newest: Option<Validity>) -> bool {
        now >= self.renew_at && newest.is_some_and(|newest| newest.not_after > self.validity.not_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_good_time_and_only_if_something_is_gained() {
        let old = Validity { not_before: 1_000, not_after: 2_000 };
        let newer = Validity { not_before: 1_700, not_after: 2_700 };
        for (chance, due) in [(0.0, 1_800), (0.5, 1_850), (0.999_999, 1_900)] {
            let shown = Shown::new(old, chance);
            assert!(!shown.is_due(due - 1, Some(newer)), "{chance}");
            assert!(shown.is_due(due + 1, Some(newer)), "{chance}");
            assert!(shown.is_due(5_000, Some(newer)), "late is better than never");
            assert!(!shown.is_due(due + 1, Some(old)) && !shown.is_due(due + 1, None));
        }
    }
}
