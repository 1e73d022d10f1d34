use std::task::Waker;

use transport::wire::Incoming;
use tunnel::{ConnectId, DialId};

use super::*;
use crate::front::testing::{Readings, account};

/// A wire with these received packets. `held` counts the payload that was read while the window is held back.
struct Arrived {
    packets: VecDeque<Packet<Bytes>>,
    held: Option<usize>,
}

impl Wire for Arrived {
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<usize, WireError>> {
        Poll::Ready(Ok(usize::MAX))
    }

    fn send(&mut self, _packet: Packet<Bytes>) -> Result<(), WireError> {
        Ok(())
    }

    fn poll_packet(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Incoming, WireError>>> {
        let Some(packet) = self.packets.pop_front() else { return Poll::Pending };
        if let (Some(held), Packet::Data { payload, .. }) = (&mut self.held, &packet) {
            *held += payload.len();
        }
        Poll::Ready(Some(Ok(Incoming::Packet(packet))))
    }

    fn hold_back(&mut self, on: bool) {
        self.held = on.then(|| self.held.unwrap_or_default());
    }

    fn held(&mut self) -> usize {
        self.held.unwrap_or_default()
    }

    fn finish(&mut self) {}
}

#[tokio::test]
async fn what_was_read_ahead_is_held_until_it_goes_on() {
    let dial = Packet::DialReq { random: DialId(1), protocol: "tcp".into(), address: "a:1".into() };
    let data = (0..4).map(|_| Packet::Data { id: ConnectId(1), payload: Bytes::from_static(&[7; 1_000]) });
    let packets = std::iter::once(dial).chain(data).collect();
    let readings = Readings::new();
    let mut stream = Stream::new(Arrived { packets, held: None }, readings.meters());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(stream.poll_order(&mut cx), Poll::Ready(Order::Dial { .. })));
    assert!(stream.machine().handle_dialled().is_some());
    let mut local = GrpcLocal::new(stream, account(&readings));

    assert!(local.poll_gone(&mut cx).is_pending(), "the client stays");
    let mut seen = vec![local.held()];
    for _ in 0..4 {
        let Poll::Ready(Ok(Read::Data(bytes))) = local.poll_read(&mut cx, 1_000) else { panic!("bytes") };
        assert_eq!(bytes.len(), 1_000);
        seen.push(local.held());
    }
    assert_eq!(seen, [4_000, 3_000, 2_000, 1_000, 0], "each piece that goes on shows");
    assert!(local.poll_read(&mut cx, 1_000).is_pending());
    assert_eq!(local.held(), 0);
}
