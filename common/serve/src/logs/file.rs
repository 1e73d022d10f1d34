//! Log files like klog's: appended to at the start, rotated at their maximum size, with a header.
//!
//! The operator names a `--log-file`, so links are followed: /dev/stdout is one, and a file in /var/log may be a link
//! to another disk. Files in a folder have names that anyone can predict, and the folder may be /tmp. So what has such a name
//! already (a link, or a pipe whose opening would block) may be planted: only a new file is used.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::connection_log::MAX_FILE_SIZE;
use super::line::stamps;
use super::{Format, Options, Severity};

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
    /// One file, which rotation renames to `PATH.1`; it becomes `Fixed` if that fails.
    Kept(PathBuf),
    /// A new file for each rotation, in the first folder that accepts it.
    Folders(Vec<PathBuf>, Severity),
}

impl LogFile {
    /// Opens the file for lines of this severity.
    pub(super) fn open(options: &Options, severity: Severity) -> io::Result<Self> {
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
            io::Error::other(format!("cannot open the log file {path} (--log-file, --log-dir): {error}"))
        })?;
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        let opening = !options.skip_log_headers && options.format == Format::Text;
        let mut log = Self { place, opening, limit, file, size, torn: false };
        // A full disk must not prevent the start.
        let _ = log.write_opening();
        Ok(log)
    }

    /// Opens the file of a connection log.
    pub(super) fn records(path: &Path) -> io::Result<Self> {
        let file = open(path, true).map_err(|error| {
            io::Error::other(format!("--connection-log: cannot open {}: {error}", path.display()))
        })?;
        // A device or a pipe has no size.
        let (size, limit) = match file.metadata() {
            Ok(metadata) if metadata.is_file() => (metadata.len(), MAX_FILE_SIZE),
            _ => (0, u64::MAX),
        };
        // The path may be a link (/dev/stdout is one), which must not be renamed. A deleted file has no path.
        let place = path.canonicalize().map_or_else(|_| Place::Fixed(path.to_owned()), Place::Kept);
        Ok(Self { place, opening: false, limit, file, size, torn: false })
    }

    /// Whether `more` further bytes would reach the limit.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.size.saturating_add(more as u64) >= self.limit
    }

    /// Rotates.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        // If another process has renamed the file, its new file is shared.
        if let Place::Kept(path) = &self.place
            && is_at(&self.file, path)
            && let Err(error) = fs::rename(path, path.with_added_extension("1"))
        {
            let path = path.clone();
            tracing::warn!(path = %path.display(), %error, "connection log cannot be renamed, it is truncated at its limit");
            self.place = Place::Fixed(path);
        }
        self.file = self.place.open(false).map_err(|(_, source)| source)?;
        self.size = self.file.metadata().map_or(0, |metadata| metadata.len());
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

    /// Writes complete lines.
    pub(super) fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.write_all(b"\n")?;
        }
        self.torn = true;
        self.file.write_all(lines)?;
        self.torn = false;
        self.size += lines.len() as u64;
        Ok(())
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

impl Place {
    fn open(&self, keep: bool) -> Result<File, (PathBuf, io::Error)> {
        match self {
            Place::Fixed(path) => open(path, keep).map_err(|error| (path.clone(), error)),
            Place::Kept(path) => open(path, true).map_err(|error| (path.clone(), error)),
            Place::Folders(folders, severity) => {
                let mut last = (PathBuf::new(), io::Error::from(io::ErrorKind::NotFound));
                for folder in folders {
                    match create_in(folder, *severity) {
                        Ok(file) => return Ok(file),
                        Err(error) => last = (folder.clone(), error),
                    }
                }
                Err(last)
            }
        }
    }
}

/// Opens a file to append to it; without `keep` it is emptied.
pub(super) fn open(path: &Path, keep: bool) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    // Devices such as /dev/full cannot be truncated, and need not be.
    if !keep && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Whether the open file is still the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let [open, named] =
        [file.metadata(), fs::metadata(path)].map(|found| found.map(|f| (f.dev(), f.ino())).ok());
    open == named
}

/// Creates `PROGRAM.HOST.USER.log.SEVERITY.DATE-TIME.PID`, and the link `PROGRAM.SEVERITY` to it.
fn create_in(folder: &Path, severity: Severity) -> io::Result<File> {
    let tag = severity.name();
    let user = std::env::var("USER").unwrap_or_else(|_| rustix::process::getuid().as_raw().to_string());
    let (program, pid) = (program(), std::process::id());
    let name = format!("{program}.{}.{}.log.{tag}.{}.{pid}", host(), user.replace('/', "_"), stamps().1);
    let file = File::create_new(folder.join(&name))?;
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
    fn a_planted_link_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        create_in(folder.path(), Severity::Info).unwrap();
        let first = fs::read_link(folder.path().join(format!("{}.INFO", program()))).unwrap();
        let (prefix, _) = first.to_str().unwrap().split_once(".INFO.").unwrap();
        // The name has the time in seconds: the next second may begin before the file is opened.
        let refused = std::iter::repeat_with(|| {
            let second = stamps().1;
            let planted = folder.path().join(format!("{prefix}.INFO.{second}.{}", std::process::id()));
            let _ = fs::remove_file(&planted);
            symlink(&victim, planted).unwrap();
            let opened = create_in(folder.path(), Severity::Info);
            (second == stamps().1).then_some(opened.is_err())
        });
        assert_eq!(refused.flatten().next(), Some(true));
        assert!(!victim.exists());
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
