//! Encodes gRPC messages into chunks of bytes, and decodes them.

use std::io::IoSlice;

use bytes::{Buf, Bytes};
use mux::{ConnectId, Packet};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{data, packets};
use crate::deframe::{Deframer, MESSAGE_LIMIT};
use crate::frame::{OVERHEAD, OutFrame};
use crate::{Code, Incoming, decode};

fn bytes_of(mut frame: OutFrame) -> Bytes {
    frame.copy_to_bytes(frame.remaining())
}

/// Feeds chunks, and checks that every byte is counted once. Returns the messages.
fn deframe(chunks: impl IntoIterator<Item = Bytes>) -> Vec<Bytes> {
    let mut deframer = Deframer::default();
    let (mut messages, mut used, mut fed) = (Vec::new(), 0, 0);
    for chunk in chunks {
        fed += chunk.len();
        deframer.push(chunk);
        loop {
            match deframer.step().unwrap() {
                (Some(message), count) => {
                    messages.push(message);
                    used += count;
                }
                (None, count) => {
                    used += count;
                    break;
                }
            }
        }
    }
    assert!(deframer.at_boundary());
    assert_eq!(used, fed);
    messages
}

#[test]
fn a_frame_is_one_message() {
    for packet in packets() {
        let messages = deframe([bytes_of(OutFrame::new(packet.clone()))]);
        let [message] = messages.as_slice() else { panic!("one message: {messages:?}") };
        assert_eq!(decode(message.clone()), Incoming::Packet(packet));
    }
}

#[test]
fn payload_goes_out_uncopied_in_two_slices() {
    let payload = Bytes::from(vec![7; 70_000]);
    let frame = OutFrame::new(Packet::Data { id: ConnectId(i64::MIN), payload: payload.clone() });
    let mut slices = [IoSlice::new(&[]); 4];
    assert_eq!(frame.chunks_vectored(&mut slices), 2);
    assert_eq!(slices[1].as_ptr(), payload.as_ptr());
    assert!(slices[0].len() <= OVERHEAD);
    assert_eq!(frame.chunks_vectored(&mut slices[..1]), 1);
    assert_eq!(frame.chunks_vectored(&mut []), 0);
}

#[test]
fn a_whole_message_is_a_slice_and_its_neighbours_too() {
    let (one, two) = (bytes_of(OutFrame::new(data("one"))), bytes_of(OutFrame::new(data("two"))));
    let chunk = Bytes::from([one, two].concat());
    for message in deframe([chunk.clone()]) {
        assert!(chunk.as_ptr_range().contains(&message.as_ptr()));
    }
}

/// Feeds a message in frames of `frame` bytes. Returns the number of accepted frames, and the error.
fn cut(deframer: &mut Deframer, message: &Bytes, frame: usize) -> (usize, Option<Code>) {
    for (number, part) in message.chunks(frame).enumerate() {
        deframer.push(Bytes::copy_from_slice(part));
        loop {
            match deframer.step() {
                Ok((None, _)) => break,
                Ok((Some(_), _)) => {}
                Err(error) => return (number, Some(error.code)),
            }
        }
    }
    (message.len().div_ceil(frame), None)
}

#[test]
fn messages_in_fragments_end_the_stream() {
    let message = bytes_of(OutFrame::new(data(vec![7; 100_000])));
    for frame in [1, 9, 63] {
        let (taken, error) = cut(&mut Deframer::default(), &message, frame);
        assert_eq!(error, Some(Code::ResourceExhausted));
        assert!((1_024..1_100).contains(&taken), "{taken} frames of {frame}");
    }
    assert_eq!(cut(&mut Deframer::default(), &message, 64).1, None);
}

#[test]
fn small_messages_and_fragments_at_the_end_of_windows_are_no_fault() {
    let mut deframer = Deframer::default();
    let small = bytes_of(OutFrame::new(data("x")));
    let large = bytes_of(OutFrame::new(data(vec![7; 8 << 10])));
    for _ in 0..5_000 {
        assert_eq!(cut(&mut deframer, &small, usize::MAX).1, None, "whole");
        let (fragment, rest) = large.split_at(1);
        deframer.push(Bytes::copy_from_slice(fragment));
        assert!(matches!(deframer.step(), Ok((None, 1))));
        deframer.push(Bytes::copy_from_slice(rest));
        assert!(matches!(deframer.step(), Ok((Some(_), _))));
        assert!(matches!(deframer.step(), Ok((None, 0))));
    }
}

fn refused(deframer: &mut Deframer, prefix: &'static [u8]) -> Code {
    deframer.push(Bytes::from_static(prefix));
    deframer.step().unwrap_err().code
}

#[test]
fn prefixes_are_checked_before_anything_is_gathered() {
    assert_eq!(refused(&mut Deframer::default(), &[1, 0, 0, 0, 0]), Code::Unimplemented);
    assert_eq!(refused(&mut Deframer::default(), &[2, 0, 0, 0, 0]), Code::Internal);
    assert_eq!(refused(&mut Deframer::default(), &[0, 0, 0x40, 0, 1]), Code::ResourceExhausted);
    let mut deframer = Deframer::default();
    deframer.push(Bytes::from_static(&[0, 0, 0x40, 0, 0, 9]));
    assert_eq!(deframer.step().unwrap(), (None, 6));
    assert!(!deframer.at_boundary());
    assert!(deframer.reserved() < MESSAGE_LIMIT / 16, "memory follows the bytes, not the prefix");
}

#[test]
fn memory_never_exceeds_the_message() {
    let frame = bytes_of(OutFrame::new(data(vec![1; 3 << 20])));
    let mut deframer = Deframer::default();
    let length = frame.len();
    for at in (0..length).step_by(16_384) {
        deframer.push(frame.slice(at..length.min(at + 16_384)));
        assert!(deframer.reserved() <= length);
        if let (Some(message), _) = deframer.step().unwrap() {
            assert_eq!(message, frame.slice(5..));
            return;
        }
    }
    panic!("no message");
}

proptest! {
    #[test]
    fn any_cut(payloads in vec(1_usize..3_000, 1..6), cuts in vec(1_usize..2_000, 1..20)) {
        // Fewer than 1,024 pieces: more fragments end the stream.
        prop_assume!(cuts.iter().sum::<usize>() >= 16 * cuts.len());
        let packets = payloads.iter().map(|length| data(vec![*length as u8; *length])).collect::<Vec<_>>();
        let mut stream = Vec::new();
        for packet in &packets {
            stream.extend(bytes_of(OutFrame::new(packet.clone())));
        }
        let mut rest = Bytes::from(stream);
        let mut chunks = vec![Bytes::new()];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            chunks.push(rest.split_to(rest.len().min(*cut)));
        }
        let messages = deframe(chunks);
        let decoded = messages.into_iter().map(decode).collect::<Vec<_>>();
        let wanted = packets.into_iter().map(Incoming::Packet).collect::<Vec<_>>();
        prop_assert_eq!(decoded, wanted);
    }

    /// Reading a frame by `chunk` and `advance`, or by slices, gives the same bytes.
    #[test]
    fn any_advance(length in 1_usize..300, steps in vec(1_usize..50, 1..100)) {
        let mut frame = OutFrame::new(data(vec![3; length]));
        let whole = bytes_of(frame.clone());
        let mut read = Vec::new();
        for step in steps.iter().cycle() {
            if !frame.has_remaining() {
                break;
            }
            let count = frame.chunk().len().min(*step);
            read.extend_from_slice(&frame.chunk()[..count]);
            frame.advance(count);
        }
        prop_assert_eq!(read, whole);
    }
}
