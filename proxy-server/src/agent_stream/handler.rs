//! The server's part of an agent stream's driver: dials on behalf of frontends.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use driver::{Conns, LinkEnd, LinkHandler};
use flags::GoDuration;
use grpc::Code;
use mux::{ConnKey, ConnectId, DialError, Server, Time};
use serve::logs::{LogLimit, Peer};
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::handle::{Command, Commands, DialReply, LinkFacts, LinkHandle, OpenConnection};
use super::probes::{Finding, PacketProbe, WaitTimer};
use crate::auth::AgentPeer;
use crate::backends::Registration;
use crate::dial::DialFailure;
use crate::metrics::Metrics;
use crate::server_count::ServerCount;

/// A Go agent's packet loop is probed only with each of this many pings, because it logs each probe.
const PINGS_FOR_A_PROBE: u32 = 8;
/// Commands carried out in one turn; further ones wait, so that payload moves meanwhile.
const COMMANDS_PER_TURN: usize = 256;

/// A dial that waits for the agent's answer.
struct PendingReply {
    target: String,
    reply: oneshot::Sender<DialReply>,
}

/// The server's state of one link. Invariant 2: every dial gets exactly one reply, from here.
pub(crate) struct ServerLinkHandler {
    commands: Commands,
    /// For the commands of connections; weak, so that only handles keep the link alive.
    back: WeakUnboundedSender<Box<Command>>,
    dials: HashMap<ConnKey, PendingReply>,
    facts: Arc<LinkFacts>,
    /// `None` once the stream is lost.
    living: Option<Living>,
    logs: LogLimit,
    wait_timer: WaitTimer,
    /// Pings since the last moment without pending dials.
    pings: u32,
    packet_probe: PacketProbe,
    /// The agent's packet loop does not answer.
    stuck: bool,
    stopping: bool,
}

/// The parts of a stream that end with its loss. The driver may flush the last bytes for minutes afterwards.
pub(super) struct Living {
    /// The stream's entry among the backends.
    pub(super) registration: Registration<LinkHandle>,
    /// Ends the reviews of its token.
    pub(super) _reviewed: DropGuard,
    pub(super) began: Instant,
    pub(super) peer: Arc<AgentPeer>,
    pub(super) metrics: Metrics,
}

impl ServerLinkHandler {
    /// `servers`: for a native agent, which is probed regularly and told the number of servers.
    pub(super) fn new(
        (handle, commands): (&LinkHandle, Commands),
        servers: Option<ServerCount>,
        living: Living,
        logs: LogLimit,
    ) -> Self {
        ServerLinkHandler {
            commands,
            back: handle.commands.downgrade(),
            dials: HashMap::new(),
            facts: Arc::clone(&handle.facts),
            living: Some(living),
            logs,
            wait_timer: WaitTimer::default(),
            pings: 0,
            packet_probe: PacketProbe::new(servers),
            stuck: false,
            stopping: false,
        }
    }

    fn carry_out(&mut self, conns: &mut Conns<Server>, now: Time, command: Command) {
        match command {
            Command::Dial { key: known, protocol, address, trace, reply } => {
                match conns.link().dial(&protocol, &address, trace) {
                    Some(key) => {
                        known.get_or_init(|| key);
                        self.dials.insert(key, PendingReply { target: address, reply });
                    }
                    None => {
                        let _ = reply.send(Err(DialFailure::Full));
                    }
                }
            }
            Command::CancelDial { key } => {
                if let Some(key) = key.get()
                    && self.dials.remove(key).is_some()
                {
                    conns.link().abandon(now, *key);
                }
            }
            Command::Attach { key, local } => conns.attach(key, local),
            Command::Abandon { key } => {
                conns.link().abandon(now, key);
                conns.discard(key);
            }
            Command::Supersede => {
                self.facts.keepalive.probe();
                self.facts.keepalive.supersede();
            }
            Command::Report { skip, limit, reply } => {
                let _ = reply.send(conns.live(now, skip, limit));
            }
            Command::Probe => self.facts.keepalive.probe(),
            Command::Finish => self.stopping = true,
        }
    }

