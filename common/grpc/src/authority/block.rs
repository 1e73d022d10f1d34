//! Replaces the value of `:authority` in one HPACK header block, in place and without changing any length.
//!
//! The length in octets and that of each entry of the dynamic tables stay the same, so both sides' tables agree. Blocks that this
//! code cannot parse stay unchanged, and h2 judges them.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::Range;

use super::huffman;

/// The static table's index of `:authority`.
const AUTHORITY: u64 = 1;
/// Indexed fields of the static table: `:authority` and `accept-charset`, both with an empty value.
const EMPTY_AUTHORITY: u8 = 0x80 | 1;
const EMPTY_CHARSET: u8 = 0x80 | 15;

/// A string literal in a block.
struct Literal {
    huffman: bool,
    octets: Range<usize>,
}

/// Finds `:authority` and replaces its value by one that h2 accepts, or the whole field if the value is empty.
///
/// `None` (block unchanged) if the block is truncated or malformed before it.
pub(super) fn patch(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(first) = block.get_mut(at) {
        if *first == EMPTY_AUTHORITY {
            // grpc-go writes `:authority` behind the other pseudo-headers, so another field may follow them here.
            *first = EMPTY_CHARSET;
            return Some(());
        }
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
                block.get(name.octets)? == if name.huffman { &huffman::AUTHORITY[..] } else { b":authority" }
            }
            _ => index == AUTHORITY,
        };
        let value = string(block, &mut at)?;
        if ours {
            let octets = block.get_mut(value.octets)?;
            if value.huffman {
                let filler = huffman::filler(huffman::symbols(octets)?, octets.len())?;
                octets.copy_from_slice(&filler);
            } else {
                octets.fill(b'a');
            }
            return Some(());
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
