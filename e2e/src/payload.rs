//! Payload that can be verified: bytes derived from a seed, and a digest of the received bytes.
//!
//! Every seed starts at a different offset of one pseudo-random block of prime length, so that swapped, lost, duplicated and
//! foreign pieces all change the digest.

use std::sync::OnceLock;

use anyhow::{Result, ensure};
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustls::crypto::hash::{Context, HashAlgorithm};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Length of the block: a prime, so that chunks of a power of two never align with it twice.
const BLOCK: usize = 1_048_573;
/// Size of the largest piece.
const PIECE: usize = 64 * 1024;

/// `length` bytes derived from `seed`.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    seed: u64,
    length: u64,
}

impl Payload {
    /// The payload of that seed and length.
    pub const fn new(seed: u64, length: u64) -> Self {
        Self { seed, length }
    }

    /// The number of bytes.
    pub fn length(self) -> u64 {
        self.length
    }

    /// The pieces in order; slices of one shared block.
    pub fn pieces(self) -> impl Iterator<Item = Bytes> {
        let block = block();
        let mut at =
            usize::try_from(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) % BLOCK as u64).unwrap_or(0);
        let mut left = self.length;
        std::iter::from_fn(move || {
            let size = PIECE.min(BLOCK - at).min(usize::try_from(left).unwrap_or(usize::MAX));
            let piece = block.slice(at..at + size);
            at = (at + size) % BLOCK;
            left -= size as u64;
            (size > 0).then_some(piece)
        })
    }

    /// The digest of all bytes.
    pub fn digest(self) -> Digest {
        let mut digester = Digester::default();
        for piece in self.pieces() {
            digester.update(&piece);
        }
        digester.finish()
    }

    /// Writes all bytes and flushes; does not shut down.
    pub async fn send(self, sink: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        for piece in self.pieces() {
            sink.write_all(&piece).await?;
        }
        sink.flush().await
    }

    /// Reads exactly this number of bytes and compares digests.
    pub async fn receive(self, source: &mut (impl AsyncRead + Unpin)) -> Result<()> {
        let got = digest_of(&mut source.take(self.length)).await?;
        self.check(&got)
    }

    /// Reads to the end of the stream and compares digests.
    pub async fn receive_all(self, source: &mut (impl AsyncRead + Unpin)) -> Result<()> {
        let got = digest_of(source).await?;
        self.check(&got)
    }

    /// Fails unless the digest is that of this payload.
    ///
    /// # Errors
    /// [`Corrupt`], unless only the last bytes are missing.
    pub fn check(self, got: &Digest) -> Result<()> {
        let sent = Self { length: got.length, ..self };
        ensure!(got.length <= self.length && *got == sent.digest(), Corrupt(got.length));
        ensure!(got.length == self.length, "{} bytes arrived instead of {}", got.length, self.length);
        Ok(())
    }
}

/// Bytes arrived that were not sent. No fault excuses that.
#[derive(Debug, thiserror::Error)]
#[error("{0} bytes arrived, but not those that were sent")]
pub struct Corrupt(pub u64);

/// The value of an exchange, or `None` if it failed.
///
/// # Errors
/// [`Corrupt`].
pub fn unless_lost<T>(ended: Result<T>) -> Result<Option<T>> {
    match ended {
        Err(error) if error.is::<Corrupt>() => Err(error),
        ended => Ok(ended.ok()),
    }
}

/// Length and SHA-256 of a stream's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The number of bytes.
    pub length: u64,
    sum: Vec<u8>,
}

/// Reads to the end and returns the digest.
pub async fn digest_of(source: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Digest> {
    let mut digester = Digester::default();
    let mut chunk = vec![0; PIECE];
    loop {
        match source.read(&mut chunk).await? {
            0 => return Ok(digester.finish()),
            count => digester.update(chunk.get(..count).unwrap_or_default()),
        }
    }
}

/// Computes a digest incrementally.
pub struct Digester {
    length: u64,
    context: Box<dyn Context>,
}

impl Digester {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.context.update(bytes);
    }

    /// The digest of all bytes so far.
    pub fn finish(&self) -> Digest {
        Digest { length: self.length, sum: self.context.fork_finish().as_ref().to_vec() }
    }
}

impl Default for Digester {
    fn default() -> Self {
        let hash = sha256();
        debug_assert_eq!(hash.algorithm(), HashAlgorithm::SHA256);
        Self { length: 0, context: hash.start() }
    }
}

impl std::fmt::Debug for Digester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Digester").field("length", &self.length).finish_non_exhaustive()
    }
}

/// rustls already contains an optimized SHA-256: that of the TLS 1.3 AES-128 suite.
fn sha256() -> &'static dyn rustls::crypto::hash::Hash {
    use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256 as SUITE;
    SUITE.tls13().map(|suite| suite.common.hash_provider).expect("a TLS 1.3 suite by its name")
}

fn block() -> Bytes {
    static CELL: OnceLock<Bytes> = OnceLock::new();
    CELL.get_or_init(|| {
        let mut block = vec![0; BLOCK];
        StdRng::seed_from_u64(20_260_821).fill_bytes(&mut block);
        Bytes::from(block)
    })
    .clone()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::{Payload, unless_lost};

    #[tokio::test]
    async fn payload_is_recognized_and_a_foreign_one_is_no_loss() {
        let mut wire = Vec::new();
        let payload = Payload::new(7, 3_000_000);
        payload.send(&mut wire).await.unwrap();
        assert_eq!(wire.len(), 3_000_000);
        payload.receive_all(&mut wire.as_slice()).await.unwrap();
        let (some, behind_a_gap) = (&wire[..2_999_999], &wire[1..]);
        assert!(unless_lost(payload.receive_all(&mut &*some).await).unwrap().is_none());
        assert!(unless_lost(payload.receive_all(&mut &*behind_a_gap).await).is_err());
        assert!(unless_lost(Payload::new(8, 3_000_000).receive_all(&mut wire.as_slice()).await).is_err());
        wire.swap(10, 2_000_000);
        assert!(unless_lost(payload.receive_all(&mut wire.as_slice()).await.context("an echo")).is_err());
    }

    #[test]
    fn an_empty_payload_has_no_pieces() {
        assert_eq!(Payload::new(1, 0).pieces().count(), 0);
    }
}
