//! Listeners with real sockets, and the back-off with paused time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use socket2::SockRef;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::unix::{UNIX_MODE, UNIX_WATCH};
use super::*;

/// Plays a script of accepts, and records the time of each.
struct Script {
    results: VecDeque<Result<u32, Errno>>,
    asked: Vec<Instant>,
}

impl Script {
    fn new(results: impl IntoIterator<Item = Result<u32, Errno>>) -> Self {
        Self { results: results.into_iter().collect(), asked: Vec::new() }
    }
}

impl Source for Script {
    type Conn = u32;

    fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<io::Result<u32>> {
        self.asked.push(Instant::now());
        match self.results.pop_front() {
            Some(result) => Poll::Ready(result.map_err(io::Error::from)),
            None => Poll::Pending,
        }
    }
}

pub(super) async fn accept_all<S: Source>(mut accepting: AcceptLoop<S>) {
    loop {
        drop(accepting.accept().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lack_of_descriptors_is_waited_out() {
    for lack in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
        let script = Script::new((0..12).map(|_| Err(lack)).chain([Ok(7), Err(lack), Ok(8)]));
        let mut accepting = AcceptLoop::new(script, "test");
        assert_eq!(accepting.accept().await, 7);
        let asked = &accepting.source.asked;
        let pauses: Vec<_> = asked.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
        // Timers have a resolution of 1 ms, and never fire early.
        assert!(pauses.len() == 12 && pauses.iter().all(|pause| (100..103).contains(pause)), "{pauses:?}");
        assert_eq!(accepting.accept().await, 8);
    }
}

#[tokio::test(start_paused = true)]
async fn errors_of_one_connection_cost_no_time() {
    let script = [Errno::CONNABORTED, Errno::INTR].map(Err);
    let mut accepting = AcceptLoop::new(Script::new(script.into_iter().chain([Ok(1)])), "test");
    let before = Instant::now();
    assert_eq!(accepting.accept().await, 1);
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn canceled_accept_keeps_its_pause() {
    let mut accepting =
        AcceptLoop::new(Script::new((0..20).map(|_| Err(Errno::MFILE)).chain([Ok(1)])), "test");
    let before = Instant::now();
    loop {
        if let Ok(conn) = timeout(Duration::from_millis(1), accepting.accept()).await {
            assert_eq!(conn, 1);
            break;
        }
    }
    assert!(before.elapsed() >= Duration::from_secs(2));
    assert_eq!(accepting.source.asked.len(), 21);
}

/// Counts log lines.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn failed_accepts_are_logged_once_a_minute_while_they_last() {
    let lines = Lines::default();
    let _log = tracing::subscriber::set_default(lines.clone());
    // 150 s, with a connection after 50 s.
    let lack = |times| (0..times).map(|_| Err(Errno::MFILE));
    let script = Script::new(lack(500).chain([Ok(1)]).chain(lack(1_000)).chain([Ok(2)]));
    let mut accepting = AcceptLoop::new(script, "test");
    assert_eq!(accepting.accept().await, 1);
    assert_eq!(lines.0.load(Ordering::Relaxed), 1);
    assert_eq!(accepting.accept().await, 2);
    assert_eq!(lines.0.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn tcp_binds_as_go_does() {
    for host in ["", "0.0.0.0", "::", "[::]"] {
        let listener = bind_tcp(host, 0).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            TcpStream::connect(("::1", port)).await.unwrap();
        }
    }
    for host in ["127.0.0.1", "localhost"] {
        assert!(bind_tcp(host, 0).unwrap().local_addr().unwrap().ip().is_loopback(), "{host}");
    }
}

#[tokio::test]
async fn ipv4_peer_of_a_listener_for_both_families_has_an_ipv4_address() {
    let mut accepting = AcceptLoop::new(bind_tcp("", 0).unwrap(), "test");
    let port = accepting.source.local_addr().unwrap().port();
    let client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    assert_eq!(accepting.accept().await.1, client.local_addr().unwrap());
}

#[tokio::test]
async fn bind_errors_name_the_address() {
    let taken = bind_tcp("127.0.0.1", 0).unwrap().into_std().unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = bind_tcp("127.0.0.1", port).unwrap_err();
    let text = format!("cannot listen on 127.0.0.1:{port}: Address already in use");
    assert!(error.to_string().starts_with(&text), "{error}");
    // A documentation address, which no machine has.
    let error = bind_tcp("192.0.2.1", 0).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1:0"), "{error}");
    let error = bind_tcp("no such host", 0).unwrap_err().to_string();
    assert!(error.contains("no such host"), "{error}");
}

#[tokio::test]
async fn connections_are_tuned() {
    let listener = bind_tcp("127.0.0.1", 0).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    tune(&stream, Some(Duration::from_secs(20))).unwrap();
    let socket = SockRef::from(&stream);
    assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(10));
    assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(5));
    assert_eq!(socket.tcp_keepalive_retries().unwrap(), 4);
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(20)));
}

