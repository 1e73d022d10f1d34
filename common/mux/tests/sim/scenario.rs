//! The input of a run, whose order is open: the connections' plans and the faults.

use mux::{Limits, Negotiated, Windows};

/// One step of a local source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// It sends this many bytes.
    Send(u8),
    /// It sends no more, but listens.
    Eof,
    /// It neither sends nor listens.
    Closed,
    /// It breaks while it is read.
    Fail,
}

/// One dial and, if it succeeds, its connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// The frontend's steps.
    pub(crate) frontend: Vec<Step>,
    /// The endpoint's steps.
    pub(crate) endpoint: Vec<Step>,
    /// The endpoint cannot be reached.
    pub(crate) refused: bool,
    /// The frontend may abandon the dial or connection at any time before it was notified of an end.
    pub(crate) abandon: bool,
    /// The frontend reads nothing.
    pub(crate) frontend_stuck: bool,
    /// The endpoint reads nothing.
    pub(crate) endpoint_stuck: bool,
    /// The endpoint reads more only after its own bytes were read, as an echo server does.
    pub(crate) endpoint_echoes: bool,
    /// A write to the frontend may fail at any time.
    pub(crate) frontend_breaks: bool,
    /// A write to the endpoint may fail at any time.
    pub(crate) endpoint_breaks: bool,
}

/// A small system to be explored.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    /// For messages.
    pub(crate) name: &'static str,
    /// The connections.
    pub(crate) plans: Vec<Plan>,
    /// All dials come at once, and the bytes of a source are in its socket when the connection opens: fewer
    /// interleavings, for scenarios that test others.
    pub prompt: bool,
    /// How many packets fit into one direction of the stream.
    pub(crate) lane: usize,
    /// How many bytes are sent at once at most.
    pub(crate) chunk: usize,
    /// How many bytes a sink reads at once at most.
    pub(crate) sip: u16,
    /// Several packets arrive before a sink is offered their bytes, as in one turn of the driver.
    pub(crate) batches: bool,
    /// How often time may pass while other actions are possible. (It passes freely when none is.)
    pub(crate) hurried_ticks: u8,
    /// The stream may be lost; each end notices at its own time.
    pub(crate) loss: bool,
    /// The agent drains at some time.
    pub(crate) drain: bool,
    /// The agent ignores DIAL_CLS, like Go's.
    pub(crate) ignores_dial_cls: bool,
    /// Each CLOSE_REQ arrives twice.
    pub(crate) closes_twice: bool,
    /// Every connection must end in order.
    pub(crate) calm: bool,
    /// The RTT is high, and both ends know it.
    pub(crate) high_bdp: bool,
    /// The terms that the server negotiated with the agent.
    pub(crate) negotiated: Negotiated,
    /// The limits of both links.
    pub(crate) limits: Limits,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            name: "",
            plans: Vec::new(),
            prompt: false,
            lane: 2,
            chunk: 2,
            sip: u16::MAX,
            batches: false,
            hurried_ticks: 0,
            loss: false,
            drain: false,
            ignores_dial_cls: false,
            closes_twice: false,
            calm: false,
            high_bdp: false,
            negotiated: Negotiated::default(),
            limits: Limits::default(),
        }
    }
}

/// Limits that one or two bytes reach.
pub(crate) fn tight() -> Limits {
    Limits {
        soft_cap: 1,
        hard_cap: 2,
        link_budget: 3,
        min_drain: 2,
        window_max: 4,
        window_high_bdp: 12,
        high_bdp_budget: 10,
        ..Limits::default()
    }
}

/// Native peers, with windows of one and two bytes.
pub(crate) fn native_peers() -> Negotiated {
    Negotiated { credits: Some(Windows { receive: 2, send: 1 }), half_close: true }
}

/// The same terms, as the other end sees them.
pub(crate) fn mirrored(negotiated: Negotiated) -> Negotiated {
    let credits =
        negotiated.credits.map(|Windows { receive, send }| Windows { receive: send, send: receive });
    Negotiated { credits, ..negotiated }
}

/// A plan without faults.
pub(crate) fn plan(frontend: &[Step], endpoint: &[Step]) -> Plan {
    Plan { frontend: frontend.to_vec(), endpoint: endpoint.to_vec(), ..Plan::default() }
}

impl Plan {
    /// The steps of this half's local end.
    pub(crate) fn script(&self, role: super::Role) -> &[Step] {
        match role {
            super::Role::Server => &self.frontend,
            super::Role::Agent => &self.endpoint,
        }
    }
}
