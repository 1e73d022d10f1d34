//! The streams of one agent id: lanes of one process, and other processes.

use super::{Agent, BackendManager, Link, State};
use crate::backends::{Backend, LinkId};
use crate::limits::{MAX_LANES_PER_AGENT, MAX_STREAMS_PER_AGENT};

impl<L: Clone> BackendManager<L> {
    /// The handles of the other streams of the same agent id.
    pub fn siblings(&self, id: LinkId) -> Vec<L> {
        self.siblings_where(id, |_, _| true)
    }

    /// The handles of the other lanes of the same agent process.
    pub fn lanes(&self, id: LinkId) -> Vec<L> {
        self.siblings_where(id, |_, is_lane| is_lane)
    }

    /// The handles of the streams of the same agent id that are no lanes of its process, and neither draining nor unresponsive.
    pub fn rivals(&self, id: LinkId) -> Vec<L> {
        self.siblings_where(id, |link, is_lane| !is_lane && !link.draining && !link.is_unresponsive())
    }

    /// The handles of the other streams of the same agent id that are `wanted`, by whether they are lanes of the same process.
    fn siblings_where(&self, id: LinkId, wanted: impl Fn(&Link<L>, bool) -> bool) -> Vec<L> {
        let state = self.shared.state.read();
        let lanes: Vec<LinkId> = state.lanes_of(id).map(|(lane, _)| lane).collect();
        let others = state.streams_of_same_agent(id).filter(|(other, _)| *other != id);
        let others = others.filter(|(other, link)| wanted(link, lanes.contains(other)));
        others.map(|(_, link)| link.backend.handle.clone()).collect()
    }
}

impl<L: Clone> State<L> {
    /// Whether an agent id may have this stream, too.
    pub(super) fn has_room(&self, known: &Agent, backend: &Backend<L>) -> bool {
        let streams: Vec<&Backend<L>> =
            known.streams.iter().filter_map(|id| Some(&self.links.get(id)?.backend)).collect();
        let is_lane_of =
            |others: &[&Backend<L>], one: &Backend<L>| others.iter().any(|other| one.is_lane_of(other));
        let processes =
            streams.iter().enumerate().filter(|(place, one)| !is_lane_of(&streams[..*place], one)).count();
        streams.len() < MAX_LANES_PER_AGENT
            && (processes < MAX_STREAMS_PER_AGENT || is_lane_of(&streams, backend))
    }

    /// A lane of an agent process that opens another one.
    pub(super) fn lane_of_process(&self, backend: &Backend<L>) -> Option<&Link<L>> {
        let streams = &self.agents.get(&backend.agent_id)?.streams;
        streams.iter().filter_map(|id| self.links.get(id)).find(|link| link.backend.is_lane_of(backend))
    }

    /// All streams of a stream's agent id, itself included, the oldest first.
    pub(super) fn streams_of_same_agent(&self, id: LinkId) -> impl Iterator<Item = (LinkId, &Link<L>)> {
        let agent = self.links.get(&id).and_then(|link| self.agents.get(&link.backend.agent_id));
        let streams = agent.into_iter().flat_map(|agent| &agent.streams);
        streams.filter_map(|other| Some((*other, self.links.get(other)?)))
    }

    /// The lanes of a stream's agent process, itself included, the oldest first.
    pub(super) fn lanes_of(&self, id: LinkId) -> impl Iterator<Item = (LinkId, &Link<L>)> {
        let this = self.links.get(&id);
        let is_lane = move |other: &Link<L>| this.is_some_and(|this| this.backend.is_lane_of(&other.backend));
        self.streams_of_same_agent(id).filter(move |(other, link)| *other == id || is_lane(link))
    }
}
