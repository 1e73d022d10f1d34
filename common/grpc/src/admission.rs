//! A limit on the memory of connections that have had no accepted stream: anyone can open them.
//!
//! The peer of such a connection is charged for all bytes that it has sent, even after they were freed, because an agent sends
//! only its headers.
//! Its windows are small until it is admitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderMap;

/// The limit of one connection, in bytes: twice the bytes of an agent with the longest headers.
pub(super) const MAX_CONNECTION_BYTES: usize = 256 << 10;
/// The limit of all connections of a listener, in bytes. Beyond it the server ends connections charged more than
/// [`TYPICAL_BYTES`].
const MAX_LISTENER_BYTES: usize = 64 << 20;
/// Agents usually send fewer bytes than this before admission: headers with a token and the identifiers.
const TYPICAL_BYTES: usize = 32 << 10;
/// The cost of a header field in addition to its bytes, because HPACK can compress a whole field to one byte.
const FIELD_OVERHEAD: usize = 128;

/// The bytes charged to all unadmitted connections of one listener. Clones share one count.
#[derive(Clone, Debug, Default)]
pub struct Unadmitted(Arc<AtomicUsize>);

/// The charge of one connection. Dropping it releases the bytes.
#[derive(Debug)]
pub(super) struct Charge {
    all: Unadmitted,
    headers: usize,
    bytes: usize,
}

impl Unadmitted {
    pub(super) fn join(&self) -> Charge {
        Charge { all: self.clone(), headers: 0, bytes: 0 }
    }
}

impl Charge {
    /// Charges the headers of a new stream.
    pub(super) fn opened(&mut self, headers: &HeaderMap) {
        let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD);
        self.headers = bytes.fold(self.headers, usize::saturating_add);
    }

    /// Sets the number of bytes read from the peer so far. Returns false if the connection must end, because it exceeds a
    /// limit.
    pub(super) fn read(&mut self, bytes: u64) -> bool {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(self.headers);
        let more = bytes.saturating_sub(std::mem::replace(&mut self.bytes, bytes));
        let total = self.all.0.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        bytes <= MAX_CONNECTION_BYTES && (bytes <= TYPICAL_BYTES || total <= MAX_LISTENER_BYTES)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charge_is_limited_for_each_connection_and_in_total() {
        let all = Unadmitted::default();
        let mut first = all.join();
        assert!(first.read(MAX_CONNECTION_BYTES as u64));
        assert!(!first.read(MAX_CONNECTION_BYTES as u64 + 1));
        let mut others: Vec<_> =
            (0..MAX_LISTENER_BYTES / MAX_CONNECTION_BYTES - 2).map(|_| all.join()).collect();
        assert!(others.iter_mut().all(|other| other.read(MAX_CONNECTION_BYTES as u64)));
        let (mut small, mut large) = (all.join(), all.join());
        assert!(!large.read(MAX_CONNECTION_BYTES as u64), "all are charged too much");
        assert!(small.read(TYPICAL_BYTES as u64), "it is not one of those that cause it");
        drop(first);
        assert!(large.read(MAX_CONNECTION_BYTES as u64), "given back");
        drop((others, small, large));
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn compressed_headers_are_charged_at_their_length() {
        let all = Unadmitted::default();
        let mut charge = all.join();
        let mut headers = HeaderMap::new();
        for _ in 0..MAX_CONNECTION_BYTES / FIELD_OVERHEAD {
            headers.append("a", http::HeaderValue::from_static("b"));
        }
        charge.opened(&headers);
        assert!(!charge.read(1));
    }
}
