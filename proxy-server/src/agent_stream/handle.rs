//! The handle of a link, which the rest of the server uses.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use driver::{LiveConnection, LocalIo, SharedTraffic};
use grpc::KeepaliveHandle;
use grpc::live_streams::{LiveStreams, StreamName};
use mux::{ConnKey, ConnectId, TraceContext};
use tokio::sync::{mpsc, oneshot};

use crate::dial::DialFailure;

/// A request to a link's task.
pub(crate) enum Command {
    /// A request for a DIAL_REQ. The link's task sets the key.
    Dial {
        key: Arc<OnceLock<ConnKey>>,
        protocol: String,
        address: String,
        trace: Option<TraceContext>,
        reply: oneshot::Sender<DialReply>,
    },
    /// The dial is not wanted any more.
    CancelDial { key: Arc<OnceLock<ConnKey>> },
    /// The frontend's end of a connection.
    Attach { key: ConnKey, local: Box<dyn LocalIo> },
    /// The connection is not wanted any more.
    Abandon { key: ConnKey },
    /// The agent has opened another stream: pings it on this one, which ends if it is half-open.
    Supersede,
    /// A request for at most `limit` connections after the first `skip` ones.
    Report { skip: usize, limit: usize, reply: oneshot::Sender<Vec<LiveConnection>> },
    /// Dials wait on another lane: pings the agent on this one, too.
    Probe,
    /// Ends the stream in order: status OK, no GOAWAY (on a GOAWAY a Go agent drops every connection).
    Finish,
}

/// A link's answer to a dial.
pub(crate) type DialReply = Result<OpenConnection, DialFailure>;

/// The commands are boxed, because the queue of an idle link has room for 32.
pub(crate) type Commands = mpsc::UnboundedReceiver<Box<Command>>;

/// A handle to one agent stream. Cheap to clone; does not keep the stream alive.
///
/// The command queue has no limit of its own: each dial first takes a slot of the server's limits.
#[derive(Debug, Clone)]
pub struct LinkHandle {
    pub(crate) commands: mpsc::UnboundedSender<Box<Command>>,
    /// Facts that do not change.
    pub(crate) facts: Arc<LinkFacts>,
}

/// What is known about one agent stream since it was admitted.
#[derive(Debug)]
pub(crate) struct LinkFacts {
    pub(crate) agent_id: Arc<str>,
    /// The agent's authenticated identity; empty without authentication.
    pub(crate) identity: String,
    /// [`Identity::key`](crate::auth::Identity::key) of the agent.
    pub(crate) party: Arc<str>,
    /// The agent's name of the stream, if it tells one.
    pub(crate) name: Option<StreamName>,
    /// The agent's address, in its canonical form.
    pub(crate) address: SocketAddr,
    /// The agent's program and version, as it tells them.
    pub(crate) version: String,
    pub(crate) native: bool,
    /// Whether the agent takes the trace context of a dial.
    pub(crate) traces: bool,
    /// When the stream was admitted.
    pub(crate) since: SystemTime,
    /// Pings the agent, and measures the RTT.
    pub(crate) keepalive: Arc<KeepaliveHandle>,
    pub(crate) traffic: SharedTraffic,
}

impl LinkHandle {
    /// A handle, and the command queue for the link's task.
    pub(crate) fn new(facts: LinkFacts) -> (Self, Commands) {
        let (commands, queue) = mpsc::unbounded_channel();
        (LinkHandle { commands, facts: Arc::new(facts) }, queue)
    }

