//! The effects of an agent stream on the choice of agents, and their log lines: unanswered pings, unanswered packets, draining
//! and the end.

use std::sync::Arc;

use grpc::KeepaliveHandle;
use serve::logs::{LogLimit, Peer};
use tokio::sync::watch;
use tokio::time::Instant;

use super::handle::LinkHandle;
use super::packet_probe::Finding;
use crate::auth::Owned;
use crate::backends::{BackendManager, LaneGuard, LaneTraffic, LinkId, Registration};
use crate::metrics::{EstablishedGuard, Metrics};

/// Marks an agent stream as unresponsive while it does not answer pings, so that dials go to other streams, such as the agent's
/// new one. Its open connections continue.
pub(super) async fn steer(
    backends: BackendManager<LinkHandle>,
    metrics: Metrics,
    link: LinkId,
    mut unresponsive: watch::Receiver<bool>,
    agent_id: Arc<str>,
    logs: LogLimit,
) {
    // A change before the first `changed` call must count, too.
    unresponsive.mark_changed();
    let mut known = false;
    while unresponsive.changed().await.is_ok() {
        let unresponsive = *unresponsive.borrow_and_update();
        if std::mem::replace(&mut known, unresponsive) == unresponsive {
            continue;
        }
        if unresponsive {
            // The lanes of one agent count once.
            if !backends.is_lane_silent_beside(link) {
                metrics.unresponsive.inc();
            }
            if let Some(suppressed) = logs.due_for("unresponsive", &agent_id) {
                tracing::warn!(
                    agentID = %Peer(&agent_id), suppressed, "keepalive ping unanswered, dials go to other agents"
                );
            }
        } else if let Some(suppressed) = logs.due_for("responsive", &agent_id) {
            tracing::info!(agentID = %Peer(&agent_id), suppressed, "keepalive ping answered again");
        }
        backends.set_unresponsive(link, unresponsive);
    }
}

/// Reports a link's events to the rest of the server.
pub(super) struct Observer {
    pub(super) backends: BackendManager<LinkHandle>,
    pub(super) metrics: Metrics,
    pub(super) keepalive: Arc<KeepaliveHandle>,
    pub(super) registration: Option<Registration<LinkHandle>>,
    pub(super) lane: LaneTraffic,
    /// The agent's packet loop does not answer.
    pub(super) stuck: bool,
    /// This stream's share in the agent id.
    pub(super) owned: Option<Owned>,
    pub(super) agent_id: Arc<str>,
    pub(super) logs: LogLimit,
}

/// Counts a connection while it is established.
pub(super) type Established = (EstablishedGuard, LaneGuard);

impl Observer {
    /// A connection was established.
    pub(super) fn established(&self) -> Established {
        (self.metrics.established.enter(), self.lane.enter())
    }

    /// The agent asks for no new dials (DRAIN).
    pub(super) fn draining(&self) {
        if let Some(registration) = &self.registration {
            let agent_id = Peer(&self.agent_id);
            tracing::info!(target: "v2", agentID = %agent_id, "agent is draining");
            self.backends.set_draining(registration.id);
            tracing::info!(
                target: "v2", agentID = %agent_id,
                "marked backend as draining, will not route new requests to this agent"
            );
        }
    }

    /// Pings the agent on its other lanes, because dials have waited.
    pub(super) fn probe_lanes(&self) {
        let lanes = self.registration.iter().flat_map(|registration| self.backends.lanes(registration.id));
        lanes.for_each(|lane| lane.probe());
    }

    /// A probe of the agent's packet loop was answered, or not in time.
    pub(super) fn probed(&mut self, finding: Finding) {
        let Some(registration) = &self.registration else { return };
        let agent_id = Peer(&self.agent_id);
        let stuck = finding == Finding::Stuck;
        if let Finding::Answered(took) = finding {
            registration.stats.sample(Instant::now(), took);
        }
        if std::mem::replace(&mut self.stuck, stuck) == stuck {
            return;
        }
        let cause = if stuck { "stuck" } else { "unstuck" };
        match self.logs.due_for(cause, &self.agent_id) {
            Some(suppressed) if stuck => {
                tracing::warn!(agentID = %agent_id, suppressed, "packet unanswered, dials go to other agents");
            }
            Some(suppressed) => tracing::info!(agentID = %agent_id, suppressed, "packets answered again"),
            None => {}
        }
        self.backends.set_stuck(registration.id, stuck);
    }

    /// Pings the agent, which has opened another stream: this one ends if it is half-open.
    pub(super) fn supersede(&self) {
        self.keepalive.probe();
        self.keepalive.supersede();
    }

    /// The stream has ended with this number of open connections: it is no backend any more.
    pub(super) fn lost(&mut self, established: usize) {
        if established > 0 {
            tracing::info!(
                target: "v2", count = established, agentID = %Peer(&self.agent_id),
                "Close established connections to agent"
            );
        }
        // The agent is no backend while its last bytes are flushed: it may already be connected to another server.
        (self.registration, self.owned) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serve::logs::{Logs, Options, Severity};
    use serve::metrics::Registry;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::backends::Strategy;

    #[tokio::test(start_paused = true)]
    async fn agent_that_toggles_is_logged_once_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let options = Options {
            logtostderr: false,
            stderrthreshold: Severity::Fatal,
            log_file: Some(path.clone()),
            ..Options::default()
        };
        let (subscriber, file) = Logs::build(&options).unwrap();
        let _log = tracing::subscriber::set_default(subscriber);
        let metrics = crate::metrics::register(&mut Registry::default());
        let backends = BackendManager::new(&[Strategy::Default], metrics.routes.clone());
        let ((state, watched), logs) = (watch::channel(false), LogLimit::default());
        let steered = steer(backends, metrics.clone(), LinkId(1), watched, "a".into(), logs);
        let _steered = AbortOnDropHandle::new(tokio::spawn(steered));
        for toggle in 0..20 {
            state.send(toggle % 2 == 0).unwrap();
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        file.flush(Duration::from_secs(10));
        let text = std::fs::read_to_string(&path).unwrap();
        let count = |part: &str| text.matches(part).count();
        let lines = (count("\"keepalive ping unanswered, "), count("\"keepalive ping answered again"));
        assert_eq!((metrics.unresponsive.get(), lines), (10, (2, 2)), "{text}");
        assert!(text.contains("suppressed=7"), "{text}");
    }
}
