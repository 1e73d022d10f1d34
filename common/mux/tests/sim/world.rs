//! Both links, the stream between them, the local ends and the clock; and the actions on them.

use std::collections::VecDeque;
use std::time::Duration;

use mux::{Agent, ConnectId, Link, Packet, Server, Time};

use super::ends::{LocalEnd, Phase, Segment};
use super::scenario::{Scenario, mirrored};
use super::{Checked, Role};
use crate::ensure;

/// An action that may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// A frontend dials.
    Dial(usize),
    /// A frontend abandons its dial or connection.
    Abandon(usize),
    /// The agent's dialer completes.
    Dialed(usize),
    /// A source's next step reaches its socket.
    Arrive(Role, usize),
    /// A sink reads the first segment of its queue.
    Take(Role, usize),
    /// The driver offers a sink the bytes that arrived in its turn, and the sink accepts none.
    Offer(Role, usize),
    /// A write to a sink fails.
    Break(Role, usize),
    /// The driver polls a link for the next transmission.
    Transmit(Role),
    /// The oldest packet towards this half arrives.
    Receive(Role),
    /// This half notices that the stream is lost.
    StreamLost(Role),
    /// The agent asks for no new dials.
    Drain,
    /// Time passes until the next timer expires.
    Tick,
}

/// Both sides of a connection, from plan to end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    /// The frontend and the endpoint.
    pub(crate) ends: [LocalEnd; 2],
    pub(crate) id: Option<ConnectId>,
    /// How many CLOSE_RSP the agent sent while it knew the connect id.
    pub(crate) close_responses: u8,
    /// The agent's close contained an error.
    pub(crate) error_named: bool,
}

/// The lanes, the local ends and the clock: everything except the links.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Around {
    pub(crate) now: Time,
    /// The lane towards the server, and the one towards the agent.
    pub(crate) lanes: [VecDeque<Packet<Segment>>; 2],
    pub(crate) pairs: Vec<Pair>,
    pub(crate) lost: [bool; 2],
    pub(crate) hurried_ticks: u8,
    /// The dial ids that were sent, one bit each.
    pub(crate) dials_sent: u64,
    pub(crate) drained: bool,
    pub(crate) drain_reported: bool,
    /// The server asked for a probe.
    pub(crate) probe_wanted: bool,
    /// Half-close is negotiated: sources end one by one.
    pub(crate) half_close: bool,
    /// A close was answered, or given up, before its flush was complete: time has passed.
    pub(crate) time_passed: bool,
}

/// The whole system.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) server: Link<Server, Segment>,
    pub(crate) agent: Link<Agent, Segment>,
    pub(crate) around: Around,
}

