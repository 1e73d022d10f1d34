//! What the status tells about the open streams. Nothing here is asked while nobody reads the status.

use std::sync::Arc;
use std::time::SystemTime;

use driver::{LiveConnection, SharedTraffic};
use grpc::KeepaliveHandle;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Asks a stream's task for some of its connections.
pub(super) struct ReportRequest {
    pub(super) skip: usize,
    pub(super) limit: usize,
    pub(super) reply: oneshot::Sender<Vec<LiveConnection>>,
}

/// The requests are boxed, because the queue of an idle link has room for 32.
pub(super) type ReportRequests = mpsc::UnboundedReceiver<Box<ReportRequest>>;

/// One open stream.
#[derive(Debug)]
pub(crate) struct OpenLink {
    /// Its number in the status, from 1. Never reused in a process.
    pub(crate) number: u64,
    pub(crate) server_id: Arc<str>,
    /// The server's address with its port.
    pub(crate) address: String,
    /// Measures the RTT.
    pub(crate) keepalive: Arc<KeepaliveHandle>,
    pub(crate) native: bool,
    pub(crate) since: SystemTime,
    /// The server was asked for no new dials.
    pub(crate) drain: CancellationToken,
    pub(crate) traffic: SharedTraffic,
    requests: mpsc::UnboundedSender<Box<ReportRequest>>,
}

impl OpenLink {
    /// A stream that opens now, and the requests to its task.
    pub(super) fn new(
        server_id: Arc<str>,
        address: String,
        keepalive: Arc<KeepaliveHandle>,
        native: bool,
        drain: CancellationToken,
    ) -> (Self, ReportRequests) {
        let (requests, received) = mpsc::unbounded_channel();
        let (since, traffic) = (serve::statusz::now(), SharedTraffic::default());
        (Self { number: 0, server_id, address, keepalive, native, since, drain, traffic, requests }, received)
    }

    /// Asks now for at most `limit` of the stream's connections after the first `skip` ones; none if it has ended.
    pub(crate) fn connections(
        &self,
        skip: usize,
        limit: usize,
    ) -> impl Future<Output = Vec<LiveConnection>> + use<> {
        let (reply, answer) = oneshot::channel();
        let _ = self.requests.send(Box::new(ReportRequest { skip, limit, reply }));
        async { answer.await.unwrap_or_default() }
    }

    /// Whether pings are unanswered.
    pub(crate) fn is_unresponsive(&self) -> bool {
        *self.keepalive.unresponsive().borrow()
    }
}

/// The open streams. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct OpenLinks(Arc<Mutex<Listed>>);

#[derive(Debug, Default)]
struct Listed {
    /// The number of the last stream.
    last: u64,
    links: Vec<Arc<OpenLink>>,
}

impl OpenLinks {
    /// Lists the stream until the guard is dropped.
    pub(super) fn enter(&self, link: OpenLink) -> OpenGuard {
        let mut listed = self.0.lock();
        listed.last += 1;
        let link = Arc::new(OpenLink { number: listed.last, ..link });
        listed.links.push(Arc::clone(&link));
        OpenGuard { links: self.clone(), link }
    }

    /// The streams in the order of their servers' ids, the oldest of each server first.
    pub(crate) fn all(&self) -> Vec<Arc<OpenLink>> {
        let mut links = self.0.lock().links.clone();
        links.sort_by(|one, two| one.server_id.cmp(&two.server_id));
        links
    }
}

/// One listed stream.
pub(super) struct OpenGuard {
    links: OpenLinks,
    link: Arc<OpenLink>,
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.links.0.lock().links.retain(|link| !Arc::ptr_eq(link, &self.link));
    }
}
