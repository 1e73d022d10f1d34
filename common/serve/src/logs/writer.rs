//! The writer's thread. Only this thread waits for standard error and for disks.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;

use super::file::LogFile;
use super::queue::{Line, Queue};
use super::{Format, LogError, Options, Severity, line};

/// How many bytes are written at once.
const CHUNK: usize = 64 * 1024;

/// Opens the outputs and starts the thread.
pub(super) fn start(options: &Options, queue: Arc<Queue>) -> Result<(), LogError> {
    let mut writer = Writer::new(options)?;
    let run = move || {
        let mut said = 0;
        while let Some(lines) = queue.take() {
            let lost = writer.write(lines.iter());
            queue.lost.inc_by(lost);
            let total = queue.lost.get();
            if total > said && lost == 0 {
                let notice = writer.notice(total - said);
                if writer.write([&notice].into_iter()) == 0 {
                    said = total;
                }
            }
        }
    };
    thread::Builder::new().name("log".to_owned()).spawn(run).map_err(LogError::Thread)?;
    Ok(())
}

/// All outputs.
#[derive(Debug)]
struct Writer {
    options: Options,
    stderr: Output<io::Stderr>,
    /// One file for `--log-file`; with `--log-dir` one per severity, opened when needed.
    files: [Option<Output<LogFile>>; 3],
}

/// One output, and its buffered lines.
#[derive(Debug)]
struct Output<W> {
    to: W,
    chunk: Vec<u8>,
    lines: u64,
    failing: bool,
}

impl<W> Output<W> {
    fn new(to: W) -> Self {
        Self { to, chunk: Vec::new(), lines: 0, failing: false }
    }

    fn add(&mut self, line: &Line) {
        self.chunk.extend_from_slice(line.text.as_bytes());
        self.lines += 1;
    }

    /// Passes the buffer to `write`. Returns the number of lost lines, and the error if the previous write succeeded.
    fn flush(&mut self, write: impl FnOnce(&mut W, &[u8]) -> io::Result<()>) -> (u64, Option<io::Error>) {
        if self.chunk.is_empty() {
            return (0, None);
        }
        let result = write(&mut self.to, &self.chunk);
        self.chunk.clear();
        let lines = std::mem::take(&mut self.lines);
        let failed_before = std::mem::replace(&mut self.failing, result.is_err());
        match result {
            Ok(()) => (0, None),
            Err(error) => (lines, Some(error).filter(|_| !failed_before)),
        }
    }
}

impl Writer {
    fn new(options: &Options) -> Result<Self, LogError> {
        let mut files = [None, None, None];
        if !options.logtostderr {
            files[0] = Some(Output::new(LogFile::open(options, Severity::Info)?));
        }
        Ok(Self { options: options.clone(), stderr: Output::new(io::stderr()), files })
    }

    /// Writes the lines to all outputs. Returns the number of failed deliveries.
    fn write<'a>(&mut self, lines: impl Iterator<Item = &'a Line>) -> u64 {
        let mut lost = 0;
        for line in lines {
            if self.reaches_stderr(line.severity) {
                self.stderr.add(line);
                if self.stderr.chunk.len() >= CHUNK {
                    lost += self.flush_stderr();
                }
            }
            for index in self.files_of(line.severity) {
                lost += self.add_to_file(index, line);
            }
        }
        lost + self.flush_stderr() + (0..self.files.len()).map(|index| self.flush_file(index)).sum::<u64>()
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

    fn add_to_file(&mut self, index: usize, line: &Line) -> u64 {
        const SEVERITIES: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Error];
        let Some((slot, severity)) = self.files.get_mut(index).zip(SEVERITIES.get(index)) else { return 0 };
        if slot.is_none() {
            match LogFile::open(&self.options, *severity) {
                Ok(file) => *slot = Some(Output::new(file)),
                Err(_) => return 1,
            }
        }
        let Some(output) = slot else { return 0 };
        let mut lost = 0;
        if output.to.is_full(output.chunk.len() + line.text.len()) {
            lost += self.flush_file(index);
            // If the next file cannot be created, the current one continues.
            let _ = self.files[index].as_mut().map(|output| output.to.rotate());
        }
        let Some(output) = self.files.get_mut(index).and_then(Option::as_mut) else { return lost };
        output.add(line);
        if output.chunk.len() >= CHUNK { lost + self.flush_file(index) } else { lost }
    }

    fn flush_stderr(&mut self) -> u64 {
        self.stderr.flush(|stderr, bytes| stderr.write_all(bytes)).0
    }

    fn flush_file(&mut self, index: usize) -> u64 {
        let Some(output) = self.files.get_mut(index).and_then(Option::as_mut) else { return 0 };
        let (lost, error) = output.flush(LogFile::write);
        if let Some(error) = error {
            let name = output.to.name();
            super::fatal(&format!("log file {name} cannot be written, lines are lost: {error}"));
        }
        lost
    }

    /// The line with the number of lost lines.
    fn notice(&self, lost: u64) -> Line {
        Line { severity: Severity::Warning, text: notice(&self.options, lost) }
    }
}

fn notice(options: &Options, lost: u64) -> String {
    let (klog, rfc3339) = line::notice_stamps();
    let pid = std::process::id();
    match options.format {
        Format::Text if options.skip_headers => format!("\"log lines were lost\" lines={lost}\n"),
        Format::Text => format!("W{klog} {pid:7} writer.rs:1] \"log lines were lost\" lines={lost}\n"),
        Format::Json => format!(
            "{{\"ts\":\"{rfc3339}\",\"level\":\"warn\",\"caller\":\"writer.rs:1\",\"msg\":\"log lines were lost\",\
             \"lines\":{lost}}}\n"
        ),
    }
}
