//! The size of the DATA packets that are sent to a client.
//!
//! A Go client queues ten DATA packets for the reader of a connection. If the reader takes none for ten seconds, the client
//! closes the connection with an orderly end of file. With the 4 KiB packets of Go agents a reader of 0.4 KiB/s is fast enough;
//! with 64 KiB packets it would need 6.5 KiB/s. So only clients that have kept up get large packets.

use std::time::Duration;

/// Payload of one DATA packet to a client that keeps up, in bytes. Larger packets cost more memory and are no faster.
const MAX_CHUNK: usize = 64 << 10;
/// Payload of one DATA packet to any other client, in bytes: the size that a Go agent uses.
const MIN_CHUNK: usize = 4 << 10;
/// Bytes that a client takes without a pause before it counts as keeping up: more than its queue and its flow-control window
/// hold of small packets.
const KEEPS_UP_BYTES: usize = 128 << 10;
/// A client that grants no flow-control window for this time does not keep up.
const MAX_STALL: Duration = Duration::from_secs(1);

/// How well one client has kept up.
#[derive(Debug, Default)]
pub(super) struct ChunkSizer {
    /// Bytes taken since the last pause; counts up to [`KEEPS_UP_BYTES`].
    taken: usize,
}

impl ChunkSizer {
    /// The most payload for the next DATA packet, in bytes. `waited`: how long the client granted no window.
    pub(super) fn next_size(&mut self, waited: Duration) -> usize {
        if waited >= MAX_STALL {
            self.taken = 0;
        }
        if self.taken < KEEPS_UP_BYTES { MIN_CHUNK } else { MAX_CHUNK }
    }

    /// Counts bytes that were sent to the client.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.taken = KEEPS_UP_BYTES.min(self.taken + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_large_only_for_fast_clients() {
        let mut chunks = ChunkSizer::default();
        let proof = |chunks: &mut ChunkSizer| {
            let mut small = 0;
            while chunks.next_size(Duration::ZERO) == MIN_CHUNK {
                chunks.sent(MIN_CHUNK);
                small += 1;
            }
            small
        };
        assert_eq!(proof(&mut chunks), 32);
        assert_eq!(chunks.next_size(Duration::from_millis(999)), MAX_CHUNK);
        assert_eq!(chunks.next_size(MAX_STALL), MIN_CHUNK, "it paused");
        assert_eq!(proof(&mut chunks), 32, "from the beginning");
    }
}
