//! Connections of unauthenticated peers: the limit of each port, and the choice of the connection that is evicted for a new
//! one.
//!
//! Unauthenticated peers have slots of their own, so that they take none from agents and frontends. A new peer always gets a
//! slot. If all slots are taken, the peer address with the most slots loses its oldest connection. The age counts from the last
//! step that only a real handshake takes. So a flood evicts its own connections, and a slow peer keeps its slot.

mod handshakes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use serve::logs::{LogLimit, network};
use serve::metrics::LiveGuard;
use tokio_util::sync::CancellationToken;

pub use self::handshakes::handshake_runtime;
pub(crate) use self::handshakes::{Arrived, Handshakes};
use crate::metrics::{Metrics, Port, UnauthenticatedCloseReason};

/// The unauthenticated connections of one port. Clones share the table.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSet(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    port: Port,
    most: usize,
    metrics: Metrics,
    log: LogLimit,
    table: Mutex<Table>,
}

/// The connections that hold slots, by the peer's address.
#[derive(Debug, Default)]
struct Table {
    /// The next age. Ages increase, so the smallest is the oldest.
    next: u64,
    len: usize,
    /// Each address has at least one connection.
    addresses: HashMap<IpAddr, BTreeMap<u64, (SocketAddr, CancellationToken)>>,
}

impl ConnectionSet {
    /// A table of at most `most` connections.
    pub(crate) fn new(port: Port, most: usize, metrics: Metrics) -> Self {
        let (log, table) = (LogLimit::default(), Mutex::default());
        ConnectionSet(Arc::new(Shared { port, most: most.max(1), metrics, log, table }))
    }

    /// Takes a slot for a new connection, and evicts another connection if necessary.
    pub(crate) fn enter(&self, peer: SocketAddr) -> Slot {
        let evicted = CancellationToken::new();
        let (age, closed) = {
            let mut table = self.0.table.lock();
            let closed = if table.len >= self.0.most { table.evict() } else { None };
            (table.insert(peer, evicted.clone()), closed)
        };
        if let Some((closed, token)) = closed {
            token.cancel();
            let (reason, text) =
                (UnauthenticatedCloseReason::Evicted, "too many connections of unauthenticated peers");
            self.0.closed(closed, reason, reason.name(), &text);
        }
        let live = self.0.metrics.unauthenticated.enter(self.0.port);
        Slot { shared: Arc::clone(&self.0), peer, age, evicted, _live: live }
    }
}

impl Shared {
    /// Counts and logs a connection that the server closed. `cause` is that of [`LogLimit::due`].
    fn closed(
        &self,
        peer: SocketAddr,
        reason: UnauthenticatedCloseReason,
        cause: &'static str,
        error: &dyn Display,
    ) {
        self.metrics.unauthenticated_closed.count((self.port, reason));
        self.metrics.journal.refused(self.port.listener(), peer.ip(), &error.to_string());
        let Some(suppressed) = self.log.due(cause, peer.ip()) else { return };
        let (port, name) = (self.port.name(), reason.name());
        // The cause is the port's limit, not the peer.
        if matches!(reason, UnauthenticatedCloseReason::Evicted | UnauthenticatedCloseReason::AgentLimit) {
            tracing::warn!(%peer, port, reason = name, %error, suppressed, "closing unauthenticated connection");
        } else {
            tracing::info!(target: "v0", %peer, port, reason = name, %error, suppressed, "closing unauthenticated connection");
        }
    }
}

impl Table {
    fn insert(&mut self, peer: SocketAddr, evicted: CancellationToken) -> u64 {
        let age = self.next;
        self.next += 1;
        self.len += 1;
        self.addresses.entry(network(peer.ip())).or_default().insert(age, (peer, evicted));
        age
    }

    fn remove(&mut self, address: IpAddr, age: u64) -> Option<(SocketAddr, CancellationToken)> {
        let held = self.addresses.get_mut(&address)?;
        let removed = held.remove(&age)?;
        self.len -= 1;
        if held.is_empty() {
            self.addresses.remove(&address);
        }
        Some(removed)
    }

    /// Removes the oldest connection of the address with the most; of several, of the one with the oldest connection.
    fn evict(&mut self) -> Option<(SocketAddr, CancellationToken)> {
        let oldest = |held: &BTreeMap<u64, _>| held.keys().next().copied();
        let (address, held) =
            self.addresses.iter().max_by_key(|(_, held)| (held.len(), Reverse(oldest(held))))?;
        let (address, oldest) = (*address, oldest(held)?);
        self.remove(address, oldest)
    }
}

