//! Checks of the frontends' flags together: each frontend has a Unix socket, or a port with TLS.

use std::path::{Path, PathBuf};

use flags::{Bind, BindHost, FlagError, Given, existing_file, pair};
use net::host_port::split;
use net::listen::UnixSocket;

use super::table::{FrontendFlags, MODES, port};
use super::{FrontendConfig, FrontendListener, TlsFiles};

/// The flags that `--frontend` replaces, and the fix.
const REPLACED: [(&str, &str); 4] = [
    ("mode", "name the protocol in each --frontend"),
    ("uds-name", "give it as --frontend=PROTOCOL+unix:PATH"),
    ("server-port", "give it as --frontend=PROTOCOL+tcp:PORT"),
    ("server-bind-address", "give it as --frontend=PROTOCOL+tcp:HOST:PORT"),
];

/// The frontends of `--frontend`, otherwise the one of Go's flags, and the TLS of their ports.
pub(super) fn frontends(
    flags: &FrontendFlags,
    given: &Given,
    warnings: &mut Vec<String>,
) -> Result<(Vec<FrontendConfig>, Option<TlsFiles>), FlagError> {
    let entries = &flags.frontend.0;
    if entries.is_empty() {
        let is_port = flags.uds_name.as_os_str().is_empty();
        let (listener, tls) = if is_port { tcp(flags)? } else { (unix(flags, warnings)?, None) };
        return Ok((vec![FrontendConfig { protocol: flags.mode, listener }], tls));
    }
    if let Some((flag, fix)) = REPLACED.into_iter().find(|(flag, _)| given.has(flag)) {
        return Err(FlagError::conflict(flag, "frontend", fix));
    }
    let mut frontends: Vec<FrontendConfig> = Vec::new();
    for text in entries {
        let frontend = entry(text, flags)?;
        if frontends.iter().any(|other| overlap(&other.listener, &frontend.listener)) {
            return Err(refused(text, "another --frontend has this address: give each its own"));
        }
        if let FrontendListener::Unix(path) = &frontend.listener {
            warn_if_abstract("frontend", path, text, warnings);
        }
        frontends.push(frontend);
    }
    if frontends.iter().all(|frontend| matches!(frontend.listener, FrontendListener::Unix(_))) {
        without_tls(flags, "frontend")?;
    }
    Ok((frontends, tls(flags)?))
}

fn refused(text: &str, want: &str) -> FlagError {
    FlagError::value("frontend", format_args!("{text:?}"), want)
}

/// Parses `PROTOCOL+TRANSPORT:ADDRESS`.
fn entry(text: &str, flags: &FrontendFlags) -> Result<FrontendConfig, FlagError> {
    let refused = |want| refused(text, want);
    let parts = text.split_once(':').and_then(|(kind, address)| Some((kind.split_once('+')?, address)));
    let ((protocol, transport), address) = parts.ok_or_else(|| {
        refused("it must be PROTOCOL+TRANSPORT:ADDRESS, such as grpc+unix:/run/konnectivity.sock")
    })?;
    let protocol = MODES.iter().find(|(name, _)| *name == protocol).map(|(_, protocol)| *protocol);
    let protocol = protocol.ok_or_else(|| refused("the protocol must be grpc or http-connect"))?;
    let listener = match transport {
        "unix" if address.is_empty() => return Err(refused("the path must not be empty")),
        "unix" => FrontendListener::Unix(address.into()),
        "tcp" => {
            let bind = bind(address).ok_or_else(|| {
                refused("the address must be PORT, HOST:PORT or [IPV6]:PORT, with a port from 1024 to 49151")
            })?;
            if tls(flags)?.is_none() {
                let want = "a port has TLS: give --server-cert, --server-key and --server-ca-cert";
                return Err(refused(want));
            }
            FrontendListener::Tcp(bind)
        }
        _ => return Err(refused("the transport must be unix or tcp")),
    };
    Ok(FrontendConfig { protocol, listener })
}

