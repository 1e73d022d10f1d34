//! The addresses of the servers, as data: where each one led, and which one is dialed next.
//!
//! | addresses | attempts |
//! |---|---|
//! | one | search: any attempt may lead to a missing server, behind a balancer |
//! | several | direct: each address whose server is not known, or has no stream. Search only if no such address is left that does not fail, or if there are fewer addresses than servers, or if an address turned out to be a balancer |
//! | of leases | direct. If every lease has one, the configured addresses are searched only once all others are connected or fail |
//!
//! Direct attempts run side by side, so that a dead address delays no other; of a search only one runs.

use std::sync::Arc;
use std::time::Duration;

use super::connect::ServerAddress;

/// Errors in a row of an address after which no search waits for it.
const MOST_FAILURES: u32 = 3;

/// Attempts at once. More are needed only for more servers than this.
const MOST_AT_ONCE: usize = 16;

/// Addresses that are used; a name has hardly more servers.
const MOST_ADDRESSES: usize = 64;

/// An address to dial.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// The host and port to dial.
    pub dial: ServerAddress,
    /// The index of the entry of `--proxy-server-host` whose name the server's certificate must contain.
    pub entry: usize,
}

/// The addresses of one entry of `--proxy-server-host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Never empty: the entry itself if it was not, or could not be, resolved.
    pub addresses: Vec<Address>,
    /// The lookup failed: addresses that are known from before stay.
    pub failed: bool,
}

/// The address that a server's lease tells. Whoever may write leases chooses it, so it says only where to dial: the server's
/// certificate must contain the name of the first entry of `--proxy-server-host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// The host and port to dial.
    pub dial: ServerAddress,
    /// The server, if the lease is right.
    pub server_id: Arc<str>,
}

/// The servers by their leases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leased {
    /// The number of valid leases.
    pub count: usize,
    /// The addresses of those that tell one.
    pub advertised: Vec<Advertised>,
}

/// The kind of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// To a server without a stream, or to an unknown one.
    Direct,
    /// For any missing server.
    Search,
}

/// The next attempt: its address's index, its kind, and when it is due.
pub(super) type Next = (usize, Attempt, Duration);

#[derive(Debug)]
struct Route {
    address: Address,
    /// A lease tells it.
    advertised: bool,
    /// The server that the last stream led to.
    server: Option<Arc<str>>,
    /// It led to one server although it had led to another one whose stream was open.
    balanced: bool,
    /// No attempt before this time.
    due: Duration,
    /// The start of the last attempt.
    tried: Duration,
    /// Errors in a row.
    failures: u32,
    running: Option<Attempt>,
}

/// What the machine wants at the moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Unknown addresses are dialed.
    pub(super) unknown: bool,
    /// Addresses of servers that lack a stream are dialed.
    pub(super) known: bool,
    /// When a search is due, for several addresses that may all lead to one server each; `None`: never.
    pub(super) look: Option<Duration>,
    /// When a search is due otherwise.
    pub(super) search: Option<Duration>,
    /// The known number of servers.
    pub(super) servers: usize,
}

/// All addresses.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    routes: Vec<Route>,
    /// Every lease tells an address.
    all_advertised: bool,
}

