//! A port whose address is a name, and a resolver that does not answer.

#![allow(clippy::unwrap_used, reason = "what a test sets up is there")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use flags::{Bind, BindHost};
use serve::http::{OpsRuntime, health, serve};
use serve::metrics::{Exposition, Registry};

const IN_CHILD: &str = "RESOLVER_DOES_NOT_ANSWER";

/// glibc reads the file `$HOSTALIASES` before it resolves a name without dots; this one is a pipe without a writer. The
/// variable needs a process of its own.
#[test]
fn name_that_is_not_resolved_does_not_delay_health() {
    if std::env::var_os(IN_CHILD).is_some() {
        return health_beside_a_name();
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "name_that_is_not_resolved_does_not_delay_health", "--nocapture"]);
    assert!(child.env("HOSTALIASES", pipe).env(IN_CHILD, "1").status().unwrap().success());
}

fn health_beside_a_name() {
    let ops = OpsRuntime::start().unwrap();
    let port = |name, host| {
        let bind = Bind { host: BindHost::parse(host), port: 0 };
        serve(ops.handle(), name, bind, health::server(Vec::new, Exposition::new(Registry::default())))
    };
    let named = port("admin", "name-without-dots");
    let health = port("health", "127.0.0.1");
    let bound = async { *health.address().wait_for(Option::is_some).await.unwrap() };
    let bound = async { tokio::time::timeout(Duration::from_secs(10), bound).await };
    let address =
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(bound);
    let mut client = TcpStream::connect(address.expect("is bound").unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("ok"), "{answer}");
    assert!(named.address().borrow().is_none(), "the name is still being resolved");
    // The resolver's thread does not end.
    std::process::exit(0);
}
