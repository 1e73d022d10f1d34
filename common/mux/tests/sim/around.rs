//! The steps between the links, as the driver does them: carry packets, read and deliver bytes, tell ends.

use mux::{Agent, Disposition, Dropped, Event, Link, Packet, Side, Transmit};

use super::ends::{Phase, Read, Segment};
use super::scenario::{Scenario, Step};
use super::world::Around;
use super::{Checked, Role};
use crate::ensure;

impl Around {
    pub(super) fn budget(&self, role: Role, scenario: &Scenario) -> usize {
        let full = self.lanes[role.other() as usize].len() >= scenario.lane;
        if full || self.lost[role as usize] { 0 } else { scenario.chunk }
    }

    /// The connection with this key at this half.
    fn find(&self, role: Role, key: mux::ConnKey) -> Result<usize, String> {
        self.pairs
            .iter()
            .position(|pair| match pair.ends[role as usize].phase {
                Phase::Dialing(known) | Phase::Open(known) => known == key,
                _ => false,
            })
            .ok_or_else(|| format!("{role:?} names {key:?}, which is dead"))
    }

    pub(super) fn dialed(&mut self, agent: &mut Link<Agent, Segment>, conn: usize, refused: bool) -> Checked {
        let pair = &mut self.pairs[conn];
        let (Phase::Dialing(key) | Phase::Cancelled(key)) = pair.ends[1].phase else { return Ok(()) };
        let wanted = matches!(pair.ends[1].phase, Phase::Dialing(_)) && !refused;
        let opened = agent.dialed(key, if refused { Err("refused".to_owned()) } else { Ok(()) });
        ensure!(opened == wanted, "dialed() says {opened} for connection {conn}");
        pair.ends[1].phase = if opened { Phase::Open(key) } else { Phase::Over };
        if opened {
            pair.id = agent.connect_id(key);
            agent.readable(key);
        }
        Ok(())
    }

    pub(super) fn transmit<S: Side>(
        &mut self,
        link: &mut Link<S, Segment>,
        role: Role,
        scenario: &Scenario,
    ) -> Checked {
        let budget = self.budget(role, scenario);
        match link.poll_transmit(self.now, budget) {
            None => {}
            Some(Transmit::Control(packet)) => {
                ensure!(budget > 0, "a control packet on a stream that takes nothing");
                self.sent(role, &packet)?;
                let twice = scenario.closes_twice && matches!(packet, Packet::CloseReq { id } if id.0 > 0);
                let packet = packet.map(|never| match never {});
                let write_closed = scenario.ignores_dial_cls && matches!(packet, Packet::DialCls { .. });
                let lane = &mut self.lanes[role.other() as usize];
                if !write_closed && !self.lost[role.other() as usize] {
                    if twice {
                        lane.push_back(packet.clone());
                    }
                    lane.push_back(packet);
                }
            }
            Some(Transmit::Read { key, max }) => {
                let conn = self.find(role, key)?;
                ensure!(max > 0 && max <= budget, "{max} bytes are to be read with room for {budget}");
                let end = &self.pairs[conn].ends[role as usize];
                let over = end.close_sent || end.fin_sent || end.discarding;
                ensure!(!over, "connection {conn} is sent after its close");
                self.read(link, role, scenario, conn, max)?;
            }
            Some(Transmit::NoCredit { key }) => {
                let conn = self.find(role, key)?;
                let end = &self.pairs[conn].ends[role as usize];
                ensure!(u64::from(end.sent) == end.allowed, "connection {conn} has credit and is not read");
                if scenario.plans[conn].script(role)[..end.arrived].contains(&Step::Closed) {
                    link.local_closed(self.now, key);
                }
            }
            Some(Transmit::Discard { key, max }) => {
                let conn = self.find(role, key)?;
                let end = &mut self.pairs[conn].ends[role as usize];
                end.discarding = true;
                ensure!(!end.source_over, "an ended source of connection {conn} is discarded");
                ensure!(max == scenario.limits.discard_quantum, "{max} bytes may be discarded");
                self.read(link, role, scenario, conn, max)?;
            }
            Some(Transmit::Linger { key, .. }) => return Err(format!("{key:?} lingers unasked")),
        }
        Ok(())
    }