impl Addresses {
    /// Takes the addresses of all entries. An address that is gone keeps its stream.
    pub(super) fn resolved(&mut self, entries: Vec<Resolved>) {
        let mut wanted = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let before = self.routes.iter().filter(|route| !route.advertised && route.address.entry == index);
            let before: Vec<Address> = before.map(|route| route.address.clone()).collect();
            wanted.extend(if entry.failed && !before.is_empty() { before } else { entry.addresses });
        }
        self.replace(false, wanted.into_iter().map(|address| (address, None)).collect(), || Duration::ZERO);
    }

    /// Takes the leases' addresses; `due` gives the time of the first attempt of a new one.
    pub(super) fn advertised(&mut self, leased: &Leased, due: impl FnMut() -> Duration) {
        self.all_advertised = leased.count > 0 && leased.count <= leased.advertised.len();
        let address = |told: &Advertised| Address { dial: told.dial.clone(), entry: 0 };
        let wanted = leased.advertised.iter().map(|told| (address(told), Some(Arc::clone(&told.server_id))));
        self.replace(true, wanted.collect(), due);
    }

    /// Replaces the addresses of one source, by address and server, and keeps what is known of those that stay.
    fn replace(
        &mut self,
        advertised: bool,
        wanted: Vec<(Address, Option<Arc<str>>)>,
        mut due: impl FnMut() -> Duration,
    ) {
        self.routes.retain(|route| {
            route.advertised != advertised || wanted.iter().any(|(address, _)| *address == route.address)
        });
        for (address, server) in wanted.into_iter().take(MOST_ADDRESSES) {
            let is_same = |route: &Route| route.advertised == advertised && route.address == address;
            if !self.routes.iter().any(is_same) {
                let (balanced, due, tried, failures, running) = (false, due(), Duration::ZERO, 0, None);
                self.routes.push(Route {
                    address,
                    advertised,
                    server,
                    balanced,
                    due,
                    tried,
                    failures,
                    running,
                });
            }
        }
    }

    /// The next attempt. `lacks` tells whether a stream to this server would be kept.
    pub(super) fn next(&self, wanted: Wanted, lacks: impl Fn(&Arc<str>) -> bool) -> Option<Next> {
        let configured = self.routes.iter().filter(|route| !route.advertised).count();
        let is_direct = |route: &Route| {
            let lacks = route.server.as_ref().map_or(wanted.unknown, |server| wanted.known && lacks(server));
            lacks && (route.advertised || configured > 1 && !self.all_advertised)
        };
        let idle = || self.routes.iter().enumerate().filter(|(_, route)| route.running.is_none());
        let direct = idle().filter(|(_, route)| is_direct(route) && !self.is_dialed(route.server.as_ref()));
        let direct = direct.map(|(index, route)| (index, Attempt::Direct, route.due));
        let direct = direct.min_by_key(|(_, _, due)| *due).filter(|_| self.running() < MOST_AT_ONCE);

        let any = |is: &dyn Fn(&Route) -> bool| self.routes.iter().any(is);
        let has_hope = any(&|route| is_direct(route) && route.failures < MOST_FAILURES);
        let may_search = match self.all_advertised {
            true => !has_hope,
            false => configured < wanted.servers || any(&|route| route.balanced) || !has_hope,
        };
        let due = if may_search { wanted.search.or(wanted.look) } else { wanted.look };
        let search = due.filter(|_| !any(&|route| route.running == Some(Attempt::Search))).and_then(|due| {
            let others = idle().filter(|(_, route)| !route.advertised && !is_direct(route));
            let (index, route) = others.min_by_key(|(_, route)| (route.due.max(due), route.tried))?;
            Some((index, Attempt::Search, route.due.max(due)))
        });
        direct.into_iter().chain(search).min_by_key(|(_, _, due)| *due)
    }

    /// Starts an attempt; returns its address.
    pub(super) fn start(&mut self, now: Duration, (index, attempt, _): Next) -> Option<Address> {
        let route = self.routes.get_mut(index)?;
        (route.running, route.tried) = (Some(attempt), now);
        Some(route.address.clone())
    }

    /// The address led to a server. `again`: not before this time is it dialed for the same server. `lacks` as in
    /// [`Self::next`], before this stream.
    pub(super) fn connected(
        &mut self,
        address: &Address,
        server: &Arc<str>,
        again: Duration,
        lacks: impl Fn(&Arc<str>) -> bool,
    ) {
        let Some(route) = self.dialed(address) else { return };
        let before = route.server.replace(Arc::clone(server));
        route.balanced |= before.is_some_and(|before| before != *server && !lacks(&before));
        route.due = if route.running == Some(Attempt::Direct) { again } else { Duration::ZERO };
        (route.running, route.failures) = (None, 0);
    }

    /// An attempt failed: `due` gives the time of the next one from the number of errors in a row before. Returns the kind of
    /// the attempt.
    pub(super) fn failed(&mut self, address: &Address, due: impl FnOnce(u32) -> Duration) -> Option<Attempt> {
        let route = self.dialed(address)?;
        route.due = due(route.failures);
        route.failures = route.failures.saturating_add(1);
        route.running.take()
    }

    /// The stream to a server was lost: `due` gives the time of the next attempt of its addresses from the present one.
    pub(super) fn lost(&mut self, server: &Arc<str>, mut due: impl FnMut(Duration) -> Duration) {
        let several = self.routes.len() > 1;
        let of_server = |route: &&mut Route| route.failures == 0 && route.server.as_ref() == Some(server);
        for route in self.routes.iter_mut().filter(of_server).filter(|_| several) {
            route.due = due(route.due);
        }
    }

    fn dialed(&mut self, address: &Address) -> Option<&mut Route> {
        self.routes.iter_mut().find(|route| route.address == *address && route.running.is_some())
    }

    fn running(&self) -> usize {
        self.routes.iter().filter(|route| route.running.is_some()).count()
    }

    /// Whether another address of this server is dialed.
    fn is_dialed(&self, server: Option<&Arc<str>>) -> bool {
        server.is_some()
            && self.routes.iter().any(|route| route.running.is_some() && route.server.as_ref() == server)
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
