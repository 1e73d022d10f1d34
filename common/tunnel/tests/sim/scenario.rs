//! What is to happen, in whatever order: the connections' plans and the world's faults.

use tunnel::{Limits, Terms, Windows};

/// What a local source brings, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// So many bytes.
    Send(u8),
    /// It sends no more, but listens.
    Eof,
    /// It neither sends nor listens.
    Closed,
    /// It breaks while being read.
    Fail,
}

/// One dial and, if it succeeds, its connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// What the frontend brings.
    pub(crate) frontend: Vec<Step>,
    /// What the endpoint brings.
    pub(crate) endpoint: Vec<Step>,
    /// The endpoint cannot be reached.
    pub(crate) refused: bool,
    /// The frontend may lose interest at any moment before it was told an end.
    pub(crate) abandon: bool,
    /// The frontend takes nothing.
    pub(crate) frontend_stuck: bool,
    /// The endpoint takes nothing.
    pub(crate) endpoint_stuck: bool,
    /// The endpoint takes more only once what it sent was read, as one that echoes does.
    pub(crate) endpoint_echoes: bool,
    /// The frontend knows no half-close, as a gRPC client.
    pub(crate) frontend_whole: bool,
    /// Writing to the frontend may fail at any moment.
    pub(crate) frontend_breaks: bool,
    /// Writing to the endpoint may fail at any moment.
    pub(crate) endpoint_breaks: bool,
}

/// A small world to be explored.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    /// For messages.
    pub(crate) name: &'static str,
    /// The connections.
    pub(crate) plans: Vec<Plan>,
    /// All dials come at once, and what a source brings is in its socket when the connection opens: fewer
    /// interleavings where others matter.
    pub prompt: bool,
    /// So many packets fit into one direction of the stream.
    pub(crate) lane: usize,
    /// At most so many bytes are sent at once.
    pub(crate) chunk: usize,
    /// So often time may pass while there is still something to do. (It passes freely when there is not.)
    pub(crate) hurried_ticks: u8,
    /// The stream may be lost, and each end learns of it at its own time.
    pub(crate) loss: bool,
    /// The agent drains at some moment.
    pub(crate) drain: bool,
    /// The agent knows no DIAL_CLS, as Go's.
    pub(crate) deaf_to_dial_cls: bool,
    /// Each CLOSE_REQ arrives twice.
    pub(crate) closes_twice: bool,
    /// Every connection must end in order.
    pub(crate) calm: bool,
    /// The way is long, and both ends know it.
    pub(crate) far: bool,
    /// What the server agreed on with the agent.
    pub(crate) terms: Terms,
    /// The bounds of both links.
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
            hurried_ticks: 0,
            loss: false,
            drain: false,
            deaf_to_dial_cls: false,
            closes_twice: false,
            calm: false,
            far: false,
            terms: Terms::default(),
            limits: Limits::default(),
        }
    }
}

/// Bounds so tight that a byte or two reach them.
pub(crate) fn tight() -> Limits {
    Limits {
        soft_cap: 1,
        hard_cap: 2,
        link_budget: 3,
        min_drain: 2,
        window_max: 4,
        window_far: 12,
        far_budget: 10,
        ..Limits::default()
    }
}

/// Own peers, with windows of a byte or two.
pub(crate) fn own_peers() -> Terms {
    Terms { credits: Some(Windows { ours: 2, theirs: 1 }), half_close: true }
}

/// The same agreement, as the other end sees it.
pub(crate) fn mirrored(terms: Terms) -> Terms {
    let credits = terms.credits.map(|Windows { ours, theirs }| Windows { ours: theirs, theirs: ours });
    Terms { credits, ..terms }
}

/// A plan in which nothing breaks.
pub(crate) fn plan(frontend: &[Step], endpoint: &[Step]) -> Plan {
    Plan { frontend: frontend.to_vec(), endpoint: endpoint.to_vec(), ..Plan::default() }
}

impl Plan {
    /// What this half's local end brings.
    pub(crate) fn script(&self, half: super::Half) -> &[Step] {
        match half {
            super::Half::Server => &self.frontend,
            super::Half::Agent => &self.endpoint,
        }
    }
}
