//! GET from kube-apiserver: one connection per request, a bearer token, 10 s and 16 MiB at most.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::flags::Options;

/// One request may take this long; kube-apiserver itself gives a dial through the tunnel 30 s and usually needs none.
const PATIENCE: Duration = Duration::from_secs(10);

/// Largest answer that is read: a list of thousands of pods.
const LARGEST: usize = 16 << 20;

/// A way to kube-apiserver.
pub struct Api {
    address: String,
    name: ServerName<'static>,
    tls: TlsConnector,
    token: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Bytes,
}

impl Api {
    /// Reads the files that the options name.
    pub fn new(options: &Options) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let file = options.ca_file.display();
        for certificate in
            CertificateDer::pem_file_iter(&options.ca_file).with_context(|| format!("cannot read {file}"))?
        {
            roots.add(certificate.with_context(|| format!("{file} is no PEM"))?)?;
        }
        anyhow::ensure!(!roots.is_empty(), "{file} holds no certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let token = std::fs::read_to_string(&options.token_file)
            .with_context(|| format!("cannot read {}", options.token_file.display()))?;
        let (host, _) = options.apiserver.rsplit_once(':').context("--apiserver is not host:port")?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = match host.parse::<IpAddr>() {
            Ok(address) => ServerName::IpAddress(address.into()),
            Err(_) => {
                ServerName::try_from(host.to_owned()).with_context(|| format!("no host name: {host}"))?
            }
        };
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { address: options.apiserver.clone(), name, tls, token: token.trim().to_owned() })
    }

    /// GET of a path with its query.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        let asked = timeout(PATIENCE, self.ask(path)).await;
        asked
            .with_context(|| format!("no answer within {} s", PATIENCE.as_secs()))?
            .with_context(|| format!("GET {path}"))
    }

    async fn ask(&self, path: &str) -> Result<Answer> {
        let socket = TcpStream::connect(&self.address)
            .await
            .with_context(|| format!("cannot connect to {}", self.address))?;
        let stream = self.tls.connect(self.name.clone(), socket).await.context("TLS with kube-apiserver")?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::get(path)
            .header(header::HOST, &self.address)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())?;
        let answer = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
            Ok::<_, anyhow::Error>(Answer { status, body })
        };
        let driven = async { connection.await.context("the connection to kube-apiserver failed") };
        tokio::pin!(answer, driven);
        // The answer needs the connection to be driven; whichever fails first says why.
        tokio::select! {
            answer = &mut answer => answer,
            ended = &mut driven => { ended?; answer.await }
        }
    }
}
