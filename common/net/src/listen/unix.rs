//! The frontend's Unix socket: its file, from creation to removal.
//!
//! The order is bind, set the mode, listen. Before the last step no client can connect, whatever the file's mode is, so
//! the process's umask stays unchanged (it belongs to all threads).
//!
//! Device and inode decide whether the file is still ours. A bound socket holds its inode, so no other file gets the
//! same number while the socket exists.
//!
//! A path that begins with `@` is, as in Go, the name of an abstract socket. It has no file, so there is nothing to
//! replace, to protect by a mode, to check or to remove. The kernel frees the name with the socket.
//!
//! A process that is about to end continues to accept while its successor starts on the same path
//! ([`UnixSocket::yielding`]). From then on it does not bind a deleted file again, because the successor is between its
//! deletion and its own bind.
//!
//! The socket also replaces an empty file, and an empty directory: a container runtime creates one if a hostPath is missing.
//! Never here: deletion of anything else that is not a socket.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::BindError;
use super::accept::Source;
use super::tcp::BACKLOG;

/// The mode of the frontend's Unix socket: the owner and its group only (umask 0007 in Go).
pub(super) const UNIX_MODE: u32 = 0o770;

/// How often the socket file is checked. A deleted file is bound again within this time.
pub(super) const UNIX_WATCH: Duration = Duration::from_secs(3);

/// Whether clients can reach a listener, and what prevents it. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Reach(Arc<Mutex<Option<String>>>);

impl Reach {
    /// Sets the obstacle; `None` if clients can reach the listener.
    pub fn set(&self, obstacle: Option<String>) {
        *self.0.lock() = obstacle;
    }

    /// The obstacle, if there is one.
    pub fn obstacle(&self) -> Option<String> {
        self.0.lock().clone()
    }
}

/// A listening Unix socket that binds again when its file is deleted. Dropping it removes the file, if the file is
/// still ours.
#[derive(Debug)]
pub struct UnixSocket {
    path: PathBuf,
    bound: Bound,
    watch: Pin<Box<Interval>>,
    /// The listener before the file was deleted, until its queue is empty or the file is deleted again.
    previous: Option<UnixListener>,
    /// As of the last check.
    reach: Reach,
    /// Canceled when the process is about to end: the path belongs to its successor.
    shutdown: CancellationToken,
}

#[derive(Debug)]
struct Bound {
    listener: UnixListener,
    /// `None` for an abstract socket.
    file: Option<FileId>,
}

const EXISTS: &str = "the socket exists already: remove it or allow its deletion";
const TAKEN: &str = "address already in use: stop the process that listens there or choose another name";

/// The device and the inode of a file.
type FileId = (u64, u64);

fn file_id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

impl UnixSocket {
    /// Binds, with mode 0770. Deletes an existing socket file if `delete_existing`; like Go, also if a process listens there. `@name` is an abstract socket. Must be called within a runtime.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(path: &Path, delete_existing: bool) -> Result<Self, BindError> {
        let bound = match abstract_name(path) {
            Some(name) => Bound::to_name(name),
            None => remove_existing(path, delete_existing).and_then(|()| Bound::to_file(path)),
        };
        let bound = bound.map_err(|error| BindError::new(path.display(), named(error)))?;
        let mut watch = tokio::time::interval(UNIX_WATCH);
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            path: path.to_owned(),
            bound,
            watch: Box::pin(watch),
            previous: None,
            reach: Reach::default(),
            shutdown: CancellationToken::new(),
        })
    }

    /// Whether a path names an abstract socket, to which any process in the network namespace may connect.
    pub fn is_abstract(path: &Path) -> bool {
        abstract_name(path).is_some()
    }

    /// Keeps `reach` up to date from now on: clients cannot reach the socket while its directory is missing, or while another file
    /// is at the path.
    #[must_use]
    pub fn reporting(mut self, reach: Reach) -> Self {
        reach.set(None);
        self.reach = reach;
        self
    }

    /// Once `shutdown` is canceled, a deleted file is not bound again, and another process's file is not an error.
    #[must_use]
    pub fn yielding(mut self, shutdown: CancellationToken) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// The address: a file's path, or `@name`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the file, and binds again if it is gone. Established connections continue.
    fn check(&mut self) {
        let Some(file) = self.bound.file else { return };
        if self.shutdown.is_cancelled() {
            return;
        }
        let why = match fs::symlink_metadata(&self.path) {
            Ok(found) if file_id(&found) == file => return self.reach.set(None),
            Ok(_) => "another process's file is there".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match Bound::to_file(&self.path) {
                Ok(bound) => return self.replace(bound),
                Err(error) => BindError::new(self.path.display(), error).to_string(),
            },
            Err(error) => error.to_string(),
        };
        let was_reachable = self.reach.obstacle().is_none();
        self.reach.set(Some(format!("{}: {why}", self.path.display())));
        if was_reachable {
            tracing::error!(path = %self.path.display(), %why, "frontends cannot reach the Unix socket");
        }
    }

    fn replace(&mut self, bound: Bound) {
        self.previous = Some(std::mem::replace(&mut self.bound, bound).listener);
        self.reach.set(None);
        tracing::warn!(path = %self.path.display(), "the Unix socket's file was deleted: bound again");
    }
}

