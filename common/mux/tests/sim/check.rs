//! The rules that must hold after each action, at each end of a connection, and at the end of a run.

use mux::{Buffer, Cause, CloseReason, ConnKey, DialError, Link, Side};

use super::ends::{Phase, Segment};
use super::scenario::{Scenario, Step};
use super::world::{Around, World};
use super::{Checked, Role};
use crate::ensure;

/// The number of bytes that a source sends in all.
fn total(script: &[Step]) -> u16 {
    script.iter().map(|step| if let Step::Send(bytes) = step { u16::from(*bytes) } else { 0 }).sum()
}

impl World {
    /// After each action: the sums are exact, and the link does not receive while a limit is exceeded.
    pub(crate) fn check(&self, scenario: &Scenario) -> Checked {
        self.around.check_link(&self.server, Role::Server, scenario)?;
        self.around.check_link(&self.agent, Role::Agent, scenario)
    }

    /// When no action is possible any more: nothing is left, and every local end was notified.
    pub(crate) fn check_over(&self, scenario: &Scenario) -> Checked {
        let around = &self.around;
        for (role, len, queued, timeout, receiving) in [
            (
                Role::Server,
                self.server.len(),
                self.server.total_held(),
                self.server.poll_timeout(),
                self.server.receiving(),
            ),
            (
                Role::Agent,
                self.agent.len(),
                self.agent.total_held(),
                self.agent.poll_timeout(),
                self.agent.receiving(),
            ),
        ] {
            ensure!(len == 0, "{role:?} still holds {len} connections");
            ensure!(queued == 0, "{role:?} still counts {queued} queued bytes");
            ensure!(timeout.is_none(), "{role:?} still waits until {timeout:?}");
            ensure!(receiving != around.lost[role as usize], "{role:?} receives: {receiving}");
            ensure!(around.lanes[role as usize].is_empty(), "packets towards {role:?} were left");
        }
        let lost = around.lost.contains(&true);
        ensure!(!scenario.drain || lost || around.drain_reported, "the drain was not told");
        for (conn, pair) in around.pairs.iter().enumerate() {
            let [frontend, endpoint] = &pair.ends;
            for end in [frontend, endpoint] {
                let broken = matches!(end.end, Some(CloseReason::Broken(_)));
                ensure!(!(scenario.calm && broken), "connection {conn} ended by {:?}", end.end);
            }
            if scenario.calm && scenario.negotiated.half_close {
                let plan = &scenario.plans[conn];
                let whole =
                    endpoint.taken == total(&plan.frontend) && frontend.taken == total(&plan.endpoint);
                ensure!(
                    whole,
                    "connection {conn}: {} and {} bytes were taken",
                    endpoint.taken,
                    frontend.taken
                );
            }
            ensure!(frontend.phase == Phase::Over, "the frontend of connection {conn} was told no end");
            ensure!(
                matches!(endpoint.phase, Phase::Over | Phase::Idle),
                "the endpoint of connection {conn} was told no end"
            );
            if endpoint.end.is_some() && !lost {
                ensure!(pair.close_responses == 1, "connection {conn}: {} CLOSE_RSP", pair.close_responses);
            }
        }
        Ok(())
    }
}

