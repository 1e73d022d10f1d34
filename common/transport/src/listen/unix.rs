//! The frontend's Unix socket: its file, from birth to removal.
//!
//! Order of birth: bind, set the mode, listen. Until the last step nobody can connect, whatever the mode
//! of the file is, so the process's umask is not touched (it belongs to all threads).
//!
//! Whether the file is still ours is decided by device and inode. A bound socket holds its inode, so
//! the number cannot be given to another file while we live.
//!
//! A path that begins with `@` is, as in Go, the name of an abstract socket: it has no file, so that there is nothing to
//! make room for, to protect by a mode, to watch and to remove. The kernel frees the name with the socket.
//!
//! A process that is about to end goes on accepting while its successor starts on the same path ([`UnixSocket::yielding`]):
//! from then on it binds no file again that is gone, since the successor is between its deletion and its own bind.
//!
//! An empty directory at the path gives way to the socket as well: a container runtime makes one where a hostPath is
//! missing. Never here: deletion of anything else that is not a socket.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Interval, MissedTickBehavior};

use super::accept::Source;
use super::error::BindError;
use super::limits::{BACKLOG, UNIX_MODE, UNIX_WATCH};

/// A listening Unix socket that binds itself again when its file is deleted. Dropping it removes the
/// file, if that is still ours.
#[derive(Debug)]
pub struct UnixSocket {
    path: PathBuf,
    bound: Bound,
    watch: Pin<Box<Interval>>,
    /// Accepted by the kernel before the file vanished.
    left_over: VecDeque<UnixStream>,
    /// Whether clients reach it, as far as was last seen: the file is there, and ours.
    reachable: Arc<AtomicBool>,
    /// The process is about to end: the path is its successor's.
    leaving: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Bound {
    listener: UnixListener,
    /// None: an abstract socket.
    file: Option<FileId>,
}

/// Which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl UnixSocket {
    /// Binds, with mode 0770. An existing socket file is deleted if `delete_existing`; like Go, without
    /// asking whether somebody still listens there. `@name` is an abstract socket. Must be called within a runtime.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(path: &Path, delete_existing: bool) -> Result<Self, BindError> {
        let bound = match abstract_name(path) {
            Some(name) => Bound::to_name(path, name)?,
            None => {
                make_room(path, delete_existing)?;
                Bound::to_file(path)?
            }
        };
        let mut watch = tokio::time::interval(UNIX_WATCH);
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            path: path.to_owned(),
            bound,
            watch: Box::pin(watch),
            left_over: VecDeque::new(),
            reachable: Arc::new(AtomicBool::new(true)),
            leaving: Arc::default(),
        })
    }

    /// Whether a path is the name of an abstract socket, to which whoever shares the network namespace may connect.
    pub fn is_abstract(path: &Path) -> bool {
        abstract_name(path).is_some()
    }

    /// Keeps `reachable` true to whether clients reach the socket, from now on: they do not while its directory is
    /// missing, or another's file is there.
    #[must_use]
    pub fn telling(mut self, reachable: Arc<AtomicBool>) -> Self {
        reachable.store(true, Ordering::Release);
        self.reachable = reachable;
        self
    }

    /// While `leaving` holds, a file that is gone is not bound again, and another's file is no fault.
    #[must_use]
    pub fn yielding(mut self, leaving: Arc<AtomicBool>) -> Self {
        self.leaving = leaving;
        self
    }

    /// Where it listens: a file's path, or `@name`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at the file, and binds again if there is none. Established connections do not notice.
    fn check(&mut self, cx: &mut Context<'_>) {
        let Some(file) = self.bound.file else { return };
        if self.leaving.load(Ordering::Acquire) {
            return;
        }
        let why = match fs::symlink_metadata(&self.path) {
            Ok(found) if FileId::of(&found) == file => {
                return self.reachable.store(true, Ordering::Release);
            }
            Ok(_) => "somebody else's file is there".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match Bound::to_file(&self.path) {
                Ok(bound) => return self.replace(bound, cx),
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        if self.reachable.swap(false, Ordering::AcqRel) {
            tracing::error!(path = %self.path.display(), %why, "frontends cannot reach the Unix socket");
        }
    }

    fn replace(&mut self, bound: Bound, cx: &mut Context<'_>) {
        while let Poll::Ready(Ok((stream, _))) = self.bound.listener.poll_accept(cx) {
            self.left_over.push_back(stream);
        }
        self.bound = bound;
        self.reachable.store(true, Ordering::Release);
        tracing::warn!(path = %self.path.display(), "the Unix socket's file was deleted: bound again");
    }
}

impl Source for UnixSocket {
    type Conn = UnixStream;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        // Before accepting: a busy listener must be watched as well, and a tick is rare.
        while self.watch.as_mut().poll_tick(cx).is_ready() {
            self.check(cx);
        }
        if let Some(stream) = self.left_over.pop_front() {
            return Poll::Ready(Ok(stream));
        }
        self.bound.listener.poll_accept(cx).map_ok(|(stream, _)| stream)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let Some(file) = self.bound.file else { return };
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| FileId::of(&found) == file);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the Unix socket's file");
        }
    }
}

