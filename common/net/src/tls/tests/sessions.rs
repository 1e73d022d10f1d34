//! Every handshake verifies certificates: sessions are never resumed, so an expired certificate is refused.

use std::sync::Arc;

use rustls::{
    ClientConfig, HandshakeKind, RootCertStore, ServerConfig, SupportedProtocolVersion, version::TLS12,
    version::TLS13,
};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::pki::leaf;
use super::world::{NAME, World};
use crate::tls::ALPN_H2;

/// Performs two handshakes in a row. Evaluates to the kind of the last one, at both sides. The server sends a byte
/// after its tickets.
macro_rules! twice {
    ($accept:expr, $connect:expr) => {{
        let mut kinds = (None, None);
        for _ in 0..2 {
            let (client_io, server_io) = duplex(64 * 1024);
            let server = async {
                let mut stream = $accept(server_io).await.unwrap();
                stream.write_all(b"s").await.unwrap();
                stream.flush().await.unwrap();
                stream
            };
            let client = async {
                let mut stream = $connect(client_io).await.unwrap();
                stream.read_u8().await.unwrap();
                stream
            };
            let (server, client) = tokio::join!(server, client);
            kinds = (server.get_ref().1.handshake_kind(), client.get_ref().1.handshake_kind());
        }
        kinds
    }};
}

const FULL: (Option<HandshakeKind>, Option<HandshakeKind>) =
    (Some(HandshakeKind::Full), Some(HandshakeKind::Full));

fn roots(world: &World) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(world.root.der.clone()).unwrap();
    roots
}

/// A pair in the form of other configurations.
fn pair(
    world: &World,
    name: &str,
) -> (Vec<rustls_pki_types::CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let pair = world.root.issue(leaf(&[name]));
    (vec![pair.der.clone()], PrivateKeyDer::try_from(pair.key.serialize_der()).unwrap())
}

#[tokio::test]
async fn a_listener_resumes_no_session() {
    for version in [&TLS12, &TLS13] as [&'static SupportedProtocolVersion; 2] {
        let world = World::new();
        let (certs, key) = pair(&world, "client.test");
        // The client stores sessions, and would resume them.
        let config = ClientConfig::builder_with_provider(crate::tls::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots(&world))
            .with_client_auth_cert(certs, key)
            .unwrap();
        let (server, client) = (world.server(), TlsConnector::from(Arc::new(config)));
        let name = ServerName::try_from(NAME).unwrap();
        let kinds =
            twice!(|io| server.accept_with(io, &[ALPN_H2], || ()), |io| client.connect(name.clone(), io));
        assert_eq!(kinds, FULL, "{version:?}");
    }
}

#[tokio::test]
async fn an_agent_resumes_no_session() {
    for version in [&TLS12, &TLS13] as [&'static SupportedProtocolVersion; 2] {
        let world = World::new();
        let (certs, key) = pair(&world, NAME);
        // The server offers to resume sessions.
        let config = ServerConfig::builder_with_provider(crate::tls::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(certs, key)
            .unwrap();
        let (server, client) = (TlsAcceptor::from(Arc::new(config)), world.client());
        let kinds = twice!(|io| server.accept(io), |io| client.connect(0, io));
        assert_eq!(kinds, FULL, "{version:?}");
    }
}
