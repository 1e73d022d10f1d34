//! Accept loops of the frontends: from a listening socket to the frontend that serves its connections.
//!
//! ```text
//!   Unix socket ──────────────┐        ┌── authority patch ── HTTP/2 ── Proxy streams
//!   TCP ── TLS, within limits ┴─ mode ─┤
//!                                      └── HTTP CONNECT
//! ```
//!
//! Never detects a protocol: the flags decide.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use grpc::authority::AuthorityPatch;
use grpc::{Code, ConnectionError, Request, ServerSettings, serve_connection};
use http::HeaderMap;
use net::listen::{AcceptLoop, LinkSocket, NOTSENT_LOWAT, Priority, UnixSocket};
use net::tls::{ALPN_H2, ALPN_HTTP1, PeerIdentity, ReadAhead, ServerStream, ServerTls};
use serve::logs::Peer;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::{Frontend, Protocol};
use crate::accept::{self, Lifetimes};
use crate::agent_stream::AGENT_PATH;
use crate::auth::{AllowedNames, shown};
use crate::dial::FailureReason;
use crate::limits::MAX_CONNECTIONS;
use crate::metrics::{Metrics, PeerKind, Port, RefusedConnect};
use crate::unauthenticated::{Arrived, ConnectionSet, Handshakes};

/// The only path of the gRPC frontend.
const PROXY_PATH: &str = "/ProxyService/Proxy";
/// Read-ahead below a frontend's TLS, in bytes: one record. Agent connections get more; a frontend connection carries one
/// tunnel, and there are thousands.
const READ_AHEAD: usize = 17 * 1024;
/// Read-ahead below the HTTP/2 connections of the Unix socket, in bytes: they may carry all dials of a client.
const SOCKET_READ_AHEAD: usize = 64 * 1024;

/// How long a draining server, or one that refuses this client, keeps a new HTTP/2 connection until it sends GOAWAY. A draining
/// server's client has found no successor, and tries again after that.
const AGE_IN_DRAIN: Duration = Duration::from_secs(1);

/// A frontend's listener: bound, not yet accepting.
pub enum FrontendListener {
    /// A Unix socket; the mode of its file is the access control.
    Unix(UnixSocket),
    /// TCP with mutual TLS: the listener, bound on the runtime of the TLS handshakes.
    Tls(TcpListener, TlsPort),
}

impl FrontendListener {
    /// Where it listens.
    pub fn address(&self) -> io::Result<String> {
        Ok(match self {
            FrontendListener::Unix(socket) => socket.path().display().to_string(),
            FrontendListener::Tls(listener, _) => listener.local_addr()?.to_string(),
        })
    }
}

/// The TLS of a frontend's port. Cheap to clone.
#[derive(Clone)]
pub struct TlsPort {
    /// Certificate, key and authorities.
    pub tls: ServerTls,
    /// The names of certificates that are admitted.
    pub names: AllowedNames,
    /// The limit of unauthenticated connections.
    pub unauthenticated: usize,
    /// The runtime of the TLS handshakes.
    pub handshakes: Handle,
}

/// Accepts and serves until the server stops. Then it closes the listener, lets pending dials continue, and returns once no
/// connection needs it: an HTTP CONNECT tunnel belongs to its link's task, but a gRPC tunnel needs its HTTP/2 connection, which is
/// driven here. Dropping the future ends these.
///
/// `keepalive` is `--frontend-keepalive-time`: idle time after which an HTTP/2 client is pinged.
pub async fn serve_frontend(
    mode: Protocol,
    listener: FrontendListener,
    frontend: Frontend,
    keepalive: Duration,
) {
    let stop = frontend.lifetimes.stop.clone();
    let mut http2 = ServerSettings::for_frontends();
    http2.keepalive.interval = keepalive;
    let http2 = (mode == Protocol::Grpc).then(|| Arc::new(http2));
    let name = listener.address().unwrap_or_else(|_| "TCP frontend".to_owned());
    tracing::info!(target: "v0", port = "frontend", address = name, mode = mode.name(), "Listening");
    match listener {
        FrontendListener::Unix(socket) => {
            let peer: Arc<str> = Arc::from("unix");
            let serve = |connection| {
                let (frontend, http2) = (frontend.clone().serving(&connection), http2.clone());
                let peer = Arc::clone(&peer);
                async move {
                    match http2 {
                        None => frontend.serve_socket(connection, peer).await,
                        Some(settings) => {
                            let mut connection = ReadAhead::new(connection);
                            connection.begin(SOCKET_READ_AHEAD);
                            frontend.serve_http2(connection, &settings, &peer).await;
                        }
                    }
                }
            };
            let accepting = AcceptLoop::new(socket, name).with_priority(Priority::Client);
            accept::each(accepting, &stop, serve).await;
        }
        FrontendListener::Tls(listener, TlsPort { tls, names, unauthenticated, handshakes }) => {
            let connections = ConnectionSet::new(Port::Frontend, unauthenticated, frontend.metrics.clone());
            let tls = (tls, if mode == Protocol::Grpc { ALPN_H2 } else { ALPN_HTTP1 });
            let arriving =
                Handshakes::start(&handshakes, listener, name.clone(), tls, connections, Priority::Client);
            let serve = |arrived: Arrived| {
                let (frontend, http2, names) = (frontend.clone(), http2.clone(), names.clone());
                async move {
                    let Some((connection, peer)) = admit(arrived, &names, &frontend.metrics) else { return };
                    let frontend = frontend.serving(connection.get_ref().0.get_ref().stream());
                    match http2 {
                        None => frontend.serve_socket(*connection, peer).await,
                        Some(settings) => frontend.serve_http2(connection, &settings, &peer).await,
                    }
                }
            };
            accept::each(AcceptLoop::new(arriving, name), &stop, serve).await;
        }
    }
}

