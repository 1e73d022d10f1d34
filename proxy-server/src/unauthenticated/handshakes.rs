//! From a TCP listener to connections with a finished TLS handshake, on threads apart from the data path's and of a lower
//! priority.
//!
//! Until its ClientHello is complete a connection costs only a slot and a socket; cryptography starts after that. Each
//! handshake is limited to [`HANDSHAKE_TIMEOUT`].
//!
//! A panic of the task that accepts continues in the task that takes the connections, so that the listener ends visibly.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};

use net::listen::{AcceptLoop, HANDSHAKE_TIMEOUT, LinkSocket, Priority, Source, tune};
use net::tls::{HandshakeError, ReadAhead, ServerStream, ServerTls};
use rustix::io::Errno;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{ConnectionSet, Slot};
use crate::accept;
use crate::metrics::{Port, UnauthenticatedCloseReason};

/// Added to the nice value of the process. Next to a busy data path thread on the same core these threads get a tenth of the
/// core, enough for some hundred handshakes per second.
const NICER: i32 = 10;

/// Connections that wait for the accept loop after their handshake; further ones wait in their tasks. An evicted one of these keeps
/// its socket and TLS session until the loop comes to it.
const MAX_ARRIVED: usize = 64;

/// The largest nice value in Linux.
const NICEST: i32 = 19;

/// Starts the handshake threads. The cryptography of a handshake takes 0.2 to 1 ms, so a flood of handshakes uses at most a
/// quarter of the cores: at least one and at most four.
///
/// # Errors
/// The operating system provides no thread or no epoll instance.
pub fn handshake_runtime() -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Builder::new_multi_thread()
        .worker_threads((cores / 4).clamp(1, 4))
        .thread_name("handshakes")
        .on_thread_start(lower_priority)
        .enable_all()
        .build()
}

/// On Linux the id of a thread selects that thread alone.
fn lower_priority() {
    let thread = Some(gettid());
    let lowered = getpriority_process(thread)
        .and_then(|nice| setpriority_process(thread, nice.saturating_add(NICER).min(NICEST)));
    if let Err(error) = lowered {
        tracing::warn!(%error, "cannot lower the priority of the handshakes' threads");
    }
}

/// A connection with a finished handshake.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Boxed, because a task keeps several copies of what is moved into it.
    pub(crate) stream: Box<ServerStream<ReadAhead<LinkSocket>>>,
    pub(crate) address: SocketAddr,
    pub(crate) slot: Slot,
}

impl Arrived {
    /// Moves the connection to the caller's runtime, and reads up to `read_ahead` bytes at once there.
    ///
    /// # Errors
    /// The process has no free descriptor for this priority.
    pub(crate) fn move_here(&mut self, read_ahead: usize, priority: Priority) -> io::Result<()> {
        let socket = self.stream.get_mut().0;
        socket.get_mut().move_to_this_runtime()?;
        if !priority.may_keep(socket.get_ref().stream()) {
            return Err(Errno::MFILE.into());
        }
        socket.begin(read_ahead);
        Ok(())
    }
}

/// The handshakes of a listener. Dropping it closes the listener and ends the handshakes.
#[derive(Debug)]
pub(crate) struct Handshakes {
    arrived: Receiver<Arrived>,
    accepting: AbortOnDropHandle<()>,
}

impl Handshakes {
    /// Accepts on the runtime `on`, on which `listener` was bound. `tls` includes the application protocol of its connections.
    /// `priority` is their priority.
    pub(crate) fn start(
        on: &Handle,
        listener: TcpListener,
        name: String,
        tls: (ServerTls, &'static [u8]),
        connections: ConnectionSet,
        priority: Priority,
    ) -> Self {
        let (done, arrived) = channel(MAX_ARRIVED);
        let serve = move |(stream, address): (TcpStream, SocketAddr)| {
            let (slot, tls, done) = (connections.enter(address), tls.clone(), done.clone());
            serve(stream, address, tls, slot, done)
        };
        let accepting = async move {
            let accepting = AcceptLoop::new(listener, name).with_priority(priority);
            accept::each(accepting, &CancellationToken::new(), serve).await;
        };
        Handshakes { arrived, accepting: AbortOnDropHandle::new(on.spawn(accepting)) }
    }
}

impl Source for Handshakes {
    type Conn = Arrived;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Arrived>> {
        while let Poll::Ready(Some(arrived)) = self.arrived.poll_recv(cx) {
            if !arrived.slot.evicted.is_cancelled() {
                return Poll::Ready(Ok(arrived));
            }
        }
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.accepting).poll(cx)
            && let Ok(panic) = error.try_into_panic()
        {
            resume_unwind(panic);
        }
        Poll::Pending
    }
}

