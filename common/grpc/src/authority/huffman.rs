//! HPACK's Huffman code (RFC 7541, appendix B), encoder and decoder, for short strings.
//!
//! The code is canonical: the symbols' code lengths determine it, so only the lengths are listed.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// The end-of-string symbol: never inside a string; its first bits pad the last octet.
const EOS: usize = 256;

/// The longest code in bits.
const LONGEST: usize = 30;

/// Code lengths in bits, by symbol, EOS last.
const LENGTHS: [u8; EOS + 1] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, //
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, //
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, //
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, //
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, //
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, //
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, //
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, //
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, //
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, //
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, //
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, //
    30,
];

/// The codes of one length: consecutive numbers, in the order of their symbols.
#[derive(Clone, Copy)]
struct Group {
    first_code: u32,
    count: u32,
    /// Where the group's symbols begin in [`Table::symbols`].
    offset: u32,
}

struct Table {
    groups: [Group; LONGEST + 1],
    /// The symbols by code length, then by number.
    symbols: [u16; EOS + 1],
    codes: [u32; EOS + 1],
}

const TABLE: Table = build();

const fn build() -> Table {
    let none = Group { first_code: 0, count: 0, offset: 0 };
    let mut table = Table { groups: [none; LONGEST + 1], symbols: [0; EOS + 1], codes: [0; EOS + 1] };
    let (mut code, mut offset, mut length) = (0_u32, 0_u32, 1);
    while length <= LONGEST {
        code <<= 1;
        let mut group = Group { first_code: code, count: 0, offset };
        let mut symbol = 0;
        while symbol <= EOS {
            if LENGTHS[symbol] as usize == length {
                table.symbols[offset as usize] = symbol as u16;
                table.codes[symbol] = code;
                group.count += 1;
                offset += 1;
                code += 1;
            }
            symbol += 1;
        }
        table.groups[length] = group;
        length += 1;
    }
    table
}

/// The length of a byte's code in bits.
pub(super) const fn bits(byte: u8) -> usize {
    LENGTHS[byte as usize] as usize
}

/// Decodes a whole string; `None` if it is truncated, wrongly padded, or contains EOS.
pub(super) fn decode(octets: &[u8]) -> Option<Vec<u8>> {
    // No code is shorter than five bits.
    let mut text = Vec::with_capacity(octets.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0_usize);
    for octet in octets {
        for shift in (0..8).rev() {
            code = code << 1 | u32::from(octet >> shift & 1);
            length += 1;
            let group = TABLE.groups.get(length)?;
            let nth = code.wrapping_sub(group.first_code);
            if nth < group.count {
                let symbol = TABLE.symbols.get((group.offset + nth) as usize)?;
                text.push(u8::try_from(*symbol).ok()?);
                (code, length) = (0, 0);
            }
        }
    }
    // The padding is less than an octet, all ones.
    (length < 8 && code + 1 == 1 << length).then_some(text)
}

/// Encodes a string.
pub(super) fn encode(text: &[u8]) -> Vec<u8> {
    let mut octets = Vec::with_capacity(text.len());
    let (mut pending, mut length) = (0_u64, 0);
    for byte in text {
        pending = pending << bits(*byte) | u64::from(TABLE.codes[usize::from(*byte)]);
        length += bits(*byte);
        while length >= 8 {
            length -= 8;
            octets.push((pending >> length) as u8);
        }
        pending &= (1 << length) - 1;
    }
    if length > 0 {
        octets.push((pending << (8 - length)) as u8 | (0xff >> length));
    }
    octets
}