fn bind(address: &str) -> Option<Bind> {
    let (host, text) = match split(address)? {
        (text, None) => ("", text),
        (host, Some(text)) => (host, text),
    };
    let port = port("frontend", text.parse().ok()?).ok()?;
    Some(Bind { host: BindHost::parse(host), port })
}

/// Whether both cannot listen at once.
fn overlap(one: &FrontendListener, other: &FrontendListener) -> bool {
    match (one, other) {
        (FrontendListener::Unix(one), FrontendListener::Unix(other)) => one == other,
        (FrontendListener::Tcp(one), FrontendListener::Tcp(other)) => {
            let hosts = one.host == other.host || one.host.is_all() || other.host.is_all();
            one.port == other.port && hosts
        }
        _ => false,
    }
}

fn unix(flags: &FrontendFlags, warnings: &mut Vec<String>) -> Result<FrontendListener, FlagError> {
    let with = "uds-name";
    if flags.server_port != 0 {
        let fix = "set --server-port=0 to listen on the Unix socket";
        return Err(FlagError::conflict("server-port", with, fix));
    }
    without_tls(flags, with)?;
    let path = flags.uds_name.clone();
    warn_if_abstract(with, &path, &path.display().to_string(), warnings);
    Ok(FrontendListener::Unix(path))
}

/// Checks that no flag of TLS is given beside the flag `with`.
fn without_tls(flags: &FrontendFlags, with: &'static str) -> Result<(), FlagError> {
    let tls = "drop it, the Unix socket carries no TLS";
    let conflicts = [
        ("server-key", !flags.server_key.as_os_str().is_empty(), tls),
        ("server-cert", !flags.server_cert.as_os_str().is_empty(), tls),
        ("server-ca-cert", !flags.server_ca_cert.as_os_str().is_empty(), tls),
        (
            "frontend-allowed-names",
            !flags.frontend_allowed_names.is_empty(),
            "drop it, clients of the Unix socket show no certificate",
        ),
    ];
    match conflicts.into_iter().find(|(_, given, _)| *given) {
        Some((flag, _, fix)) => Err(FlagError::conflict(flag, with, fix)),
        None => Ok(()),
    }
}

fn warn_if_abstract(flag: &str, path: &Path, value: &str, warnings: &mut Vec<String>) {
    if UnixSocket::is_abstract(path) {
        warnings.push(format!(
            "--{flag}={value}: an abstract socket has no file whose mode protects it: every process of this network \
             namespace may connect"
        ));
    }
}

fn tcp(flags: &FrontendFlags) -> Result<(FrontendListener, Option<TlsFiles>), FlagError> {
    let (pair, ca) = given_files(flags)?;
    let ca = ca.ok_or_else(|| {
        let fix = "give the authorities of kube-apiserver's certificate, or --uds-name and --server-port=0";
        FlagError::empty("server-ca-cert", fix)
    })?;
    let port = port("server-port", flags.server_port)?;
    let (cert, key) = pair.ok_or_else(|| {
        let fix = "give --server-cert and --server-key, or --uds-name and --server-port=0";
        FlagError::empty("server-cert", fix)
    })?;
    let bind = Bind { host: flags.server_bind_address.clone(), port };
    Ok((FrontendListener::Tcp(bind), Some(TlsFiles { cert, key, client_ca: Some(ca) })))
}

/// The TLS files, if all are given.
fn tls(flags: &FrontendFlags) -> Result<Option<TlsFiles>, FlagError> {
    let (pair, ca) = given_files(flags)?;
    Ok(pair.zip(ca).map(|((cert, key), ca)| TlsFiles { cert, key, client_ca: Some(ca) }))
}

/// The certificate with its key, and the authorities of clients' certificates, if given.
type GivenFiles = (Option<(PathBuf, PathBuf)>, Option<PathBuf>);

fn given_files(flags: &FrontendFlags) -> Result<GivenFiles, FlagError> {
    let cert = existing_file("server-cert", flags.server_cert.clone())?;
    let key = existing_file("server-key", flags.server_key.clone())?;
    let pair = pair(("server-cert", cert), ("server-key", key))?;
    Ok((pair, existing_file("server-ca-cert", flags.server_ca_cert.clone())?))
}
