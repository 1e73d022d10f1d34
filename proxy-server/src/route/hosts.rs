//! Agents by the hosts that they serve: first exact host texts, then networks from the longest prefix to the shortest.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::LinkId;
use super::identifiers::Identifiers;
use super::members::{Health, Members};

/// The table of strategy destHost.
#[derive(Debug, Default)]
pub(super) struct HostTable {
    exact: HashMap<Arc<str>, Members>,
    networks: HashMap<IpNet, Members>,
    /// Number of networks of each prefix length, for IPv4 and IPv6: at most 33 and 129 look-ups.
    lengths: [BTreeMap<u8, usize>; 2],
}

impl HostTable {
    /// The number of distinct identifiers.
    pub(super) fn len(&self) -> usize {
        self.exact.len() + self.networks.len()
    }

    /// Adds a stream under all its identifiers, or changes its health.
    pub(super) fn set(&mut self, identifiers: &Identifiers, id: LinkId, health: Health) {
        for host in &identifiers.hosts {
            self.exact.entry(Arc::clone(host)).or_default().set(id, health);
        }
        for network in &identifiers.networks {
            let members = self.networks.entry(*network).or_insert_with(|| {
                *self.lengths[family(network.addr())].entry(network.prefix_len()).or_default() += 1;
                Members::default()
            });
            members.set(id, health);
        }
    }

    /// Removes a stream from all its identifiers.
    pub(super) fn remove(&mut self, identifiers: &Identifiers, id: LinkId) {
        for host in &identifiers.hosts {
            if let Some(members) = self.exact.get_mut(host) {
                members.remove(id);
                if members.is_empty() {
                    self.exact.remove(host);
                }
            }
        }
        for network in &identifiers.networks {
            if let Some(members) = self.networks.get_mut(network) {
                members.remove(id);
                if members.is_empty() {
                    self.networks.remove(network);
                    self.remove_length(*network);
                }
            }
        }
    }

    /// The first registered stream of this health for a target's host. As in Go, an empty host matches nothing, not even an
    /// empty identifier.
    pub(super) fn find(&self, host: &str, health: Health, exclude: &[LinkId]) -> Option<LinkId> {
        if host.is_empty() {
            return None;
        }
        let exact = self.exact.get(host).and_then(|members| members.first(health, exclude));
        exact.or_else(|| self.find_network(host, health, exclude))
    }

    fn find_network(&self, host: &str, health: Health, exclude: &[LinkId]) -> Option<LinkId> {
        if self.networks.is_empty() {
            return None;
        }
        let address = host.parse::<IpAddr>().ok()?.to_canonical();
        let lengths = self.lengths[family(address)].keys().rev();
        lengths.filter_map(|length| IpNet::new(address, *length).ok()).find_map(|network| {
            self.networks.get(&network.trunc()).and_then(|members| members.first(health, exclude))
        })
    }

    fn remove_length(&mut self, network: IpNet) {
        let lengths = &mut self.lengths[family(network.addr())];
        if let Some(count) = lengths.get_mut(&network.prefix_len()) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&network.prefix_len());
            }
        }
    }
}

fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_streams_that_left() {
        let mut table = HostTable::default();
        let one = Identifiers::parse("host=n&cidr=10.0.0.0/8&cidr=fd00::/8").unwrap();
        let two = Identifiers::parse("host=n&cidr=11.0.0.0/8&cidr=10.0.0.0/8").unwrap();
        table.set(&one, LinkId(1), Health::Ready);
        table.set(&two, LinkId(2), Health::Leaving);
        table.remove(&one, LinkId(1));
        assert_eq!(table.lengths, [BTreeMap::from([(8, 2)]), BTreeMap::new()]);
        table.remove(&one, LinkId(1));
        table.remove(&two, LinkId(2));
        assert_eq!((table.len(), &table.lengths), (0, &Default::default()));
    }
}
