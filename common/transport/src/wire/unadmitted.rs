//! The memory of connections of which no stream was accepted yet: anybody may open those.
//!
//! Such a peer is charged for all that it has sent, whether it is still held or not: an agent sends its headers alone. Its
//! windows are small until it is admitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderMap;

/// What one connection may be charged, in bytes: twice what an agent with the longest headers sends. In frames of one byte it costs
/// some 20 times as much in HTTP/2's queue.
const EACH: usize = 256 << 10;
/// What all of a listener may be charged, in bytes: beyond it those are ended that are charged more than [`FAIR`].
const ALL: usize = 64 << 20;
/// More than an agent sends before it is admitted, in bytes: its headers with a token and the identifiers.
const FAIR: usize = 32 << 10;
/// What a header field costs beside its bytes, which HPACK may have compressed to one.
const FIELD: usize = 128;

/// The connections of one listener that are not admitted. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Unadmitted(Arc<AtomicUsize>);

/// The charge of one connection. Dropping it gives the bytes back.
#[derive(Debug)]
pub(super) struct Charge {
    all: Unadmitted,
    headers: usize,
    bytes: usize,
}

/// The connection is charged too much.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuch;

impl Unadmitted {
    pub(super) fn join(&self) -> Charge {
        Charge { all: self.clone(), headers: 0, bytes: 0 }
    }
}

impl Charge {
    /// A stream was opened with these headers.
    pub(super) fn opened(&mut self, headers: &HeaderMap) {
        let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD);
        self.headers = bytes.fold(self.headers, usize::saturating_add);
    }

    /// So many bytes were read from the peer.
    pub(super) fn read(&mut self, bytes: u64) -> Result<(), TooMuch> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(self.headers);
        let more = bytes.saturating_sub(std::mem::replace(&mut self.bytes, bytes));
        let total = self.all.0.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        if bytes <= EACH && (bytes <= FAIR || total <= ALL) { Ok(()) } else { Err(TooMuch) }
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
    fn a_connection_has_its_bound_and_all_together_have_theirs() {
        let all = Unadmitted::default();
        let mut first = all.join();
        assert_eq!(first.read(EACH as u64), Ok(()));
        assert_eq!(first.read(EACH as u64 + 1), Err(TooMuch));
        let mut others: Vec<_> = (0..ALL / EACH - 2).map(|_| all.join()).collect();
        assert!(others.iter_mut().all(|other| other.read(EACH as u64).is_ok()));
        let (mut small, mut large) = (all.join(), all.join());
        assert_eq!(large.read(EACH as u64), Err(TooMuch), "all are charged too much");
        assert_eq!(small.read(FAIR as u64), Ok(()), "it is not one of those that cause it");
        drop(first);
        assert_eq!(large.read(EACH as u64), Ok(()), "given back");
        drop((others, small, large));
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn compressed_headers_are_charged_at_their_length() {
        let all = Unadmitted::default();
        let mut charge = all.join();
        let mut headers = HeaderMap::new();
        for _ in 0..EACH / FIELD {
            headers.append("a", http::HeaderValue::from_static("b"));
        }
        charge.opened(&headers);
        assert_eq!(charge.read(1), Err(TooMuch));
    }
}
