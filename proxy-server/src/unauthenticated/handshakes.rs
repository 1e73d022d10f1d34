//! From a TCP listener to connections with a finished TLS handshake, on the handshake threads.
//!
//! Until its ClientHello is complete a connection costs only a slot and a socket; cryptography starts after that. Each
//! handshake is limited to [`HANDSHAKE_LIMIT`].

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use net::listen::{AcceptLoop, HANDSHAKE_LIMIT, LinkSocket, SocketKeepalive, Source, tune};
use net::tls::{HandshakeError, ReadAhead, ServerStream, ServerTls};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{ConnectionSet, Slot};
use crate::accept;
use crate::metrics::UnauthenticatedCloseReason;

/// A connection with a finished handshake.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) stream: ServerStream<ReadAhead<LinkSocket>>,
    pub(crate) address: SocketAddr,
    pub(crate) slot: Slot,
}

impl Arrived {
    /// Moves the connection to the caller's runtime, and reads up to `read_ahead` bytes at once there.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub(crate) fn move_here(&mut self, read_ahead: usize) -> io::Result<()> {
        let socket = self.stream.get_mut().0;
        socket.get_mut().move_to_this_runtime()?;
        socket.begin(read_ahead);
        Ok(())
    }
}

/// The handshakes of a listener. Dropping it closes the listener and ends the handshakes.
#[derive(Debug)]
pub(crate) struct Handshakes {
    /// Has at most as many entries as there are slots.
    arrived: UnboundedReceiver<Arrived>,
    _accepting: AbortOnDropHandle<()>,
}

impl Handshakes {
    /// Accepts on the runtime `on`, on which `listener` was bound.
    pub(crate) fn start(
        on: &Handle,
        listener: TcpListener,
        name: String,
        tls: ServerTls,
        connections: ConnectionSet,
    ) -> Self {
        let (done, arrived) = unbounded_channel();
        let serve = move |(stream, address): (TcpStream, SocketAddr)| {
            let (slot, tls, done) = (connections.enter(address), tls.clone(), done.clone());
            serve(stream, address, tls, slot, done)
        };
        let accepting = async move {
            accept::each(AcceptLoop::new(listener, name), &CancellationToken::new(), serve, report).await;
        };
        Handshakes { arrived, _accepting: AbortOnDropHandle::new(on.spawn(accepting)) }
    }
}

impl Source for Handshakes {
    type Conn = Arrived;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Arrived>> {
        while let Poll::Ready(Some(arrived)) = self.arrived.poll_recv(cx) {
            if !arrived.slot.evicted().is_cancelled() {
                return Poll::Ready(Ok(arrived));
            }
        }
        // The accepting task ends after this.
        Poll::Pending
    }
}

fn report(error: &JoinError) {
    tracing::error!(%error, "a handshake's task failed; its connection is closed");
}

async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    tls: ServerTls,
    mut slot: Slot,
    done: UnboundedSender<Arrived>,
) {
    let evicted = slot.evicted();
    let handshake = async {
        tune(&stream, SocketKeepalive::default(), None)?;
        let on_hello = || {
            slot.renew();
            // Before each handshake waiting threads get the core: the scheduler would let this one run for milliseconds.
            std::thread::yield_now();
        };
        tls.accept_with(LinkSocket::new(stream), on_hello).await
    };
    let shaken = tokio::select! {
        shaken = timeout(HANDSHAKE_LIMIT, handshake) => shaken,
        () = evicted.cancelled() => return,
    };
    match shaken.unwrap_or(Err(HandshakeError::Timeout(HANDSHAKE_LIMIT))) {
        Ok(stream) => {
            slot.renew();
            // Sending fails only if the server has stopped.
            drop(done.send(Arrived { stream, address, slot }));
        }
        // Port checks end here; they are not worth a warning.
        Err(error @ (HandshakeError::Closed | HandshakeError::Io(_))) => {
            if let Some(suppressed) = slot.log_due("handshake") {
                tracing::debug!(peer = %address, %error, suppressed, "connection not accepted");
            }
        }
        Err(error) => {
            let text = error.to_string();
            slot.closed(UnauthenticatedCloseReason::of(&error), &format_args!("{text}{}", hint(&text)));
        }
    }
}

/// The cause of a failed handshake in an operator's words, after the library's.
fn hint(error: &str) -> &'static str {
    let causes = [
        (
            &["peer certificate: UnknownIssuer", "peer certificate: BadSignature"][..],
            " (no authority of the CA file for this port's clients issued the peer's certificate)",
        ),
        (&["sent no certificates"], " (this port requires a client certificate)"),
        (
            &[
                "alert: UnknownCA",
                "alert: BadCertificate",
                "alert: CertificateUnknown",
                "alert: DecryptError",
            ],
            " (the peer does not accept this server's certificate)",
        ),
        (&["InvalidContentType"], " (the peer does not speak TLS)"),
        (&["known protocol"], " (an agent at a frontend's port, or a frontend at the agent port?)"),
    ];
    let found = causes.iter().find(|(texts, _)| texts.iter().any(|text| error.contains(text)));
    found.map_or("", |(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

    use super::*;

    #[test]
    fn failed_handshakes_have_a_cause_in_words() {
        for (error, words) in [
            (CertificateError::UnknownIssuer.into(), "issued the peer's certificate"),
            (CertificateError::BadSignature.into(), "issued the peer's certificate"),
            (Error::NoCertificatesPresented, "requires a client certificate"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "does not accept this server's certificate"),
            (
                Error::AlertReceived(AlertDescription::DecryptError),
                "does not accept this server's certificate",
            ),
            (InvalidMessage::InvalidContentType.into(), "does not speak TLS"),
            (rustls::PeerIncompatible::NoKxGroupsInCommon.into(), ""),
            (Error::NoApplicationProtocol, "an agent at a frontend's port"),
        ] {
            let hint = hint(&HandshakeError::Tls(error.clone()).to_string());
            assert!(hint.contains(words) && hint.is_empty() == words.is_empty(), "{error}: {hint}");
        }
    }
}
