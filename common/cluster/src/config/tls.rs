//! TLS towards the API server, built for each connection: connections are few, and files rotate.

use std::path::PathBuf;
use std::sync::Arc;

use net::tls::{
    ALPN_HTTP1, SHORTEST_RSA, Validity, any_server, client_config, ignore_legacy_pki, key_pair, provider,
    server_verifier, subject, system_roots,
};
use rustls::ClientConfig;
use rustls::client::ResolvesClientCert;
use rustls::sign::SingleCertAndKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// PEM text, which may be a key, or the file that contains it.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// The text.
    Data(Vec<u8>),
    /// The file, read at each use.
    File(PathBuf),
}

impl std::fmt::Display for Pem {
    /// The suffix to the name of a kubeconfig's field: the file, if there is one.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Data(_) => f.write_str("-data"),
            Self::File(path) => write!(f, " {path:?}"),
        }
    }
}

/// The trusted authorities, and our certificate.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities; `None` means the system's.
    pub ca: Option<Pem>,
    /// A certificate chain and its key.
    pub identity: Option<(Pem, Pem)>,
    /// The expected server name, if it is not the server's host.
    pub server_name: Option<String>,
    /// Accept any certificate (`insecure-skip-tls-verify`).
    pub insecure: bool,
}

impl TlsFiles {
    /// The configuration of one connection; `identity`, from a plug-in, replaces our own.
    ///
    /// # Errors
    /// Why a file cannot be read or used, without a key.
    pub(crate) fn build(&self, identity: Option<&(Pem, Pem)>) -> Result<Arc<ClientConfig>, String> {
        let problem = |what: &str, why: &dyn std::fmt::Display| format!("{what}: {why}");
        let verifier = if self.insecure {
            any_server()
        } else {
            let roots = match &self.ca {
                Some(ca) => certificates(ca, "certificate-authority")?,
                None => system_roots().map_err(|why| problem("certificate-authority", &why))?,
            };
            server_verifier(roots, ignore_legacy_pki())
                .map_err(|why| problem("certificate-authority", &why))?
        };
        let identity = identity.or(self.identity.as_ref()).map(signing_pair).transpose()?;
        client_config(verifier, identity, vec![ALPN_HTTP1.to_vec()]).map_err(|why| problem("TLS", &why))
    }

    /// Whether the files can be read now. The authorities must also parse: client-go reads them once, and the
    /// certificate and key for each connection. So a pair that cannot be used now is a warning only.
    pub(super) fn check_files(&self) -> Result<(), String> {
        if let Some(ca) = &self.ca {
            certificates(ca, "certificate-authority")?;
        }
        if let Some(identity) = &self.identity {
            identity.0.read("client-certificate")?;
            identity.1.read("client-key")?;
            if let Err(error) = signing_pair(identity) {
                tracing::warn!(error, "the kubeconfig's client certificate cannot be used");
            }
        }
        Ok(())
    }

    /// When the first certificate of our own chain expires, in seconds of Unix time. `None` without a chain, or if it
    /// cannot be read now.
    pub(crate) fn expires(&self) -> Option<i64> {
        Validity::of(&self.chain()?).map(|validity| validity.not_after)
    }

    /// The subject of our own certificate, which is the user for the API; `None` as for [`Self::expires`].
    pub(super) fn subject(&self) -> Option<String> {
        subject(self.chain()?.first()?)
    }

    fn chain(&self) -> Option<Vec<CertificateDer<'static>>> {
        certificates(&self.identity.as_ref()?.0, "client-certificate").ok()
    }

    /// The source of the authorities, for errors.
    pub(crate) fn authorities(&self) -> String {
        let given = self.ca.as_ref().map(|ca| format!("certificate-authority{ca}"));
        given.unwrap_or_else(|| "the system's CA certificates".to_owned())
    }

    /// The name that the server's certificate must contain.
    pub(crate) fn name(&self, host: &str) -> Result<ServerName<'static>, String> {
        name(self.server_name.as_deref().unwrap_or(host))
    }
}

/// The name that a certificate for `host` must contain.
pub(crate) fn name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} is not a server name"))
}

impl Pem {
    pub(super) fn read(&self, what: &str) -> Result<Vec<u8>, String> {
        match self {
            Self::Data(data) => Ok(data.clone()),
            Self::File(path) => std::fs::read(path).map_err(|why| format!("{what}{self}: {why}")),
        }
    }
}

/// Sent whatever authorities the server names, as by client-go.
fn signing_pair((chain, key): &(Pem, Pem)) -> Result<Arc<dyn ResolvesClientCert>, String> {
    let chain = certificates(chain, "client-certificate")?;
    let text = key.read("client-key")?;
    let private = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| format!("client-key{key}: has no usable private key in PEM"))?;
    let pair = key_pair(chain, private, &provider())
        .map_err(|why| format!("client-key{key}: {why} ({SHORTEST_RSA})"))?
        .ok_or_else(|| {
            format!("client-key{key}: does not match client-certificate, or client-certificate is not X.509")
        })?;
    Ok(Arc::new(SingleCertAndKey::from(pair)))
}

fn certificates(pem: &Pem, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = pem.read(what)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{what}{pem}: has no certificate in PEM")),
        Err(why) => Err(format!("{what}{pem}: has a malformed block: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// rustls' own constructor parses the certificate, and refuses what webpki does not know. kube-apiserver decides here.
    #[test]
    fn a_certificate_that_webpki_cannot_parse_is_presented() {
        let mut params = rcgen::CertificateParams::new(["client".to_owned()]).unwrap();
        let mut policies = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 32], vec![0x30, 0]);
        policies.set_criticality(true);
        params.custom_extensions.push(policies);
        let key = rcgen::KeyPair::generate().unwrap();
        let chain = params.self_signed(&key).unwrap().pem();
        let identity = Some((Pem::Data(chain.into_bytes()), Pem::Data(key.serialize_pem().into_bytes())));
        TlsFiles { identity, insecure: true, ..TlsFiles::default() }.build(None).unwrap();
    }

    #[test]
    fn a_short_rsa_key_is_said_to_be_short() {
        let chain = rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap().cert.pem();
        // Version and modulus of a 1024-bit key in PKCS#1; the rest does not matter.
        let key = [&[0x30, 0x81, 0x87, 2, 1, 0, 2, 0x81, 0x81, 0][..], &[0xff; 128]].concat();
        let key = STANDARD.encode(key);
        let key = format!("-----BEGIN RSA PRIVATE KEY-----\n{key}\n-----END RSA PRIVATE KEY-----\n");
        let identity = Some((Pem::Data(chain.into_bytes()), Pem::Data(key.into_bytes())));
        let error = TlsFiles { identity, insecure: true, ..TlsFiles::default() }.build(None).unwrap_err();
        assert!(error.to_string().contains("RSA keys below 2048 bits are not supported"), "{error}");
    }
}
