//! One stream to one server replica: the relay task with the agent's part, dialling endpoints.
//!
//! Stands between the client set, which opens streams and wants to know when one ends, and the endpoints. Payload
//! passes through the relay alone.

mod meter;
mod owner;

use std::sync::Arc;

use relay::{LinkEnd, Relay};
use tokio::task::coop::unconstrained;
use tokio_util::sync::CancellationToken;
use transport::wire::Wire;
use tunnel::{Agent, Limits};

use crate::endpoint::{Dialer, Resolve};
use crate::metrics::Metrics;

use self::meter::LinkMeter;
use self::owner::AgentOwner;

/// What every link of the agent shares. Cheap to clone.
#[derive(Debug)]
pub struct Links<R> {
    dialer: Arc<Dialer<R>>,
    metrics: Metrics,
}

impl<R> Clone for Links<R> {
    fn clone(&self) -> Self {
        Links { dialer: Arc::clone(&self.dialer), metrics: self.metrics.clone() }
    }
}

impl<R: Resolve> Links<R> {
    /// Links that dial endpoints by `dialer`.
    pub fn new(dialer: Dialer<R>, metrics: Metrics) -> Self {
        Links { dialer: Arc::new(dialer), metrics }
    }

    /// Carries connections over an open stream until it ends. When `drain` falls the server is asked, once, for no
    /// new dials; when `stop` falls the stream ends in order.
    pub async fn run<W: Wire + Unpin>(
        &self,
        server_id: Arc<str>,
        wire: W,
        drain: CancellationToken,
        stop: CancellationToken,
    ) -> LinkEnd {
        let owner = AgentOwner::new(server_id, Arc::clone(&self.dialer), self.metrics.clone(), drain, stop);
        let meter = LinkMeter::new(&self.metrics);
        unconstrained(Relay::<Agent, _, _, _>::new(Limits::default(), wire, owner, meter)).await
    }
}
