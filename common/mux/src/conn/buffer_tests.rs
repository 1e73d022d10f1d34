//! The receive buffer with real bytes: what it charges, what it copies, and that the order stays.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::payload::charge;

/// Slices of these sizes, each of which has to wait before the next arrives.
fn settled(sizes: &[usize]) -> Buffer<Bytes> {
    let mut buffer = Buffer::default();
    for (turn, size) in sizes.iter().enumerate() {
        buffer.push(Bytes::from(vec![turn as u8; *size]));
        buffer.advance(0);
    }
    buffer
}

#[test]
fn small_slices_that_stay_cost_little_more_than_their_bytes() {
    let buffer = settled(&[1; 100_000]);
    assert!(buffer.charged() < 120_000, "{} are charged for 100,000 bytes", buffer.charged());
    let whole: Vec<u8> = buffer.slices.iter().flatten().copied().collect();
    assert_eq!(whole, (0..100_000_usize).map(|turn| turn as u8).collect::<Vec<u8>>());
}

/// A receive buffer that shows when it is freed.
struct Received {
    bytes: Vec<u8>,
    _held: Arc<()>,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[test]
fn a_part_that_stays_does_not_keep_the_rest_of_its_receive_buffer() {
    for size in [1, 4 << 10, 16 << 10, 31 << 10] {
        let held = Arc::new(());
        let mut buffer = Buffer::default();
        let received = Received { bytes: vec![0; 128 << 10], _held: Arc::clone(&held) };
        buffer.push(Bytes::from_owner(received).slice(..size));
        buffer.advance(0);
        assert_eq!((buffer.len(), Arc::strong_count(&held)), (size, 1), "of {size} bytes");
    }
}

#[test]
fn accepted_bytes_are_not_charged_and_fresh_ones_only_once_they_wait() {
    let mut buffer = Buffer::default();
    for size in [100_000, 40_000, 50_000] {
        buffer.push(Bytes::from(vec![7; size]));
    }
    assert_eq!((buffer.len(), buffer.charged()), (190_000, 0));
    assert_eq!(buffer.advance(600), 600);
    assert_eq!((buffer.len(), buffer.charged()), (189_400, charge(99_400) + charge(40_000) + charge(50_000)));
    buffer.push(Bytes::from(vec![7; 60_000]));
    assert_eq!(buffer.advance(139_400), 139_400, "to the end of a slice");
    assert_eq!((buffer.len(), buffer.charged()), (110_000, charge(50_000) + charge(60_000)));
    buffer.push(Bytes::from(vec![7; 70_000]));
    assert_eq!(buffer.advance(150_000), 150_000, "into a fresh slice");
    assert_eq!((buffer.len(), buffer.charged()), (30_000, charge(30_000)));
    assert_eq!(buffer.advance(40_000), 30_000, "no more than there is");
    assert!(buffer.is_empty());
    assert_eq!((buffer.len(), buffer.charged()), (0, 0));
}

#[test]
fn large_slices_stay_as_they_are_and_in_order() {
    for (sizes, joined) in [
        (vec![40_000, 5, 6, 50_000, 32_767, 32_768, 1], vec![40_000, 11, 50_000, 32_767, 32_768, 1]),
        (vec![20_000; 5], vec![40_000, 40_000, 20_000]),
    ] {
        let mut buffer = Buffer::default();
        for (n, size) in sizes.iter().enumerate() {
            buffer.push(Bytes::from(vec![n as u8; *size]));
        }
        buffer.advance(0);
        let lens: Vec<usize> = buffer.slices.iter().map(Bytes::len).collect();
        assert_eq!(lens, joined);
        assert_eq!(buffer.charged(), lens.iter().map(|len| charge(*len)).sum::<usize>());
    }
}

#[test]
fn the_last_waiting_slice_is_copied_again_while_it_is_short() {
    for (sizes, lens) in [([4_095, 5_000], vec![9_095]), ([4_096, 1], vec![4_096, 1])] {
        let buffer = settled(&sizes);
        assert_eq!(buffer.slices.iter().map(Bytes::len).collect::<Vec<_>>(), lens);
        assert_eq!(buffer.charged(), lens.iter().map(|len| charge(*len)).sum::<usize>());
    }
}

#[test]
fn an_empty_buffer_keeps_memory_for_sixteen_slices() {
    for (count, kept) in [(16, 16), (17, 0)] {
        let mut buffer = Buffer::default();
        (0..count).for_each(|_| buffer.push(Bytes::from_static(b"a")));
        buffer.advance(count);
        assert_eq!(buffer.slices.capacity(), kept, "after {count}");
    }
}