#[tokio::test]
async fn segments_are_bounded_in_both_directions() {
    let listener = bind_links("127.0.0.1", 0).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    for socket in [&stream, &accepted] {
        let largest = SockRef::from(socket).tcp_mss().unwrap();
        assert!((16_000..=32_000).contains(&largest), "{largest}");
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_unix_socket_lives_and_is_removed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s.sock");
    let mut accepting = AcceptLoop::new(UnixSocket::bind(&path, true).unwrap(), "test");
    assert_eq!(mode(&path), UNIX_MODE);
    let _client = UnixStream::connect(&path).await.unwrap();
    accepting.accept().await;
    drop(accepting);
    assert!(!path.exists());
}

/// Why the path is refused. The error names the path.
pub(super) fn refusal(path: &Path, delete_existing: bool) -> String {
    let text = UnixSocket::bind(path, delete_existing).unwrap_err().to_string();
    let why = text.strip_prefix(&format!("cannot listen on {}: ", path.display()));
    why.unwrap_or_else(|| panic!("{text}")).to_owned()
}

const NOT_A_SOCKET: &str = "the file exists and is not a socket: remove it or choose another path";

#[tokio::test]
async fn kind_of_the_existing_file_decides() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s.sock");
    let stale = StdUnixListener::bind(&path).unwrap();
    assert_eq!(refusal(&path, false), "the socket exists already: remove it or allow its deletion");
    let bound = UnixSocket::bind(&path, true).unwrap();
    drop((stale, bound));

    std::fs::write(&path, "precious").unwrap();
    for delete in [true, false] {
        assert_eq!(refusal(&path, delete), NOT_A_SOCKET);
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::write(&path, "").unwrap();
    assert_eq!(refusal(&path, false), NOT_A_SOCKET);
    drop(UnixSocket::bind(&path, true).unwrap());
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), dir.path().join("link")).unwrap();
    assert_eq!(refusal(&dir.path().join("link"), true), NOT_A_SOCKET);

    let folder = dir.path().join("folder");
    std::fs::create_dir_all(folder.join("full")).unwrap();
    assert_eq!(refusal(&folder, true), NOT_A_SOCKET);
    std::fs::remove_dir(folder.join("full")).unwrap();
    assert_eq!(refusal(&folder, false), NOT_A_SOCKET);
    assert!(folder.is_dir());
    drop(UnixSocket::bind(&folder, true).unwrap());

    assert_eq!(refusal(&dir.path().join("none/s.sock"), true), "its directory does not exist");
    let long = dir.path().join("x".repeat(200));
    assert_eq!(refusal(&long, true), "a socket's path must be shorter than 108 bytes");
}

