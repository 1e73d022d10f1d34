//! Checks of the frontend's flags together: a Unix socket, or a port with TLS.

use flags::{Bind, FlagError, existing_file, pair};
use transport::listen::UnixSocket;

use super::FrontendListener;
use super::table::{FrontendFlags, port};

pub(super) fn listener(
    flags: FrontendFlags,
    warnings: &mut Vec<String>,
) -> Result<FrontendListener, FlagError> {
    if flags.uds_name.as_os_str().is_empty() { tcp(flags) } else { unix(flags, warnings) }
}

fn unix(flags: FrontendFlags, warnings: &mut Vec<String>) -> Result<FrontendListener, FlagError> {
    let tls = "drop it, the Unix socket carries no TLS";
    let conflicts = [
        ("server-port", flags.server_port != 0, "set --server-port=0 to listen on the Unix socket"),
        ("server-key", !flags.server_key.as_os_str().is_empty(), tls),
        ("server-cert", !flags.server_cert.as_os_str().is_empty(), tls),
        ("server-ca-cert", !flags.server_ca_cert.as_os_str().is_empty(), tls),
        (
            "frontend-allowed-names",
            !flags.frontend_allowed_names.is_empty(),
            "drop it, clients of the Unix socket show no certificate",
        ),
    ];
    if let Some((flag, _, fix)) = conflicts.into_iter().find(|(_, given, _)| *given) {
        return Err(FlagError::Conflict { flag, with: "uds-name", fix });
    }
    let path = flags.uds_name;
    if UnixSocket::is_abstract(&path) {
        warnings.push(format!(
            "--uds-name={}: an abstract socket has no file whose mode protects it: every process of this network \
             namespace may connect",
            path.display()
        ));
    }
    Ok(FrontendListener::Unix { path, delete_existing: flags.delete_existing_uds_file })
}

fn tcp(flags: FrontendFlags) -> Result<FrontendListener, FlagError> {
    let cert = existing_file("server-cert", flags.server_cert)?;
    let key = existing_file("server-key", flags.server_key)?;
    let pair = pair(("server-cert", cert), ("server-key", key))?;
    let ca = existing_file("server-ca-cert", flags.server_ca_cert)?.ok_or(FlagError::Empty {
        flag: "server-ca-cert",
        fix: "give the authorities of kube-apiserver's certificate, or --uds-name and --server-port=0",
    })?;
    let port = port("server-port", flags.server_port)?;
    let (cert, key) = pair.ok_or(FlagError::Empty {
        flag: "server-cert",
        fix: "give --server-cert and --server-key, or --uds-name and --server-port=0",
    })?;
    Ok(FrontendListener::Tcp { bind: Bind { host: flags.server_bind_address, port }, cert, key, ca })
}
