//! The order of sending: control packets, grants, then one source after the other.

use crate::conn::State;
use crate::event::{Control, Transmit};
use crate::link::{Link, Outgoing, Side};
use crate::packet::Packet;
use crate::payload::Payload;
use crate::table::ConnKey;
use crate::time::Time;

impl<S: Side, P: Payload> Link<S, P> {
    /// The next thing to send, if `budget` bytes of payload may be sent now. With a budget of 0 nothing is sent, not
    /// even control packets (they would queue without a limit below), but discards continue. Control packets go first;
    /// a close never overtakes its own connection's data, because bytes that were read have been sent. Discards
    /// alternate with reads: a source that never blocks would keep the others from being sent.
    pub fn poll_transmit(&mut self, now: Time, budget: usize) -> Option<Transmit> {
        if budget > 0 {
            if let Some(packet) = self.next_control() {
                return Some(Transmit::Control(packet));
            }
            if std::mem::take(&mut self.discarded)
                && let Some(read) = self.next_read(budget)
            {
                return Some(read);
            }
        }
        if let Some(discard) = self.next_discard(now) {
            self.discarded = true;
            return Some(discard);
        }
        if budget > 0 { self.next_read(budget) } else { None }
    }

    fn next_control(&mut self) -> Option<Control> {
        while let Some(outgoing) = self.outbox.pop_front() {
            match outgoing {
                Outgoing::Control(packet) => return Some(packet),
                Outgoing::UnknownConnection(id) => {
                    self.unknown_ids.remove(&id);
                    return Some(S::answer_to_unknown(id));
                }
                Outgoing::Dial(key) => {
                    if let Some(packet) = self.dial_request(key) {
                        return Some(packet);
                    }
                    self.stale_dials = self.stale_dials.saturating_sub(1);
                }
            }
        }
        self.next_grant().map(|(id, offset)| Packet::Grant { id, offset })
    }

    fn next_read(&mut self, budget: usize) -> Option<Transmit> {
        while let Some(key) = self.rings.pop() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            if conn.state != State::Open {
                continue;
            }
            conn.in_ring = false;
            if !conn.source_open {
                continue;
            }
            let room = match &mut conn.credit {
                None => usize::MAX,
                Some(credit) => {
                    credit.outflow.blocked = credit.outflow.room() == 0;
                    credit.outflow.room()
                }
            };
            if room == 0 {
                return Some(Transmit::NoCredit { key });
            }
            return Some(Transmit::Read { key, max: budget.min(self.limits.chunk).min(room) });
        }
        None
    }

    fn next_discard(&mut self, now: Time) -> Option<Transmit> {
        while let Some((key, max)) = self.discards.next(now, &self.limits) {
            if let Some(conn) = self.table.get_mut(key) {
                conn.in_ring = false;
                if conn.source_open {
                    return Some(Transmit::Discard { key, max });
                }
            } else if self.table.end_lingering(key) {
                return Some(Transmit::Linger { key, max });
            }
        }
        None
    }

    fn dial_request(&mut self, key: ConnKey) -> Option<Control> {
        let conn = self.table.get_mut(key)?;
        let (protocol, address) = conn.target.take()?;
        conn.state = State::Dialing { sent: true };
        Some(Packet::DialReq { random: conn.random, protocol, address })
    }
}
