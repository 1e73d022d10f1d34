//! Unix sockets without a file.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::tests::{accept_all, refusal};
use super::*;

/// `@` and an unused name.
fn fresh() -> PathBuf {
    let folder = tempfile::tempdir().unwrap();
    let random = folder.path().file_name().unwrap().display();
    PathBuf::from(format!("@konnectivity-test-{}{random}", std::process::id()))
}

/// Connects as kube-apiserver does: Go's `net.Dial("unix", "@name")`.
fn connect(path: &Path) -> std::io::Result<StdUnixStream> {
    let name = path.to_str().unwrap().strip_prefix('@').unwrap();
    StdUnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap())
}

#[tokio::test]
async fn a_name_with_an_at_is_abstract() {
    let path = fresh();
    assert!(connect(&path).is_err());
    let socket = UnixSocket::bind(&path, true).unwrap();
    assert_eq!(socket.path(), path);
    let mut accepting = AcceptLoop::new(socket, "test");
    let client = connect(&path).unwrap();
    let mut accepted = accepting.accept().await;
    assert!(!path.exists(), "no file");
    drop(client);
    assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);

    assert!(refusal(&path, true).starts_with("address already in use: "));
    drop(accepting);
    assert!(connect(&path).is_err());
    drop(UnixSocket::bind(&path, false).unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_abstract_socket_is_not_looked_for() {
    let path = fresh();
    let reach = Reach::default();
    let socket = UnixSocket::bind(&path, true).unwrap().reporting(reach.clone());
    let accepting = AcceptLoop::new(socket, "test");
    let running = tokio::spawn(accept_all(accepting));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(reach.obstacle(), None);
    assert!(!path.exists());
    connect(&path).unwrap();
    running.abort();
}

#[tokio::test]
async fn name_that_contains_an_at_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("@name");
    let _socket = UnixSocket::bind(&path, true).unwrap();
    assert!(path.exists());
    let long = PathBuf::from(format!("@{}", "x".repeat(108)));
    assert_eq!(refusal(&long, true), "a socket's path must be shorter than 108 bytes");
    let longest = format!("{}{}", fresh().display(), "x".repeat(108));
    drop(UnixSocket::bind(Path::new(&longest[..108]), true).unwrap());
}