async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    (tls, alpn): (ServerTls, &'static [u8]),
    mut slot: Slot,
    done: Sender<Arrived>,
) {
    let evicted = slot.evicted.clone();
    let handshake = async {
        tune(&stream, None)?;
        let on_hello = || {
            slot.renew();
            // Before each handshake waiting threads get the core: the scheduler would let this one run for milliseconds.
            std::thread::yield_now();
        };
        tls.accept_with(LinkSocket::new(stream), &[alpn], on_hello).await
    };
    let shaken = tokio::select! {
        shaken = timeout(HANDSHAKE_TIMEOUT, handshake) => shaken,
        () = evicted.cancelled() => return,
    };
    match shaken.unwrap_or(Err(HandshakeError::Timeout(HANDSHAKE_TIMEOUT))) {
        Ok(stream) => {
            let stream = Box::new(stream);
            slot.renew();
            hand_over(&done, Arrived { stream, address, slot }, &evicted).await;
        }
        // Port checks end here; they are not worth a warning.
        Err(error @ (HandshakeError::Closed | HandshakeError::Io(_))) => {
            if let Some(suppressed) = slot.log_due("handshake") {
                tracing::debug!(peer = %address, %error, suppressed, "connection not accepted");
            }
        }
        Err(error) => {
            let (cause, hint) = hint(&error, slot.shared.port);
            let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            let reason = UnauthenticatedCloseReason::of(&error);
            slot.shared.closed(slot.peer, reason, cause, &format_args!("{error}{hint}"));
        }
    }
}

/// Hands a connection to the accept loop, unless it is evicted while the loop is busy.
async fn hand_over<T>(done: &Sender<T>, arrived: T, evicted: &CancellationToken) {
    tokio::select! {
        // Fails only if the server has stopped.
        _ = done.send(arrived) => {}
        () = evicted.cancelled() => {}
    }
}

/// Alerts of a peer that does not accept the server's certificate, and why. Go's clients send BadCertificate for every reason.
const NOT_ACCEPTED: [(&[&str], &str); 4] = [
    (&["alert: UnsupportedCertificate"], "its extended key usage must allow server authentication"),
    (&["alert: UnknownCA"], "it must trust the issuer"),
    (
        &["alert: DecryptError"],
        "it trusts another key of the issuer, or a certificate of the chain is signed with SHA-1",
    ),
    (
        &["alert: BadCertificate", "alert: CertificateUnknown"],
        "check its issuer, names, dates and extended key usage (server authentication)",
    ),
];

