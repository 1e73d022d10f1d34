//! What the agent adds to the relay of a stream: it dials what the server asks for.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use relay::{Conns, Owner};
use serve::logs::Peer;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tunnel::{Agent, ConnKey, Time};

use crate::endpoint::{ConnContext, ConnInfo, DialError, Dialer, Endpoint, Resolve};
use crate::metrics::{DialFailureReason, Metrics};

/// A dial that has come to its end.
type Dialed = (ConnKey, Result<Endpoint, DialError>);

/// A dial under way. Dropping it ends the dialler.
struct Dialing {
    dialler: AbortHandle,
    address: String,
    began: Instant,
}

impl Drop for Dialing {
    fn drop(&mut self) {
        self.dialler.abort();
    }
}

/// The owner of one stream at the agent.
pub(crate) struct AgentOwner<R> {
    server_id: Arc<str>,
    dialer: Arc<Dialer<R>>,
    metrics: Metrics,
    dials: HashMap<ConnKey, Dialing>,
    results: mpsc::UnboundedReceiver<Dialed>,
    report: mpsc::UnboundedSender<Dialed>,
    drain: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<R: Resolve> AgentOwner<R> {
    pub(crate) fn new(
        server_id: Arc<str>,
        dialer: Arc<Dialer<R>>,
        metrics: Metrics,
        drain: CancellationToken,
        stop: CancellationToken,
    ) -> Self {
        // Not more than the link's pending dials ever wait in it.
        let (report, results) = mpsc::unbounded_channel();
        AgentOwner {
            server_id,
            dialer,
            metrics,
            dials: HashMap::new(),
            results,
            report,
            drain: Some(Box::pin(drain.cancelled_owned())),
            stop: Box::pin(stop.cancelled_owned()),
        }
    }

    fn dialed(&mut self, conns: &mut Conns<Agent>, key: ConnKey, outcome: Result<Endpoint, DialError>) {
        // Without an entry the dial was cancelled while its result was on the way: the socket closes here.
        let Some(dialing) = self.dials.remove(&key) else { return };
        let elapsed = dialing.began.elapsed();
        match outcome {
            Ok(endpoint) => {
                self.metrics.dial_duration.observe(elapsed);
                if !conns.link().dialed(key, Ok(())) {
                    return;
                }
                let connect_id = conns.link().connect_id(key).map_or(0, |id| id.0);
                let info = ConnInfo {
                    server_id: Arc::clone(&self.server_id),
                    connect_id,
                    address: dialing.address.clone(),
                };
                let open = self.metrics.endpoint_connections.enter();
                conns.open(key);
                conns.attach(key, Box::new(ConnContext::new(endpoint, info, open)));
            }
            Err(error) => {
                let reason =
                    if error.is_timeout() { DialFailureReason::Timeout } else { DialFailureReason::Unknown };
                self.metrics.dial_failures.count(reason);
                let text = error.to_string();
                tracing::warn!(
                    server_id = %self.server_id,
                    dial_address = %Peer(&dialing.address),
                    error = %Peer(&text),
                    duration = ?elapsed,
                    "Error dialing endpoint"
                );
                conns.link().dialed(key, Err(text));
            }
        }
    }
}

impl<R: Resolve> Owner<Agent> for AgentOwner<R> {
    fn poll_commands(&mut self, cx: &mut Context<'_>, conns: &mut Conns<Agent>, _now: Time) -> Poll<()> {
        while let Poll::Ready(Some((key, outcome))) = self.results.poll_recv(cx) {
            self.dialed(conns, key, outcome);
        }
        if self.drain.as_mut().is_some_and(|drain| drain.as_mut().poll(cx).is_ready()) {
            self.drain = None;
            conns.link().drain();
        }
        self.stop.as_mut().poll(cx)
    }

    fn dial(&mut self, _conns: &mut Conns<Agent>, key: ConnKey, protocol: String, address: String) {
        let (dialer, report, target) = (Arc::clone(&self.dialer), self.report.clone(), address.clone());
        let dialler = tokio::spawn(async move {
            let outcome = dialer.dial(&protocol, &target).await;
            // Nobody listens only when the stream's task has ended: the socket closes here.
            let _ = report.send((key, outcome));
        });
        let began = Instant::now();
        self.dials.insert(key, Dialing { dialler: dialler.abort_handle(), address, began });
    }

    fn dial_cancelled(&mut self, key: ConnKey) {
        self.dials.remove(&key);
    }
}
