//! How much payload one DATA to a client carries.
//!
//! A Go client keeps ten of them for a connection's reader, and gives the connection up, with an orderly end of file, when
//! no place becomes free in ten seconds. Go's own have 4 KiB, so that 0.4 KiB a second are enough; with 64 KiB it were
//! 6.5. So they are large only for a client that has been seen to keep up.

use std::time::Duration;

/// Payload of one DATA to a client that keeps up, in bytes. Larger ones cost more memory and bring no speed.
const LARGE: usize = 64 << 10;
/// To any other: as much as a Go agent sends at once.
const SMALL: usize = 4 << 10;
/// What a client takes without a pause before it is known to keep up, in bytes: more than all of its places and its window
/// hold of small ones.
const PROOF: usize = 128 << 10;
/// A client that grants nothing for so long does not.
const PAUSE: Duration = Duration::from_secs(1);

/// What one client has shown so far.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Taken since its last pause, in bytes; counts up to [`PROOF`].
    taken: usize,
}

impl Pieces {
    /// The most that the next DATA carries, in bytes, to a client that let it wait for so long.
    pub(super) fn most(&mut self, waited: Duration) -> usize {
        if waited >= PAUSE {
            self.taken = 0;
        }
        if self.taken < PROOF { SMALL } else { LARGE }
    }

    /// So many bytes go to the client.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.taken = PROOF.min(self.taken + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_large_for_who_keeps_up_alone() {
        let mut pieces = Pieces::default();
        let proof = |pieces: &mut Pieces| {
            let mut small = 0;
            while pieces.most(Duration::ZERO) == SMALL {
                pieces.sent(SMALL);
                small += 1;
            }
            small
        };
        assert_eq!(proof(&mut pieces), 32);
        assert_eq!(pieces.most(Duration::from_millis(999)), LARGE);
        assert_eq!(pieces.most(PAUSE), SMALL, "it paused");
        assert_eq!(proof(&mut pieces), 32, "from the beginning");
    }
}