    /// Reads a source for the link, and sends what the link makes of it.
    fn read<S: Side>(
        &mut self,
        link: &mut Link<S, Segment>,
        role: Role,
        scenario: &Scenario,
        conn: usize,
        max: usize,
    ) -> Checked {
        let pair = &mut self.pairs[conn];
        let end = &mut pair.ends[role as usize];
        let Some(key) = end.open() else {
            return Err(format!("connection {conn} is read while it is not open"));
        };
        let mut rest = match end.read(conn, role, scenario.plans[conn].script(role), max) {
            Read::Blocked => return Ok(()),
            Read::End(source_end) => {
                link.end_source(self.now, key, source_end);
                return Ok(());
            }
            Read::Data(segment) => segment,
        };
        let discarding = end.discarding;
        let lost = self.lost[role.other() as usize];
        for packet in link.push(self.now, key, rest.clone()) {
            let Packet::Data { id, payload } = &packet else { return Err(format!("{packet:?} is no DATA")) };
            ensure!(!discarding, "discarded bytes of connection {conn} are sent");
            ensure!(pair.id == Some(*id), "connection {conn} is sent under {id:?}");
            ensure!(usize::from(payload.len) <= 64 << 10, "{payload:?} is too long for a packet");
            ensure!(payload.first == rest.first, "connection {conn}: {payload:?} is sent before {rest:?}");
            rest.first += payload.len;
            rest.len -= payload.len;
            end.sent += payload.len;
            ensure!(
                u64::from(end.sent) <= end.allowed,
                "connection {conn} sent {} bytes and was granted {}",
                end.sent,
                end.allowed
            );
            if !lost {
                self.lanes[role.other() as usize].push_back(packet);
            }
        }
        ensure!(discarding || rest.len == 0, "connection {conn}: {rest:?} was not sent");
        Ok(())
    }

    /// A sink reads from the segments that it is offered: at most `most` bytes.
    pub(super) fn take<S: Side>(
        &mut self,
        link: &mut Link<S, Segment>,
        role: Role,
        conn: usize,
        most: u16,
    ) -> Checked {
        let end = &mut self.pairs[conn].ends[role as usize];
        let Some(key) = end.open() else { return Ok(()) };
        let front = link.recv(key).and_then(|recv| recv.slices().front());
        let taken = end.take(conn, role, front, most)?;
        end.dirty = false;
        link.advance(self.now, key, taken);
        Ok(())
    }

    /// Checks a control packet that is sent.
    fn sent(&mut self, role: Role, packet: &mux::Control) -> Checked {
        let id = match packet {
            Packet::DialReq { random, .. } => {
                self.dials_sent |= 1 << random.0;
                return Ok(());
            }
            Packet::DialCls { random } => {
                ensure!(
                    self.dials_sent & (1 << random.0) != 0,
                    "dial {random:?} is cancelled and was never sent"
                );
                return Ok(());
            }
            // A probe and its answer.
            Packet::CloseReq { id } | Packet::CloseRsp { id, .. } if id.0 < 0 => return Ok(()),
            Packet::CloseReq { id } | Packet::CloseRsp { id, .. } => *id,
            Packet::Fin { id } => return self.fin_sent(role, *id),
            Packet::DialRsp { .. } | Packet::Data { .. } | Packet::Drain | Packet::Grant { .. } => {
                return Ok(());
            }
        };
        let Some(pair) = self.pairs.iter_mut().find(|pair| pair.id == Some(id)) else {
            return Err(format!("a close of {id:?}, which was never open"));
        };
        match packet {
            Packet::CloseRsp { error, .. }
                if error != "Unknown connectID" && error != "unrecognized connectID" =>
            {
                pair.close_responses += 1;
                pair.error_named = !error.is_empty();
                ensure!(pair.close_responses == 1, "a second CLOSE_RSP of {id:?}");
                let endpoint = &pair.ends[1];
                let answers = endpoint.peer_closed && !endpoint.source_over && !endpoint.failed;
                ensure!(
                    !answers || self.time_passed || endpoint.queued == 0,
                    "CLOSE_REQ of {id:?} is answered before what came ahead of it was taken"
                );
            }
            Packet::CloseReq { .. } if pair.ends[0].opened => {
                let again = pair.ends[0].close_sent && !self.time_passed;
                ensure!(!again, "a second CLOSE_REQ of {id:?}");
            }
            _ => {}
        }
        pair.ends[role as usize].close_sent = true;
        Ok(())
    }

    fn fin_sent(&mut self, role: Role, id: mux::ConnectId) -> Checked {
        let Some(pair) = self.pairs.iter_mut().find(|pair| pair.id == Some(id)) else {
            return Err(format!("a FIN of {id:?}, which was never open"));
        };
        let end = &mut pair.ends[role as usize];
        ensure!(end.source_over, "a FIN of {id:?} while its source goes on");
        ensure!(!std::mem::replace(&mut end.fin_sent, true), "a second FIN of {id:?}");
        ensure!(!end.close_sent, "a FIN of {id:?} after its close");
        Ok(())
    }

