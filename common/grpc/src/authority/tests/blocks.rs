//! Header blocks before and after the patch.

use httlib_hpack::{Decoder, Encoder};
use http::uri::Authority;
use proptest::prelude::*;

use super::super::{block, huffman};
use super::{KINDS, SOCKET, request};

type Field = (Vec<u8>, Vec<u8>, u8);

fn decode(decoder: &mut Decoder<'_>, block: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    decoder.decode(&mut block.to_vec(), &mut fields).unwrap();
    fields
}

fn authority(fields: &[Field]) -> &[u8] {
    &fields.iter().find(|(name, ..)| name == b":authority").unwrap().1
}

/// Patches, and checks the invariants. Returns the patched authority.
fn patched(before: &[u8]) -> Vec<u8> {
    let mut after = before.to_vec();
    block::patch(&mut after);
    let (old, new) = (
        decode(&mut Decoder::with_dynamic_size(4096), before),
        decode(&mut Decoder::with_dynamic_size(4096), &after),
    );
    assert_eq!(old.len(), new.len());
    for ((old_name, old_value, old_flags), (name, value, flags)) in old.iter().zip(&new) {
        assert_eq!((old_name, old_flags), (name, flags));
        assert_eq!(old_value.len(), value.len(), "dynamic tables would disagree");
        assert!(name == b":authority" || old_value == value);
    }
    authority(&new).to_vec()
}

#[test]
fn the_socket_path_becomes_acceptable_in_every_representation() {
    for authority in [SOCKET, b"/var/run/konnectivity server.sock", b"a@b@c:1:2", b"[::1", b"x#>^}<{|\\`\"?"]
    {
        for kind in KINDS {
            for named in [false, true] {
                let block = request(&mut Encoder::with_dynamic_size(4096), authority, kind, named);
                let after = patched(&block);
                assert!(Authority::try_from(after.as_slice()).is_ok(), "{kind} {named}: {after:?}");
            }
        }
    }
}

#[test]
fn values_of_other_names_are_left_alone() {
    let mut encoder = Encoder::with_dynamic_size(4096);
    let mut block = Vec::new();
    encoder.encode_indexed_name(4, b"/a%2Fb".to_vec(), 0, &mut block).unwrap();
    encoder.encode_literal(b":authoritx".to_vec(), b"%2F".to_vec(), 0, &mut block).unwrap();
    encoder.encode_literal(b"authority".to_vec(), b"%2F".to_vec(), 3, &mut block).unwrap();
    let before = block.clone();
    block::patch(&mut block);
    assert_eq!(block, before);
}

#[test]
fn a_size_update_before_the_fields_is_passed_over() {
    let mut block = vec![0x3f, 0xe1, 0x1f];
    block.extend(request(&mut Encoder::with_dynamic_size(4096), SOCKET, 0, false));
    assert!(Authority::try_from(patched(&block).as_slice()).is_ok());
}

#[test]
fn indexed_names_and_values_follow_over_many_requests() {
    let mut encoder = Encoder::with_dynamic_size(4096);
    let mut decoder = Decoder::with_dynamic_size(4096);
    for number in 0..2_000 {
        let mut block = Vec::new();
        let all = Encoder::BEST_FORMAT | Encoder::WITH_INDEXING | Encoder::HUFFMAN_VALUE;
        for (name, value) in [
            (b":method".to_vec(), b"POST".to_vec()),
            (b":authority".to_vec(), if number % 7 == 0 { SOCKET.to_vec() } else { b"/run/a b".to_vec() }),
            (b"x-number".to_vec(), number.to_string().into_bytes()),
        ] {
            encoder.encode((name, value, all), &mut block).unwrap();
        }
        block::patch(&mut block);
        let fields = decode(&mut decoder, &block);
        assert_eq!(fields[2].1, number.to_string().as_bytes(), "the tables disagree");
        // The patch does not resolve a name in the dynamic table: h2 refuses that request.
        if number == 0 {
            assert!(Authority::try_from(authority(&fields)).is_ok());
        }
    }
}

#[test]
fn every_cut_is_survived() {
    for kind in KINDS {
        let block = request(&mut Encoder::with_dynamic_size(4096), SOCKET, kind, true);
        for end in 0..block.len() {
            let mut cut = block[..end].to_vec();
            block::patch(&mut cut);
            assert_eq!(cut.len(), end);
        }
    }
}

/// A text of at most 30 bytes in Huffman code.
fn encoded(text: &[u8]) -> Vec<u8> {
    let mut literal = Vec::new();
    Encoder::with_dynamic_size(0)
        .encode_literal(b"x".to_vec(), text.to_vec(), Encoder::HUFFMAN_VALUE, &mut literal)
        .unwrap();
    // Before it: the kind, the name's length, the name and the value's length.
    literal.split_off(4)
}

#[test]
fn huffman_is_the_rfcs() {
    // RFC 7541, C.4.1 and C.6.1.
    let host = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
    assert_eq!(huffman::symbols(&host), Some(15));
    assert_eq!(huffman::symbols(&[0x64, 0x02]), Some(3));
    assert_eq!(huffman::symbols(&[0xff; 4]), None, "EOS");
    assert_eq!(huffman::symbols(&[0x64, 0x02, 0xff]), None, "a whole octet of padding");
    assert_eq!(huffman::symbols(&[0x64, 0x00]), Some(3));
    assert_eq!(encoded(b":authority"), huffman::AUTHORITY);
}

#[test]
fn filler_exists_for_every_length_of_symbols_up_to_13_bits() {
    for (count, octets) in (0..100).flat_map(|count| (0..200).map(move |octets| (count, octets))) {
        let filler = huffman::filler(count, octets);
        assert!(filler.as_ref().is_none_or(|filler| filler.len() == octets), "{count} in {octets}");
        let is_possible = 5 * count <= 8 * octets && 8 * octets < 13 * count + 8;
        let found = filler.and_then(|filler| huffman::symbols(&filler));
        assert_eq!(found, is_possible.then_some(count), "{count} in {octets}");
    }
}

proptest! {
    #[test]
    fn huffman_agrees_with_the_oracle(text in prop::collection::vec(any::<u8>(), 0..=30)) {
        prop_assert_eq!(huffman::symbols(&encoded(&text)), Some(text.len()));
    }

    #[test]
    fn any_authority(
        authority in prop::collection::vec(prop_oneof![4 => 0x20_u8..0x7f, 1 => any::<u8>()], 1..80),
        kind in prop::sample::select(&KINDS),
        named: bool,
    ) {
        let block = request(&mut Encoder::with_dynamic_size(4096), &authority, kind, named);
        let after = patched(&block);
        let octets = authority.chunks(30).map(|text| encoded(text).len()).sum::<usize>();
        if kind & Encoder::HUFFMAN_VALUE == 0 || 8 * octets <= 13 * authority.len() {
            prop_assert!(Authority::try_from(after.as_slice()).is_ok(), "{:?}", after);
        }
    }

    #[test]
    fn garbage_never_panics(mut block in prop::collection::vec(any::<u8>(), 0..200)) {
        let before = block.len();
        block::patch(&mut block);
        prop_assert_eq!(block.len(), before);
    }
}
