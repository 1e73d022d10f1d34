//! Rewrites the value of `:authority` in one HPACK header block, in place and without changing any length.
//!
//! The lengths in octets and in decoded bytes stay the same, so both sides' dynamic tables agree. Blocks that this code
//! cannot parse stay unchanged, and h2 judges them.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::Range;

use http::uri::Authority;

use super::huffman;

/// The static table's index of `:authority`.
const AUTHORITY: u64 = 1;

/// A string literal in a block.
struct Literal {
    huffman: bool,
    octets: Range<usize>,
}

/// Finds `:authority` and makes its value acceptable to h2, unless it already is.
///
/// `None` (block unchanged) if the block is truncated or malformed before it.
pub(super) fn patch(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        // RFC 7541, section 6: indexed, literal with indexing, size update, literal without or never indexed.
        let (prefix, literal) = match first.leading_zeros() {
            0 => (7, false),
            1 => (6, true),
            2 => (5, false),
            _ => (4, true),
        };
        let index = integer(block, &mut at, prefix)?;
        if !literal {
            continue;
        }
        let ours = match index {
            0 => {
                let name = string(block, &mut at)?;
                is_authority(block.get(name.octets)?, name.huffman)
            }
            _ => index == AUTHORITY,
        };
        let value = string(block, &mut at)?;
        if ours {
            let octets = block.get_mut(value.octets)?;
            return if value.huffman { patch_huffman(octets) } else { patch_raw(octets) };
        }
    }
    None
}

/// An integer with a prefix of `prefix` bits (RFC 7541, section 5.1), at most 28 bits beyond the prefix.
fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<u64> {
    let full = (1 << prefix) - 1;
    let mut value = u64::from(*block.get(*at)?) & full;
    *at += 1;
    if value < full {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let octet = *block.get(*at)?;
        *at += 1;
        value += u64::from(octet & 0x7f) << shift;
        if octet < 0x80 {
            return Some(value);
        }
    }
    None
}

fn string(block: &[u8], at: &mut usize) -> Option<Literal> {
    let huffman = block.get(*at)? & 0x80 != 0;
    let length = usize::try_from(integer(block, at, 7)?).ok()?;
    let octets = *at..at.checked_add(length)?;
    *at = octets.end;
    (octets.end <= block.len()).then_some(Literal { huffman, octets })
}

fn is_authority(name: &[u8], huffman: bool) -> bool {
    const NAME: &[u8] = b":authority";
    // A longer code cannot be this name, so it is not decoded.
    if huffman {
        name.len() <= NAME.len() && huffman::decode(name).as_deref() == Some(NAME)
    } else {
        name == NAME
    }
}

fn is_accepted(value: &[u8]) -> bool {
    Authority::try_from(value).is_ok()
}

/// Whether a byte may appear anywhere in any authority.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

fn patch_raw(value: &mut [u8]) -> Option<()> {
    if !is_accepted(value) {
        value.iter_mut().filter(|byte| !is_plain(**byte)).for_each(|byte| *byte = b'-');
    }
    Some(())
}

fn patch_huffman(octets: &mut [u8]) -> Option<()> {
    let value = huffman::decode(octets)?;
    if is_accepted(&value) {
        return Some(());
    }
    let alike = value.iter().map(|byte| alike(*byte)).collect::<Option<Vec<u8>>>();
    let text = alike.or_else(|| filler(value.len(), octets.len()))?;
    let encoded = huffman::encode(&text);
    if encoded.len() == octets.len() {
        octets.copy_from_slice(&encoded);
    }
    Some(())
}

/// The byte itself if it is plain, otherwise a plain byte whose code has the same length.
fn alike(byte: u8) -> Option<u8> {
    if is_plain(byte) { Some(byte) } else { plain_of(huffman::bits(byte)) }
}

/// A plain byte with a code of this many bits.
fn plain_of(bits: usize) -> Option<u8> {
    Some(match bits {
        5 => b'a',
        6 => b'-',
        7 => b'B',
        8 => b'X',
        10 => b'!',
        11 => b'+',
        13 => b'~',
        _ => return None,
    })
}

/// A text of `count` plain bytes that encodes into `octets` octets.
///
/// It consists of letters of 5 to 8 bits, whose code lengths differ by at most one bit, and of as many `~` of 13 bits
/// as needed.
fn filler(count: usize, octets: usize) -> Option<Vec<u8>> {
    let most = octets.checked_mul(8)?;
    for bits in (most.saturating_sub(7)..=most).rev() {
        let long = bits.saturating_sub(8 * count).div_ceil(5);
        let (Some(short), Some(rest)) = (count.checked_sub(long), bits.checked_sub(13 * long)) else {
            continue;
        };
        if !(5 * short..=8 * short).contains(&rest) {
            continue;
        }
        let mut text = vec![b'~'; long];
        for nth in 0..short {
            let bits = rest / short + usize::from(nth < rest % short);
            text.push(plain_of(bits)?);
        }
        return Some(text);
    }
    None
}