impl Around {
    fn check_link<S: Side>(&self, link: &Link<S, Segment>, role: Role, scenario: &Scenario) -> Checked {
        let open =
            || self.pairs.iter().map(|pair| &pair.ends[role as usize]).filter(|end| end.open().is_some());
        for end in open() {
            let held = end.open().and_then(|key| link.recv(key)).map(Buffer::len);
            ensure!(
                held == Some(end.queued.into()),
                "{role:?} holds {held:?} bytes where {} wait",
                end.queued
            );
        }
        // Fresh bytes are not charged.
        let charged = || open().filter(|end| !end.dirty).map(|end| usize::from(end.queued));
        let total: usize = charged().sum();
        let exact = open().all(|end| !end.dirty);
        ensure!(
            link.total_held() == total || (!exact && link.total_held() > total),
            "{role:?} counts {} queued bytes where {total} are",
            link.total_held()
        );
        let total = link.total_held();
        let limits = &scenario.limits;
        let held_up = total > limits.link_budget || charged().any(|queued| queued > limits.hard_cap);
        let lost = self.lost[role as usize];
        ensure!(!(link.receiving() && (held_up || lost)), "{role:?} receives above a bound");
        ensure!(
            link.receiving() || held_up || lost || !exact,
            "{role:?} does not receive and nothing holds it up"
        );
        ensure!(!held_up || link.poll_timeout().is_some(), "{role:?} is held up and measures nothing");
        for end in open() {
            ensure!(!end.closed_itself || end.queued == 0, "bytes are kept for one who left");
            if let Some(windows) = scenario.negotiated.credits {
                let limits = &scenario.limits;
                let grown = if scenario.high_bdp { limits.window_high_bdp } else { limits.window_max };
                let widest = windows.receive.max(windows.send).max(grown) as usize;
                ensure!(
                    usize::from(end.queued) <= widest,
                    "{role:?} keeps {} bytes for one connection",
                    end.queued
                );
            }
        }
        Ok(())
    }

    /// DATA may be dropped only if the receiver has ended by itself, or was notified of its end.
    pub(super) fn check_dropped(&self, role: Role, segment: &Segment) -> Checked {
        let end = &self.pairs[segment.conn].ends[role as usize];
        let left = end.phase == Phase::Over || end.closed_itself || end.failed;
        let ended = role == Role::Agent && end.source_over && !self.half_close;
        ensure!(
            left || ended || self.time_passed,
            "{segment:?} was lost at {role:?}, and its receiver listens"
        );
        Ok(())
    }

    pub(super) fn check_failed(&self, conn: usize, key: ConnKey, error: &DialError) -> Checked {
        let frontend = &self.pairs[conn].ends[0];
        ensure!(frontend.phase == Phase::Dialing(key), "an open connection {conn} failed to be dialed");
        match error {
            DialError::Refused(text) => {
                ensure!(text == "refused" && self.pairs[conn].id.is_none(), "connection {conn}: {text}");
            }
            DialError::LinkLost => ensure!(self.lost[0], "connection {conn} says that the link is lost"),
            DialError::BadAnswer | DialError::Closed => {
                return Err(format!("an honest agent answered {conn} by {error:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn check_ended(&self, role: Role, conn: usize, end: &CloseReason) -> Checked {
        let pair = &self.pairs[conn];
        let (here, there) = (&pair.ends[role as usize], &pair.ends[role.other() as usize]);
        ensure!(here.open().is_some(), "connection {conn} ended at {role:?} before it was open");
        let well = match end {
            CloseReason::Flushed => {
                ensure!(here.queued == 0, "connection {conn} ended at {role:?} with bytes in its queue");
                ensure!(!here.failed, "connection {conn} broke at {role:?}, which is called an orderly end");
                let close_decided = here.peer_closed && !(role == Role::Agent && here.source_over);
                if (close_decided || here.peer_fin) && !here.closed_itself {
                    ensure!(
                        here.taken == there.sent,
                        "connection {conn} at {role:?}: {} of {} bytes before an orderly end",
                        here.taken,
                        there.sent
                    );
                }
                let named = role == Role::Server && here.peer_closed && pair.error_named;
                ensure!(!named, "connection {conn}: the agent's error became an orderly end");
                here.peer_closed || here.peer_fin || here.source_over
            }
            CloseReason::Broken(Cause::LinkLost) => {
                ensure!(
                    here.queued == 0,
                    "connection {conn} at {role:?}: data that had arrived was discarded"
                );
                self.lost[role as usize]
            }
            CloseReason::Broken(Cause::Local(_)) => here.failed,
            CloseReason::Broken(Cause::Peer(text)) => {
                let delivered = here.closed_itself || here.taken == there.sent;
                let gave_up = text.contains("timed out") || text.contains("too slow");
                (there.failed && delivered) || (self.time_passed && gave_up)
            }
            CloseReason::Broken(Cause::Stalled | Cause::FlushTimeout) => self.time_passed,
            CloseReason::Broken(Cause::Overrun) => false,
        };
        ensure!(well, "connection {conn} ended at {role:?} by {end:?} for no reason");
        Ok(())
    }
}
