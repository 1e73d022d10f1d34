//! The patch of `:authority`: its output does not depend on how the bytes are split, has the input's length, and
//! differs only in the values of `:authority`, and in an empty one that has become `accept-charset`. All other fields keep their
//! values and positions.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use grpc::authority::AuthorityPatch;
use http::uri::Authority;
use tokio::io::{AsyncRead, ReadBuf, join, sink};

use crate::http2::{END_HEADERS, HEADERS, PREFACE, frame};
use crate::input::Input;

const MAX_FRAME: usize = 16 << 10;

/// The first byte selects the kind of the rest: a header block, frames, or arbitrary bytes.
pub fn authority(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte();
    let step = usize::from(input.byte()) + 1;
    match kind % 3 {
        0 => header_block(input.rest(), step),
        1 => drop(same_however_it_comes(&[PREFACE, input.rest()].concat(), step)),
        _ => drop(same_however_it_comes(input.rest(), step)),
    }
}

/// The output, read in reads of at most `step` bytes; `None` if too many SETTINGS or GOAWAY end the connection.
fn patched(bytes: &[u8], step: usize) -> Option<Vec<u8>> {
    let mut patch = AuthorityPatch::new(join(Pieces { bytes, step }, sink()), MAX_FRAME as u32);
    let mut cx = Context::from_waker(Waker::noop());
    let mut out = Vec::new();
    let mut room = [0; 512];
    loop {
        let mut buf = ReadBuf::new(&mut room);
        match Pin::new(&mut patch).poll_read(&mut cx, &mut buf) {
            Poll::Ready(Ok(())) if buf.filled().is_empty() => return Some(out),
            Poll::Ready(Ok(())) => out.extend_from_slice(buf.filled()),
            Poll::Ready(Err(_)) => return None,
            Poll::Pending => panic!("a reader that never waits"),
        }
    }
}

fn same_however_it_comes(bytes: &[u8], step: usize) -> Vec<u8> {
    let whole = patched(bytes, usize::MAX);
    assert_eq!(patched(bytes, step), whole, "by pieces of {step} bytes");
    let Some(whole) = whole else { return Vec::new() };
    assert_eq!(whole.len(), bytes.len(), "bytes were lost or added");
    whole
}

fn header_block(block: &[u8], step: usize) {
    let block = &block[..block.len().min(MAX_FRAME)];
    let headers = frame(HEADERS, END_HEADERS, block);
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let before = [PREFACE, &headers, &ping].concat();
    let after = same_however_it_comes(&before, step);
    let at = PREFACE.len() + headers.len() - block.len();
    assert_eq!(after[..at], before[..at], "bytes before the header block");
    let (now, behind) = after[at..].split_at(block.len());
    assert_eq!(behind, ping, "bytes behind the header block");
    same_fields(block, now);
}

/// A string as encoded, with its Huffman bit.
type Text<'a> = (bool, &'a [u8]);

/// A field of a header block as encoded: an index, and the strings after it.
#[derive(Debug, PartialEq, Eq)]
struct Field<'a> {
    index: u64,
    name: Option<Text<'a>>,
    value: Option<Text<'a>>,
}

/// The fields up to the first malformed one, and the rest (RFC 7541, section 6).
fn fields(mut block: &[u8]) -> (Vec<Field<'_>>, &[u8]) {
    let mut fields = Vec::new();
    while let Some((field, rest)) = field(block) {
        fields.push(field);
        block = rest;
    }
    (fields, block)
}

fn field(block: &[u8]) -> Option<(Field<'_>, &[u8])> {
    let (bits, literal) = match block.first()? {
        0x80.. => (7, false),
        0x40.. => (6, true),
        0x20.. => (5, false),
        _ => (4, true),
    };
    let (index, mut rest) = integer(block, bits)?;
    let (mut name, mut value) = (None, None);
    if literal && index == 0 {
        let (text, after) = string(rest)?;
        (name, rest) = (Some(text), after);
    }
    if literal {
        let (text, after) = string(rest)?;
        (value, rest) = (Some(text), after);
    }
    Some((Field { index, name, value }, rest))
}

fn integer(bytes: &[u8], bits: u32) -> Option<(u64, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let most = (1 << bits) - 1;
    let mut number = u64::from(*first) & most;
    let mut shift = 0;
    while number >= most {
        let (byte, after) = rest.split_first()?;
        number = number.checked_add(u64::from(byte & 0x7f).checked_shl(shift)?)?;
        (rest, shift) = (after, shift + 7);
        if byte & 0x80 == 0 {
            break;
        }
        if shift > 28 {
            return None;
        }
    }
    Some((number, rest))
}

fn string(bytes: &[u8]) -> Option<(Text<'_>, &[u8])> {
    let (length, rest) = integer(bytes, 7)?;
    let (text, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some(((bytes.first()? & 0x80 != 0, text), rest))
}

fn same_fields(before: &[u8], after: &[u8]) {
    let ((old, old_rest), (new, rest)) = (fields(before), fields(after));
    assert_eq!(old.len(), new.len(), "fields were lost or added");
    assert_eq!(old_rest, rest, "what is broken was changed");
    // The static table's `:authority` and `accept-charset`, both with an empty value.
    let indexed = |index| Field { index, name: None, value: None };
    for (old, new) in old.iter().zip(&new).filter(|(old, new)| old != new) {
        if (old, new) == (&indexed(1), &indexed(15)) {
            continue;
        }
        assert_eq!((old.index, old.name), (new.index, new.name), "another field's place");
        let coded = old.name.is_some_and(|(huffman, name)| huffman || name == b":authority");
        assert!(old.index == 1 || coded, "another field was changed: {old:?}");
        let (Some((was_coded, was)), Some((is_coded, is))) = (old.value, new.value) else {
            panic!("a value was lost or added: {old:?}")
        };
        assert_eq!((was_coded, was.len()), (is_coded, is.len()), "dynamic tables would disagree");
        assert!(is_coded || Authority::try_from(is).is_ok(), "still no authority: {new:?}");
    }
}

/// Bytes that arrive `step` at a time.
struct Pieces<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.step.min(buf.remaining()).min(self.bytes.len());
        let (now, later) = self.bytes.split_at(count);
        buf.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}