    /// Does nothing if the link's task has gone.
    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(Box::new(command));
    }

    /// Sends a DIAL_REQ on this link. A native agent is told the trace. Dropping the future cancels the dial at the agent.
    pub async fn dial(&self, protocol: String, address: String, trace: Option<TraceContext>) -> DialReply {
        let trace = trace.filter(|_| self.facts.traces);
        let key = Arc::<OnceLock<ConnKey>>::default();
        let (reply, answer) = oneshot::channel();
        // If the link's task has gone, `reply` is dropped with the command, and the dial returns `LinkLost`.
        self.send(Command::Dial { key: Arc::clone(&key), protocol, address, trace, reply });
        let mut cancel = CancelOnDrop { handle: self, key: Some(key) };
        let answer = answer.await;
        cancel.key = None;
        answer.unwrap_or(Err(DialFailure::LinkLost))
    }

    /// The same agent has opened another stream and then had `live`: ends this one if the agent has lost it. The party must be the
    /// same, because only it may end its streams. Returns false if the agent may still have the stream.
    pub(crate) fn end_lost(&self, party: &str, live: &LiveStreams) -> bool {
        let LinkFacts { party: own, name, keepalive, .. } = &*self.facts;
        let lost = **own == *party && name.is_some_and(|name| live.have_lost(name));
        if lost {
            keepalive.lost_by_peer();
        }
        lost
    }

    /// Asks now for at most `limit` of the link's connections after the first `skip` ones; none if the link is lost.
    pub(crate) fn connections(
        &self,
        skip: usize,
        limit: usize,
    ) -> impl Future<Output = Vec<LiveConnection>> + use<> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Report { skip, limit, reply });
        async { answer.await.unwrap_or_default() }
    }
}

/// Cancels a dial that has no answer yet when it is dropped.
struct CancelOnDrop<'a> {
    handle: &'a LinkHandle,
    key: Option<Arc<OnceLock<ConnKey>>>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.handle.send(Command::CancelDial { key });
        }
    }
}

/// An established connection without a frontend socket yet. Bytes from the agent are queued, within limits. Dropping it closes
/// the connection.
#[derive(Debug)]
pub struct OpenConnection {
    key: ConnKey,
    /// The agent's connect id, for logs. It is unique only within the agent stream.
    pub id: ConnectId,
    commands: Option<mpsc::UnboundedSender<Box<Command>>>,
}

impl OpenConnection {
    pub(crate) fn new(key: ConnKey, id: ConnectId, commands: mpsc::UnboundedSender<Box<Command>>) -> Self {
        OpenConnection { key, id, commands: Some(commands) }
    }

    /// Hands the frontend's socket or stream to the link's task, which moves the bytes from then on. If the link was lost
    /// meanwhile, the task ends the socket accordingly.
    pub fn attach(mut self, local: Box<dyn LocalIo>) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(Box::new(Command::Attach { key: self.key, local }));
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(Box::new(Command::Abandon { key: self.key }));
        }
    }
}

#[cfg(test)]
impl Default for LinkFacts {
    fn default() -> Self {
        LinkFacts {
            agent_id: "agent".into(),
            identity: String::new(),
            party: "".into(),
            name: None,
            address: ([0, 0, 0, 0], 0).into(),
            version: String::new(),
            native: false,
            traces: false,
            since: SystemTime::UNIX_EPOCH,
            keepalive: KeepaliveHandle::new(grpc::Keepalive::DEFAULT),
            traffic: SharedTraffic::default(),
        }
    }
}

#[cfg(test)]
impl OpenConnection {
    /// A connection of no link, and the queue of its commands.
    pub(crate) fn detached() -> (Self, Commands) {
        let (handle, commands) = LinkHandle::new(LinkFacts::default());
        let key =
            mux::Link::<mux::Server, bytes::Bytes>::new(mux::Limits::default(), mux::Negotiated::default())
                .dial("tcp", "node:1", None);
        let key = key.expect("an empty link takes a dial");
        (OpenConnection::new(key, ConnectId(1), handle.commands), commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_party_ends_a_stream_and_only_one_that_it_has_lost() {
        let name = StreamName { process: 7, number: 3 };
        let handle = |name| {
            LinkHandle::new(LinkFacts { party: "certificate a".into(), name, ..LinkFacts::default() }).0
        };
        let next = LiveStreams { name: StreamName { process: 7, number: 5 }, others: vec![4] };
        let ends = |name, party: &str, live: &LiveStreams| handle(name).end_lost(party, live);
        assert!(ends(Some(name), "certificate a", &next));
        assert!(!ends(Some(name), "certificate b", &next), "another party");
        assert!(
            !ends(Some(name), "certificate a", &LiveStreams { others: vec![3], ..next.clone() }),
            "it has it"
        );
        assert!(!ends(None, "certificate a", &next), "an agent that names no streams");
        assert!(!ends(Some(StreamName { process: 8, ..name }), "certificate a", &next), "another process");
    }
}
