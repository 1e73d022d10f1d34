//! A client and a server that perform a handshake over a pipe in memory.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::TlsConnector;

use super::pki::{Files, Pair, ca, leaf};
use crate::tls::{
    ALPN_H2, CipherSuites, ClientStream, ClientTls, ClientTlsOptions, HandshakeError, ReadAhead,
    ServerStream, ServerTls, ServerTlsOptions, TlsVersion, ignore_legacy_pki,
};

pub(super) const NAME: &str = "server.test";

/// A root, a server's pair and a client's pair, in files.
pub(super) struct World {
    pub(super) files: Files,
    pub(super) root: Pair,
    pub(super) ca: PathBuf,
    pub(super) server: ServerTlsOptions,
    /// The server's application protocols.
    pub(super) alpn: Vec<&'static [u8]>,
    pub(super) client: ClientTlsOptions,
}

impl World {
    /// A handshake of the server with a client whose settings [`ClientTls`] does not have.
    pub(super) async fn handshake_with(&self, config: ClientConfig) -> Ends {
        let (client_io, server_io) = duplex(64 * 1024);
        let connector = TlsConnector::from(Arc::new(config));
        let server = self.server();
        let client = async {
            let connected = connector.connect(ServerName::try_from(NAME).unwrap(), client_io).await;
            connected.map_err(HandshakeError::from)
        };
        let (server, client) = tokio::join!(server.accept_with(server_io, &self.alpn, || ()), client);
        Ends { server, client }
    }

    pub(super) fn new() -> Self {
        Self::with_server(leaf(&[NAME]))
    }

    pub(super) fn with_server(params: rcgen::CertificateParams) -> Self {
        let files = Files::new();
        let root = Pair::self_signed(ca("root"));
        let ca = files.certs("root.crt", &[&root.der]);
        let (cert, key) = files.pair("server", &root.issue(params));
        let identity = files.pair("client", &root.issue(leaf(&["client.test"])));
        let server = ServerTlsOptions {
            cert,
            key,
            client_ca: Some(ca.clone()),
            min_version: TlsVersion::default(),
            suites: CipherSuites::default(),
        };
        let client = ClientTlsOptions {
            ca: Some(ca.clone()),
            identity: Some(identity),
            server_names: vec![NAME.to_owned()],
            alpn_extras: vec![],
        };
        Self { files, root, ca, server, alpn: vec![ALPN_H2], client }
    }

    pub(super) fn server(&self) -> ServerTls {
        ServerTls::load(self.server.clone(), ignore_legacy_pki()).unwrap()
    }

    pub(super) fn client(&self) -> ClientTls {
        ClientTls::load(self.client.clone(), ignore_legacy_pki()).unwrap()
    }

    /// Both ends' results, after one byte in each direction if the handshake succeeded.
    pub(super) async fn shake(&self) -> Ends {
        shake_with(&self.server(), &self.alpn, &self.client()).await
    }
}

pub(super) struct Ends {
    pub(super) server: Result<ServerStream<ReadAhead<DuplexStream>>, HandshakeError>,
    pub(super) client: Result<ClientStream<DuplexStream>, HandshakeError>,
}

impl Ends {
    #[track_caller]
    pub(super) fn both(self) -> (ServerStream<ReadAhead<DuplexStream>>, ClientStream<DuplexStream>) {
        (self.server.expect("server"), self.client.expect("client"))
    }

    /// The server's error about a client that it refused.
    #[track_caller]
    pub(super) fn refused_by_server(self) -> String {
        self.server.expect_err("must be refused").to_string()
    }

    /// The client's error about a server that it refused.
    #[track_caller]
    pub(super) fn refused_by_client(self) -> String {
        self.client.expect_err("must be refused").to_string()
    }
}

pub(super) async fn shake(server: &ServerTls, client: &ClientTls) -> Ends {
    shake_with(server, &[ALPN_H2], client).await
}

async fn shake_with(server: &ServerTls, alpn: &[&[u8]], client: &ClientTls) -> Ends {
    let (client_io, server_io) = duplex(64 * 1024);
    let server = async {
        let mut stream = server.accept_with(server_io, alpn, || ()).await?;
        stream.write_all(b"s").await?;
        stream.flush().await?;
        Ok(stream)
    };
    // With TLS 1.3 a client's handshake completes before the server has verified it: the first read shows the result.
    let client = async {
        let mut stream = client.connect(0, client_io).await?;
        stream.read_u8().await?;
        Ok(stream)
    };
    let (server, client) = tokio::join!(server, client);
    Ends { server, client }
}
