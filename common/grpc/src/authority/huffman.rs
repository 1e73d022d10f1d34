//! Lengths in HPACK's Huffman code (RFC 7541, appendix B), and texts of a given length.
//!
//! The code is canonical: codes of one length are consecutive numbers, and a longer code begins after the last shorter one. So the
//! number of codes of each length separates a string into its symbols. Which symbols they are does not matter here.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// The number of codes by their length in bits. The last code of 30 bits is the end-of-string symbol, which no string contains.
const CODES: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, //
    0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 3,
];

/// The name `:authority`.
pub(super) const AUTHORITY: [u8; 8] = [0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The number of symbols of a whole string; `None` if it is truncated, wrongly padded, or contains the end-of-string symbol.
pub(super) fn symbols(octets: &[u8]) -> Option<usize> {
    let (mut count, mut length) = (0, 0);
    // The bits so far, and the first code of their length.
    let (mut code, mut first) = (0_u32, 0_u32);
    for octet in octets {
        for shift in (0..8).rev() {
            (code, first, length) = (code << 1 | u32::from(octet >> shift & 1), first << 1, length + 1);
            let codes = CODES.get(length)?;
            if code - first < *codes {
                (count, code, first, length) = (count + 1, 0, 0, 0);
            } else {
                first += codes;
            }
        }
    }
    // The padding is less than an octet, all ones.
    (length < 8 && code + 1 == 1 << length).then_some(count)
}

/// A string of `count` symbols, which an authority may contain, that fills exactly `octets` octets, if there is one.
///
/// It consists of symbols of 5 to 8 bits, whose lengths differ by at most one bit, and of as many `~` of 13 bits as needed.
pub(super) fn filler(count: usize, octets: usize) -> Option<Vec<u8>> {
    let most = octets.checked_mul(8)?;
    for bits in (most.saturating_sub(7)..=most).rev() {
        let long = bits.saturating_sub(8 * count).div_ceil(5);
        let (Some(short), Some(rest)) = (count.checked_sub(long), bits.checked_sub(13 * long)) else {
            continue;
        };
        if !(5 * short..=8 * short).contains(&rest) {
            continue;
        }
        let lengths = (0..short).map(|nth| rest / short + usize::from(nth < rest % short));
        return encode(std::iter::repeat_n(13, long).chain(lengths), octets);
    }
    None
}

/// Encodes one symbol of each length, padded.
fn encode(lengths: impl Iterator<Item = usize>, octets: usize) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(octets);
    let (mut pending, mut length) = (0_u32, 0);
    for bits in lengths {
        let code = match bits {
            5 => 0x3,     // a
            6 => 0x16,    // -
            7 => 0x5d,    // B
            8 => 0xfc,    // X
            13 => 0x1ffd, // ~
            _ => return None,
        };
        (pending, length) = (pending << bits | code, length + bits);
        while length >= 8 {
            length -= 8;
            text.push((pending >> length) as u8);
        }
        pending &= (1 << length) - 1;
    }
    if length > 0 {
        text.push((pending << (8 - length)) as u8 | 0xff >> length);
    }
    Some(text)
}