    /// Pings and probes the agent while dials are pending, and probes its packet loop when it is time.
    fn poll_probe(&mut self, cx: &mut Context<'_>, conns: &mut Conns<Server>) {
        let Some(Living { registration, .. }) = &self.living else { return };
        if self.dials.is_empty() {
            self.pings = 0;
        }
        if self.wait_timer.poll_due(cx, !self.dials.is_empty()) {
            self.facts.keepalive.probe();
            // If the agent's program stands still, no lane answers.
            let lanes = registration.manager.lanes(registration.id);
            lanes.iter().for_each(|lane| lane.send(Command::Probe));
            self.pings += 1;
            if self.packet_probe.servers.is_some() || self.pings.is_multiple_of(PINGS_FOR_A_PROBE) {
                self.packet_probe.ask(conns);
            }
        }
        if let Some(finding) = self.packet_probe.poll(cx, conns) {
            self.probed(finding);
        }
    }

    /// A probe of the agent's packet loop was answered, or not in time.
    fn probed(&mut self, finding: Finding) {
        let Some(Living { registration, .. }) = &self.living else { return };
        let agent_id = Peer(&self.facts.agent_id);
        let stuck = finding == Finding::Stuck;
        if let Finding::Answered(took) = finding {
            registration.stats.sample(Instant::now(), took);
            registration.lane.answered();
        }
        if std::mem::replace(&mut self.stuck, stuck) == stuck {
            return;
        }
        let cause = if stuck { "stuck" } else { "unstuck" };
        match self.logs.due_for(cause, &self.facts.agent_id) {
            Some(suppressed) if stuck => {
                tracing::warn!(agentID = %agent_id, suppressed, "packet unanswered, dials go to other agents");
            }
            Some(suppressed) => tracing::info!(agentID = %agent_id, suppressed, "packets answered again"),
            None => {}
        }
        registration.manager.set_stuck(registration.id, stuck);
    }
}

impl LinkHandler<Server> for ServerLinkHandler {
    fn poll_commands(&mut self, cx: &mut Context<'_>, conns: &mut Conns<Server>, now: Time) -> Poll<()> {
        let mut left = COMMANDS_PER_TURN;
        while let Poll::Ready(Some(command)) = self.commands.poll_recv(cx) {
            self.carry_out(conns, now, *command);
            left -= 1;
            if left == 0 {
                cx.waker().wake_by_ref();
                break;
            }
        }
        self.poll_probe(cx, conns);
        if self.stopping { Poll::Ready(()) } else { Poll::Pending }
    }

    fn opened(&mut self, conns: &mut Conns<Server>, now: Time, key: ConnKey, id: ConnectId) {
        let pending = self.dials.remove(&key);
        let (Some(PendingReply { target, reply }), Some(back)) = (pending, self.back.upgrade()) else {
            conns.link().abandon(now, key);
            conns.discard(key);
            return;
        };
        conns.set_target(key, &target);
        // If the dial was dropped meanwhile, `send` returns the connection, and dropping it closes the connection.
        drop(reply.send(Ok(OpenConnection::new(key, id, back))));
    }

    fn dial_failed(&mut self, key: ConnKey, error: DialError) {
        if let Some(pending) = self.dials.remove(&key) {
            let _ = pending.reply.send(Err(error.into()));
        }
    }

    fn draining(&mut self) {
        let Some(Living { registration, .. }) = &self.living else { return };
        let agent_id = Peer(&self.facts.agent_id);
        tracing::info!(target: "v2", agentID = %agent_id, "agent is draining");
        registration.manager.set_draining(registration.id);
        tracing::info!(
            target: "v2", agentID = %agent_id,
            "marked backend as draining, will not route new requests to this agent"
        );
    }

    fn probe_wanted(&mut self, conns: &mut Conns<Server>) {
        self.packet_probe.ask(conns);
    }

    fn probe_answered(&mut self) {
        if let Some(finding) = self.packet_probe.answered() {
            self.probed(finding);
        }
    }

