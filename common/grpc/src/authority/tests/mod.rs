//! The patch against an independent HPACK implementation, and against h2.

mod blocks;
mod frames;
mod served;

use httlib_hpack::Encoder;

/// kube-apiserver's `:authority`.
const SOCKET: &[u8] = b"%2Fetc%2Fkubernetes%2Fkonnectivity.sock";

/// The representations of a literal: httlib-hpack's flags.
const KINDS: [u8; 6] = [
    0,
    Encoder::WITH_INDEXING,
    Encoder::NEVER_INDEXED,
    Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE,
    Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE | Encoder::WITH_INDEXING,
    Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE | Encoder::NEVER_INDEXED,
];

/// A header block of a gRPC request. `named`: the name is a literal too.
fn request(encoder: &mut Encoder<'_>, authority: &[u8], kind: u8, named: bool) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.encode_indexed(3, &mut block).unwrap();
    encoder.encode_indexed(6, &mut block).unwrap();
    encoder.encode_indexed_name(4, b"/ProxyService/Proxy".to_vec(), kind, &mut block).unwrap();
    if named {
        encoder.encode_literal(b":authority".to_vec(), authority.to_vec(), kind, &mut block).unwrap();
    } else {
        encoder.encode_indexed_name(1, authority.to_vec(), kind, &mut block).unwrap();
    }
    encoder.encode_literal(b"content-type".to_vec(), b"application/grpc".to_vec(), kind, &mut block).unwrap();
    encoder.encode_literal(b"te".to_vec(), b"trailers".to_vec(), kind, &mut block).unwrap();
    block
}