impl Source for UnixSocket {
    type Conn = UnixStream;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        if let Some(previous) = &self.previous {
            let accepted = previous.poll_accept(cx);
            if accepted.is_ready() {
                return accepted.map_ok(|(stream, _)| stream);
            }
            self.previous = None;
        }
        self.bound.listener.poll_accept(cx).map_ok(|(stream, _)| stream)
    }

    fn maintain(&mut self, cx: &mut Context<'_>) {
        while self.watch.as_mut().poll_tick(cx).is_ready() {
            self.check();
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let Some(file) = self.bound.file else { return };
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| file_id(&found) == file);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the Unix socket's file");
        }
    }
}

impl Bound {
    fn to_file(path: &Path) -> io::Result<Self> {
        let socket = bound(path, EXISTS)?;
        fs::set_permissions(path, Permissions::from_mode(UNIX_MODE))?;
        let file = file_id(&fs::symlink_metadata(path)?);
        Ok(Self { listener: listening(socket)?, file: Some(file) })
    }

    fn to_name(name: &OsStr) -> io::Result<Self> {
        let mut address = OsString::from("\0");
        address.push(name);
        Ok(Self { listener: listening(bound(Path::new(&address), TAKEN)?)?, file: None })
    }
}

/// The part of an abstract socket's name after the `@`.
fn abstract_name(path: &Path) -> Option<&OsStr> {
    path.as_os_str().as_bytes().strip_prefix(b"@").map(OsStr::from_bytes)
}

/// The error with its fix, if the directory cannot be written to.
fn named(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let user = rustix::process::geteuid();
            io::Error::other(format!("permission denied: make its directory writable for user {user}"))
        }
        io::ErrorKind::ReadOnlyFilesystem => io::Error::other("its directory is on a read-only file system"),
        _ => error,
    }
}

/// A bound socket that does not listen yet. `taken` is the error if the address is in use.
fn bound(address: &Path, taken: &str) -> io::Result<Socket> {
    let address = SockAddr::unix(address)
        .map_err(|_| io::Error::other("a socket's path must be shorter than 108 bytes"))?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::other("its directory does not exist"))
        }
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(io::Error::other(taken)),
        bound => bound.map(|()| socket),
    }
}

fn listening(socket: Socket) -> io::Result<UnixListener> {
    socket.listen(BACKLOG)?;
    UnixListener::from_std(StdListener::from(socket))
}

/// Deletes the socket of a previous process, or an empty file or directory, if there is one and `delete_existing` is set.
fn remove_existing(path: &Path, delete_existing: bool) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let is_empty_file = found.is_file() && found.len() == 0;
    let is_removed =
        || is_empty_file && fs::remove_file(path).is_ok() || found.is_dir() && fs::remove_dir(path).is_ok();
    if delete_existing && is_removed() {
        tracing::warn!(path = %path.display(), "removed an empty file or directory at the Unix socket's path");
        return Ok(());
    }
    if !found.file_type().is_socket() {
        let why = "the file exists and is not a socket: remove it or choose another path";
        return Err(io::Error::other(why));
    }
    if !delete_existing {
        return Err(io::Error::other(EXISTS));
    }
    if is_in_use(path) {
        tracing::warn!(path = %path.display(), "another process listens on the Unix socket: its clients come here from now on");
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Whether a process listens on the socket, be it that it does not accept.
fn is_in_use(path: &Path) -> bool {
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    };
    connect().map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |()| true)
}
