//! Brings receive buffers to a size, by packets and by reads.

use mux::{ConnKey, Link, Packet, Payload, Side, Time};

/// A payload is its length here.
pub(crate) type Lengths<S> = Link<S, usize>;

/// Brings the buffer of an open connection to `size` bytes: either DATA arrives and has to wait, or the local end accepts
/// bytes.
pub(crate) fn queued<S: Side>(link: &mut Lengths<S>, now: Time, key: ConnKey, size: usize) {
    let before = link.recv(key).expect("an open connection").len();
    if let Some(payload) = size.checked_sub(before).filter(|more| !more.is_empty()) {
        let id = link.connect_id(key).expect("an open connection has its id");
        link.handle_packet(now, Packet::Data { id, payload });
        link.advance(now, key, 0);
    } else {
        link.advance(now, key, before - size);
    }
    assert_eq!(link.recv(key).map_or(size, mux::Buffer::len), size, "a buffer takes what its window allows");
}
