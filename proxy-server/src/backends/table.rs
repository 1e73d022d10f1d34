//! The streams that one strategy can choose, by agent id or by host.

use std::net::IpAddr;
use std::sync::Arc;

use indexmap::IndexMap;
use ipnet::IpNet;
use rand::seq::{IteratorRandom, index};
use rand::{Rng, RngExt};

use super::{Identifiers, LinkId, Strategy};

/// Random places that are searched for an agent with a suitable stream, before all are. More are needed only while most agents
/// are not ready.
const ATTEMPTS: usize = 16;

/// Whether a stream should get new dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Health {
    /// New dials may use the stream.
    Ready,
    /// New dials use the stream only if no other is ready: it drains, or its agent is ejected.
    Fallback,
    /// New dials use the stream only if no other answers: a ping or probe is unanswered.
    Unresponsive,
}

impl Health {
    /// The best first.
    pub(super) const ALL: [Self; 3] = [Health::Ready, Health::Fallback, Health::Unresponsive];
}

/// The streams under one key, in the order of registration.
type Streams = IndexMap<LinkId, Health>;

#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    /// An agent id or, for destHost, a host.
    Text(Arc<str>),
    Network(IpNet),
}

/// How two suitable streams are compared.
#[derive(Clone, Copy)]
pub(super) struct Comparison<'a> {
    /// The stream of the two that gets the dial.
    pub(super) better: &'a dyn Fn(LinkId, LinkId) -> LinkId,
    /// Whether the stream is the first suitable lane of its agent: an agent with several is not more likely.
    pub(super) is_first_lane: &'a dyn Fn(LinkId) -> bool,
}

/// The table of one strategy.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) strategy: Strategy,
    /// The table has only agents of this zone: a dial asks it before the table of all agents.
    pub(super) zone: Option<Arc<str>>,
    entries: IndexMap<Key, Streams>,
    /// The number of streams of each health, counted once for each key.
    counts: [usize; 3],
}

impl Table {
    pub(super) fn new(strategy: Strategy, zone: Option<Arc<str>>) -> Self {
        Self { strategy, zone, entries: IndexMap::new(), counts: [0; 3] }
    }

    /// The number of agents or, for destHost, of distinct hosts and networks.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a stream under all its keys or changes its health; `None` removes it. False if the stream has no key here.
    pub(super) fn set(
        &mut self,
        agent: &Arc<str>,
        identifiers: &Identifiers,
        id: LinkId,
        health: Option<Health>,
    ) -> bool {
        let keys = self.keys(agent, identifiers);
        let has_keys = !keys.is_empty();
        for key in keys {
            let entry = self.entries.entry(key);
            let index = entry.index();
            let streams = entry.or_default();
            let before = match health {
                Some(health) => streams.insert(id, health),
                None => streams.shift_remove(&id),
            };
            if streams.is_empty() {
                self.entries.swap_remove_index(index);
            }
            if let Some(health) = health {
                self.counts[health as usize] += 1;
            }
            if let Some(before) = before {
                self.counts[before as usize] -= 1;
            }
        }
        has_keys
    }

    fn keys(&self, agent: &Arc<str>, identifiers: &Identifiers) -> Vec<Key> {
        if self.zone.is_some() && self.zone != identifiers.zone {
            return Vec::new();
        }
        match self.strategy {
            Strategy::DestHost => {
                let hosts = identifiers.hosts.iter().map(|host| Key::Text(Arc::clone(host)));
                hosts.chain(identifiers.networks.iter().map(|network| Key::Network(*network))).collect()
            }
            Strategy::DefaultRoute if !identifiers.default_route => Vec::new(),
            Strategy::Default | Strategy::DefaultRoute => vec![Key::Text(Arc::clone(agent))],
        }
    }

