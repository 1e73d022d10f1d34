//! The server's part of an agent stream's driver: dials on behalf of frontends.

use std::collections::HashMap;
use std::task::{Context, Poll};

use driver::{Conns, LinkHandler};
use mux::{CloseReason, ConnKey, ConnectId, DialError, Server, Time};
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::oneshot;

use super::handle::{Command, Commands, DialReply, LinkHandle, OpenConnection};
use super::observer::{Established, Observer};
use super::packet_probe::PacketProbe;
use super::wait_timer::WaitTimer;
use crate::dial::DialFailure;
use crate::metrics::ClosedReason;
use crate::server_count::ServerCount;

/// With each of how many such pings a Go agent's packet loop is probed, too: it logs each probe.
const PINGS_BEFORE_PROBE: u32 = 8;
/// Commands carried out in one turn; further ones wait, so that payload moves meanwhile.
const COMMANDS_PER_TURN: usize = 256;

/// A dial that waits for the agent's answer.
struct PendingReply {
    token: u64,
    target: String,
    reply: oneshot::Sender<DialReply>,
}

/// The server's state of one link. Invariant 2: every dial gets exactly one reply, from here.
pub(crate) struct ServerLinkHandler {
    commands: Commands,
    /// For the commands of connections; weak, so that only handles keep the link alive.
    back: WeakUnboundedSender<Box<Command>>,
    by_token: HashMap<u64, ConnKey>,
    dials: HashMap<ConnKey, PendingReply>,
    established: HashMap<ConnKey, Established>,
    observer: Observer,
    wait_timer: WaitTimer,
    /// Pings since the last moment without pending dials.
    pings: u32,
    native: bool,
    packet_probe: PacketProbe,
    stopping: bool,
    lost: bool,
}

impl ServerLinkHandler {
    /// `servers`: for a native agent, which is probed regularly and told the number of servers.
    pub(crate) fn new(
        commands: Commands,
        handle: &LinkHandle,
        servers: Option<ServerCount>,
        observer: Observer,
    ) -> Self {
        ServerLinkHandler {
            commands,
            back: handle.commands().downgrade(),
            by_token: HashMap::new(),
            dials: HashMap::new(),
            established: HashMap::new(),
            observer,
            wait_timer: WaitTimer::default(),
            pings: 0,
            native: servers.is_some(),
            packet_probe: PacketProbe::new(servers),
            stopping: false,
            lost: false,
        }
    }

    fn carry_out(&mut self, conns: &mut Conns<Server>, now: Time, command: Command) {
        match command {
            Command::Dial { token, protocol, address, trace, reply } => {
                if self.lost {
                    let _ = reply.send(Err(DialFailure::LinkLost));
                    return;
                }
                match conns.link().dial_traced(&protocol, &address, trace) {
                    Ok(key) => {
                        self.by_token.insert(token, key);
                        self.dials.insert(key, PendingReply { token, target: address, reply });
                    }
                    Err(mux::Full) => {
                        let _ = reply.send(Err(DialFailure::Full));
                    }
                }
            }
            Command::CancelDial { token } => {
                if let Some(key) = self.by_token.remove(&token) {
                    self.dials.remove(&key);
                    conns.link().abandon(now, key);
                }
            }
            Command::Attach { key, local } => conns.attach(key, local),
            Command::Abandon { key } => {
                self.count_end(key, ClosedReason::FrontendClose);
                conns.link().abandon(now, key);
                conns.discard(key);
            }
            Command::Supersede => self.observer.supersede(),
            Command::Report { skip, limit, reply } => {
                let _ = reply.send(conns.live(now, skip, limit));
            }
            Command::Probe => self.observer.keepalive.probe(),
            Command::Finish => self.stopping = true,
        }
    }

    /// Pings and probes the agent while dials are pending, and probes its packet loop when it is time.
    fn poll_probe(&mut self, cx: &mut Context<'_>, conns: &mut Conns<Server>) {
        if self.lost {
            return;
        }
        if self.dials.is_empty() {
            self.pings = 0;
        }
        if self.wait_timer.poll_due(cx, !self.dials.is_empty()) {
            self.observer.keepalive.probe();
            self.observer.probe_lanes();
            self.pings += 1;
            if self.native || self.pings.is_multiple_of(PINGS_BEFORE_PROBE) {
                self.packet_probe.ask(conns);
            }
        }
        if let Some(finding) = self.packet_probe.poll(cx, conns) {
            self.observer.probed(finding);
        }
    }

    fn count_end(&mut self, key: ConnKey, reason: ClosedReason) {
        if let Some((established, _on_lane)) = self.established.remove(&key) {
            established.closed(reason);
        }
    }

    fn take_reply(&mut self, key: ConnKey) -> Option<PendingReply> {
        let pending = self.dials.remove(&key)?;
        self.by_token.remove(&pending.token);
        Some(pending)
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
        let pending = self.take_reply(key);
        let (Some(PendingReply { target, reply, .. }), Some(back)) = (pending, self.back.upgrade()) else {
            conns.link().abandon(now, key);
            conns.discard(key);
            return;
        };
        self.established.insert(key, self.observer.established());
        conns.set_target(key, &target);
        // If the dial was dropped meanwhile, `send` returns the connection, and dropping it closes the connection.
        drop(reply.send(Ok(OpenConnection::new(key, id, back))));
    }

    fn dial_failed(&mut self, key: ConnKey, error: DialError) {
        if let Some(pending) = self.take_reply(key) {
            let _ = pending.reply.send(Err(error.into()));
        }
    }

    fn ended(&mut self, key: ConnKey, reason: &CloseReason) {
        self.count_end(key, reason.into());
    }

    fn draining(&mut self) {
        self.observer.draining();
    }

    fn probe_wanted(&mut self, conns: &mut Conns<Server>) {
        self.packet_probe.ask(conns);
    }

    fn probe_answered(&mut self) {
        if let Some(finding) = self.packet_probe.answered() {
            self.observer.probed(finding);
        }
    }

    fn lost(&mut self) {
        self.lost = true;
        self.observer.lost(self.established.len());
    }
}
