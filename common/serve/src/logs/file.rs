//! Log files like klog's: appended to at the start, rotated at their maximum size, with a header.
//!
//! The operator names a `--log-file`, so links are followed: /dev/stdout is one, and a file in /var/log may be a link
//! to another disk. Files in a folder have names that anyone can predict, and the folder may be /tmp. So a link there
//! (or a pipe, whose opening would block) was planted, and is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::line::stamps;
use super::records::FILE_SIZE;
use super::{LogError, Options, Severity};

/// The maximum size of a file in a folder, in bytes. Source: klog's `MaxSize`.
const FOLDER_FILE_SIZE: u64 = 1800 * MIB;
const MIB: u64 = 1024 * 1024;

/// A log file, and where the next one is created.
#[derive(Debug)]
pub(super) struct LogFile {
    place: Place,
    opening: bool,
    limit: u64,
    file: File,
    size: u64,
    /// The last write failed: the file may end with a partial line.
    torn: bool,
}

/// The destination of lines.
#[derive(Debug)]
enum Place {
    /// One file, which rotation truncates.
    Fixed(PathBuf),
    /// One file, which rotation renames to `PATH.1`.
    Kept(PathBuf),
    /// A new file for each rotation, in the first folder that accepts it.
    Folders(Vec<PathBuf>, Severity),
}

impl LogFile {
    /// Opens the file for lines of this severity.
    pub(super) fn open(options: &Options, severity: Severity) -> Result<Self, LogError> {
        let (place, limit) = match &options.log_file {
            Some(path) if options.log_file_max_size == 0 => (Place::Fixed(path.clone()), u64::MAX),
            Some(path) => (Place::Fixed(path.clone()), options.log_file_max_size.saturating_mul(MIB)),
            None => {
                let folders = options.log_dir.iter().cloned().chain([std::env::temp_dir()]).collect();
                (Place::Folders(folders, severity), FOLDER_FILE_SIZE)
            }
        };
        let file = place.open(true).map_err(|(path, error)| {
            let path = path.display();
            LogError(format!("cannot open the log file {path} (--log-file, --log-dir): {error}"))
        })?;
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        let mut log = Self { place, opening: !options.skip_log_headers, limit, file, size, torn: false };
        // A full disk must not prevent the start.
        let _ = log.write_opening();
        Ok(log)
    }

    /// Opens the file of a connection log.
    pub(super) fn records(path: &Path) -> Result<Self, LogError> {
        let file = open(path, true, OFlags::empty()).map_err(|error| {
            LogError(format!("--connection-log: cannot open {}: {error}", path.display()))
        })?;
        // A device or a pipe has no size.
        let (size, limit) = match file.metadata() {
            Ok(metadata) if metadata.is_file() => (metadata.len(), FILE_SIZE),
            _ => (0, u64::MAX),
        };
        Ok(Self { place: Place::Kept(path.to_owned()), opening: false, limit, file, size, torn: false })
    }

    /// Whether `more` further bytes would reach the limit.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.size.saturating_add(more as u64) >= self.limit
    }

    /// Rotates.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        self.file = self.place.open(false).map_err(|(_, source)| source)?;
        self.size = 0;
        self.torn = false;
        self.write_opening()
    }

    fn write_opening(&mut self) -> io::Result<()> {
        if !self.opening {
            return Ok(());
        }
        let text = format!(
            "Log file created at: {}\nRunning on machine: {}\nBinary: {} {}\n\
             Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu processid file:line] msg\n",
            stamps().0,
            host(),
            program(),
            env!("CARGO_PKG_VERSION"),
        );
        self.write_all(text.as_bytes())
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> String {
        match &self.place {
            Place::Fixed(path) | Place::Kept(path) => path.display().to_string(),
            Place::Folders(folders, _) => {
                folders.first().map(|f| f.display().to_string()).unwrap_or_default()
            }
        }
    }
}