    fn lost(&mut self, end: &LinkEnd, established: usize) {
        if established > 0 {
            tracing::info!(
                target: "v2", count = established, agentID = %Peer(&self.facts.agent_id),
                "Close established connections to agent"
            );
        }
        // The agent is no backend while its last bytes are flushed: it may already be connected to another server.
        if let Some(Living { began, peer, metrics, .. }) = self.living.take() {
            if established > 0
                && let LinkEnd::Failed(error) = end
                && let Some(suppressed) = self.logs.due_for("lost", &self.facts.agent_id)
            {
                tracing::warn!(
                    agentID = %Peer(&self.facts.agent_id), count = established, %peer, err = %error, suppressed,
                    "agent stream lost, its connections are closed"
                );
            }
            metrics.backend_duration.observe(began.elapsed());
            log_end(end, &self.facts.agent_id, &peer, began.elapsed());
        }
    }
}

/// Logs the end of a stream in Go's words. As in Go, a lost connection is logged as an agent that left: an agent closes its
/// connection this way when it finds that it already has a stream to this server.
fn log_end(end: &LinkEnd, agent_id: &str, peer: &AgentPeer, duration: Duration) {
    let (agent_id, duration) = (Peer(agent_id), GoDuration::from(duration));
    match end {
        LinkEnd::Finished => {
            tracing::info!(target: "v2", agentID = %agent_id, %peer, %duration, "Receive stream from agent is closed");
        }
        LinkEnd::Stopped => {
            tracing::info!(target: "v2", agentID = %agent_id, %peer, %duration, "Stream read from agent cancelled");
        }
        LinkEnd::Failed(error) if error.code == Code::Canceled => {
            tracing::info!(
                target: "v2", agentID = %agent_id, %peer, %duration, err = %error, "Stream read from agent cancelled"
            );
        }
        LinkEnd::Failed(error) => {
            tracing::error!(err = %error, agentID = %agent_id, %peer, %duration, "Receive stream from agent read failure");
        }
    }
}

#[cfg(test)]
mod tests {
    use grpc::WireError;
    use serve::metrics::Registry;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::backends::{Backend, BackendManager, Identifiers, Strategy};
    use crate::captured_log::CapturedLog;

    #[tokio::test(start_paused = true)]
    async fn lost_agent_with_connections_is_a_warning_once_a_minute() {
        let log = CapturedLog::new();
        let metrics = crate::metrics::register(&mut Registry::default());
        let backends = BackendManager::new(&[Strategy::Default], metrics.routes.clone());
        let logs = LogLimit::default();
        let lose = |end: &LinkEnd, connections| {
            let (handle, commands) =
                LinkHandle::new(LinkFacts { agent_id: "a".into(), ..LinkFacts::default() });
            let backend = Backend {
                agent_id: "a".into(),
                identifiers: Identifiers::default(),
                process: None,
                owner: None,
                handle: handle.clone(),
            };
            let living = Living {
                registration: backends.register(backend).unwrap(),
                _reviewed: CancellationToken::new().drop_guard(),
                began: Instant::now(),
                peer: Arc::new(AgentPeer::new("10.0.0.1:4000".parse().unwrap(), None)),
                metrics: metrics.clone(),
            };
            ServerLinkHandler::new((&handle, commands), None, living, logs.clone()).lost(end, connections);
        };
        let failed = LinkEnd::Failed(WireError::new(Code::Canceled, "half-open"));
        for (end, connections) in [(&LinkEnd::Finished, 3), (&LinkEnd::Stopped, 3), (&failed, 0)] {
            lose(end, connections);
        }
        assert!(!log.text().contains("agent stream lost"), "{}", log.text());
        (0..3).for_each(|_| lose(&failed, 3));
        tokio::time::advance(Duration::from_secs(60)).await;
        lose(&failed, 1);
        let text = log.text();
        let warnings: Vec<_> = text.lines().filter(|line| line.contains("agent stream lost")).collect();
        assert_eq!(warnings.len(), 2, "{text}");
        for part in ["agentID=\"a\"", "count=3", "peer=\"10.0.0.1:4000\"", "err=\"Canceled: half-open\""] {
            assert!(warnings[0].starts_with('W') && warnings[0].contains(part), "{part}: {text}");
        }
        assert!(warnings[1].contains("suppressed=2"), "{text}");
    }
}
