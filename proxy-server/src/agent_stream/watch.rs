//! Watches an agent stream beside its driver: marks it as unresponsive while pings are unanswered, and logs an agent id that two
//! agents share.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serve::logs::Peer;
use tokio::sync::watch;

use super::accept::AgentService;
use super::handle::{LinkFacts, LinkHandle};
use crate::backends::LinkId;
use crate::metrics::Port;

/// How long two agents have one agent id until they are logged. A Go agent's duplicate connection ends at once.
const SHARED_ID_AFTER: Duration = Duration::from_secs(10);

impl AgentService {
    /// Follows the pings of a stream, and logs once if two agents seem to have one id.
    pub(super) async fn watch(self: Arc<Self>, handle: LinkHandle, link: LinkId) {
        let unresponsive = handle.facts.keepalive.unresponsive();
        let steered = self.follow_responsiveness(link, unresponsive, &handle.facts.agent_id);
        tokio::join!(steered, self.report_shared_id(link, &handle.facts));
    }

    /// Logs a second agent with this id. A duplicate connection has ended by then.
    async fn report_shared_id(&self, link: LinkId, facts: &LinkFacts) {
        tokio::time::sleep(SHARED_ID_AFTER).await;
        let (address, id) = (facts.address.ip(), Peer(&facts.agent_id));
        let Some(other) = rival_address(&self.backends.rivals(link), facts) else { return };
        let Some(suppressed) = self.gate.refusals.due("shared id", address) else { return };
        let text = format!("agent id {id} is also used by an agent at {other}");
        let text = format!("{text} (both serve; give each its own --agent-id)");
        self.metrics.journal.refused(Port::Agent.listener(), address, &text);
        tracing::warn!(
            agentID = %id, %address, %other, suppressed,
            "two agents use one agent id: give each its own --agent-id"
        );
    }

    /// Marks an agent stream as unresponsive while it does not answer pings, so that dials go to other streams, such as the agent's
    /// new one. Its open connections continue.
    async fn follow_responsiveness(&self, link: LinkId, mut unresponsive: watch::Receiver<bool>, id: &str) {
        // A change before the first `changed` call must count, too.
        unresponsive.mark_changed();
        let mut known = false;
        while unresponsive.changed().await.is_ok() {
            let unresponsive = *unresponsive.borrow_and_update();
            if std::mem::replace(&mut known, unresponsive) == unresponsive {
                continue;
            }
            // The lanes of one agent count once.
            if self.backends.set_unresponsive(link, unresponsive) {
                self.metrics.unresponsive.inc();
            }
            let due = |cause| self.gate.toggles.due_for(cause, id);
            if unresponsive {
                if let Some(suppressed) = due("unresponsive") {
                    tracing::warn!(
                        agentID = %Peer(id), suppressed, "keepalive ping unanswered, dials go to other agents"
                    );
                }
            } else if let Some(suppressed) = due("responsive") {
                tracing::info!(agentID = %Peer(id), suppressed, "keepalive ping answered again");
            }
        }
    }
}

/// The address of another agent among streams that are no lanes of `own`. Without different addresses only native agents, which
/// name their process, are known to be different.
fn rival_address(rivals: &[LinkHandle], own: &LinkFacts) -> Option<IpAddr> {
    let is_other = |rival: &&LinkFacts| rival.address.ip() != own.address.ip() || rival.native && own.native;
    rivals.iter().map(|rival| &*rival.facts).find(is_other).map(|rival| rival.address.ip())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::agent_stream::accept::tests::service;
    use crate::backends::{Backend, Identifiers};
    use crate::captured_log::CapturedLog;

    #[tokio::test(start_paused = true)]
    async fn agent_that_toggles_is_logged_once_a_minute() {
        let log = CapturedLog::new();
        let service = service();
        let metrics = service.metrics.clone();
        let (state, watched) = watch::channel(false);
        let _steered = AbortOnDropHandle::new(tokio::spawn(async move {
            service.follow_responsiveness(LinkId(1), watched, "a").await;
        }));
        for toggle in 0..20 {
            state.send(toggle % 2 == 0).unwrap();
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        let text = log.text();
        let count = |part: &str| text.matches(part).count();
        let lines = (count("\"keepalive ping unanswered, "), count("\"keepalive ping answered again"));
        assert_eq!((metrics.unresponsive.get(), lines), (10, (2, 2)), "{text}");
        assert!(text.contains("suppressed=7"), "{text}");
    }

    #[test]
    fn lanes_that_become_unresponsive_at_the_same_time_count_once() {
        let service = service();
        let (metrics, backends) = (&service.metrics, &service.backends);
        let lane = || Backend {
            agent_id: "a".into(),
            identifiers: Identifiers::default(),
            process: Some(1),
            owner: None,
            handle: LinkHandle::new(LinkFacts::default()).0,
        };
        let lanes = [lane(), lane()].map(|lane| backends.register(lane).unwrap());
        let together = std::sync::Barrier::new(2);
        let silence = |id| {
            let (_, silent) = watch::channel(true);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            together.wait();
            runtime.block_on(service.follow_responsiveness(id, silent, "a"));
        };
        for round in 1..=500 {
            std::thread::scope(|scope| {
                scope.spawn(|| silence(lanes[0].id));
                silence(lanes[1].id);
            });
            assert_eq!(metrics.unresponsive.get(), round);
            for lane in &lanes {
                backends.set_unresponsive(lane.id, false);
            }
        }
    }

    #[test]
    fn only_another_agent_with_the_same_id_is_reported() {
        let at = |address: &str, native| {
            let address = SocketAddr::new(address.parse().unwrap(), 1);
            LinkHandle::new(LinkFacts { address, native, ..LinkFacts::default() }).0
        };
        let (go, native) = (at("10.0.0.1", false), at("10.0.0.1", true));
        let mut rivals = vec![at("10.0.0.1", false)];
        assert_eq!(rival_address(&rivals, &go.facts), None, "the duplicate connection of a Go agent");
        assert_eq!(
            rival_address(std::slice::from_ref(&native), &native.facts),
            Some(native.facts.address.ip())
        );
        rivals.push(at("10.0.0.2", false));
        assert_eq!(rival_address(&rivals, &go.facts), Some("10.0.0.2".parse().unwrap()));
    }
}