/// Admits a client whose verified certificate has an allowed name.
fn admit(mut arrived: Arrived, names: &AllowedNames, metrics: &Metrics) -> Option<(TlsConnection, Arc<str>)> {
    let certificate = PeerIdentity::of(arrived.stream.get_ref().1.peer_certificates());
    let peer = shown(certificate.as_ref(), arrived.address);
    if !names.allow(&certificate.unwrap_or_default()) {
        metrics.name_refusals.count(PeerKind::Frontend);
        let text = format!("{peer}: its certificate has no name in --frontend-allowed-names");
        metrics.journal.refused(Port::Frontend.listener(), arrived.address.ip(), &text);
        if let Some(suppressed) = arrived.slot.log_due("name") {
            tracing::warn!(%peer, suppressed, "client refused: its certificate has no name in --frontend-allowed-names");
        }
        return None;
    }
    let moved = arrived.move_here(READ_AHEAD, Priority::Client).and_then(|()| {
        let socket = arrived.stream.get_ref().0.get_ref().stream();
        SockRef::from(socket).set_tcp_notsent_lowat(NOTSENT_LOWAT)
    });
    if let Err(error) = moved {
        if let Some(suppressed) = arrived.slot.log_due("socket") {
            tracing::warn!(%peer, %error, suppressed, "frontend connection not accepted");
        }
        return None;
    }
    arrived.slot.leave().then_some((arrived.stream, peer))
}

type TlsConnection = Box<ServerStream<ReadAhead<LinkSocket>>>;

impl Frontend {
    /// Drives one HTTP/2 connection, until its last stream has ended after a shutdown began. The dials of a connection that
    /// is lost, or dropped with the future, end by themselves, because their streams fail.
    async fn serve_http2<IO: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: IO,
        settings: &ServerSettings,
        peer: &Arc<str>,
    ) {
        let Lifetimes { draining, stop, .. } = &self.lifetimes;
        let dials = TaskTracker::new();
        // A Proxy stream is one dial.
        let refuse_at_limit = |request: Request, text: &str| {
            self.metrics.dials.failures.count(FailureReason::NoAgent);
            request.refuse(Code::ResourceExhausted, text);
        };
        let on_stream = |mut request: Request| {
            if request.path != PROXY_PATH {
                if request.path == AGENT_PATH {
                    self.metrics.refused_connects.count(RefusedConnect::Path);
                    self.wrong_protocol(
                        peer,
                        "an agent came to a frontend's port: agents connect to --agent-port",
                    );
                } else {
                    tracing::debug!(%peer, path = %Peer(&request.path), "unknown gRPC method");
                }
                return request.refuse(Code::Unimplemented, "unknown service or method");
            }
            if stop.is_cancelled() {
                return request.refuse(Code::Unavailable, "the proxy server is shutting down");
            }
            if let Some(refusal) = &self.dialer.refusal {
                return refuse_at_limit(request, &refusal.to_string());
            }
            let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
                if let Some(suppressed) = self.logs.due_for("streams", ()) {
                    tracing::warn!(
                        limit = MAX_CONNECTIONS,
                        suppressed,
                        "Proxy streams are refused, because the server's connection limit is reached"
                    );
                }
                return refuse_at_limit(request, "the server's limit of Proxy streams is reached");
            };
            request.permit = Some(permit);
            match request.accept(HeaderMap::new()) {
                Ok(stream) => {
                    let (frontend, peer) = (self.clone(), Arc::clone(peer));
                    dials.spawn(async move { frontend.serve_stream(stream, peer).await });
                }
                Err(error) => tracing::debug!(%peer, %error, "frontend stream lost before it was accepted"),
            }
        };
        let shutdown = async {
            if draining.is_cancelled() || self.dialer.refusal.is_some() {
                let _stopped = timeout(AGE_IN_DRAIN, stop.cancelled()).await;
            } else {
                draining.cancelled().await;
            }
        };
        let io = AuthorityPatch::new(io, settings.max_frame_size);
        let served = serve_connection(io, settings, on_stream, shutdown).await;
        match served {
            // kube-apiserver closes its connection together with its last stream, without GOAWAY.
            Ok(()) => tracing::trace!(%peer, "frontend connection ended"),
            Err(error) if error.is_closed_by_peer() => {
                tracing::trace!(%peer, "the client closed its frontend connection");
            }
            Err(ConnectionError::NotHttp2) => self.wrong_protocol(
                peer,
                "frontend connection without HTTP/2, and the frontend's --mode is grpc: was it HTTP/1.1 CONNECT?",
            ),
            Err(error) => tracing::debug!(%peer, %error, "frontend connection lost"),
        }
        dials.close();
        dials.wait().await;
    }
}
