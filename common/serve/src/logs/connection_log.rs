//! The connection log: one JSON object a line, for each connection at its end and for each failed dial.
//!
//! Written like the log: the data path puts a line into a bounded queue, and a thread writes it. Lines that do not fit, or
//! cannot be written, are lost and counted.
//!
//! A file that reaches [`MAX_FILE_SIZE`] is renamed to `PATH.1`, which replaces the one before. The images have no logrotate,
//! and SIGHUP, by which other programs reopen their files, ends this one as it ends Go's.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::file::LogFile;
use super::line::{now, rfc3339};
use super::queue::{Line, Queue};
use super::writer::Output;
use super::{FLUSH_TIMEOUT, Severity};
use crate::metrics::Registry;

/// The size at which a file is replaced, in bytes.
pub(super) const MAX_FILE_SIZE: u64 = 100 << 20;

/// The pause between two writes. Nobody follows each connection, and each write costs as much as a few lines.
const WRITE_PAUSE: Duration = Duration::from_millis(100);

/// A line without its end.
#[derive(Serialize)]
struct Record<'a, T> {
    time: String,
    #[serde(flatten)]
    fields: &'a T,
}

/// The connection log, or none. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ConnectionLogWriter(Option<Arc<Queue>>);

impl ConnectionLogWriter {
    /// Opens the file, or standard error for `stderr`; nothing without a path.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub fn start(to: Option<&Path>) -> io::Result<Self> {
        let Some(path) = to else { return Ok(Self(None)) };
        let is_stderr = path.as_os_str() == "stderr";
        let mut output = Output::new(if is_stderr { None } else { Some(LogFile::records(path)?) });
        let queue = Queue::start("connection log", WRITE_PAUSE, move |lines, lost| {
            lost.inc_by(lines.iter().map(|line| output.add(line)).sum::<u64>() + output.flush());
        })?;
        Ok(Self(Some(queue)))
    }

    /// Registers `connection_log_lines_lost_total`, if there is a connection log.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(queue) = &self.0 {
            let help = "Lines of the connection log that could not be written";
            registry.register("connection_log_lines_lost_total", help, queue.lost.clone());
        }
    }

    /// Whether there is a connection log.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Queues a line: the time, then the fields of this struct. Never waits.
    pub fn write(&self, fields: &impl Serialize) {
        let Some(queue) = &self.0 else { return };
        // Structs of strings and numbers always serialize.
        let Ok(mut text) = serde_json::to_string(&Record { time: rfc3339(now()), fields }) else { return };
        text.push('\n');
        queue.push(Line { severity: Severity::Info, text });
    }

    /// Waits until the queue is written, for two seconds at most. Blocks the thread: for use at the process's end.
    pub fn flush(&self) {
        if let Some(queue) = &self.0 {
            queue.flush(FLUSH_TIMEOUT);
        }
    }
}

/// A duration as a field of a record, in milliseconds with three decimals.
pub fn milliseconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| (duration.as_secs_f64() * 1e6).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[derive(Serialize)]
    struct Fields<'a> {
        target: &'a str,
        bytes: u64,
    }

    #[test]
    fn a_record_is_one_json_object_with_its_time_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("connections");
        let records = ConnectionLogWriter::start(Some(&path)).unwrap();
        records.write(&Fields { target: "a\"b\nc", bytes: 7 });
        records.flush();
        let text = fs::read_to_string(&path).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(line.starts_with("{\"time\":\"20") && !line.contains('\n'), "{line}");
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((record["target"].as_str(), record["bytes"].as_u64()), (Some("a\"b\nc"), Some(7)));
    }

    #[test]
    fn a_full_file_is_kept_once_under_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, kept) = (folder.path().join("connections"), folder.path().join("connections.1"));
        fs::write(&path, "before\n").unwrap();
        fs::write(&kept, "long ago\n").unwrap();
        let mut file = LogFile::records(&path).unwrap();
        file.rotate().unwrap();
        file.write_all(b"after\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after\n");
        assert_eq!(fs::read_to_string(&kept).unwrap(), "before\n");
    }

    #[test]
    fn a_file_that_cannot_be_renamed_is_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("connections");
        fs::create_dir(folder.path().join("connections.1")).unwrap();
        let mut file = LogFile::records(&path).unwrap();
        for text in ["one\n", "two\n", "three\n"] {
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            file.rotate().unwrap();
        }
    }

    #[test]
    fn the_file_behind_a_link_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("connections"), folder.path().join("link"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let stdout = fs::File::create(&path).unwrap();
        let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&stdout));
        for link in [&link, Path::new(&descriptor)] {
            let mut file = LogFile::records(link).unwrap();
            file.write_all(b"before\n").unwrap();
            file.rotate().unwrap();
            file.write_all(b"after\n").unwrap();
            assert!(link.is_symlink());
            assert_eq!(fs::read_to_string(&path).unwrap(), "after\n");
            assert_eq!(fs::read_to_string(folder.path().join("connections.1")).unwrap(), "before\n");
            fs::rename(folder.path().join("connections.1"), &path).unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        }
        fs::remove_file(&path).unwrap();
        let mut deleted = LogFile::records(Path::new(&descriptor)).unwrap();
        deleted.write_all(b"before\n").unwrap();
        deleted.rotate().unwrap();
        assert_eq!(stdout.metadata().unwrap().len(), 0);
    }

    #[test]
    fn the_file_of_another_process_is_not_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, kept) = (folder.path().join("connections"), folder.path().join("connections.1"));
        let [mut old, mut new] = [(); 2].map(|()| LogFile::records(&path).unwrap());
        new.write_all(b"before\n").unwrap();
        new.rotate().unwrap();
        new.write_all(b"after\n").unwrap();
        old.rotate().unwrap();
        old.write_all(b"last\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after\nlast\n");
        assert_eq!(fs::read_to_string(&kept).unwrap(), "before\n");
    }

    #[test]
    fn a_pipe_that_is_not_read_blocks_no_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let pipe = fs::File::options().read(true).write(true).open(&path).unwrap();
        let records = ConnectionLogWriter::start(Some(&path)).unwrap();
        let target = "x".repeat(1_000);
        for _ in 0..10_000 {
            records.write(&Fields { target: &target, bytes: 0 });
        }
        assert!(records.0.as_ref().is_some_and(|queue| queue.lost.get() > 1_000));
        drop(pipe);
    }

    #[test]
    fn lost_lines_are_counted() {
        let records = ConnectionLogWriter::start(Some(Path::new("/dev/full"))).unwrap();
        records.write(&Fields { target: "", bytes: 0 });
        records.flush();
        assert_eq!(records.0.as_ref().map(|queue| queue.lost.get()), Some(1));
        let refused = ConnectionLogWriter::start(Some(Path::new("/none/of/these"))).unwrap_err().to_string();
        assert!(refused.starts_with("--connection-log: cannot open /none/of/these: "), "{refused}");
        ConnectionLogWriter::default().write(&Fields { target: "", bytes: 0 });
    }
}
