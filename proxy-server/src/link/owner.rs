//! What the server adds to the relay of an agent stream: dials that frontends ask for.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use relay::{Conns, Owner};
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};
use tunnel::{ConnKey, ConnectId, DialError, Server, Time};

use super::handle::{Command, Commands, DialReply, LinkHandle, OpenConnection};
use crate::dial::DialFailure;

/// How long dials wait before the agent is pinged, and between such pings.
const ASK_AFTER: Duration = Duration::from_millis(250);
/// Commands carried out in one turn: the rest waits for the next, so that bytes move meanwhile.
const COMMANDS_PER_TURN: usize = 256;

/// What the rest of the server wants to know of a link. `E` counts an established connection while it lives.
pub(crate) trait LinkObserver {
    /// Kept while a connection is established.
    type Established;

    /// A connection was established.
    fn established(&self) -> Self::Established;

    /// The agent asks for no new dials.
    fn draining(&self);

    /// Dials have waited for a while: pings the agent.
    fn probe(&mut self);

    /// The stream has ended, with so many connections: it is no backend any more.
    fn lost(&mut self, established: usize);
}

/// The owner of one link at the server. Invariant 2: every dial's reply is sent once, here.
pub(crate) struct ServerOwner<X: LinkObserver> {
    commands: Commands,
    /// For connections to report back; weak, so that handles alone keep the link known.
    back: WeakUnboundedSender<Command>,
    by_token: HashMap<u64, ConnKey>,
    dials: HashMap<ConnKey, (u64, oneshot::Sender<DialReply>)>,
    established: HashMap<ConnKey, X::Established>,
    observer: X,
    /// Runs while dials wait.
    ask: Option<Pin<Box<Sleep>>>,
    stopping: bool,
    lost: bool,
}

impl<X: LinkObserver> ServerOwner<X> {
    pub(crate) fn new(commands: Commands, handle: &LinkHandle, observer: X) -> Self {
        ServerOwner {
            commands,
            back: handle.commands().downgrade(),
            by_token: HashMap::new(),
            dials: HashMap::new(),
            established: HashMap::new(),
            observer,
            ask: None,
            stopping: false,
            lost: false,
        }
    }

    fn carry_out(&mut self, conns: &mut Conns<Server>, now: Time, command: Command) {
        match command {
            Command::Dial { token, protocol, address, reply } => {
                if self.lost {
                    let _ = reply.send(Err(DialFailure::LinkLost));
                    return;
                }
                match conns.link().dial(&protocol, &address) {
                    Ok(key) => {
                        self.by_token.insert(token, key);
                        self.dials.insert(key, (token, reply));
                    }
                    Err(tunnel::Full) => {
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
                self.established.remove(&key);
                conns.link().abandon(now, key);
                conns.discard(key);
            }
            Command::Ask => self.observer.probe(),
            Command::Finish => self.stopping = true,
        }
    }

    /// Pings the agent while dials wait for it.
    fn poll_ask(&mut self, cx: &mut Context<'_>) {
        if self.lost || self.dials.is_empty() {
            self.ask = None;
            return;
        }
        let ask = self.ask.get_or_insert_with(|| Box::pin(sleep(ASK_AFTER)));
        while ask.as_mut().poll(cx).is_ready() {
            self.observer.probe();
            ask.as_mut().reset(Instant::now() + ASK_AFTER);
        }
    }

    fn take_reply(&mut self, key: ConnKey) -> Option<oneshot::Sender<DialReply>> {
        let (token, reply) = self.dials.remove(&key)?;
        self.by_token.remove(&token);
        Some(reply)
    }
}

impl<X: LinkObserver> Owner<Server> for ServerOwner<X> {
    fn poll_commands(&mut self, cx: &mut Context<'_>, conns: &mut Conns<Server>, now: Time) -> Poll<()> {
        let mut left = COMMANDS_PER_TURN;
        while let Poll::Ready(Some(command)) = self.commands.poll_recv(cx) {
            self.carry_out(conns, now, command);
            left -= 1;
            if left == 0 {
                cx.waker().wake_by_ref();
                break;
            }
        }
        self.poll_ask(cx);
        if self.stopping { Poll::Ready(()) } else { Poll::Pending }
    }

    fn opened(&mut self, conns: &mut Conns<Server>, now: Time, key: ConnKey, id: ConnectId) {
        let reply = self.take_reply(key);
        let (Some(reply), Some(back)) = (reply, self.back.upgrade()) else {
            conns.link().abandon(now, key);
            conns.discard(key);
            return;
        };
        self.established.insert(key, self.observer.established());
        // If the dial was given up meanwhile, the connection comes back and its drop abandons it.
        drop(reply.send(Ok(OpenConnection::new(key, id, back))));
    }

    fn dial_failed(&mut self, key: ConnKey, error: DialError) {
        if let Some(reply) = self.take_reply(key) {
            let _ = reply.send(Err(error.into()));
        }
    }

    fn ended(&mut self, key: ConnKey) {
        self.established.remove(&key);
    }

    fn draining(&mut self) {
        self.observer.draining();
    }

    fn lost(&mut self) {
        self.lost = true;
        self.observer.lost(self.established.len());
    }
}