impl Bound {
    fn to_file(path: &Path) -> Result<Self, BindError> {
        let failed = |source: io::Error| BindError::Unix { path: path.to_owned(), source };
        let socket = bound(path, path, |kind| match kind {
            io::ErrorKind::NotFound => Some(BindError::NoDirectory { path: path.to_owned() }),
            io::ErrorKind::AddrInUse => Some(BindError::Exists { path: path.to_owned() }),
            _ => None,
        })?;
        fs::set_permissions(path, Permissions::from_mode(UNIX_MODE)).map_err(failed)?;
        let file = FileId::of(&fs::symlink_metadata(path).map_err(failed)?);
        Ok(Self { listener: listening(socket).map_err(failed)?, file: Some(file) })
    }

    fn to_name(path: &Path, name: &OsStr) -> Result<Self, BindError> {
        let mut address = OsString::from("\0");
        address.push(name);
        let taken = || BindError::NameTaken { path: path.to_owned() };
        let socket = bound(path, Path::new(&address), |kind| (kind == io::ErrorKind::AddrInUse).then(taken))?;
        let listener =
            listening(socket).map_err(|source| BindError::Unix { path: path.to_owned(), source })?;
        Ok(Self { listener, file: None })
    }
}

/// What follows the `@` of an abstract socket's name.
fn abstract_name(path: &Path) -> Option<&OsStr> {
    path.as_os_str().as_bytes().strip_prefix(b"@").map(OsStr::from_bytes)
}

/// A socket with an address, on which nobody can connect yet. `path` is for errors, of which `known` has words for some.
fn bound(
    path: &Path,
    address: &Path,
    known: impl Fn(io::ErrorKind) -> Option<BindError>,
) -> Result<Socket, BindError> {
    let failed = |source: io::Error| BindError::Unix { path: path.to_owned(), source };
    let address = SockAddr::unix(address).map_err(|_| BindError::PathTooLong { path: path.to_owned() })?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    socket.bind(&address).map_err(|error| known(error.kind()).unwrap_or_else(|| failed(error)))?;
    Ok(socket)
}

fn listening(socket: Socket) -> io::Result<UnixListener> {
    socket.listen(BACKLOG)?;
    UnixListener::from_std(StdListener::from(socket))
}

/// Deletes the socket of a process before, if there is one and that is wanted.
fn make_room(path: &Path, delete_existing: bool) -> Result<(), BindError> {
    let path_buf = || path.to_owned();
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(BindError::Unix { path: path_buf(), source }),
    };
    if found.is_dir() && delete_existing && fs::remove_dir(path).is_ok() {
        tracing::warn!(path = %path.display(), "removed an empty directory at the Unix socket's path");
        return Ok(());
    }
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path_buf() });
    }
    if !delete_existing {
        return Err(BindError::Exists { path: path_buf() });
    }
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(BindError::Unix { path: path_buf(), source })
        }
        _ => Ok(()),
    }
}