impl Write for LogFile {
    /// Writes complete lines, all of them.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if self.torn {
            self.file.write_all(b"\n")?;
        }
        self.torn = true;
        self.file.write_all(lines)?;
        self.torn = false;
        self.size += lines.len() as u64;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Place {
    fn open(&self, keep: bool) -> Result<File, (PathBuf, io::Error)> {
        match self {
            Place::Fixed(path) => open(path, keep, OFlags::empty()).map_err(|error| (path.clone(), error)),
            Place::Kept(path) => {
                let mut kept = path.clone().into_os_string();
                kept.push(".1");
                // An earlier attempt may have renamed the file and failed to open a new one.
                let renamed = fs::rename(path, kept).or_else(|error| {
                    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
                });
                renamed
                    .and_then(|()| open(path, true, OFlags::empty()))
                    .map_err(|error| (path.clone(), error))
            }
            Place::Folders(folders, severity) => {
                let mut last = (PathBuf::new(), io::Error::from(io::ErrorKind::NotFound));
                for folder in folders {
                    match open_in(folder, *severity, keep) {
                        Ok(file) => return Ok(file),
                        Err(error) => last = (folder.clone(), error),
                    }
                }
                Err(last)
            }
        }
    }
}

fn open(path: &Path, keep: bool, flags: OFlags) -> io::Result<File> {
    let flags = flags.bits().cast_signed();
    let file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path)?;
    // Devices such as /dev/full cannot be truncated, and need not be.
    if !keep && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a file whose name we chose: no link, no pipe, no device.
fn open_own(path: &Path, keep: bool) -> io::Result<File> {
    // Without NONBLOCK, opening a pipe without a reader would block. It has no effect on a file.
    let file = open(path, keep, OFlags::NOFOLLOW | OFlags::NONBLOCK)?;
    let found = file.metadata()?;
    if found.is_file() { Ok(file) } else { Err(io::Error::other("it exists and is not a regular file")) }
}

/// Creates `PROGRAM.HOST.USER.log.SEVERITY.DATE-TIME.PID`, and the link `PROGRAM.SEVERITY` to it.
fn open_in(folder: &Path, severity: Severity, keep: bool) -> io::Result<File> {
    let tag = match severity {
        Severity::Info => "INFO",
        Severity::Warning => "WARNING",
        Severity::Error => "ERROR",
        Severity::Fatal => "FATAL",
    };
    let user = std::env::var("USER").unwrap_or_else(|_| rustix::process::getuid().as_raw().to_string());
    let (program, pid) = (program(), std::process::id());
    let name = format!("{program}.{}.{}.log.{tag}.{}.{pid}", host(), user.replace('/', "_"), stamps().1);
    let file = open_own(&folder.join(&name), keep)?;
    let link = folder.join(format!("{program}.{tag}"));
    // The link is only a convenience.
    let _ = fs::remove_file(&link);
    let _ = std::os::unix::fs::symlink(&name, &link);
    Ok(file)
}

fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    path.file_name().map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The machine's name up to its first dot.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or("unknownhost").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn options(folder: &Path) -> Options {
        Options {
            logtostderr: false,
            skip_log_headers: true,
            log_dir: Some(folder.to_owned()),
            ..Options::default()
        }
    }

    #[test]
    fn a_planted_link_or_pipe_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, link, pipe) =
            (folder.path().join("victim"), folder.path().join("link"), folder.path().join("pipe"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        symlink(folder.path().join("new"), folder.path().join("dangling")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        for planted in [link, pipe, folder.path().join("dangling")] {
            assert!(open_own(&planted, false).is_err(), "{}", planted.display());
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!folder.path().join("new").exists());
        open_own(&victim, true).unwrap().write_all(b" and ours").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious and ours");
    }

    #[test]
    fn a_log_file_may_be_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (elsewhere, link) = (folder.path().join("elsewhere"), folder.path().join("link"));
        symlink(&elsewhere, &link).unwrap();
        let mut log =
            LogFile::open(&Options { log_file: Some(link), ..options(folder.path()) }, Severity::Info)
                .unwrap();
        log.write_all(b"a line\n").unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "a line\n");
    }
}
