//! The addresses of the servers, as data: where each one led, and which one is dialed next.
//!
//! | addresses | attempts |
//! |---|---|
//! | one | search: any attempt may lead to a missing server, behind a balancer |
//! | several | direct: each address whose server is not known, or has no stream. Search only if no such address is left that does not fail, or if there are fewer addresses than servers, or if an address turned out to be a balancer |
//! | of leases | direct. If every lease has one, the configured addresses are searched only once all others are connected or fail |
//!
//! Direct attempts run side by side, so that a dead address delays no other. Of a search only one runs, and one more once its
//! answer is late: each attempt may lead to another server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::connect::ServerAddress;

/// Errors in a row of an address after which no search waits for it.
const MAX_FAILURES: u32 = 3;

/// Attempts at once. More are needed only for more servers than this.
const MAX_CONCURRENT_ATTEMPTS: usize = 16;

/// A search that began this long ago does not prevent another one: its server hangs, or reviews the agent's token slowly. Longer
/// than a dial or a TLS handshake takes.
pub(super) const LATE_ANSWER: Duration = Duration::from_secs(30);

/// No attempt beside an open stream begins before this multiple of the time that the last attempt at its address took: a server
/// that lacks CPU first needs the time for agents without a stream.
const PACE: u32 = 10;

/// The limit of that pause. A server may answer late for other reasons, such as the review of tokens.
const MAX_PACE: Duration = Duration::from_secs(100);

/// Addresses that are used or remembered; a name has hardly more servers.
const MAX_ADDRESSES: usize = 64;

/// An address to dial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
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
    /// Why the lookup failed: addresses that are known from before stay.
    pub error: Option<String>,
}

/// The address in a server's lease. Any writer of leases can choose it, so it only determines where to dial: the server's
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
    /// The holders of those that name one: the servers' ids.
    pub holders: BTreeSet<Arc<str>>,
    /// The addresses of those that tell one.
    pub advertised: Vec<Advertised>,
    /// The API cannot be reached: the count may be out of date.
    pub stale: bool,
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

#[derive(Debug, Default)]
struct Route {
    address: Address,
    /// The address is in a lease.
    advertised: bool,
    /// The server that the lease names.
    holder: Option<Arc<str>>,
    /// The server that the last stream led to; before the first one, the holder.
    server: Option<Arc<str>>,
    /// A balancer is behind the address: it led to another server while the first server's stream was open.
    balanced: bool,
    /// No attempt before this time.
    due: Duration,
    /// No attempt beside an open stream before this time, see [`PACE`].
    paced: Duration,
    /// The start of the last attempt.
    tried: Duration,
    /// Errors in a row.
    failures: u32,
    /// The last attempt, until it ends.
    running: Option<Attempt>,
    /// An earlier attempt still waits for its server's answer.
    waiting: bool,
    /// The address was removed; its errors are remembered until this time, because a DNS name may return its addresses in turns.
    removed: Option<Duration>,
}

impl Route {
    /// Whether an attempt has not ended.
    fn is_tried(&self) -> bool {
        self.running.is_some() || self.waiting
    }

    /// From when the address may be searched. `None`: one of two attempts must end first.
    fn free_from(&self) -> Option<Duration> {
        match self.running {
            None => Some(Duration::ZERO),
            Some(_) => (!self.waiting).then_some(self.tried + LATE_ANSWER),
        }
    }

    /// An attempt has ended: of two the last one, as far as the routes know.
    fn end(&mut self, now: Duration, paces: bool) -> Option<Attempt> {
        if paces {
            self.paced = now + (now.saturating_sub(self.tried) * PACE).min(MAX_PACE);
        }
        self.waiting &= self.running.is_some();
        self.running.take()
    }
}

/// What the machine wants at the moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Unknown addresses are dialed.
    pub(super) unknown: bool,
    /// Addresses of servers that lack a stream are dialed.
    pub(super) known: bool,
    /// When a search is due, for several addresses that may all lead to one server each; `None`: never.
    pub(super) unannounced_search: Option<Duration>,
    /// When a search is due otherwise.
    pub(super) search: Option<Duration>,
    /// The known number of servers.
    pub(super) servers: usize,
    /// Every server has a stream, so a search is beside one.
    pub(super) complete: bool,
}

