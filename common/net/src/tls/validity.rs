//! The validity period of certificates.

use std::fmt::Display;

use rustls_pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use x509_parser::certificate;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A period in seconds of Unix time, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: i64,
    /// The last second.
    pub not_after: i64,
}

impl Validity {
    /// The period in which all of these certificates are valid. `None` if none of them parses.
    pub fn of(certs: &[CertificateDer<'_>]) -> Option<Self> {
        certs.iter().filter_map(Self::of_one).reduce(Self::and)
    }

    /// The intersection of both periods.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            not_before: self.not_before.max(other.not_before),
            not_after: self.not_after.min(other.not_after),
        }
    }

    pub(super) fn of_one(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, cert) = X509Certificate::from_der(der).ok()?;
        Some(Self::from(cert.validity()))
    }

    /// Why a certificate with this period is not valid at `now`, in seconds of Unix time.
    pub(super) fn fault_at(self, now: i64) -> Option<String> {
        if now > self.not_after {
            Some(format!("it expired at {}", rfc3339(self.not_after)))
        } else if now < self.not_before {
            Some(format!("it is not valid before {}", rfc3339(self.not_before)))
        } else {
            None
        }
    }
}

impl From<&certificate::Validity> for Validity {
    fn from(validity: &certificate::Validity) -> Self {
        Self { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() }
    }
}

/// Seconds of Unix time as RFC 3339 in UTC; a number if that is impossible.
pub(super) fn rfc3339(seconds: impl TryInto<i64> + Copy + Display) -> String {
    let date = seconds.try_into().ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    date.and_then(|date| date.format(&Rfc3339).ok()).unwrap_or_else(|| seconds.to_string())
}

/// Seconds of Unix time.
pub fn now() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_within() {
        let span = Validity { not_before: 10, not_after: 20 };
        assert_eq!(span.fault_at(10).or(span.fault_at(20)), None);
        assert_eq!(span.fault_at(9).as_deref(), Some("it is not valid before 1970-01-01T00:00:10Z"));
        assert_eq!(span.fault_at(21).as_deref(), Some("it expired at 1970-01-01T00:00:20Z"));
    }
}