    /// A stream of this health for a target's host. If `better` is given it decides between two random suitable ones; otherwise
    /// the first one decides for destHost, and a random agent's first one for the other strategies.
    pub(super) fn find(
        &self,
        host: &str,
        health: Health,
        exclude: &[LinkId],
        better: Option<Comparison<'_>>,
        rng: &mut impl Rng,
    ) -> Option<LinkId> {
        if self.counts[health as usize] == 0 {
            return None;
        }
        let is_suitable = |(id, its): &(&LinkId, &Health)| **its == health && !exclude.contains(id);
        let first = |streams: &Streams| streams.iter().find(is_suitable).map(|(id, _)| *id);
        if self.strategy == Strategy::DestHost {
            return self.find_host(host, |streams| {
                let Some(Comparison { better, is_first_lane }) = better else { return first(streams) };
                let suitable = |at| streams.get_index(at).filter(is_suitable).map(|(id, _)| *id);
                let random = |at| suitable(at).filter(|id| is_first_lane(*id));
                two_of(streams.len(), random, better, rng)
                    .or_else(|| streams.iter().filter(is_suitable).map(|(id, _)| *id).choose(rng))
            });
        }
        // All suitable agents are equally likely in both searches.
        let random = |at| first(self.entries.get_index(at)?.1);
        let found = match better {
            Some(Comparison { better, .. }) => two_of(self.entries.len(), random, better, rng),
            _ if self.entries.is_empty() => None,
            _ => std::iter::repeat_with(|| random(rng.random_range(0..self.entries.len())))
                .take(ATTEMPTS)
                .find_map(|found| found),
        };
        found.or_else(|| self.entries.values().filter_map(first).choose(rng))
    }

    /// The number of agents (for destHost: streams) of this health for a target's host.
    pub(super) fn suitable(&self, host: &str, health: Health) -> usize {
        let of_health = |streams: &Streams| streams.values().filter(|its| **its == health).count();
        if self.strategy != Strategy::DestHost {
            return self.entries.values().filter(|streams| of_health(streams) > 0).count();
        }
        let mut suitable = 0;
        self.find_host(host, |streams| {
            suitable = of_health(streams);
            streams.keys().next().copied().filter(|_| suitable > 0)
        });
        suitable
    }

    /// The suitable stream of the exact host, otherwise of the network with the longest prefix. As in Go, an empty host matches
    /// nothing, not even an empty identifier.
    fn find_host(&self, host: &str, mut suitable: impl FnMut(&Streams) -> Option<LinkId>) -> Option<LinkId> {
        if host.is_empty() {
            return None;
        }
        let mut find = |key: &Key| self.entries.get(key).and_then(&mut suitable);
        find(&Key::Text(host.into())).or_else(|| {
            let address = host.parse::<IpAddr>().ok()?.to_canonical();
            let lengths = (0..=IpNet::from(address).max_prefix_len()).rev();
            let networks = lengths.filter_map(|length| IpNet::new(address, length).ok());
            networks.map(|network| network.trunc()).find_map(|network| find(&Key::Network(network)))
        })
    }
}

/// The better one of two random finds among `len` places; `None` if no searched place has one.
fn two_of(
    len: usize,
    find: impl Fn(usize) -> Option<LinkId>,
    better: &dyn Fn(LinkId, LinkId) -> LinkId,
    rng: &mut impl Rng,
) -> Option<LinkId> {
    let mut finds = index::sample(rng, len, ATTEMPTS.min(len)).into_iter().filter_map(find);
    let one = finds.next()?;
    Some(finds.next().map_or(one, |two| better(one, two)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_streams_that_left() {
        let mut table = Table::new(Strategy::DestHost, None);
        let one = Identifiers::parse("host=n&cidr=10.0.0.0/8&cidr=fd00::/8").unwrap();
        let two = Identifiers::parse("host=n&cidr=11.0.0.0/8&cidr=10.0.0.0/8").unwrap();
        let agent = "a".into();
        table.set(&agent, &one, LinkId(1), Some(Health::Ready));
        table.set(&agent, &two, LinkId(2), Some(Health::Fallback));
        assert_eq!((table.len(), table.counts), (4, [3, 3, 0]));
        let suitable = |host, health| table.suitable(host, health);
        assert_eq!((suitable("n", Health::Ready), suitable("n", Health::Fallback)), (1, 1));
        assert_eq!((suitable("11.1.1.1", Health::Ready), suitable("11.1.1.1", Health::Fallback)), (0, 1));
        assert_eq!((suitable("12.1.1.1", Health::Ready), suitable("", Health::Ready)), (0, 0));
        table.set(&agent, &one, LinkId(1), None);
        assert_eq!(table.len(), 3);
        table.set(&agent, &one, LinkId(1), None);
        table.set(&agent, &two, LinkId(2), None);
        assert_eq!((table.len(), table.counts), (0, [0; 3]));
    }
}
