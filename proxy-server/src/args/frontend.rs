//! Flags of the frontend, where kube-apiserver connects.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use flags::{Bind, BindHost, FlagError, FlagSet, GoDuration, List, existing_file, pair};
use transport::listen::UnixSocket;

use super::agents::{HOUR, keepalive};
use super::serving::port;
use super::{FrontendListener, Mode};

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    mode: String,
    uds_name: OsString,
    delete_existing_uds_file: bool,
    server_bind_address: String,
    server_port: i64,
    server_cert: OsString,
    server_key: OsString,
    server_ca_cert: OsString,
    frontend_allowed_names: List,
    frontend_keepalive_time: GoDuration,
}

/// The checked values.
pub(super) struct Frontend {
    pub(super) listener: FrontendListener,
    pub(super) mode: Mode,
    pub(super) keepalive_time: Duration,
    pub(super) allowed_names: Vec<String>,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            mode: "grpc".into(),
            uds_name: OsString::new(),
            delete_existing_uds_file: true,
            server_bind_address: String::new(),
            server_port: 8090,
            server_cert: OsString::new(),
            server_key: OsString::new(),
            server_ca_cert: OsString::new(),
            frontend_allowed_names: List::default(),
            frontend_keepalive_time: HOUR,
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Frontend (where kube-apiserver connects)");
        set.add("mode", &mut self.mode, "Protocol of kube-apiserver: grpc or http-connect.");
        set.add(
            "uds-name",
            &mut self.uds_name,
            "Path of the Unix socket to listen on without TLS; @NAME is an abstract socket. Empty: listen on \
             --server-port with TLS.",
        );
        set.add(
            "delete-existing-uds-file",
            &mut self.delete_existing_uds_file,
            "Delete an existing file at --uds-name before listening.",
        );
        set.add(
            "server-port",
            &mut self.server_port,
            "Port for kube-apiserver. Set it to 0 with --uds-name.",
        );
        set.add(
            "server-bind-address",
            &mut self.server_bind_address,
            "Address for --server-port. Empty: all interfaces.",
        );
        set.add("server-cert", &mut self.server_cert, "Certificate chain for kube-apiserver, PEM.");
        set.add("server-key", &mut self.server_key, "Key of --server-cert, PEM.");
        set.add(
            "server-ca-cert",
            &mut self.server_ca_cert,
            "CA certificates for kube-apiserver's client certificate, PEM. Required without --uds-name.",
        );
        set.add(
            "frontend-allowed-names",
            &mut self.frontend_allowed_names,
            "Common names and alternative names of certificates that are admitted as kube-apiserver. Empty: all \
             certificates signed by --server-ca-cert. (Not a flag of the Go proxy-server.)",
        );
        set.add(
            "frontend-keepalive-time",
            &mut self.frontend_keepalive_time,
            "Idle time before a ping to a gRPC frontend. At least 1s; 0: 2h.",
        );
    }

    pub(super) fn check(self, warnings: &mut Vec<String>) -> Result<Frontend, FlagError> {
        let mode = match self.mode.as_str() {
            "grpc" => Mode::Grpc,
            "http-connect" => Mode::HttpConnect,
            other => {
                let want = "it must be grpc or http-connect";
                return Err(FlagError::value("mode", format_args!("{other:?}"), want));
            }
        };
        let keepalive_time = keepalive(self.frontend_keepalive_time);
        let allowed_names = self.frontend_allowed_names.items.clone();
        let listener = if self.uds_name.is_empty() { self.tcp()? } else { self.unix(warnings)? };
        Ok(Frontend { listener, mode, keepalive_time, allowed_names })
    }

    fn unix(self, warnings: &mut Vec<String>) -> Result<FrontendListener, FlagError> {
        let conflict = |flag, fix| Err(FlagError::Conflict { flag, with: "uds-name", fix });
        if self.server_port != 0 {
            return conflict("server-port", "set --server-port=0 to listen on the Unix socket");
        }
        let tls_flags = [
            ("server-key", &self.server_key),
            ("server-cert", &self.server_cert),
            ("server-ca-cert", &self.server_ca_cert),
        ];
        if let Some((flag, _)) = tls_flags.into_iter().find(|(_, path)| !path.is_empty()) {
            return conflict(flag, "drop it, the Unix socket carries no TLS");
        }
        if !self.frontend_allowed_names.items.is_empty() {
            return conflict(
                "frontend-allowed-names",
                "drop it, clients of the Unix socket show no certificate",
            );
        }
        let path = PathBuf::from(self.uds_name);
        if UnixSocket::is_abstract(&path) {
            warnings.push(format!(
                "--uds-name={}: an abstract socket has no file whose mode protects it: every process of this network \
                 namespace may connect",
                path.display()
            ));
        }
        Ok(FrontendListener::Unix { path, delete_existing: self.delete_existing_uds_file })
    }

    fn tcp(self) -> Result<FrontendListener, FlagError> {
        let pair = pair(("server-cert", self.server_cert), ("server-key", self.server_key))?;
        let ca = existing_file("server-ca-cert", self.server_ca_cert)?.ok_or(FlagError::Empty {
            flag: "server-ca-cert",
            fix: "give the authorities of kube-apiserver's certificate, or --uds-name and --server-port=0",
        })?;
        let port = port("server-port", self.server_port)?;
        let (cert, key) = pair.ok_or(FlagError::Empty {
            flag: "server-cert",
            fix: "give --server-cert and --server-key, or --uds-name and --server-port=0",
        })?;
        let bind = Bind { host: BindHost::parse(&self.server_bind_address), port };
        Ok(FrontendListener::Tcp { bind, cert, key, ca })
    }
}