/// The slot of one connection, released when this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    shared: Arc<Shared>,
    peer: SocketAddr,
    age: u64,
    /// Canceled when the connection is evicted for a new one.
    pub(crate) evicted: CancellationToken,
    _live: LiveGuard,
}

impl Slot {
    /// The peer has taken a step of its handshake: its connection becomes the youngest.
    pub(crate) fn renew(&mut self) {
        let mut table = self.shared.table.lock();
        if let Some((peer, evicted)) = table.remove(network(self.peer.ip()), self.age) {
            self.age = table.insert(peer, evicted);
        }
    }

    /// The peer is authenticated: releases the slot. False if the connection was evicted.
    pub(crate) fn leave(&self) -> bool {
        self.shared.table.lock().remove(network(self.peer.ip()), self.age).is_some()
    }

    /// Counts and logs that the server closes the connection.
    pub(crate) fn closed(&self, reason: UnauthenticatedCloseReason, error: &dyn Display) {
        self.shared.closed(self.peer, reason, reason.name(), error);
    }

    /// Whether another log line about this cause and peer is due, see [`LogLimit::due`].
    pub(crate) fn log_due(&self, cause: &'static str) -> Option<u64> {
        self.shared.log.due(cause, self.peer.ip())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.table.lock().remove(network(self.peer.ip()), self.age);
    }
}

#[cfg(test)]
mod tests {
    use serve::metrics::{Exposition, Registry};

    use super::*;

    fn port(most: usize) -> (ConnectionSet, Exposition) {
        let mut registry = Registry::default();
        let metrics = crate::metrics::register(&mut registry);
        (ConnectionSet::new(Port::Agent, most, metrics), Exposition::new(registry))
    }

    fn enter(port: &ConnectionSet, ip: &str) -> Slot {
        port.enter(SocketAddr::new(ip.parse().unwrap(), 1))
    }

    fn evicted(slots: &[&Slot]) -> Vec<bool> {
        slots.iter().map(|slot| slot.evicted.is_cancelled()).collect()
    }

    #[tokio::test]
    async fn the_oldest_is_closed_for_a_new_one() {
        let (port, scrape) = port(2);
        let (first, second) = (enter(&port, "10.0.0.1"), enter(&port, "10.0.0.1"));
        let third = enter(&port, "10.0.0.1");
        assert_eq!(evicted(&[&first, &second, &third]), [true, false, false]);
        drop(second);
        let fourth = enter(&port, "10.0.0.1");
        assert_eq!(evicted(&[&third, &fourth]), [false, false], "a slot was given back");
        drop((first, third, fourth));
        let table = port.0.table.lock();
        assert!(table.len == 0 && table.addresses.is_empty());
        drop(table);
        let scrape = scrape.scrape();
        assert!(scrape.contains("unauthenticated_connections{port=\"agent\"} 0\n"), "{scrape}");
        let closed = "unauthenticated_connections_closed_total{port=\"agent\",reason=\"evicted\"} 1\n";
        assert!(scrape.contains(closed), "{scrape}");
    }

    #[tokio::test]
    async fn a_flood_closes_its_own_connections() {
        let (port, _) = port(4);
        let slow = enter(&port, "10.0.0.1");
        let mut flood = Vec::new();
        for number in 0..100 {
            flood.push(enter(&port, &format!("2001:db8::{number:x}")));
        }
        assert!(!slow.evicted.is_cancelled());
        assert_eq!(flood.iter().filter(|slot| !slot.evicted.is_cancelled()).count(), 3);
    }

    #[tokio::test]
    async fn of_addresses_with_as_many_connections_the_oldest_is_closed() {
        let (port, _) = port(3);
        let [first, second, third] = ["10.0.0.3", "10.0.0.1", "10.0.0.2"].map(|ip| enter(&port, ip));
        let _fourth = enter(&port, "10.0.0.4");
        assert_eq!(evicted(&[&first, &second, &third]), [true, false, false]);
        let _fifth = enter(&port, "10.0.0.5");
        assert_eq!(evicted(&[&second, &third]), [true, false]);
    }

    #[tokio::test]
    async fn a_step_of_the_handshake_renews_a_slot() {
        let (port, _) = port(2);
        let (mut shaking, silent) = (enter(&port, "10.0.0.1"), enter(&port, "10.0.0.1"));
        shaking.renew();
        let _new = enter(&port, "10.0.0.1");
        assert_eq!(evicted(&[&shaking, &silent]), [false, true]);
        let (silent_age, before) = (silent.age, port.0.table.lock().len);
        let mut silent = silent;
        silent.renew();
        assert_eq!((silent.age, port.0.table.lock().len), (silent_age, before), "it stays evicted");
    }
}