/// The cause of a failed handshake: a name of it for the log's limit, and an operator's words.
fn hint(error: &HandshakeError, port: Port) -> (&'static str, Option<String>) {
    let (peer, cert, ca) = match port {
        Port::Agent => ("agent", "--cluster-cert", "--cluster-ca-cert"),
        Port::Frontend => ("client", "--server-cert", "--server-ca-cert"),
    };
    if let HandshakeError::UnknownIssuer { authorities, .. } = error {
        return ("unknown issuer", Some(format!("{ca} {authorities}")));
    }
    let text = error.to_string();
    let says = |texts: &[&str]| texts.iter().any(|part| text.contains(part));
    if says(&["sent no certificates"]) {
        let fix = if port == Port::Agent { ": set the agent's --agent-cert and --agent-key" } else { "" };
        let sent = format!("{peer}s send only a certificate whose issuer is in {ca}");
        ("no certificate", Some(format!("this port requires a client certificate{fix}; {sent}")))
    } else if says(&["alert: CertificateExpired"]) {
        let why = "is expired or not valid yet: replace it, or correct the clocks";
        ("expired", Some(format!("the {peer} says that {cert} {why}")))
    } else if let Some((_, why)) = NOT_ACCEPTED.iter().find(|(alerts, _)| says(alerts)) {
        (why, Some(format!("the {peer} does not accept {cert}: {why}")))
    } else if says(&["InvalidContentType"]) {
        ("no TLS", Some("the peer does not speak TLS".to_owned()))
    } else if says(&["known protocol"]) {
        let why = match port {
            Port::Agent => "this is the agent port; is it a client of a frontend?",
            Port::Frontend => {
                "the client offers the other protocol: compare --mode or --frontend with kube-apiserver's egress configuration; \
                 if it is an agent, it must connect to --agent-port"
            }
        };
        ("protocol", Some(why.to_owned()))
    } else {
        (UnauthenticatedCloseReason::of(error).name(), None)
    }
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, Error, InvalidMessage};

    use super::*;

    #[tokio::test]
    async fn panic_of_the_accepting_task_ends_the_listener() {
        let (_done, arrived) = channel(1);
        let accepting = AbortOnDropHandle::new(tokio::spawn(async { panic!("injected") }));
        let mut listener = AcceptLoop::new(Handshakes { arrived, accepting }, "test");
        let ended = timeout(HANDSHAKE_TIMEOUT, tokio::spawn(async move { listener.accept().await.address }));
        assert!(ended.await.unwrap().unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn evicted_connections_do_not_pile_up_before_a_busy_accept_loop() {
        let (done, arrived) = channel(MAX_ARRIVED);
        let evicted = CancellationToken::new();
        evicted.cancel();
        let evict_all = async {
            for number in 0..2 * MAX_ARRIVED {
                hand_over(&done, number, &evicted).await;
            }
        };
        timeout(HANDSHAKE_TIMEOUT, evict_all).await.expect("evicted connections leave");
        drop(arrived);
    }

    #[test]
    fn failed_handshakes_have_a_cause_in_words() {
        for (error, port, words) in [
            (Error::NoCertificatesPresented, Port::Agent, "set the agent's --agent-cert"),
            (
                Error::NoCertificatesPresented,
                Port::Frontend,
                "clients send only a certificate whose issuer is in --server-ca-cert",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                Port::Agent,
                "does not accept --cluster-cert",
            ),
            (Error::AlertReceived(AlertDescription::DecryptError), Port::Frontend, "accept --server-cert"),
            (
                Error::AlertReceived(AlertDescription::CertificateExpired),
                Port::Agent,
                "--cluster-cert is expired",
            ),
            (
                Error::AlertReceived(AlertDescription::UnsupportedCertificate),
                Port::Agent,
                "the agent does not accept --cluster-cert: its extended key usage",
            ),
            (
                Error::AlertReceived(AlertDescription::BadCertificate),
                Port::Frontend,
                "names, dates and extended",
            ),
            (InvalidMessage::InvalidContentType.into(), Port::Agent, "does not speak TLS"),
            (rustls::PeerIncompatible::NoKxGroupsInCommon.into(), Port::Agent, ""),
            (Error::NoApplicationProtocol, Port::Frontend, "the client offers the other protocol"),
            (Error::NoApplicationProtocol, Port::Agent, "this is the agent port"),
        ] {
            let (_, hint) = hint(&HandshakeError::Tls(error.clone()), port);
            let hint = hint.unwrap_or_default();
            assert!(hint.contains(words) && hint.is_empty() == words.is_empty(), "{error}: {hint}");
        }
        let authorities = "/ca.pem: the certificate was issued by CN=a; trusted: CN=b".to_owned();
        let error = HandshakeError::UnknownIssuer { error: Error::DecryptError, authorities };
        let hint = hint(&error, Port::Agent).1.unwrap();
        assert!(hint.starts_with("--cluster-ca-cert /ca.pem: the certificate was issued by CN=a"), "{hint}");
    }

    #[test]
    fn handshakes_run_at_a_lower_priority_than_the_caller() {
        let own = getpriority_process(Some(gettid())).unwrap();
        let runtime = handshake_runtime().unwrap();
        let theirs = runtime.handle().spawn(async { getpriority_process(Some(gettid())).unwrap() });
        let theirs = Builder::new_current_thread().build().unwrap().block_on(theirs).unwrap();
        assert_eq!(theirs, (own + NICER).min(NICEST));
        assert_eq!(getpriority_process(Some(gettid())).unwrap(), own, "the caller's is as it was");
    }
}