/// All addresses.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    routes: Vec<Route>,
    /// Every lease has an address.
    all_advertised: bool,
}

impl Addresses {
    /// Takes the addresses of all entries. An address that is gone keeps its stream and its attempt, and is remembered for
    /// `memory`. If the lookup of an entry failed, the addresses from before stay; once all of them fail, the entry itself is
    /// dialed, too.
    pub(super) fn resolved(&mut self, now: Duration, memory: Duration, entries: Vec<Resolved>) {
        let mut wanted = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let before = || self.present().filter(|route| !route.advertised && route.address.entry == index);
            if entry.error.is_some() {
                wanted.extend(before().map(|route| route.address.clone()));
            }
            if entry.error.is_none() || before().all(|route| route.failures >= MAX_FAILURES) {
                wanted.extend(entry.addresses);
            }
        }
        self.remove(false, now, memory, &wanted);
        for address in wanted {
            self.add(false, address, None, || Duration::ZERO);
        }
    }

    /// Takes the leases' addresses; `due` gives the time of the first attempt of a new one. `memory` as in [`Self::resolved`].
    pub(super) fn advertised(
        &mut self,
        now: Duration,
        memory: Duration,
        leased: &Leased,
        mut due: impl FnMut() -> Duration,
    ) {
        self.all_advertised = leased.count > 0 && leased.count <= leased.advertised.len();
        let address = |told: &Advertised| Address { dial: told.dial.clone(), entry: 0 };
        let mut wanted: Vec<_> =
            leased.advertised.iter().map(|told| (address(told), &told.server_id)).collect();
        wanted.dedup_by(|second, first| second.0 == first.0);
        let addresses: Vec<_> = wanted.iter().map(|(address, _)| address.clone()).collect();
        self.remove(true, now, memory, &addresses);
        for (address, holder) in wanted {
            self.add(true, address, Some(Arc::clone(holder)), &mut due);
        }
    }

    /// Removes the addresses of one source that are not wanted.
    fn remove(&mut self, advertised: bool, now: Duration, memory: Duration, wanted: &[Address]) {
        let is_gone = |route: &&mut Route| route.advertised == advertised && !wanted.contains(&route.address);
        for route in self.routes.iter_mut().filter(is_gone) {
            route.removed.get_or_insert(now + memory);
        }
        self.routes.retain(|route| route.is_tried() || route.removed.is_none_or(|end| now < end));
    }

    /// Adds an address, and keeps what is known of it.
    fn add(
        &mut self,
        advertised: bool,
        address: Address,
        holder: Option<Arc<str>>,
        due: impl FnOnce() -> Duration,
    ) {
        let is_same = |route: &&mut Route| route.advertised == advertised && route.address == address;
        if let Some(route) = self.routes.iter_mut().find(is_same) {
            route.removed = None;
            if route.running.is_none() && route.holder != holder {
                (route.server, route.holder) = (holder.clone(), holder);
            }
        } else if self.has_room(advertised) {
            let (server, due) = (holder.clone(), due());
            self.routes.push(Route { address, advertised, server, holder, due, ..Route::default() });
        }
    }

    /// Whether there is room for another address: removed addresses give way, and the leases' ones to configured ones.
    fn has_room(&mut self, advertised: bool) -> bool {
        if self.routes.len() < MAX_ADDRESSES {
            return true;
        }
        let gives_way = |(_, route): &(usize, &Route)| {
            !route.is_tried() && (route.removed.is_some() || route.advertised && !advertised)
        };
        let least = self.routes.iter().enumerate().filter(gives_way);
        let least = least.min_by_key(|(_, route)| (route.removed.is_none(), route.removed));
        let least = least.map(|(index, _)| index);
        least.map(|index| self.routes.swap_remove(index)).is_some()
    }

    /// The next attempt. `is_open` tells whether this server has a stream, `lacks` whether another one would be kept.
    pub(super) fn next(
        &self,
        wanted: Wanted,
        is_open: impl Fn(&Arc<str>) -> bool,
        lacks: impl Fn(&Arc<str>) -> bool,
    ) -> Option<Next> {
        let due_at =
            |route: &Route, beside: bool| if beside { route.due.max(route.paced) } else { route.due };
        let configured = self.present().filter(|route| !route.advertised).count();
        let is_direct = |route: &Route| {
            let lacks = route.server.as_ref().map_or(wanted.unknown, |server| wanted.known && lacks(server));
            lacks && (route.advertised || configured > 1 && !self.all_advertised)
        };
        let present = || self.routes.iter().enumerate().filter(|(_, route)| route.removed.is_none());
        let is_idle = |route: &Route| route.running.is_none() && !self.is_dialed(route.server.as_ref());
        let direct = present().filter(|(_, route)| is_direct(route) && is_idle(route));
        let direct = direct.map(|(index, route)| {
            (index, Attempt::Direct, due_at(route, route.server.as_ref().is_some_and(&is_open)))
        });
        let direct =
            direct.min_by_key(|(_, _, due)| *due).filter(|_| self.running() < MAX_CONCURRENT_ATTEMPTS);

        let any = |is: &dyn Fn(&Route) -> bool| self.present().any(is);
        let has_hope = any(&|route| is_direct(route) && route.failures < MAX_FAILURES);
        let may_search = match self.all_advertised {
            true => !has_hope,
            false => configured < wanted.servers || any(&|route| route.balanced) || !has_hope,
        };
        let due =
            if may_search { wanted.search.or(wanted.unannounced_search) } else { wanted.unannounced_search };
        let searches = self.routes.iter().filter(|route| route.running == Some(Attempt::Search));
        let due = due.map(|due| searches.fold(due, |due, route| due.max(route.tried + LATE_ANSWER)));
        let search = due.and_then(|due| {
            let others = present().filter(|(_, route)| !route.advertised && !is_direct(route));
            let dues = others.filter_map(|(index, route)| {
                let free = due_at(route, wanted.complete).max(route.free_from()?);
                Some((index, free.max(due), route.tried))
            });
            let (index, due, _) = dues.min_by_key(|(_, due, tried)| (*due, *tried))?;
            Some((index, Attempt::Search, due))
        });
        direct.into_iter().chain(search).min_by_key(|(_, _, due)| *due)
    }

    /// Starts an attempt; returns its address.
    pub(super) fn start(&mut self, now: Duration, (index, attempt, _): Next) -> Option<Address> {
        let route = self.routes.get_mut(index)?;
        route.waiting |= route.running.is_some();
        (route.running, route.tried) = (Some(attempt), now);
        Some(route.address.clone())
    }

    /// The address led to a server. `again`: not before this time is it dialed for the same server. `lacks` as in
    /// [`Self::next`], before this stream.
    pub(super) fn connected(
        &mut self,
        now: Duration,
        address: &Address,
        server: &Arc<str>,
        again: Duration,
        lacks: impl Fn(&Arc<str>) -> bool,
    ) {
        let Some(route) = self.dialed(address) else { return };
        let before = route.server.replace(Arc::clone(server));
        route.balanced |= before.is_some_and(|before| before != *server && !lacks(&before));
        route.due = if route.end(now, true) == Some(Attempt::Direct) { again } else { Duration::ZERO };
        route.failures = 0;
    }

    /// An attempt failed: `due` gives the time of the next one from the number of errors in a row before. Returns the kind of
    /// the attempt. `reached`: the server accepted the connection.
    pub(super) fn failed(
        &mut self,
        now: Duration,
        address: &Address,
        reached: bool,
        due: impl FnOnce(u32) -> Duration,
    ) -> Option<Attempt> {
        let route = self.dialed(address)?;
        route.due = due(route.failures);
        route.failures = route.failures.saturating_add(1);
        route.end(now, reached)
    }

    /// The stream to a server was lost: `due` gives the time of the next attempt of its addresses from the present one.
    pub(super) fn lost(&mut self, server: &Arc<str>, mut due: impl FnMut(Duration) -> Duration) {
        let several = self.present().count() > 1;
        let of_server = |route: &&mut Route| route.failures == 0 && route.server.as_ref() == Some(server);
        for route in self.routes.iter_mut().filter(of_server).filter(|_| several) {
            route.due = due(route.due);
        }
    }

    fn present(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(|route| route.removed.is_none())
    }

    fn dialed(&mut self, address: &Address) -> Option<&mut Route> {
        self.routes.iter_mut().find(|route| route.address == *address && route.is_tried())
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
