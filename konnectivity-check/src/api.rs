//! GET from kube-apiserver: one connection per request, a bearer token, 10 s and 16 MiB at most.
//!
//! Its certificate is judged as both programs judge it (Go's rules where those are wider), or the check would fail in a
//! cluster that works. Their client of the Kubernetes API knows leases and token reviews, and no path of a caller's.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use transport::tls::{ignore_odd_pki, server_verifier};

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
        let mut roots = Vec::new();
        let file = options.ca_file.display();
        for certificate in
            CertificateDer::pem_file_iter(&options.ca_file).with_context(|| format!("cannot read {file}"))?
        {
            roots.push(certificate.with_context(|| format!("{file} is no PEM"))?);
        }
        anyhow::ensure!(!roots.is_empty(), "{file} holds no certificate");
        let verifier = server_verifier(roots, ignore_odd_pki()).with_context(|| file.to_string())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
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

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use rustls::ServerConfig;
    use rustls_pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::flags::Of;

    /// An authority that serves with its own certificate, which Go lets pass, and webpki does not.
    #[tokio::test]
    async fn certificates_are_judged_as_the_programs_judge_them() {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![authority.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let apiserver = listener.local_addr().unwrap().to_string();
        let serve = async {
            let (socket, _) = listener.accept().await.unwrap();
            let mut stream = TlsAcceptor::from(Arc::new(config)).accept(socket).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            stream.shutdown().await.unwrap();
            String::from_utf8(head).unwrap()
        };
        let folder = tempfile::tempdir().unwrap();
        let (ca_file, token_file) = (folder.path().join("ca"), folder.path().join("token"));
        std::fs::write(&ca_file, authority.pem()).unwrap();
        std::fs::write(&token_file, "canary\n").unwrap();
        let (namespace, selector) = ("n".to_owned(), "a=b".to_owned());
        let timeout = Duration::from_secs(1);
        let options =
            Options { of: Of::Agent, namespace, selector, port: 1, timeout, token_file, ca_file, apiserver };
        let api = Api::new(&options).unwrap();
        let (head, answer) = tokio::join!(serve, api.get("/healthz"));
        assert_eq!(answer.unwrap().body, "ok");
        assert!(head.starts_with("GET /healthz HTTP/1.1") && head.contains("Bearer canary"), "{head}");
    }
}