    /// Records a packet that arrives.
    fn arrives(&mut self, role: Role, packet: &Packet<Segment>) {
        let (Packet::CloseReq { id }
        | Packet::CloseRsp { id, .. }
        | Packet::Fin { id }
        | Packet::Grant { id, .. }) = packet
        else {
            return;
        };
        let Some(pair) = self.pairs.iter_mut().find(|pair| pair.id == Some(*id)) else { return };
        let end = &mut pair.ends[role as usize];
        match packet {
            Packet::Grant { offset, .. } => end.allowed = end.allowed.max(*offset),
            Packet::Fin { .. } => end.peer_fin = true,
            _ => end.peer_closed = true,
        }
    }

    pub(super) fn receive<S: Side>(
        &mut self,
        link: &mut Link<S, Segment>,
        role: Role,
        scenario: &Scenario,
    ) -> Checked {
        let Some(packet) = self.lanes[role as usize].pop_front() else { return Ok(()) };
        self.arrives(role, &packet);
        let kind = packet.kind().name();
        let segment = if let Packet::Data { payload, .. } = &packet { Some(payload.clone()) } else { None };
        match (link.handle_packet(self.now, packet), segment) {
            (Disposition::Deliver(key), Some(segment)) => {
                let conn = self.find(role, key)?;
                let end = &mut self.pairs[conn].ends[role as usize];
                end.deliver(conn, role, &segment)?;
                end.dirty = scenario.batches;
                if !scenario.batches {
                    link.advance(self.now, key, 0);
                }
            }
            (Disposition::Deliver(_), None) => return Err(format!("{kind} is no payload")),
            (Disposition::Handled, None) => {}
            (Disposition::Handled, Some(_)) => return Err(format!("{kind} vanished")),
            (Disposition::Late, Some(segment)) => self.check_dropped(role, &segment)?,
            (Disposition::Late | Disposition::Dropped(Dropped::UnknownDial), None) => {}
            (Disposition::Dropped(reason), _) => {
                return Err(format!("an honest {kind} was dropped: {reason:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn events<S: Side>(&mut self, link: &mut Link<S, Segment>, role: Role) -> Checked {
        while let Some(event) = link.poll_event() {
            match event {
                Event::Dial { key, address, .. } => {
                    let conn: usize = address.parse().map_err(|_| format!("who is {address}?"))?;
                    let end = &mut self.pairs[conn].ends[1];
                    ensure!(end.phase == Phase::Idle, "connection {conn} is dialed twice");
                    end.phase = Phase::Dialing(key);
                }
                Event::DialCanceled { key } => {
                    let conn = self.find(role, key)?;
                    self.pairs[conn].ends[1].phase = Phase::Cancelled(key);
                }
                Event::Opened { key, id } => {
                    let conn = self.find(role, key)?;
                    ensure!(self.pairs[conn].id == Some(id), "connection {conn} opened as {id:?}");
                    let end = &mut self.pairs[conn].ends[0];
                    ensure!(end.phase == Phase::Dialing(key), "connection {conn} opened twice");
                    end.phase = Phase::Open(key);
                    end.opened = true;
                    link.readable(key);
                }
                Event::DialFailed { key, error } => {
                    let conn = self.find(role, key)?;
                    self.check_failed(conn, key, &error)?;
                    self.pairs[conn].ends[0].phase = Phase::Over;
                }
                Event::ShutDown { key } => {
                    let conn = self.find(role, key)?;
                    let (here, there) = (
                        &self.pairs[conn].ends[role as usize],
                        &self.pairs[conn].ends[role.other() as usize],
                    );
                    ensure!(
                        here.peer_fin && !here.shut,
                        "connection {conn} is shut down at {role:?} for no reason"
                    );
                    ensure!(here.taken == there.sent, "connection {conn} is shut down before all was taken");
                    self.pairs[conn].ends[role as usize].shut = true;
                }
                Event::Ended { key, end } => {
                    let conn = self.find(role, key)?;
                    self.check_ended(role, conn, &end)?;
                    let local = &mut self.pairs[conn].ends[role as usize];
                    local.phase = Phase::Over;
                    (local.queued, local.dirty) = (0, false);
                    local.end = Some(end);
                    link.release(key);
                }
                Event::Draining => {
                    ensure!(self.drained && !self.drain_reported, "draining is told without need");
                    self.drain_reported = true;
                }
                Event::ProbeWanted => self.probe_wanted = true,
                Event::ProbeAnswered => {}
                Event::ServerCount { .. } => ensure!(false, "no number was sent"),
            }
        }
        Ok(())
    }
}