#[tokio::test]
async fn anothers_file_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s.sock");
    let ours = UnixSocket::bind(&path, true).unwrap();
    let theirs = UnixSocket::bind(&path, true).unwrap();
    drop(ours);
    assert!(UnixStream::connect(&path).await.is_ok());
    drop(theirs);
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_file_is_bound_again() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s.sock");
    let mut socket = UnixSocket::bind(&path, true).unwrap();
    let mut early = UnixStream::connect(&path).await.unwrap();
    let mut accepted = poll_fn(|cx| socket.poll_accept(cx)).await.unwrap();
    // Queued in the kernel when the file is deleted.
    let mut queued = UnixStream::connect(&path).await.unwrap();
    queued.write_all(b"q").await.unwrap();
    std::fs::remove_file(&path).unwrap();

    let before = Instant::now();
    let mut accepting = AcceptLoop::new(socket, "test");
    let (send, mut accepted_later) = tokio::sync::mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move {
            while let Some(stream) = stop.run_until_cancelled(accepting.accept()).await {
                send.send(stream).unwrap();
            }
        }
    });
    assert_eq!(accepted_later.recv().await.unwrap().read_u8().await.unwrap(), b'q');
    let bound_again = || std::fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    while !bound_again() {
        assert!(before.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(mode(&path), UNIX_MODE);
    let mut late = UnixStream::connect(&path).await.unwrap();
    late.write_all(b"n").await.unwrap();
    assert_eq!(accepted_later.recv().await.unwrap().read_u8().await.unwrap(), b'n');

    early.write_all(b"e").await.unwrap();
    assert_eq!(accepted.read_u8().await.unwrap(), b'e');
    stop.cancel();
    running.await.unwrap();
    assert!(!path.exists());
}

/// Waits until the flag has the wanted value.
async fn becomes(reach: &Reach, wanted: bool) {
    let before = Instant::now();
    while reach.obstacle().is_none() != wanted {
        assert!(before.elapsed() < UNIX_WATCH * 3, "still {}", !wanted);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_socket_is_reported() {
    let dir = TempDir::new().unwrap();
    let (folder, path) = (dir.path().join("folder"), dir.path().join("folder/s.sock"));
    std::fs::create_dir(&folder).unwrap();
    let reach = Reach::default();
    reach.set(Some("not bound".to_owned()));
    let socket = UnixSocket::bind(&path, true).unwrap().reporting(reach.clone());
    assert_eq!(reach.obstacle(), None);
    let accepting = AcceptLoop::new(socket, "test");
    let running = tokio::spawn(accept_all(accepting));

    std::fs::remove_dir_all(&folder).unwrap();
    becomes(&reach, false).await;
    std::fs::create_dir(&folder).unwrap();
    becomes(&reach, true).await;
    UnixStream::connect(&path).await.unwrap();

    // Another process's file replaces it, then disappears.
    let theirs = UnixSocket::bind(&path, true).unwrap();
    becomes(&reach, false).await;
    assert_eq!(reach.obstacle(), Some(format!("{}: another process's file is there", path.display())));
    drop(theirs);
    becomes(&reach, true).await;
    UnixStream::connect(&path).await.unwrap();
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_yields_leaves_its_path_to_the_successor() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s.sock");
    let shutdown = CancellationToken::new();
    let socket = UnixSocket::bind(&path, true).unwrap().yielding(shutdown.clone());
    let running = tokio::spawn(accept_all(AcceptLoop::new(socket, "test")));
    shutdown.cancel();
    UnixStream::connect(&path).await.unwrap();
    // The successor has deleted the file and not bound yet.
    std::fs::remove_file(&path).unwrap();
    tokio::time::sleep(UNIX_WATCH * 3).await;
    assert!(!path.exists());
    let successor = UnixSocket::bind(&path, false).unwrap();
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    UnixStream::connect(&path).await.unwrap();
    drop(successor);
}

#[test]
fn the_descriptor_limit_is_raised() {
    raise_descriptor_limit().unwrap();
    let limit = getrlimit(Resource::Nofile);
    assert_eq!(limit.current, limit.maximum);
}