impl World {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let pair = Pair {
            ends: [LocalEnd::new(), LocalEnd::new()],
            id: None,
            close_responses: 0,
            error_named: false,
        };
        let mut pair = pair;
        if let Some(windows) = scenario.negotiated.credits {
            pair.ends[0].allowed = windows.send.into();
            pair.ends[1].allowed = windows.receive.into();
        }
        let mut server = Link::new(scenario.limits.clone(), scenario.negotiated);
        let mut agent = Link::new(scenario.limits.clone(), mirrored(scenario.negotiated));
        if scenario.high_bdp {
            server.set_rtt(Duration::from_secs(1));
            agent.set_rtt(Duration::from_secs(1));
        }
        let mut world = World {
            server,
            agent,
            around: Around {
                now: Time::START,
                lanes: [VecDeque::new(), VecDeque::new()],
                pairs: vec![pair; scenario.plans.len()],
                lost: [false; 2],
                hurried_ticks: 0,
                dials_sent: 0,
                drained: false,
                drain_reported: false,
                probe_wanted: false,
                half_close: scenario.negotiated.half_close,
                time_passed: false,
            },
        };
        if scenario.prompt {
            for (conn, plan) in scenario.plans.iter().enumerate() {
                for role in [Role::Server, Role::Agent] {
                    world.around.pairs[conn].ends[role as usize].arrived = plan.script(role).len();
                }
                world.apply(scenario, Action::Dial(conn)).expect("a new link takes dials");
            }
        }
        world
    }

    /// The actions that are possible in this state. Time passes when nothing else can happen, and a few times in
    /// between.
    pub(crate) fn enabled(&self, scenario: &Scenario) -> Vec<Action> {
        let around = &self.around;
        let mut actions = Vec::new();
        for (conn, (pair, plan)) in around.pairs.iter().zip(&scenario.plans).enumerate() {
            let [frontend, endpoint] = &pair.ends;
            match frontend.phase {
                Phase::Idle => actions.push(Action::Dial(conn)),
                Phase::Dialing(_) | Phase::Open(_) if plan.abandon => actions.push(Action::Abandon(conn)),
                _ => {}
            }
            if matches!(endpoint.phase, Phase::Dialing(_) | Phase::Cancelled(_)) {
                actions.push(Action::Dialed(conn));
            }
            let sides = [
                (Role::Server, frontend, &plan.frontend, plan.frontend_breaks, plan.frontend_stuck),
                (
                    Role::Agent,
                    endpoint,
                    &plan.endpoint,
                    plan.endpoint_breaks,
                    plan.endpoint_stuck || (plan.endpoint_echoes && endpoint.unread()),
                ),
            ];
            for (role, end, script, breaks, stuck) in sides {
                if end.open().is_none() {
                    continue;
                }
                if end.arrived < script.len() {
                    actions.push(Action::Arrive(role, conn));
                }
                if !stuck && end.queued > 0 {
                    actions.push(Action::Take(role, conn));
                }
                if end.dirty {
                    actions.push(Action::Offer(role, conn));
                }
                if breaks && !end.failed {
                    actions.push(Action::Break(role, conn));
                }
            }
        }
        for role in [Role::Server, Role::Agent] {
            let budget = around.budget(role, scenario);
            let (sends, receives) = match role {
                Role::Server => {
                    (self.server.clone().poll_transmit(around.now, budget).is_some(), self.server.receiving())
                }
                Role::Agent => {
                    (self.agent.clone().poll_transmit(around.now, budget).is_some(), self.agent.receiving())
                }
            };
            if sends {
                actions.push(Action::Transmit(role));
            }
            if receives && !around.lanes[role as usize].is_empty() {
                actions.push(Action::Receive(role));
            }
            if scenario.loss && !around.lost[role as usize] {
                actions.push(Action::StreamLost(role));
            }
        }
        if scenario.drain && !around.drained {
            actions.push(Action::Drain);
        }
        let due = self.server.poll_timeout().is_some() || self.agent.poll_timeout().is_some();
        if due && (actions.is_empty() || around.hurried_ticks < scenario.hurried_ticks) {
            actions.push(Action::Tick);
        }
        actions
    }

    /// Performs the action.
    pub(crate) fn apply(&mut self, scenario: &Scenario, action: Action) -> Checked {
        let hurried = action == Action::Tick && self.enabled(scenario) != [Action::Tick];
        let World { server, agent, around } = self;
        let now = around.now;
        match action {
            Action::Dial(conn) => {
                let key =
                    server.dial("tcp", &conn.to_string(), None).ok_or("too many dials or connections")?;
                around.pairs[conn].ends[0].phase = Phase::Dialing(key);
            }
            Action::Abandon(conn) => {
                let end = &mut around.pairs[conn].ends[0];
                let (Phase::Dialing(key) | Phase::Open(key)) = end.phase else { return Ok(()) };
                server.abandon(now, key);
                end.phase = Phase::Over;
                end.abandoned = true;
                end.queued = 0;
                end.dirty = false;
                server.release(key);
            }
            Action::Dialed(conn) => around.dialed(agent, conn, scenario.plans[conn].refused)?,
            Action::Arrive(role, conn) => {
                let end = &mut around.pairs[conn].ends[role as usize];
                end.arrived += 1;
                if let Some(key) = end.open() {
                    match role {
                        Role::Server => server.readable(key),
                        Role::Agent => agent.readable(key),
                    }
                }
            }
            Action::Take(Role::Server, conn) => around.take(server, Role::Server, conn, scenario.sip)?,
            Action::Take(Role::Agent, conn) => around.take(agent, Role::Agent, conn, scenario.sip)?,
            Action::Offer(Role::Server, conn) => around.take(server, Role::Server, conn, 0)?,
            Action::Offer(Role::Agent, conn) => around.take(agent, Role::Agent, conn, 0)?,
            Action::Break(role, conn) => {
                let end = &mut around.pairs[conn].ends[role as usize];
                end.failed = true;
                if let Some(key) = end.open() {
                    (end.queued, end.dirty) = (0, false);
                    match role {
                        Role::Server => server.write_failed(now, key, "write".into()),
                        Role::Agent => agent.write_failed(now, key, "write".into()),
                    }
                }
            }
            Action::Transmit(Role::Server) => around.transmit(server, Role::Server, scenario)?,
            Action::Transmit(Role::Agent) => around.transmit(agent, Role::Agent, scenario)?,
            Action::Receive(Role::Server) => around.receive(server, Role::Server, scenario)?,
            Action::Receive(Role::Agent) => around.receive(agent, Role::Agent, scenario)?,
            Action::StreamLost(role) => {
                around.lost[role as usize] = true;
                around.lanes[role as usize].clear();
                match role {
                    Role::Server => server.stream_lost(now),
                    Role::Agent => agent.stream_lost(now),
                }
            }
            Action::Drain => {
                around.drained = true;
                agent.drain();
            }
            Action::Tick => {
                around.hurried_ticks += u8::from(hurried);
                around.time_passed = true;
                let due = server.poll_timeout().into_iter().chain(agent.poll_timeout()).min();
                around.now = now.max(due.unwrap_or(now));
                server.handle_timeout(around.now);
                agent.handle_timeout(around.now);
                let later = server.poll_timeout().into_iter().chain(agent.poll_timeout()).min();
                ensure!(later.is_none_or(|later| later > around.now), "a timer that was due is due again");
            }
        }
        around.events(server, Role::Server)?;
        if std::mem::take(&mut around.probe_wanted) {
            server.probe(0);
        }
        around.events(agent, Role::Agent)
    }
}
