//! The writer's thread. Only this thread waits for standard error and for disks.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use super::file::LogFile;
use super::line::Style;
use super::queue::{Line, Queue};
use super::{Options, Severity};

/// How many bytes are written at once.
const CHUNK: usize = 64 * 1024;

/// The pause between two writes: nobody who follows the log notices it.
const WRITE_PAUSE: Duration = Duration::from_millis(10);

/// Opens the outputs and starts the thread.
pub(super) fn start(options: &Options) -> io::Result<Arc<Queue>> {
    let (mut writer, style, mut said) = (Writer::new(options)?, Style::new(options), 0);
    Queue::start("log", WRITE_PAUSE, move |lines, lost| {
        let failed = writer.write(lines);
        lost.inc_by(failed);
        let total = lost.get();
        if total > said && failed == 0 {
            let notice = Line { severity: Severity::Warning, text: style.lost(total - said) };
            if writer.write([&notice]) == 0 {
                said = total;
            }
        }
    })
}

/// All outputs.
#[derive(Debug)]
struct Writer {
    options: Options,
    stderr: Output,
    /// One file for `--log-file`; with `--log-dir` one per severity, opened when needed.
    files: [Option<Output>; 3],
}

/// One output, and its buffered lines.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// `None` is standard error, on which failures are reported.
    file: Option<LogFile>,
    chunk: Vec<u8>,
    lines: u64,
    failing: bool,
}

impl Output {
    pub(super) fn new(file: Option<LogFile>) -> Self {
        Self { file, ..Self::default() }
    }

    /// Buffers a line, after a rotation if the file is full. Returns the number of lost lines.
    pub(super) fn add(&mut self, line: &Line) -> u64 {
        let mut lost = 0;
        if self.file.as_ref().is_some_and(|file| file.is_full(self.chunk.len() + line.text.len())) {
            lost = self.flush();
            // If the next file cannot be created, the current one continues.
            let _ = self.file.as_mut().map(LogFile::rotate);
        }
        self.chunk.extend_from_slice(line.text.as_bytes());
        self.lines += 1;
        lost + if self.chunk.len() >= CHUNK { self.flush() } else { 0 }
    }

    /// Writes the buffer. Returns the number of lost lines, and reports the first failure.
    pub(super) fn flush(&mut self) -> u64 {
        if self.chunk.is_empty() {
            return 0;
        }
        let result = match &mut self.file {
            Some(file) => file.write_all(&self.chunk),
            None => write_all(io::stderr().lock(), &self.chunk),
        };
        self.chunk.clear();
        let lines = std::mem::take(&mut self.lines);
        let failed_before = std::mem::replace(&mut self.failing, result.is_err());
        let Err(error) = result else { return 0 };
        if let Some(file) = self.file.as_ref().filter(|_| !failed_before) {
            let name = file.name();
            super::to_stderr(&format!("log file {name} cannot be written, lines are lost: {error}"));
        }
        lines
    }
}

/// Writes all bytes, and waits for the reader of a non-blocking output: any process that shares standard error can make it
/// non-blocking.
fn write_all(mut output: impl Write + AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                retry_on_intr(|| poll(&mut [PollFd::new(&output, PollFlags::OUT)], None))?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Writer {
    fn new(options: &Options) -> io::Result<Self> {
        let stderr = Output::default();
        let mut writer = Self { options: options.clone(), stderr, files: [None, None, None] };
        if !options.logtostderr {
            writer.file(0)?;
        }
        Ok(writer)
    }

    /// Writes the lines to all outputs. Returns the number of failed deliveries.
    fn write<'a>(&mut self, lines: impl IntoIterator<Item = &'a Line>) -> u64 {
        let mut lost = 0;
        for line in lines {
            if self.reaches_stderr(line.severity) {
                lost += self.stderr.add(line);
            }
            for index in self.files_of(line.severity) {
                lost += self.file(index).map_or(1, |output| output.add(line));
            }
        }
        lost + self.stderr.flush() + self.files.iter_mut().flatten().map(Output::flush).sum::<u64>()
    }

    fn reaches_stderr(&self, severity: Severity) -> bool {
        let options = &self.options;
        if options.logtostderr {
            options.legacy_stderr_threshold_behavior || severity >= options.stderrthreshold
        } else if options.alsologtostderr {
            severity >= options.alsologtostderrthreshold
        } else {
            severity >= options.stderrthreshold
        }
    }

    fn files_of(&self, severity: Severity) -> std::ops::Range<usize> {
        let own = (severity as usize).min(self.files.len() - 1);
        match &self.options {
            options if options.logtostderr => 0..0,
            options if options.log_file.is_some() => 0..1,
            options if options.one_output => own..own + 1,
            _ => 0..own + 1,
        }
    }

    /// The file with this index, which is opened if it is not open.
    fn file(&mut self, index: usize) -> io::Result<&mut Output> {
        const SEVERITIES: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Error];
        let slot = &mut self.files[index];
        let file = match slot.take() {
            Some(file) => file,
            None => Output::new(Some(LogFile::open(&self.options, SEVERITIES[index])?)),
        };
        Ok(slot.insert(file))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn slow_reader_of_a_non_blocking_output_loses_nothing() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        rustix::io::ioctl_fionbio(&writer, true).expect("non-blocking");
        let text: Vec<u8> = (0_u8..251).cycle().take(1 << 20).collect();
        let expected = text.clone();
        let writing = std::thread::spawn(move || write_all(writer, &text));
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("reads");
        writing.join().expect("ends").expect("writes");
        assert!(read == expected, "{} bytes", read.len());
    }
}
