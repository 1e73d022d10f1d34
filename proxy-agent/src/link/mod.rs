//! One stream to one server replica: the relay task with the agent's part, dialling endpoints.
//!
//! Stands between the client set, which opens streams and wants to know when one ends, and the endpoints. Payload
//! passes through the relay alone.

mod activity;
mod life;
mod meter;
mod owner;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use relay::{Bounds, LinkEnd, Relay};
use tokio::task::coop::unconstrained;
use transport::wire::Wire;
use tunnel::{Agent, ConnectId, Terms};

use crate::endpoint::{Dialer, Resolve};
use crate::metrics::Metrics;

pub use self::activity::{Activity, Busy};
pub use self::life::{Life, SuspectObserver};

use self::meter::LinkMeter;
use self::owner::{AgentOwner, Server};

/// How far the ids of streams to Go servers are apart.
const RANGE: i64 = 1 << 32;

/// What every link of the agent shares. Cheap to clone.
#[derive(Debug)]
pub struct Links<R> {
    dialer: Arc<Dialer<R>>,
    bounds: Bounds,
    metrics: Metrics,
    activity: Activity,
    /// Streams so far to servers that are not ours.
    foreign: Arc<AtomicI64>,
}

impl<R> Clone for Links<R> {
    fn clone(&self) -> Self {
        Links {
            dialer: Arc::clone(&self.dialer),
            bounds: self.bounds.clone(),
            metrics: self.metrics.clone(),
            activity: self.activity.clone(),
            foreign: Arc::clone(&self.foreign),
        }
    }
}

impl<R: Resolve> Links<R> {
    /// Links that dial endpoints by `dialer`, within `bounds`.
    pub fn new(dialer: Dialer<R>, bounds: Bounds, metrics: Metrics) -> Self {
        let (dialer, foreign) = (Arc::new(dialer), Arc::default());
        Links { dialer, bounds, metrics, activity: Activity::default(), foreign }
    }

    /// What goes on in all of them.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Where the ids of a stream to a Go server begin: where those of no other stream come. It keeps one table for all streams of an
    /// agent, and while one stream takes the place of another a second connection of the same id would get the first one's bytes.
    fn next_range(&self) -> ConnectId {
        ConnectId(self.foreign.fetch_add(1, Ordering::Relaxed) % (i64::MAX / RANGE) * RANGE)
    }

    /// Carries connections over an open stream, on its terms, until it ends, by itself or by `life`. `own`: the server is
    /// one of ours.
    pub async fn run<W: Wire + Unpin>(
        &self,
        server_id: Arc<str>,
        wire: W,
        own: bool,
        terms: Terms,
        life: Life,
    ) -> LinkEnd {
        let dialer = Arc::clone(&self.dialer);
        let beyond = if own { ConnectId(0) } else { self.next_range() };
        let server = Server { id: server_id, own, beyond };
        let owner = AgentOwner::new(server, dialer, self.metrics.clone(), self.activity.part(), life);
        let meter = LinkMeter::new(&self.metrics);
        unconstrained(Relay::<Agent, _, _, _>::new(&self.bounds, terms, wire, owner, meter)).await
    }
}

#[cfg(test)]
mod tests {
    use relay::{Bounds, Ceiling};
    use serve::metrics::Registry;
    use tunnel::Limits;

    use super::*;
    use crate::endpoint::{DestinationPolicy, SystemResolver};

    #[test]
    fn streams_to_go_servers_have_ids_of_their_own() {
        let metrics = Metrics::new(&mut Registry::default());
        let bounds = Bounds { limits: Limits::default(), memory: Ceiling::new(1 << 20) };
        let dialer = Dialer::new(SystemResolver::default(), DestinationPolicy::default());
        let (links, begins) = {
            let links = Links::new(dialer, bounds, metrics);
            let begins: Vec<i64> = (0..3).map(|_| links.clone().next_range().0).collect();
            (links, begins)
        };
        assert_eq!(begins, [0, RANGE, 2 * RANGE]);
        links.foreign.store(i64::MAX / RANGE - 1, Ordering::Relaxed);
        assert!(links.next_range().0 <= i64::MAX - RANGE, "room for a stream's");
        assert_eq!(links.next_range().0, 0);
    }
}
