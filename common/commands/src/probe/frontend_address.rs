//! Where a frontend listens, and the connection to it.

use std::net::IpAddr;
use std::path::PathBuf;

use flags::FlagError;
use net::host_port::{HostPort, host_port};
use net::tls::{ClientTls, ClientTlsOptions, ignore_legacy_pki};
use status::Listener;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::{Io, Protocol, STAGE_TIMEOUT};

/// A frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendAddress {
    /// The protocol that it speaks.
    pub protocol: Protocol,
    address: Address,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    /// The path of a Unix socket, or `@NAME`.
    Unix(String),
    Tcp(String, u16),
}

flags::flags! {
    /// The client's certificate, its key, and the authorities of the frontend's certificate.
    #[derive(Debug)]
    pub struct IdentityFlags {
        "TLS to a frontend on a port" {
            /// Client certificate, PEM.
            client_cert: PathBuf = "",
            /// Key of the client certificate, PEM.
            client_key: PathBuf = "",
            /// Certificate authorities of the frontend, PEM.
            ca_cert: PathBuf = "",
            /// Name in the frontend's certificate. Empty: the host that is connected to.
            server_name: String = "",
        }
    }
}

/// Parses `[PROTOCOL+]unix:PATH` or `[PROTOCOL+]tcp:HOST:PORT`; `None` if it is empty.
pub(super) fn frontend(flag: &'static str, text: String) -> Result<Option<FrontendAddress>, FlagError> {
    if text.is_empty() {
        return Ok(None);
    }
    let frontend = parse_frontend(&text);
    let want = "it must be unix:PATH, http-connect+unix:PATH, tcp:HOST:PORT or http-connect+tcp:HOST:PORT";
    frontend.map(Some).ok_or_else(|| FlagError::value(flag, text, want))
}

/// Parses `[PROTOCOL+]unix:PATH` or `[PROTOCOL+]tcp:HOST:PORT`, where PROTOCOL is `grpc` (the default) or `http-connect`.
pub fn parse_frontend(text: &str) -> Option<FrontendAddress> {
    let (kind, address) = text.split_once(':')?;
    let (protocol, transport) = kind.split_once('+').unwrap_or(("grpc", kind));
    let address = match transport {
        "unix" if !address.is_empty() => Address::Unix(address.to_owned()),
        "tcp" => host_port(address).map(|(host, port)| Address::Tcp(host.to_owned(), port))?,
        _ => return None,
    };
    Some(FrontendAddress { protocol: Protocol::named(protocol)?, address })
}

impl FrontendAddress {
    /// The frontend of a running server: a Unix socket if it has one, because that needs no certificate.
    pub(super) fn of(listeners: &[Listener]) -> Option<Self> {
        let frontends: Vec<FrontendAddress> =
            listeners.iter().filter_map(FrontendAddress::of_listener).collect();
        let unix = frontends.iter().find(|frontend| matches!(frontend.address, Address::Unix(_)));
        unix.or(frontends.first()).cloned()
    }

    fn of_listener(listener: &Listener) -> Option<Self> {
        let protocol = Protocol::named(&listener.protocol).filter(|_| listener.name == "frontend")?;
        let address =
            match host_port(&listener.address).and_then(|(host, port)| Some((host.parse().ok()?, port))) {
                Some((host, port)) => Address::Tcp(here(host).to_string(), port),
                None => Address::Unix(listener.address.clone()),
            };
        Some(Self { protocol, address })
    }

    /// Connects, with TLS to a port, within [`STAGE_TIMEOUT`].
    ///
    /// # Errors
    /// The cause, without the frontend.
    pub async fn connect(&self, identity: &IdentityFlags) -> Result<Box<dyn Io>, String> {
        let opened = timeout(STAGE_TIMEOUT, self.open(identity)).await;
        opened.unwrap_or_else(|_| Err("it timed out".to_owned()))
    }

    async fn open(&self, identity: &IdentityFlags) -> Result<Box<dyn Io>, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        match &self.address {
            Address::Unix(path) => {
                // tokio's form of an abstract name.
                let path = path.strip_prefix('@').map_or_else(|| path.clone(), |name| format!("\0{name}"));
                Ok(Box::new(UnixStream::connect(path).await.map_err(|error| failed(&error))?))
            }
            Address::Tcp(host, port) => {
                let IdentityFlags { client_cert, client_key, ca_cert, server_name } = identity;
                if [client_cert, client_key, ca_cert].iter().any(|file| file.as_os_str().is_empty()) {
                    let why = "it needs a client certificate: give --client-cert, --client-key and --ca-cert";
                    return Err(why.to_owned());
                }
                let name = if server_name.is_empty() { host } else { server_name };
                let options = ClientTlsOptions {
                    ca: Some(ca_cert.clone()),
                    identity: Some((client_cert.clone(), client_key.clone())),
                    server_names: vec![name.clone()],
                    alpn_extras: match self.protocol {
                        Protocol::Grpc => Vec::new(),
                        Protocol::HttpConnect => vec![b"http/1.1".to_vec()],
                    },
                };
                let tls = ClientTls::load(options, ignore_legacy_pki()).map_err(|error| failed(&error))?;
                let tcp = TcpStream::connect((host.as_str(), *port)).await.map_err(|error| failed(&error))?;
                Ok(Box::new(tls.connect(0, tcp).await.map_err(|error| format!("TLS: {error}"))?))
            }
        }
    }
}

impl std::fmt::Display for FrontendAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = self.protocol.name();
        match &self.address {
            Address::Unix(path) => write!(f, "{protocol}+unix:{path}"),
            Address::Tcp(host, port) => write!(f, "{protocol}+tcp:{}", HostPort(host, *port)),
        }
    }
}

/// The address by which this host reaches a listener: the loopback address for one on all addresses.
fn here(host: IpAddr) -> IpAddr {
    // One on all IPv6 addresses accepts IPv4, too, and hosts without IPv6 have no ::1.
    if host.is_unspecified() { [127, 0, 0, 1].into() } else { host }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontends_are_named_as_by_the_servers_flag() {
        for (text, shown) in [
            ("unix:/run/k.sock", "grpc+unix:/run/k.sock"),
            ("http-connect+unix:@k", "http-connect+unix:@k"),
            ("tcp:[::1]:8090", "grpc+tcp:[::1]:8090"),
            ("http-connect+tcp:host:8090", "http-connect+tcp:host:8090"),
        ] {
            assert_eq!(parse_frontend(text).unwrap().to_string(), shown);
        }
        for text in ["/run/k.sock", "unix:", "tcp:8090", "http+tcp:a:1", "quic+tcp:a:1", "udp:a:1"] {
            assert!(
                frontend("frontend", text.to_owned()).unwrap_err().to_string().starts_with("--frontend=")
            );
        }
    }

    #[test]
    fn unix_sockets_of_the_server_come_first() {
        let listener = |name: &str, address: &str, protocol: &str| Listener {
            name: name.into(),
            address: address.into(),
            protocol: protocol.into(),
        };
        let mut listeners = vec![
            listener("admin", "127.0.0.1:8095", "http"),
            listener("agents", "[::]:8091", "grpc"),
            listener("frontend", "[::]:8090", "http-connect"),
        ];
        assert_eq!(FrontendAddress::of(&listeners[..2]), None);
        assert_eq!(FrontendAddress::of(&listeners).unwrap().to_string(), "http-connect+tcp:127.0.0.1:8090");
        listeners.push(listener("frontend", "/run/k.sock", "grpc"));
        assert_eq!(FrontendAddress::of(&listeners).unwrap().to_string(), "grpc+unix:/run/k.sock");
    }
}
